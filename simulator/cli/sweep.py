"""`batchlab sweep`: every cell of a grid of settings."""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from simulator.cli.options import (
    FormatOption,
    PoolOption,
    RayAddressOption,
    WorkersOption,
    count_option,
    takes_scenario,
)
from simulator.cli.printing import (
    INTERRUPTED,
    Format,
    command_line,
    complain,
    note,
    progress,
    show_rows,
)

if TYPE_CHECKING:
    from simulator.scenario import Scenario

STORE = "cells.sqlite"


class Export(StrEnum):
    """Forms of the table that is written."""

    csv = "csv"
    parquet = "parquet"


@takes_scenario
def sweep(
    scenario: Scenario,
    grid: Annotated[
        list[str], typer.Option("--grid", help="An axis: engine.block_size=8,16,32; repeat it.")
    ],
    out: Annotated[
        Path, typer.Option("-o", "--out", help="Folder for results; a sweep goes on from there.")
    ] = Path("sweep"),
    format: FormatOption = Format.table,
    sample: Annotated[
        int | None,
        count_option("--random", least=1, help="Only so many cells, drawn by the seed."),
    ] = None,
    export: Annotated[Export, typer.Option("--export", help="How the table is written.")] = (
        Export.csv
    ),
    store_file: Annotated[
        Path | None,
        typer.Option("--store", help="Results of several sweeps in one file.", show_default=False),
    ] = None,
    workers: WorkersOption = -1,
    pool: PoolOption = "local",
    ray_address: RayAddressOption = None,
    retry_failed: Annotated[
        bool, typer.Option("--retry-failed", help="Run cells again whose run broke.")
    ] = False,
) -> None:
    """Every combination of settings, on all cores: a CSV, and a heat map per metric.

    Each cell is kept in the folder as it finishes: interrupted or killed, the same command goes
    on. Cells with settings that can never work are marked and cost nothing.
    """
    from reports.write import prepare, write_bytes, write_text
    from simulator.pool import pool_of
    from simulator.store import Store
    from simulator.sweep import parse_grid
    from simulator.sweep import sweep as run_sweep
    from simulator.sweep_results import heat_maps, page, shown, to_csv, to_json, to_parquet

    axes = parse_grid(grid)
    place = pool_of(pool, workers=workers, address=ray_address)
    folder = prepare(out)
    path = store_file or folder / STORE
    store = Store(path)
    kept, total = 0, 0
    try:
        with progress("sweeping") as update:

            def count(finished: int, cells: int) -> None:
                nonlocal kept, total
                kept, total = finished, cells
                update(finished / cells)

            cells = run_sweep(
                scenario,
                axes,
                store,
                pool=place,
                sample=sample,
                retry_failed=retry_failed,
                on_cell=count,
            )
    except KeyboardInterrupt:
        complain(
            f"interrupted; {kept} of {total or 'all'} cells are kept in {path}; "
            f"to go on: {command_line()}"
        )
        raise typer.Exit(INTERRUPTED) from None
    finally:
        store.close()
    write_text(folder / "scenario.toml", scenario.dump(folder))
    if export is Export.csv:
        write_text(folder / "sweep.csv", to_csv(cells))
    else:
        write_bytes(folder / "sweep.parquet", to_parquet(cells))
    pictures = heat_maps(scenario, axes, cells) if sample is None else {}
    for name, picture in pictures.items():
        write_bytes(folder / f"{name}.png", picture)
    write_text(folder / "report.html", page(scenario, axes, cells, command_line()))
    if format is Format.table:
        show_rows(shown(cells), format)
    else:
        sys.stdout.write(to_csv(cells) if format is Format.csv else to_json(cells))
    maps = ", heat_*.png" if pictures else ""
    note(f"written to {folder}/: report.html, sweep.{export}{maps}; results are kept in {path}")
    outcomes = [cell.outcome for cell in cells]
    for status, code in (("failed", 1), ("invalid", 2)):
        errors = [outcome.error for outcome in outcomes if outcome.status == status]
        if errors:
            complain(f"{len(errors)} of {len(cells)} cells are {status}; the first: {errors[0]}")
        if errors and (status == "failed" or len(errors) == len(cells)):
            raise typer.Exit(code)
