"""Pictures of a run, a comparison and a sweep, as PNG bytes: the only place that draws.

The same records give the same bytes. Nothing is said by colour alone: lines differ in dash,
bars in hatch.
"""

from __future__ import annotations

from collections.abc import Mapping

from reports.figures.batch import batch_figure
from reports.figures.distributions import latency_figure
from reports.figures.heat import heat_map, sweep_figures
from reports.figures.slot_bars import slot_figure
from reports.figures.time import time_figure
from reports.latencies import Latencies
from traces.sla import Sla

__all__ = ["comparison_figures", "heat_map", "run_figures", "sweep_figures"]


def run_figures(run: Latencies, sla: Sla | None = None) -> dict[str, bytes]:
    """`latency`, `timeline`, `batch`, `slots`: PNG by name."""
    return comparison_figures({"": run}, sla)


def comparison_figures(runs: Mapping[str, Latencies], sla: Sla | None = None) -> dict[str, bytes]:
    """The same, of several runs in one picture each, on the same scales."""
    return {
        "latency": latency_figure(runs, sla),
        "timeline": time_figure(runs),
        "batch": batch_figure(runs),
        "slots": slot_figure(runs),
    }
