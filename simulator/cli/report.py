"""`batchlab report`: the page of a run again, or one page over several runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from simulator.cli.options import FormatOption, MetricsOption, WorkersOption
from simulator.cli.printing import (
    Format,
    command_line,
    note,
    progress,
    show_comparison,
    show_run,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from simulator.scenario import Scenario
    from traces.records import Records


def report(
    folders: Annotated[
        list[Path],
        typer.Argument(help="Output folders of simulate or compare.", show_default=False),
    ],
    out: Annotated[
        Path | None,
        typer.Option("-o", "--out", help="Folder for the page; by default that of the only run."),
    ] = None,
    format: FormatOption = Format.table,
    metrics: MetricsOption = "batchlab",
    workers: WorkersOption = -1,
) -> None:
    """Build the page and pictures of a run again, or one page over several runs.

    A scenario is its run: the runs are repeated from the scenarios in their folders.
    """
    from reports.latencies import Latencies
    from reports.write import prepare, write_comparison, write_run

    found = runs_in(folders)
    if len(folders) > 1 and out is None:
        raise ValueError("-o: missing; one page over several runs needs a folder of its own")
    folder = prepare(out or folders[0])
    runs = repeat(found, workers=workers)
    (first, records), *others = runs.items()
    sla = found[first].objectives()
    if others:
        summaries = write_comparison(runs, folder, sla=sla, metrics=metrics, command=command_line())
        show_comparison(summaries, format)
    else:
        summary = write_run(records, folder, sla=sla, metrics=metrics, command=command_line())
        show_run(Latencies(records), summary, format)
    note(f"written to {folder}/: report.html, figures/")


def runs_in(folders: Sequence[Path]) -> dict[str, Scenario]:
    """The scenarios of all runs in the folders, by name."""
    return {name: one for folder in folders for name, one in _runs_in(folder).items()}


def repeat(scenarios: Mapping[str, Scenario], *, workers: int) -> dict[str, Records]:
    """Run them again. Raises ValueError where one cannot be repeated."""
    from simulator.compare import compare

    measured = [name for name, one in scenarios.items() if one.executor.kind == "measured"]
    if measured:
        raise ValueError(f"{measured[0]}: its steps were measured, which cannot be repeated")
    with progress("simulating again") as update:
        done: list[str] = []

        def count(name: str, _: Records) -> None:
            done.append(name)
            update(len(done) / len(scenarios))

        return compare(scenarios, workers=workers, on_done=count)


def _runs_in(folder: Path) -> dict[str, Scenario]:
    """The scenarios whose runs a folder holds, by name. Raises ValueError where it holds none."""
    import json

    from simulator.scenario import Scenario

    path = folder / "summary.json"
    try:
        summary = json.loads(path.read_text(encoding="utf-8"))
        runs = summary.get("runs", {folder.name: summary})
        return {name: Scenario.of(one["scenario"]) for name, one in runs.items()}
    except FileNotFoundError:
        raise ValueError(f"{folder}: no run in it, {path.name} is missing") from None
    except (json.JSONDecodeError, AttributeError, KeyError, TypeError):
        raise ValueError(f"{path}: not a summary that simulate or compare wrote") from None
