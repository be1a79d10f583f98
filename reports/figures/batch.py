"""What a step is made of: prefill and decode tokens, over time."""

from __future__ import annotations

from collections.abc import Mapping

from reports.figures.style import BLUE, ORANGE, drawing, name_time_axis, png
from reports.figures.time import shared_end
from reports.latencies import Latencies
from reports.timelines import timeline


def batch_figure(runs: Mapping[str, Latencies]) -> bytes:
    """A panel per run: mean tokens per step, decodes below, prefill above."""
    end = shared_end(runs)
    width = 8.4 if len(runs) == 1 else 2.2 + 2.9 * len(runs)
    with drawing(width, 2.9) as figure:
        grid = figure.subplots(1, len(runs), sharex=True, sharey=True, squeeze=False)
        for column, (name, run) in enumerate(runs.items()):
            line = timeline(run, 240, end_s=end)
            axes = grid[0, column]
            decodes, total = line.decodes, line.decodes + line.prefill_tokens
            axes.stairs(total, line.edges, baseline=decodes, fill=True, color=ORANGE,
                        alpha=0.75, label="prefill")  # fmt: skip
            axes.stairs(decodes, line.edges, fill=True, color=BLUE, label="decode")
            axes.set_title(name or "Tokens in a step")
            name_time_axis(axes)
            if not column:
                axes.set_ylabel("tokens per step (mean)")
                axes.legend(loc="upper right", ncols=2, fontsize=8.5, borderaxespad=0.1)
        for axes in grid.flat:  # once all is drawn: panels share their scale
            axes.set_xlim(0, end or 1)
            axes.set_ylim(0, axes.get_ylim()[1] * 1.12)
        return png(figure)
