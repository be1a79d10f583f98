"""Simulated and real latencies over each other: a row a load, a column a latency."""

from __future__ import annotations

from collections.abc import Mapping

from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, MaxNLocator

from reports.figures.distributions import curve
from reports.figures.style import FAINT, ORANGE, drawing, latency_ticks, png, round_time
from reports.percentiles import Distribution

Known = Mapping[str, Distribution]


def validation_figure(loads: Mapping[str, tuple[Known, Mapping[str, Known]]]) -> bytes:
    """`loads`: by name, what was simulated and every real run, as distributions by latency."""
    metrics = list(dict.fromkeys(metric for ours, _ in loads.values() for metric in ours))
    metrics = [m for m in metrics if m != "queue"]
    with drawing(3.4 * len(metrics), 2.6 * len(loads) + 0.4) as figure:
        panels = figure.subplots(len(loads), len(metrics), squeeze=False)
        for row, (name, (ours, real)) in zip(panels, loads.items(), strict=True):
            for axes, metric in zip(row, metrics, strict=True):
                _panel(axes, metric, ours, real)
                axes.set_title(f"{name}: {metric.upper()}")
        drawn = next(axes for axes in panels.flat if len(axes.lines) > 1)
        figure.legend(
            [drawn.lines[0], drawn.lines[-1]], ["real", "simulated"],
            loc="outside lower center", ncols=2,
        )  # fmt: skip
        return png(figure)


def _panel(axes: Axes, metric: str, ours: Known, real: Mapping[str, Known]) -> None:
    drawn = False
    for run in real.values():
        if metric in run and run[metric].count:
            axes.step(*curve(run[metric]), where="post", color=FAINT, linewidth=2.6)
            drawn = True
    if metric in ours and ours[metric].count and drawn:
        axes.step(
            *curve(ours[metric]), where="post", color=ORANGE, linewidth=1.4, linestyle=(0, (4, 1.2))
        )
        low, high = axes.get_xlim()
        if low > 0 and high < 20 * low:
            axes.xaxis.set_major_locator(MaxNLocator(4))
            axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: round_time(value)))
        else:
            latency_ticks(axes)
    axes.set_ylim(0, 1)
    axes.set_yticks([0, 0.5, 0.9, 1], ["0", "50 %", "90 %", "100 %"])
