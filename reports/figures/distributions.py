"""Cumulative distributions of TTFT and ITL, stretched towards the tail, with the SLA drawn in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import NDArray

from reports.figures.style import DASHES, INK, RED, SERIES, drawing, latency_ticks, png, round_time
from reports.latencies import Latencies
from reports.percentiles import Distribution
from traces.sla import Sla
from traces.trace import PS_PER_S

PANELS = {
    "ttft": ("Time to first token (TTFT)", "share of requests that waited at most this long"),
    "itl": ("Gap between tokens (ITL)", "share of gaps at most this long"),
}
_SHARES = (0.0, 0.5, 0.9, 0.99, 0.999, 0.9999)


def latency_figure(runs: Mapping[str, Latencies], sla: Sla | None = None) -> bytes:
    """One panel per metric, one line per run."""
    with drawing(9.6, 4.2 if len(runs) == 1 else 4.6) as figure:
        panels = figure.subplots(1, 2)
        for axes, metric in zip(panels, PANELS, strict=True):
            _panel(axes, metric, runs, sla)
        if len(runs) > 1:
            figure.legend(
                *panels[0].get_legend_handles_labels(),
                loc="outside lower center",
                ncols=min(len(runs), 5),
                handlelength=2.8,
            )
        return png(figure)


def curve(known: Distribution, points: int = 600) -> tuple[NDArray[Any], NDArray[Any]]:
    """Values in seconds and the share at or below each, denser towards the tail."""
    count = known.count
    even = np.linspace(0, 1, points)
    tail = 1 - np.geomspace(1, max(1 / count, 1e-6), points)
    ranks = np.unique(np.ceil(np.concatenate([even, tail]) * count).astype(np.int64).clip(1))
    at = np.searchsorted(known.ranks, ranks)
    return known.values[at] / PS_PER_S, ranks / count


def _panel(axes: Axes, metric: str, runs: Mapping[str, Latencies], sla: Sla | None) -> None:
    title, label = PANELS[metric]
    known = {name: run.distribution(metric) for name, run in runs.items()}
    count = max((one.count for one in known.values()), default=0)
    top = next((s for s in _SHARES[2:] if count * (1 - s) <= 1), _SHARES[-1])
    for at, (name, one) in enumerate(known.items()):
        if one.count:
            values, shares = curve(one)
            axes.step(
                np.append(values[:1], values),
                np.append(0, shares),
                where="post",
                color=SERIES[at % len(SERIES)],
                linestyle=DASHES[at % len(DASHES)],
                label=name,
            )
            if len(runs) == 1:
                _mark(axes, one)
    axes.set_title(title, pad=17 if sla else None)
    axes.set_xlabel(f"{metric.upper()} (log scale)")
    axes.set_ylabel(label)
    # Equal steps from 90 % to 99 % to 99.9 %: the tail is what an SLA is about.
    axes.set_yscale("function", functions=(_stretch, _shrink))
    ticks = [s for s in _SHARES if s <= top]
    axes.set_yticks(ticks, [f"{s * 100:g} %" for s in ticks])
    axes.set_ylim(0, 1 - (1 - top) / 1.6)
    if count:
        latency_ticks(axes)
        if len(runs) == 1:
            low, high = axes.get_xlim()
            axes.set_xlim(low, high * 2.5)  # room for what the marks say
    for term in sla or ():
        if term.metric == metric:
            _bound(axes, term.bound_s, f"SLA {term.statistic} ≤ {round_time(term.bound_s)}")


def _mark(axes: Axes, known: Distribution) -> None:
    for share in (50, 99):
        value = known.percentile(share)
        if value is not None and known.count > 100 / (100 - share):
            axes.plot(value / PS_PER_S, share / 100, "o", color=INK, markersize=4.5, zorder=5)
            axes.annotate(
                f"P{share} {round_time(value / PS_PER_S)}",
                (value / PS_PER_S, share / 100),
                xytext=(7, -4),  # right and below of a rising line is free
                textcoords="offset points",
                va="top",
                fontsize=8.5,
            )


def _bound(axes: Axes, bound_s: float, text: str) -> None:
    low, high = axes.get_xlim()
    axes.set_xlim(min(low, bound_s / 1.5), max(high, bound_s * 1.8))
    axes.axvline(bound_s, color=RED, linewidth=1.3, linestyle=(0, (4, 2)))
    axes.axvspan(bound_s, axes.get_xlim()[1], color=RED, alpha=0.06, linewidth=0)
    axes.annotate(
        text,
        (bound_s, 1),
        xycoords=("data", "axes fraction"),
        xytext=(0, 3),
        textcoords="offset points",
        ha="center",
        va="bottom",
        color=RED,
        fontsize=8.5,
    )


def _stretch(share: Any) -> Any:
    return -np.log10(np.maximum(1 - np.asarray(share), 1e-12))


def _shrink(stretched: Any) -> Any:
    return 1 - 10 ** -np.asarray(stretched)
