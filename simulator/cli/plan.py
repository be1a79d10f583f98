"""`batchlab plan`: the highest rate that keeps the service level, and the fleet for a rate."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from simulator.cli.options import (
    FormatOption,
    PoolOption,
    RayAddressOption,
    WorkersOption,
    takes_scenario,
)
from simulator.cli.printing import (
    INTERRUPTED,
    Format,
    columns,
    command_line,
    complain,
    note,
    show,
    show_rows,
    status,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from simulator.flags import Flags
    from simulator.planner import Question
    from simulator.runs import Runs
    from simulator.scenario import Scenario

STORE = "plan.sqlite"


@takes_scenario
def plan(
    scenario: Scenario,
    sla: Annotated[
        list[str] | None,
        typer.Option("--sla", help='A bound: "ttft p99 <= 800ms"; repeat it.', show_default=False),
    ] = None,
    attainment: Annotated[
        float | None,
        typer.Option(
            "--attainment", help="This share of requests must meet all terms.", show_default=False
        ),
    ] = None,
    by: Annotated[
        Literal["lane", "tenant"] | None,
        typer.Option("--by", help="Every lane, or tenant, must keep it.", show_default=False),
    ] = None,
    grid: Annotated[
        list[str] | None,
        typer.Option(
            "--grid", help="Settings to choose among: engine.block_size=16,32.", show_default=False
        ),
    ] = None,
    target_rate: Annotated[
        float | None,
        typer.Option(
            "--target-rate", help="Requests per second of the whole fleet.", show_default=False
        ),
    ] = None,
    gpu_hour_price: Annotated[
        float | None,
        typer.Option("--gpu-hour-price", help="Dollars for a GPU-hour.", show_default=False),
    ] = None,
    precision: Annotated[
        float, typer.Option("--precision", help="Half-width of the range, as a share.")
    ] = 0.05,
    out: Annotated[
        Path | None, typer.Option("-o", "--out", help="Folder for plan.json, a page, the runs.")
    ] = None,
    store_file: Annotated[
        Path | None,
        typer.Option("--store", help="File that keeps the runs.", show_default=False),
    ] = None,
    format: FormatOption = Format.table,
    workers: WorkersOption = -1,
    pool: PoolOption = "local",
    ray_address: RayAddressOption = None,
) -> None:
    """The highest rate that keeps the service level, for every setting, and what stops it.

    With --target-rate also the fleet; a recorded or a shaped load is sized at its own rate. Runs
    are kept in -o or --store: stopped or asked otherwise, the same runs are not made again.
    Exit code 1 where no rate keeps the level.
    """
    from reports.write import prepare
    from simulator.planner import Question
    from simulator.pool import pool_of
    from simulator.runs import Runs
    from simulator.search import Effort
    from simulator.store import Store
    from simulator.study import Objective
    from simulator.sweep import parse_grid
    from traces.sla import Sla

    question = Question(
        base=scenario,
        objective=Objective(
            sla=Sla.parse(sla) if sla else scenario.objectives(),
            attainment=attainment,
            by=by,
        ),
        grid=parse_grid(grid or ()),
        effort=Effort(precision=precision),
    )
    if target_rate is not None and not 0 < target_rate < math.inf:
        raise ValueError(f"--target-rate {target_rate}: expected requests per second above 0")
    if gpu_hour_price is not None and not 0 <= gpu_hour_price < math.inf:
        raise ValueError(f"--gpu-hour-price {gpu_hour_price}: expected dollars of at least 0")
    place = pool_of(pool, workers=workers, address=ray_address)
    folder = prepare(out) if out else None
    path = store_file or (folder / STORE if folder else None)
    store = Store(path) if path else None
    runs = Runs(store=store, pool=place)
    try:
        answered = _answer(question, runs, target_rate, gpu_hour_price)
    except KeyboardInterrupt:
        kept = f"; {runs.made} runs are kept in {path}; to go on: {command_line()}" if path else ""
        complain(f"interrupted{kept or '; give -o or --store to keep the runs'}")
        raise typer.Exit(INTERRUPTED) from None
    finally:
        if store is not None:
            store.close()
    _print(answered, format)
    note(f"{runs.made:,} runs made, {runs.found:,} found in the store")
    if folder:
        _write(answered, folder)
    errors = [one["error"] for one in answered["settings"]]
    if all(errors):
        raise ValueError(errors[0])
    if answered["best"] is None:
        complain("no rate keeps the service level")
        raise typer.Exit(1)


def _answer(
    question: Question, runs: Runs, target_rate: float | None, price: float | None
) -> dict[str, Any]:
    from simulator.flags import engine_flags
    from simulator.planner import advise, as_dict
    from simulator.planner import plan as make_plan
    from simulator.provision import provision

    with status("planning") as tell:
        found = make_plan(question, runs, lambda text, share: tell(f"{share:4.0%}  {text}"))
        target = target_rate
        if target is None and found.load.kind != "drawn":
            target = found.load.rate
        fleet = None
        if found.best is not None and target is not None:
            fleet = provision(
                question,
                found.load,
                found.best,
                runs,
                target=target,
                gpu_hour_price=price,
                on_progress=tell,
            )
        advice = advise(found, runs, tell)
    flags: Sequence[Flags] = ()
    if found.best is not None:
        flags = engine_flags(question.base.with_values(found.best.values))
    given = "rate" in question.base.trace.workload or found.load.kind == "recorded"
    return as_dict(
        found,
        fleet=fleet,
        flags=flags,
        advice=advice,
        asked_rate=found.load.rate if given else None,
    )


def _print(answered: dict[str, Any], format: Format) -> None:
    from reports.plans import plan_table, rows
    from reports.tables import to_json

    if format is Format.table:
        show(plan_table(answered, columns()))
    elif format is Format.json:
        sys.stdout.write(to_json(answered))
    else:
        show_rows(rows(answered), format)


def _write(answered: dict[str, Any], folder: Path) -> None:
    from reports.plan_page import plan_page
    from reports.tables import to_json
    from reports.write import write_text

    write_text(folder / "plan.json", to_json(answered))
    write_text(folder / "report.html", plan_page(answered, command=command_line()))
    note(f"written to {folder}/: plan.json, report.html, {STORE}")
