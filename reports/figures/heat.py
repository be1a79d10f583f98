"""Heat maps over two swept settings: one per metric, the best cell marked."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.patches import Rectangle

from reports.figures.style import FAINT, GREEN, INK, drawing, png
from reports.findings import value_at
from reports.swept import SWEPT, feasible, named
from reports.units import number

Cells = Mapping[tuple[Any, Any], Mapping[str, Any] | None]


def sweep_figures(
    x: tuple[str, Sequence[Any]], y: tuple[str, Sequence[Any]], cells: Cells
) -> dict[str, bytes]:
    """A heat map per metric that any cell has. `x` and `y`: a setting's key and its values.

    `cells` maps (x value, y value) to a summary; None, or none at all: the cell is invalid.
    """
    kept = {at for at, cell in cells.items() if cell and feasible(cell)}
    figures = {}
    for name, row in SWEPT.items():
        values = {at: value_at(cell, row.path) for at, cell in cells.items() if cell}
        if any(value is not None for value in values.values()):
            assert row.better is not None
            figures[f"heat_{name}"] = heat_map(
                row.label, x, y, values, form=row.form, better=row.better, kept=kept
            )
    return figures


def heat_map(
    title: str,
    x: tuple[str, Sequence[Any]],
    y: tuple[str, Sequence[Any]],
    values: Mapping[tuple[Any, Any], float | None],
    *,
    form: Callable[[float | None], str] = number,
    better: Callable[[Sequence[float]], float] = min,
    kept: set[tuple[Any, Any]] | frozenset[tuple[Any, Any]] = frozenset(),
) -> bytes:
    """One metric. Cells missing from `values` are invalid, None is undefined; both are said.

    `kept` cells keep the SLA and are outlined. Darker is worse.
    """
    known = [value for value in values.values() if value is not None]
    best = better(known) if known and min(known) < max(known) else None
    low, high = (min(known), max(known)) if known else (0.0, 1.0)
    shade = colormaps["YlGnBu" if better is min else "YlGnBu_r"]
    (x_key, xs), (y_key, ys) = x, y
    with drawing(1.9 + 0.95 * len(xs), 1.5 + 0.52 * len(ys)) as figure:
        axes = figure.subplots()
        axes.grid(False)
        for column, x_value in enumerate(xs):
            for row, y_value in enumerate(ys):
                at = (x_value, y_value)
                value = values.get(at)
                level = _level(value, low, high)
                colour: Any = "white" if value is None else shade(0.05 + 0.8 * level)
                text = form(value) if at in values else "invalid"
                best_here = value is not None and best is not None and form(value) == form(best)
                axes.add_patch(_cell(column, row, facecolor=colour, edgecolor="white"))
                if at not in values:
                    hatched = _cell(column, row, facecolor="none", edgecolor=FAINT, hatch="///")
                    axes.add_patch(hatched)
                axes.text(
                    column + 0.5,
                    row + 0.5,
                    f"★ {text}" if best_here else text,
                    ha="center",
                    va="center",
                    color="white" if _dark(colour) else INK,
                    fontweight="bold" if best_here else "normal",
                    bbox=None if at in values else {"facecolor": "white", "linewidth": 0, "pad": 1},
                )
        _outline(axes, xs, ys, kept)
        axes.set_xlim(0, len(xs))
        axes.set_ylim(0, len(ys))
        axes.set_xticks(np.arange(len(xs)) + 0.5, [str(value) for value in xs])
        axes.set_yticks(np.arange(len(ys)) + 0.5, [str(value) for value in ys])
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
        axes.set_xlabel(named(x_key))
        axes.set_ylabel(named(y_key))
        legend = "★ best" + (", outlined: keeps the SLA" if kept else "")
        axes.set_title(f"{title}   ({legend})" if best is not None else title)
        return png(figure)


def _cell(column: int, row: int, **look: Any) -> Rectangle:
    return Rectangle((column, row), 1, 1, linewidth=1.5 if "hatch" not in look else 0, **look)


def _outline(axes: Any, xs: Sequence[Any], ys: Sequence[Any], kept: Any) -> None:
    """A line around the feasible region: only where a neighbour is not in it."""
    for column, x_value in enumerate(xs):
        for row, y_value in enumerate(ys):
            if (x_value, y_value) not in kept:
                continue
            sides = (
                (column - 1, row, (column, column), (row, row + 1)),
                (column + 1, row, (column + 1, column + 1), (row, row + 1)),
                (column, row - 1, (column, column + 1), (row, row)),
                (column, row + 1, (column, column + 1), (row + 1, row + 1)),
            )
            for i, j, line_x, line_y in sides:
                inside = 0 <= i < len(xs) and 0 <= j < len(ys) and (xs[i], ys[j]) in kept
                if not inside:
                    axes.plot(line_x, line_y, color=GREEN, linewidth=3, clip_on=False,
                              solid_capstyle="round")  # fmt: skip


def _level(value: float | None, low: float, high: float) -> float:
    """Where a value stands between the least and the most: by ratio where they lie far apart."""
    if value is None or low == high:
        return 0.0
    if low > 0 and high / low > 10:
        return float(np.log(value / low) / np.log(high / low))
    return (value - low) / (high - low)


def _dark(colour: Any) -> bool:
    if isinstance(colour, str):
        return False
    red, green, blue = colour[:3]
    return bool(0.299 * red + 0.587 * green + 0.114 * blue < 0.5)
