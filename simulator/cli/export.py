"""`batchlab export`: a run in the forms that other tools read."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from simulator.cli.options import MetricsOption, WorkersOption
from simulator.cli.printing import note
from simulator.cli.report import repeat, runs_in

if TYPE_CHECKING:
    from reports.latencies import Latencies
    from simulator.scenario import Scenario


class Form(StrEnum):
    """What is written."""

    perfetto = "perfetto"
    csv = "csv"
    parquet = "parquet"
    bench = "bench"


def export(
    folders: Annotated[
        list[Path],
        typer.Argument(help="Output folders of simulate or compare.", show_default=False),
    ],
    to: Annotated[
        Form,
        typer.Option("--to", help="bench: a result file as the tool of --metrics writes it."),
    ] = Form.perfetto,
    out: Annotated[
        Path | None,
        typer.Option("-o", "--out", help="Folder for the files; by default that of the only run."),
    ] = None,
    start: Annotated[
        str | None, typer.Option("--start", help='Of a Perfetto trace: from then on, as "2min".')
    ] = None,
    duration: Annotated[
        str | None, typer.Option("--duration", help="Of a Perfetto trace: so much of it.")
    ] = None,
    metrics: MetricsOption = "vllm",
    workers: WorkersOption = -1,
) -> None:
    """A run for other tools: a timeline for ui.perfetto.dev, tables, benchmark results.

    A scenario is its run: the runs are repeated from the scenarios in their folders.
    """
    from reports.latencies import Latencies
    from reports.write import prepare

    if to is Form.bench and metrics == "batchlab":
        raise ValueError("--metrics batchlab: expected vllm, aiperf or guidellm with --to bench")
    since, until = _window(start, duration)
    found = runs_in(folders)
    if len(folders) > 1 and out is None:
        raise ValueError("-o: missing; several runs need a folder of their own")
    folder = prepare(out or folders[0])
    written = []
    for name, records in repeat(found, workers=workers).items():
        prefix = "" if len(found) == 1 else f"{name}_".replace("/", "-").replace(":", "-")
        run = Latencies(records)
        if to is Form.perfetto:
            path = folder / f"{prefix}trace.perfetto.json"
            _write_perfetto(run, path, since, until)
            written.append(path.name)
        elif to is Form.bench:
            path = folder / f"{prefix}{metrics}.json"
            _write_bench(run, found[name], metrics, path)
            written.append(path.name)
        else:
            written += _write_tables(run, folder, prefix, to)
    note(f"written to {folder}/: {', '.join(written)}")


def _window(start: str | None, duration: str | None) -> tuple[float, float]:
    from simulator.sections import seconds

    since = 0.0 if start is None else seconds(start)
    return since, float("inf") if duration is None else since + seconds(duration)


def _write_perfetto(run: Latencies, path: Path, since: float, until: float) -> None:
    from reports.perfetto import perfetto
    from reports.write import write_text

    write_text(path, perfetto(run, start_s=since, end_s=until))


def _write_bench(run: Latencies, scenario: Scenario, metrics: str, path: Path) -> None:
    from reports.metrics import summarize
    from reports.tables import to_json
    from reports.tool_results import tool_result
    from reports.write import write_text

    summary = summarize(run, scenario.objectives(), metrics=metrics)
    write_text(path, to_json(tool_result(run, summary)))


def _write_tables(run: Latencies, folder: Path, prefix: str, to: Form) -> list[str]:
    from reports.frames import requests_frame, steps_frame
    from reports.write import write_frame, write_parquet

    write = write_parquet if to is Form.parquet else write_frame
    names = []
    for name, frame in (("requests", requests_frame(run)), ("steps", steps_frame(run))):
        path = folder / f"{prefix}{name}.{to}"
        write(path, frame)
        names.append(path.name)
    return names
