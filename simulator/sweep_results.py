"""What a sweep is written as: a CSV, JSON, a table for people, heat maps."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from reports import tables
from simulator.scenario import Scenario
from simulator.sweep import Cell


def to_csv(cells: Sequence[Cell]) -> str:
    """One line a cell in the grid's order: its values, every figure by dotted path, its error."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    rows = _rows(cells)
    writer.writerow(rows[0])
    writer.writerows(["" if value is None else value for value in row.values()] for row in rows)
    return out.getvalue()


def to_parquet(cells: Sequence[Cell]) -> bytes:
    """The same table as Parquet. Raises ValueError where pyarrow is not installed."""
    import pandas as pd

    out = io.BytesIO()
    try:
        pd.DataFrame(_rows(cells)).to_parquet(out, index=False, engine="pyarrow")
    except ImportError:
        raise ValueError("--export parquet needs pyarrow: pip install pyarrow") from None
    return out.getvalue()


def to_json(cells: Sequence[Cell]) -> str:
    """A list of cells in the grid's order, each with its values, status, error and summary."""
    rows = [
        {
            "values": dict(cell.values),
            "status": cell.outcome.status,
            "error": cell.outcome.error,
            "summary": cell.outcome.summary,
        }
        for cell in cells
    ]
    return tables.to_json(rows)


def shown(cells: Sequence[Cell]) -> list[dict[str, str]]:
    """The metrics of the heat maps as people read them, one row a cell.

    Left out is what says nothing: metrics that no cell has or that are 0 in all, and the status
    where all are done.
    """
    from reports.swept import SWEPT

    found = [
        {name: tables.value_at(cell.outcome.summary or {}, row.path) for name, row in SWEPT.items()}
        for cell in cells
    ]
    telling = [name for name in SWEPT if any(values[name] for values in found)]
    all_done = all(cell.outcome.status == "done" for cell in cells)
    last = [key.rpartition(".")[2] for key in cells[0].values]
    names = {
        key: key if last.count(short) > 1 else short
        for key, short in zip(cells[0].values, last, strict=True)
    }
    rows = []
    for cell, values in zip(cells, found, strict=True):
        axes = {names[key]: str(value) for key, value in cell.values.items()}
        status = {} if all_done else {"status": str(cell.outcome.status)}
        metrics = {SWEPT[name].label: SWEPT[name].form(values[name]) for name in telling}
        rows.append(axes | status | metrics)
    return rows


def heat_maps(
    base: Scenario, grid: Mapping[str, Sequence[Any]], cells: Sequence[Cell]
) -> dict[str, bytes]:
    """PNGs by name: a metric over the first two axes, for each combination of the others."""
    from reports.figures.heat import sweep_figures

    axes = list(grid)
    x = axes[0], list(grid[axes[0]])
    y = (axes[1], list(grid[axes[1]])) if axes[1:] else ("policy.kind", [base.policy.kind])
    planes: dict[str, dict[tuple[Any, Any], Mapping[str, Any] | None]] = {}
    for cell in cells:
        others = "".join(f"_{key}={cell.values[key]}" for key in axes[2:])
        at = cell.values[x[0]], cell.values.get(y[0], y[1][0])
        planes.setdefault(re.sub(r"[^\w.=-]", "-", others), {})[at] = cell.outcome.summary
    return {
        f"{name}{others}": picture
        for others, plane in planes.items()
        for name, picture in sweep_figures(x, y, plane).items()
    }


def page(
    base: Scenario, grid: Mapping[str, Sequence[Any]], cells: Sequence[Cell], command: str = ""
) -> str:
    """One HTML file: heat maps over any two axes, what the cells trade, every cell."""
    from reports.sweep_page import SweptCell, sweep_page

    swept = [
        SweptCell(values=cell.values, summary=cell.outcome.summary, error=cell.outcome.error or "")
        for cell in cells
    ]
    return sweep_page(grid, swept, scenario=base.resolved().tables(), command=command)


def _rows(cells: Sequence[Cell]) -> list[dict[str, Any]]:
    """One row a cell, of equal columns."""
    flat = [dict(_figures(cell.outcome.summary or {})) for cell in cells]
    figures = list(dict.fromkeys(name for row in flat for name in row))
    return [
        {
            **cell.values,
            "status": cell.outcome.status,
            **{name: row.get(name) for name in figures},
            "error": cell.outcome.error,
        }
        for cell, row in zip(cells, flat, strict=True)
    ]


def _figures(summary: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in summary.items():
        if isinstance(value, Mapping):
            if key != "scenario":
                yield from _figures(value, f"{path}{key}.")
        elif not isinstance(value, list):
            yield f"{path}{key}", value
