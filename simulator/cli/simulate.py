"""`batchlab simulate`: one run."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from simulator.cli.options import FormatOption, MetricsOption, takes_scenario
from simulator.cli.printing import (
    INTERRUPTED,
    Format,
    command_line,
    complain,
    note,
    progress,
    show,
    show_run,
    status,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from reports.latencies import Latencies
    from simulator.scenario import Scenario
    from simulator.stream import RecordsWriter
    from traces.records import Records


@takes_scenario
def simulate(
    scenario: Scenario,
    out: Annotated[
        Path | None, typer.Option("-o", "--out", help="Folder for files, page and pictures.")
    ] = None,
    raw: Annotated[
        Path | None,
        typer.Option("--records", help="Folder for the raw records, written during the run."),
    ] = None,
    format: FormatOption = Format.table,
    metrics: MetricsOption = "batchlab",
    no_leap: Annotated[
        bool, typer.Option("--no-leap", help="Step by step: the same results, slower.")
    ] = False,
    check_leap: Annotated[
        bool, typer.Option("--check-leap", help="Run both ways and compare the records.")
    ] = False,
    strict_profile: Annotated[
        bool, typer.Option("--strict-profile", help="Fail where steps leave the measured grid.")
    ] = False,
    cures: Annotated[
        bool, typer.Option("--cures/--no-cures", help="Where there is trouble, try what cures it.")
    ] = True,
) -> None:
    """One run: a table; with -o also tables, a summary, a page and pictures.

    Where requests are preempted again and again, or throughput collapses, cures are tried in
    simulation and what they do is said (tables only). Exit code 1 where the scenario has an SLA
    and the run misses it.
    """
    from reports.latencies import Latencies
    from reports.metrics import summarize
    from reports.write import prepare

    folder = prepare(out) if out else None
    if raw and out and raw.resolve() == out.resolve():
        raise ValueError(f"--records {raw}: expected another folder than that of --out")
    if raw:
        records = _streamed(scenario, raw, leap=not no_leap)
    else:
        records = _run(scenario, "simulating", leap=not no_leap)
    if check_leap:
        _compare(records, _run(scenario, "once more, the other way", leap=no_leap))
    run = Latencies(records)
    if recovery := _recovery(scenario, run):
        records.about["notes"].append(recovery)
    summary = summarize(run, scenario.objectives(), metrics=metrics)
    advice = None
    if cures and (folder or format is Format.table) and scenario.executor.kind == "predicted":
        advice = _advice(scenario, run, summary)
    if folder:
        _write(
            scenario, replace(records, about=records.about | {"remedies": advice}), folder, metrics
        )
    show_run(run, summary, format)
    if advice and format is Format.table:
        _show_advice(advice)
    if outside := strict_profile and summary["profile"]["outside_grid_share"]:
        complain(
            f"--strict-profile: {outside:.2%} of the time was spent in steps outside the grid on "
            f"which {summary['profile']['name']} was measured"
        )
        raise typer.Exit(1)
    broken = [term for term, met in (summary["sla"] or {"met": {}})["met"].items() if not met]
    if broken:
        complain(f"the SLA is missed: {', '.join(broken)}")
        raise typer.Exit(1)


def _run(
    scenario: Scenario, what: str, *, leap: bool, writer: RecordsWriter | None = None
) -> Records:
    with progress(what) as update:
        return scenario.run(
            leap=leap, on_progress=lambda ended, all: update(ended / all), writer=writer
        )


def _streamed(scenario: Scenario, folder: Path, *, leap: bool) -> Records:
    """A run whose raw records are written meanwhile. Interrupted, it says what is kept."""
    from simulator.stream import RecordsWriter

    writer = RecordsWriter(folder)
    try:
        with writer:
            records = _run(scenario, "simulating", leap=leap, writer=writer)
    except KeyboardInterrupt:
        if not writer.tables:
            raise
        kept = ", ".join(f"{table.rows:,} {name}" for name, table in writer.tables.items())
        complain(f"interrupted; kept in {folder}/: {kept}")
        raise typer.Exit(INTERRUPTED) from None
    names = ", ".join(table.path.name for table in writer.tables.values())
    note(f"written to {folder}/: {names}, about.json")
    return records


def _advice(
    scenario: Scenario, run: Latencies, summary: Mapping[str, Any]
) -> dict[str, Any] | None:
    """Trouble, recognised, and its cures, tried; in plain form. None where there is none."""
    from reports.avalanche import avalanche
    from simulator.remedies import TOO_MANY

    rate = summary["preemptions"]["per_request"] or 0.0
    if rate <= TOO_MANY and avalanche(run) is None:
        return None
    from reports.evidence import Evidence
    from simulator.remedies import remedies
    from simulator.runs import Runs

    with status("trying cures") as tell:
        advice = remedies(scenario, Evidence.of(run.records), Runs(), on_cure=tell)
    return asdict(advice) if advice else None


def _recovery(scenario: Scenario, run: Latencies) -> str | None:
    """Whether and when the backlog recovered from a load that ramped up and returned."""
    from reports.avalanche import recovered_s
    from traces.arrivals import Ramp
    from traces.workload import Workload

    load = scenario.trace.workload
    if "ramp" not in str(load.get("arrivals")):
        return None
    ramp = Workload.from_table(load).arrivals
    if not isinstance(ramp, Ramp):
        return None
    rises = ramp.before_s
    returns = rises + ramp.up_s + ramp.hold_s + ramp.down_s
    at = recovered_s(run, rises_s=rises, returns_s=returns)
    if at is None:
        return "After the ramp the backlog never came back to what it was before."
    return (
        f"After the ramp the load is back at {returns:,.0f} s and the backlog at {at:,.0f} s: "
        f"{at - returns:,.0f} s to recover."
    )


def _show_advice(advice: Mapping[str, Any]) -> None:
    from rich.text import Text

    from reports.advice import advice_lines

    for line in advice_lines(advice):
        show(Text(f"· {line}"))


def _write(scenario: Scenario, records: Records, folder: Path, metrics: str) -> None:
    from reports.write import write_run, write_text

    write_text(folder / "scenario.toml", scenario.resolved().dump(folder))
    with progress("drawing"):
        write_run(
            records, folder, sla=scenario.objectives(), metrics=metrics, command=command_line()
        )
    note(f"written to {folder}/: report.html, summary.json, requests.csv, steps.csv, figures/")


def _compare(run: Records, other: Records) -> None:
    """Raises typer.Exit(1), saying which, where two runs left different records."""
    for name in ("requests", "steps", "spells", "stalls"):
        if not getattr(run, name).equals(getattr(other, name)):
            complain(f"leaping on and off differ in {name}: a fault of the simulator or the policy")
            raise typer.Exit(1)
    note("leaping on and off: the same records")
