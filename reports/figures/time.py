"""What the engine did over time: requests, running and waiting, KV pool, preemptions."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import PercentFormatter
from numpy.typing import NDArray

from reports.figures.style import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    RED,
    drawing,
    name_time_axis,
    png,
)
from reports.latencies import Latencies
from reports.timelines import Floats, Timeline, timeline
from traces.trace import PS_PER_S

Bools = NDArray[np.bool_]


def shared_end(runs: Mapping[str, Latencies]) -> float:
    """Seconds to the end of the longest run: one time axis for all."""
    return max((run.wall for run in runs.values()), default=0) / PS_PER_S


def time_figure(runs: Mapping[str, Latencies]) -> bytes:
    """A column per run; rows: rates, running, waiting, KV, preemptions if there are any."""
    end = shared_end(runs)
    lines = {name: timeline(run, 240, end_s=end) for name, run in runs.items()}
    # Rates are counts in a stretch: short stretches would show the noise of counting.
    rates = {name: timeline(run, 60, end_s=end) for name, run in runs.items()}
    rows = [_rates, _running, _waiting, _pool]
    if any(line.preempted.any() for line in lines.values()):
        rows.append(_preemptions)
    width = 8.4 if len(runs) == 1 else 2.2 + 2.9 * len(runs)
    with drawing(width, 0.7 + 1.5 * len(rows)) as figure:
        grid = figure.subplots(len(rows), len(runs), sharex=True, sharey="row", squeeze=False)
        for column, (name, run) in enumerate(runs.items()):
            for row, panel in enumerate(rows):
                axes = grid[row, column]
                line = (rates if panel in (_rates, _preemptions) else lines)[name]
                panel(axes, line, line.middle <= run.wall / PS_PER_S)
                if column:
                    axes.set_ylabel("")
            if name:
                grid[0, column].set_title(name)
            name_time_axis(grid[-1, column])
        for axes in grid.flat:  # once all is drawn: rows share their scale
            axes.set_ylim(bottom=0)
            axes.set_xlim(0, end or 1)
        _legend(grid[0, 0])
        return png(figure)


def _rates(axes: Axes, line: Timeline, shown: Bools) -> None:
    axes.plot(line.middle[shown], line.arrivals[shown], color=GREY, linestyle=(0, (3, 1.2)),
              linewidth=1.3, label="arrived")  # fmt: skip
    axes.plot(line.middle[shown], line.finishes[shown], color=GREEN, label="finished")
    axes.set_ylabel("requests/s")


def _running(axes: Axes, line: Timeline, shown: Bools) -> None:
    _area(axes, line, line.running, shown, BLUE)
    axes.set_ylabel("running")


def _waiting(axes: Axes, line: Timeline, shown: Bools) -> None:
    _area(axes, line, line.waiting, shown, ORANGE)
    axes.set_ylabel("waiting")
    if not line.waiting.any():
        axes.set_ylim(0, max(axes.get_ylim()[1], 1))


def _pool(axes: Axes, line: Timeline, shown: Bools) -> None:
    axes.set_ylabel("KV blocks free")
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    if line.used_share is not None:
        _area(axes, line, 1 - line.used_share, shown, GREEN)
    axes.set_ylim(0, 1.04)


def _preemptions(axes: Axes, line: Timeline, shown: Bools) -> None:
    width = np.diff(line.edges)
    axes.bar(line.edges[:-1], line.preempted / width, width, align="edge", color=RED, linewidth=0)
    axes.set_ylabel("preemptions/s")


def _area(axes: Axes, line: Timeline, values: Floats, shown: Bools, colour: str) -> None:
    axes.fill_between(line.middle[shown], values[shown], color=colour, alpha=0.18, linewidth=0)
    axes.plot(line.middle[shown], values[shown], color=colour, linewidth=1.3)


def _legend(axes: Axes) -> None:
    axes.legend(loc="upper right", ncols=2, fontsize=8.5, borderaxespad=0.1)
