"""The page of a sweep: heat maps over any two of its axes, and what the cells trade."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from reports.findings import value_at
from reports.page import render, settings_of
from reports.swept import SWEPT, feasible, named
from reports.tradeoffs import curve_charts, pareto_charts
from reports.units import number, seconds, share

FORMS: dict[Callable[[float | None], str], str] = {
    seconds: "seconds",
    share: "share",
    number: "number",
}
"""How the script of the page calls them."""


@dataclass(frozen=True, kw_only=True)
class SweptCell:
    """One combination of settings and what came of it."""

    values: Mapping[str, Any]
    summary: Mapping[str, Any] | None
    """None: it did not run."""
    error: str = ""
    """Why it did not."""

    @property
    def name(self) -> str:
        return ", ".join(f"{named(key).partition(' (')[0]} {v}" for key, v in self.values.items())


def sweep_page(
    axes: Mapping[str, Sequence[Any]],
    cells: Sequence[SweptCell],
    *,
    scenario: Mapping[str, Any],
    command: str = "",
) -> str:
    """`axes` are the values of each setting that varies, `scenario` the base that they change."""
    done = {cell.name: cell.summary for cell in cells if cell.summary}
    shown = {
        name: row
        for name, row in SWEPT.items()
        if any(value_at(summary, row.path) is not None for summary in done.values())
    }
    tradeoffs = [*curve_charts(done), *pareto_charts(done, few=False)]
    places = {key: {repr(v): at for at, v in enumerate(values)} for key, values in axes.items()}
    return render(
        "sweep.html.j2",
        title=f"Sweep over {' × '.join(named(key).partition(' (')[0] for key in axes)}",
        verdict=_verdict(cells),
        count=len(cells),
        done=len(done),
        axes=axes,
        named=named,
        shown=shown,
        cells=cells,
        feasible=feasible,
        value_at=value_at,
        tradeoffs=tradeoffs,
        settings=settings_of(scenario),
        command=command,
        data={
            "charts": tradeoffs,
            "slots": {"end": 0, "bands": []},
            "sweep": {
                "axes": [
                    {"label": named(key), "values": [str(value) for value in values]}
                    for key, values in axes.items()
                ],
                "metrics": [
                    {
                        "id": name,
                        "label": row.label,
                        "form": FORMS[row.form],
                        "better": "min" if row.better is min else "max",
                    }
                    for name, row in shown.items()
                ],
                "cells": [
                    {
                        "at": [places[key][repr(cell.values[key])] for key in axes],
                        "values": [
                            value_at(cell.summary or {}, row.path) for row in shown.values()
                        ],
                        "kept": bool(cell.summary) and feasible(cell.summary or {}),
                        "error": "" if cell.summary else cell.error or "it did not run",
                    }
                    for cell in cells
                ],
            },
        },
    )


def _verdict(cells: Sequence[SweptCell]) -> dict[str, str]:
    """How many cells are good enough, and which is best."""
    ran = [cell for cell in cells if cell.summary]
    if not ran:
        return {"kind": "bad", "text": "No cell could run"}
    asked = any(value_at(cell.summary or {}, ("sla", "met")) for cell in ran)
    kept = [cell for cell in ran if feasible(cell.summary or {})]
    if asked and not kept:
        best = max(ran, key=lambda cell: value_at(cell.summary or {}, ("sla", "attainment")) or 0.0)
        rate = share(value_at(best.summary or {}, ("sla", "attainment")))
        return {
            "kind": "bad",
            "text": f"None of {len(ran)} cells keeps the service level; nearest is {best.name}, "
            f"kept for {rate} of requests",
        }
    row = SWEPT["throughput"]

    def speed(cell: SweptCell) -> float:
        return value_at(cell.summary or {}, row.path) or 0.0

    if asked:
        best = max(kept, key=speed)
        return {
            "kind": "good",
            "text": f"{len(kept)} of {len(ran)} cells keep the service level; of these {best.name} "
            f"gives the most, {number(speed(best))} output tokens/s",
        }
    best = max(ran, key=speed)
    return {
        "kind": "plain",
        "text": f"No service level was asked for; {best.name} gives the most, "
        f"{number(speed(best))} output tokens/s",
    }
