"""The page of a plan: one HTML file, in the order of the questions that a plan answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from reports.page import render
from reports.plans import CAUSES, breaks_first, sentences

Plain = Mapping[str, Any]


def plan_page(plan: Plain, *, command: str = "") -> str:
    """`plan` is the plain form (`simulator.planner.as_dict`), `command` repeats it."""
    said = sentences(plan)
    return render(
        "plan.html.j2",
        title=f"Plan: {plan['sla']}",
        plan=plan,
        best=plan["best"],
        said=said,
        causes=CAUSES,
        breaks_first=breaks_first,
        command=command,
        data={"charts": _charts(plan)},
    )


def _charts(plan: Plain) -> list[dict[str, Any]]:
    """P99 TTFT and ITL over ρ, one line a setting (the ones that were looked at by themselves)."""
    chosen = [one for one in plan["settings"] if one["points"] and one["same_as"] is None][:8]
    if not chosen:
        return []
    charts = []
    for metric, title in (("ttft", "P99 time to first token"), ("itl", "P99 gap between tokens")):
        rhos = sorted({round(point["rho"], 3) for one in chosen for point in one["points"]})
        charts.append(
            {
                "id": f"{metric}-over-load",
                "title": f"{title} over load",
                "alt": f"{title} over ρ = rate / service rate, by setting.",
                "x": rhos,
                "xkind": "number",
                "xlabel": "ρ: share of the service rate",
                "ykind": "seconds",
                "ylabel": f"{metric.upper()} P99 (log scale)",
                "series": [
                    {
                        "label": one["name"] or "as it is",
                        "values": _at(one["points"], f"{metric}_p99", rhos),
                        "colour": at,
                        "dash": at if len(chosen) > 1 else 0,
                    }
                    for at, one in enumerate(chosen)
                ],
            }
        )
    return charts


def _at(points: Sequence[Plain], name: str, rhos: Sequence[float]) -> list[float | None]:
    """The values at every ρ: between two points on the line that joins them."""
    known = [(p["rho"], p["values"][name]) for p in points if p["values"][name] is not None]
    found: list[float | None] = []
    for rho in rhos:
        below = [one for one in known if one[0] <= rho + 5e-4]
        above = [one for one in known if one[0] >= rho - 5e-4]
        if not below or not above:
            found.append(None)
            continue
        (x0, y0), (x1, y1) = below[-1], above[0]
        share = (rho - x0) / (x1 - x0) if x1 > x0 else 0.0
        found.append(float(f"{y0 + (y1 - y0) * share:.6g}"))
    return found
