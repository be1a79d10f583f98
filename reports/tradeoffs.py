"""Throughput against latency: which runs nothing beats, and where a rate becomes too much.

**Pareto front.** The runs that no other run beats in both: at least as much throughput, at most as
much latency, and better in one. Runs that diverge are left out.

**Knee.** Of runs that differ in their rate alone: both axes scaled to 0 … 1, the point where
throughput is furthest ahead of latency. Beyond it latency is what more load buys.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from reports.findings import diverges, value_at
from reports.units import digits, seconds

Summary = Mapping[str, Any]
Chart = dict[str, Any]
LEAST_RISE = 1.5
"""A latency that rises less over all rates has no knee."""
RATES = (("trace", "rate"), ("trace", "scale_rate"))
LATENCIES = {"ttft": ("P99 TTFT", ("ttft_s", "p99")), "itl": ("P99 ITL", ("itl_s", "p99"))}
_TOKENS = ("throughput", "output_tokens_per_s")
_REQUESTS = ("throughput", "requests_per_s")


def front(points: Sequence[tuple[float, float]]) -> list[int]:
    """Indices of the points (throughput, latency) that no other beats, by throughput."""
    best = float("inf")
    found = []
    for at in sorted(range(len(points)), key=lambda at: (-points[at][0], points[at][1])):
        if points[at][1] < best:
            best = points[at][1]
            found.append(at)
    return found[::-1]


def knee(points: Sequence[tuple[float, float]]) -> int | None:
    """Index of the knee of (throughput, latency) points by rate; None where there is none."""
    if len(points) < 3:
        return None
    xs, ys = [x for x, _ in points], [y for _, y in points]
    low_x, low_y, high_x, high_y = min(xs), min(ys), max(xs), max(ys)
    if low_x == high_x or high_y < LEAST_RISE * low_y:
        return None

    def ahead(at: int) -> float:
        return (xs[at] - low_x) / (high_x - low_x) - (ys[at] - low_y) / (high_y - low_y)

    return max(range(len(points)), key=ahead)


def pareto_charts(summaries: Mapping[str, Summary], *, few: bool = True) -> list[Chart]:
    """Output tokens/s against P99 TTFT and ITL, the front drawn. `few`: each run has a colour."""
    charts = []
    for id, (label, path) in LATENCIES.items():
        known = [
            (value_at(summary, _TOKENS), value_at(summary, path), name)
            for name, summary in summaries.items()
            if not diverges(summary)
        ]
        known = sorted(point for point in known if point[0] is not None and point[1] is not None)
        if len(known) < 2:
            continue
        best = front([(x, y) for x, y, _ in known])
        names = [name for _, _, name in known]
        series: list[Chart] = [
            {
                "label": "Pareto front",
                "values": [y if at in best else None for at, (_, y, _) in enumerate(known)],
                "colour": 7,
                "points": 5,
                "line": True,
            }
        ]
        if few:
            colours = {name: at for at, name in enumerate(summaries)}
            series += [
                {
                    "label": name,
                    "values": [known[i][1] if i == at else None for i in range(len(known))],
                    "colour": colours[name],
                    "points": 11,
                }
                for at, name in enumerate(names)
            ]
        else:
            every = [y for _, y, _ in known]
            series.append({"label": "all", "values": every, "colour": 0, "points": 7})
        charts.append(
            {
                "id": f"pareto-{id}",
                "title": f"Throughput against {label}",
                "hint": "right and low is good",
                "alt": f"Output tokens/s against {label}; nothing beats "
                f"{', '.join(names[at] for at in best)}.",
                "x": [x for x, _, _ in known],
                "names": None if few else names,
                "xkind": "number",
                "xlabel": "output tokens/s",
                "ykind": "seconds",
                "ylabel": f"{label} (log scale)",
                "series": series,
            }
        )
    return charts


def curve_charts(summaries: Mapping[str, Summary]) -> list[Chart]:
    """Latency over throughput for runs that differ in rate alone; three rates or more a curve."""
    groups: dict[str, list[tuple[float, str]]] = {}
    for name, summary in summaries.items():
        rate, rest = _rate(summary.get("scenario") or {})
        if rate is not None:
            groups.setdefault(rest, []).append((rate, name))
    curves = [sorted(group) for group in groups.values() if len({rate for rate, _ in group}) > 2]
    charts = []
    for id, (label, path) in LATENCIES.items():
        lines: dict[str, list[tuple[float, float, str]]] = {}
        for group in curves:
            points = [
                (value_at(summaries[name], _REQUESTS), value_at(summaries[name], path), name)
                for _, name in group
            ]
            whole = [point for point in points if point[0] is not None and point[1] is not None]
            if len(whole) > 2:
                lines[_named(summaries, group, curves)] = sorted(whole)
        if lines:
            charts.append(_curve_chart(id, label, lines))
    return charts


def _curve_chart(
    id: str, label: str, lines: Mapping[str, Sequence[tuple[float, float, str]]]
) -> Chart:
    places = sorted(
        ((x, y, line, name) for line, points in lines.items() for x, y, name in points),
        key=lambda place: place[0],
    )
    series: list[Chart] = []
    said = []
    knees: list[float | None] = [None] * len(places)
    for colour, (line, points) in enumerate(lines.items()):
        values = [y if mine == line else None for _, y, mine, _ in places]
        series.append(
            {"label": line, "values": values, "colour": colour, "dash": colour, "points": 6,
             "line": True}
        )  # fmt: skip
        at = knee([(x, y) for x, y, _ in points])
        if at is not None:
            x, y, name = points[at]
            knees[places.index((x, y, line, name))] = y
            said.append(f"{line}: knee at {digits(x)} requests/s with {seconds(y)}")
    if said:
        series.append({"label": "knee", "values": knees, "colour": 4, "points": 14})
    return {
        "id": f"curve-{id}",
        "title": f"{label} against throughput",
        "hint": "each point is a rate",
        "alt": f"{label} over requests/s. {'; '.join(said) or 'no knee'}.",
        "x": [x for x, _, _, _ in places],
        "names": [name for _, _, _, name in places],
        "xkind": "number",
        "xlabel": "requests/s",
        "ykind": "seconds",
        "ylabel": f"{label} (log scale)",
        "series": series,
    }


def _rate(scenario: Mapping[str, Any]) -> tuple[float | None, str]:
    """The rate that a scenario sets, and all else of it as a text that tells it from others."""
    for section, key in RATES:
        given = (scenario.get(section) or {}).get(key)
        if isinstance(given, int | float):
            rest = {name: each for name, each in scenario.items() if name != section}
            rest[section] = {k: v for k, v in scenario[section].items() if k != key}
            return float(given), json.dumps(rest, sort_keys=True, default=str)
    return None, ""


def _named(
    summaries: Mapping[str, Summary],
    group: Sequence[tuple[float, str]],
    groups: Sequence[Sequence[tuple[float, str]]],
) -> str:
    """A curve by its policy, if that tells it from the others; else by what its runs share."""
    kinds = [value_at(summaries[one[0][1]], ("scenario", "policy", "kind")) for one in groups]
    kind = value_at(summaries[group[0][1]], ("scenario", "policy", "kind"))
    if kind and kinds.count(kind) == 1:
        return str(kind)
    first, *others = (name.split(", ") for _, name in group)
    shared = [part for part in first if all(part in other for other in others)]
    return ", ".join(shared) or group[0][1]
