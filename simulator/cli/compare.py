"""`batchlab compare`: policies on the very same requests."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from simulator.cli.options import FormatOption, MetricsOption, WorkersOption, takes_scenario
from simulator.cli.printing import (
    INTERRUPTED,
    Format,
    command_line,
    note,
    progress,
    show_comparison,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from simulator.scenario import Scenario
    from traces.records import Records

ALL = "static,continuous,chunked,fast-lane"


@takes_scenario
def compare(
    scenario: Scenario,
    policies: Annotated[
        str, typer.Option("--policies", help="By name; settings follow: static:batch=64.")
    ] = ALL,
    out: Annotated[
        Path | None, typer.Option("-o", "--out", help="Folder for files, page and pictures.")
    ] = None,
    format: FormatOption = Format.table,
    metrics: MetricsOption = "batchlab",
    workers: WorkersOption = -1,
) -> None:
    """Several policies on the very same requests, side by side.

    Settings of the scenario's policy hold for each policy that knows them.
    """
    run_comparison(scenario, policies.split(","), out, format, metrics, workers)


def run_comparison(
    scenario: Scenario,
    policies: Sequence[str],
    out: Path | None,
    format: Format,
    metrics: str = "batchlab",
    workers: int = -1,
) -> None:
    """Run, write to `out` if given, and print."""
    from reports.metrics import compare as summarize_all
    from reports.write import prepare, write_comparison, write_text
    from simulator import compare as comparing

    folder = prepare(out) if out else None
    scenarios = comparing.variants(scenario, policies)
    finished: dict[str, Records] = {}
    sla = scenario.objectives()
    with progress(f"simulating {len(scenarios)} policies") as update:

        def keep(name: str, records: Records) -> None:
            finished[name] = records
            update(len(finished) / len(scenarios))

        try:
            runs = comparing.compare(scenarios, workers=workers, on_done=keep)
        except KeyboardInterrupt:
            if finished:
                note(f"interrupted: {len(finished)} of {len(scenarios)} policies had finished")
                show_comparison(summarize_all(finished, sla, metrics=metrics), format)
                raise typer.Exit(INTERRUPTED) from None
            raise
    if folder:
        write_text(folder / "scenario.toml", scenario.resolved().dump(folder))
        with progress("drawing"):
            summaries = write_comparison(
                runs, folder, sla=sla, metrics=metrics, command=command_line()
            )
        note(f"written to {folder}/: report.html, summary.json, summary.csv, figures/")
    else:
        summaries = summarize_all(runs, sla, metrics=metrics)
    show_comparison(summaries, format)
