"""`batchlab whatif`: a base against variants, and what is more than chance."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from simulator.cli.options import (
    FormatOption,
    PoolOption,
    RayAddressOption,
    WorkersOption,
    takes_scenario,
)
from simulator.cli.printing import (
    Format,
    columns,
    command_line,
    note,
    progress,
    show,
    show_rows,
)

if TYPE_CHECKING:
    from simulator.scenario import Scenario

STORE = "whatif.sqlite"


@takes_scenario
def whatif(
    scenario: Scenario,
    set_: Annotated[
        list[str],
        typer.Option(
            "--set",
            metavar="VARIANT",
            help='One variant: "engine.block_size=32", "rate*=2; prompt*=1.5", "lose=0@10min".',
        ),
    ],
    runs: Annotated[int, typer.Option("--runs", min=2, help="Seeds that each is run with.")] = 5,
    out: Annotated[
        Path | None, typer.Option("-o", "--out", help="Folder for whatif.json and a page.")
    ] = None,
    format: FormatOption = Format.table,
    workers: WorkersOption = -1,
    pool: PoolOption = "local",
    ray_address: RayAddressOption = None,
) -> None:
    """What changes, by how much, and is it more than chance?

    The base is the scenario and its flags; every --set is one variant of it, run on the same
    requests seed by seed.
    """
    from reports.tables import to_json
    from reports.whatifs import rows, whatif_page, whatif_table
    from reports.write import prepare, write_text
    from simulator.pool import pool_of
    from simulator.runs import Runs
    from simulator.store import Store
    from simulator.whatif import what_if

    place = pool_of(pool, workers=workers, address=ray_address)
    folder = prepare(out) if out else None
    store = Store(folder / STORE) if folder else None
    try:
        with progress(f"simulating {len(set_) + 1} scenarios") as update:
            answer = what_if(
                scenario, set_, Runs(store=store, pool=place), seeds=runs, on_progress=update
            )
    finally:
        if store is not None:
            store.close()
    plain = dataclasses.asdict(answer) | {"schema": 1}
    for variant, told in zip(plain["variants"], answer.variants, strict=True):
        for one, difference in zip(variant["differences"], told.differences, strict=True):
            one["real"] = difference.real
    if format is Format.table:
        show(whatif_table(plain, columns()), whole=True)
    elif format is Format.json:
        sys.stdout.write(to_json(plain))
    else:
        show_rows(rows(plain), format)
    if folder:
        write_text(folder / "whatif.json", to_json(plain))
        write_text(folder / "report.html", whatif_page(plain, command=command_line()))
        note(f"written to {folder}/: whatif.json, report.html, {STORE}")
    failed = [variant for variant in answer.variants if variant.error]
    if len(failed) == len(answer.variants):
        raise ValueError(f"{failed[0].name}: {failed[0].error}")
