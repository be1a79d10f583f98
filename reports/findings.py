"""What a comparison says, in sentences: who is sound, who is best, what a lane costs the others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from reports.units import digits, seconds, share

Summary = Mapping[str, Any]
ALIKE = 1.1
"""Latencies within this ratio are called about the same."""


def value_at(summary: Summary, path: tuple[str, ...] | list[str]) -> Any:
    """The value under nested keys; None where one is missing."""
    value: Any = summary
    for key in path:
        if not isinstance(value, Mapping) or value.get(key) is None:
            return None
        value = value[key]
    return value


def diverges(summary: Summary) -> bool:
    """The run's rate is not sustainable: its backlog grew."""
    return summary.get("stationary") is False


def findings(summaries: Mapping[str, Summary]) -> list[str]:
    """One sentence each, the most important first. Runs that diverge win nothing."""
    said = [*_unsound(summaries), *_best(summaries), *_static(summaries), *_lanes(summaries)]
    return [sentence + "." for sentence in said]


def _unsound(summaries: Mapping[str, Summary]) -> list[str]:
    bad = [name for name, summary in summaries.items() if diverges(summary)]
    if not bad:
        return []
    return [
        f"Not sustainable at this rate: {', '.join(bad)} (the queue grows without end, and the "
        "latencies only say how long the run was)"
    ]


def _best(summaries: Mapping[str, Summary]) -> list[str]:
    sound = {name: summary for name, summary in summaries.items() if not diverges(summary)}
    rated = _known(sound, ("sla", "attainment"))
    if rated:
        best = max(rated, key=lambda name: rated[name])
        return [f"{best} keeps the service level for the most requests, {share(rated[best])}"]
    tails = _known(sound, ("ttft_s", "p99"))
    if len(tails) < 2:
        return []
    best = min(tails, key=lambda name: tails[name])
    return [f"{best} has the shortest P99 time to first token, {seconds(tails[best])}"]


def _static(summaries: Mapping[str, Summary]) -> list[str]:
    """Static batches against the best of the others, where static is sustainable at all."""
    static = {n: s for n, s in summaries.items() if _kind(s) == "static" and not diverges(s)}
    others = {n: s for n, s in summaries.items() if _kind(s) != "static" and not diverges(s)}
    tails = _known(others, ("e2e_s", "p99"))
    said = []
    for name, summary in static.items():
        tail = value_at(summary, ("e2e_s", "p99"))
        if tail is None or not tails:
            continue
        best = min(tails, key=lambda other: tails[other])
        ratio = tail / tails[best]
        if ratio <= ALIKE:
            said.append(
                f"{name} is about as good as {best} here (P99 E2E {seconds(tail)} against "
                f"{seconds(tails[best])}): this load gives batching little to gain"
            )
        else:
            said.append(
                f"{name} takes {digits(ratio)} times as long as {best} at P99 E2E "
                f"({seconds(tail)} against {seconds(tails[best])}); "
                f"{share(value_at(summary, ('batch', 'slot_utilisation')))} of its slot time works"
            )
    return said


def _lanes(summaries: Mapping[str, Summary]) -> list[str]:
    """What lanes gain and cost, against chunked or else the first run without them."""
    laned = next((n for n, s in summaries.items() if _kind(s) == "fast-lane"), None)
    plain = [n for n, s in summaries.items() if n != laned and not diverges(s)]
    base = next((n for n in plain if _kind(summaries[n]) == "chunked"), next(iter(plain), None))
    if laned is None or base is None:
        return []
    said = []
    for lane in value_at(summaries[laned], ("classes", "lane")) or {}:
        path = ("classes", "lane", lane, "ttft_s", "p99")
        before, after = value_at(summaries[base], path), value_at(summaries[laned], path)
        if before and after is not None:
            change = after / before - 1
            said.append(f"{lane or 'others'} {seconds(before)} to {seconds(after)} ({change:+.0%})")
    return [f"P99 TTFT by lane, from {base} to {laned}: {'; '.join(said)}"] if said else []


def _known(summaries: Mapping[str, Summary], path: tuple[str, ...]) -> dict[str, float]:
    found = {name: value_at(summary, path) for name, summary in summaries.items()}
    return {name: value for name, value in found.items() if value is not None}


def _kind(summary: Summary) -> str:
    return str(value_at(summary, ("scenario", "policy", "kind")) or summary.get("policy") or "")
