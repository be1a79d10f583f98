"""Where the time went: TTFT, ITL and E2E split into their causes, for typical and slow ones.

A *band* is a range of ranks by the metric: around P50, P90 and P99, and all beyond P99. Its parts
are means over it, so they add up to its mean exactly. Causes are those of `reports.clocks`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from reports.clocks import weighted_means
from reports.gaps import Ints
from reports.latencies import Latencies
from traces.records import WAITS
from traces.trace import PS_PER_S

CAUSES = {
    "tokens": "waiting: token budget used up",
    "blocks": "waiting: no free KV blocks",
    "reserve": "waiting: KV reserve",
    "seats": "waiting: all seats taken",
    "lane": "waiting: share of its lane used up",
    "batch": "waiting: for the batch",
    "behind": "waiting: behind the head of the queue",
    "boundary": "waiting: for the step to end",
    "door": "waiting: held at the door, or to be sent again",
    "prefill": "its own prefill",
    "decode": "its own decode",
    "others": "prefill of others in its decode steps",
    "still": "standing still while others are fed",
    "stalled": "back in the queue after a preemption",
    "recompute": "recompute after a preemption",
}
"""Every part and what it means, in the order in which it is shown."""

IN_A_SENTENCE = {
    "tokens": "waiting for token budget",
    "blocks": "waiting for blocks",
    "reserve": "waiting for the KV reserve",
    "seats": "waiting for a seat",
    "lane": "waiting for its lane's share",
    "batch": "waiting for a batch to fill",
    "behind": "waiting behind others",
    "boundary": "waiting for a step to end",
    "door": "waiting at the door",
    "stalled": "back in the queue after preemptions",
}
_HEADS = ("tokens", "blocks", "reserve", "seats", "lane", "batch")

BANDS = (
    ("P50", 0.45, 0.55),
    ("P90", 0.85, 0.95),
    ("P99", 0.985, 0.995),
    ("slowest 1 %", 0.99, 1.0),
)
METRICS = ("ttft", "itl", "e2e")


@dataclass(frozen=True)
class Band:
    """Mean parts, in seconds, of the requests or gaps of a band."""

    name: str
    ranks: tuple[int, int]
    """First and last, counted from 1."""
    parts: dict[str, float]
    """By the keys of `CAUSES`; parts that are nothing are left out."""

    @property
    def count(self) -> int:
        return self.ranks[1] - self.ranks[0] + 1

    @property
    def total(self) -> float:
        return sum(self.parts.values())


def bands(run: Latencies, metric: str) -> list[Band]:
    """The bands of `ttft`, `itl` or `e2e`; none where nobody has it."""
    if metric == "itl":
        gaps = run.clocks.gaps
        return _bands(gaps.length, gaps.weight, gaps.parts)
    values: Ints = run.of(metric)
    rows = np.flatnonzero(values >= 0)
    parts = _of_requests(run, metric)
    chosen = {name: each[rows] for name, each in parts.items()}
    return _bands(values[rows], np.ones(len(rows), dtype=np.int64), chosen)


def said(metric: str, split: list[Band]) -> str:
    """What the P99 is made of, in a sentence; "" where there is nothing to say."""
    band = next((band for band in split if band.name == "P99" and band.total), None)
    if band is None:
        return ""
    parts, behind = band.parts, band.parts.get("behind", 0.0)
    heads = sum(parts.get(name, 0.0) for name in _HEADS)
    # Who stands behind the head of the queue waits for what the head waits for.
    blamed = {
        name: value + (behind * value / heads if name in _HEADS else 0.0)
        for name, value in parts.items()
        if name != "behind" or not heads
    }
    cause = max(blamed, key=lambda name: blamed[name])
    part = f"{blamed[cause] / band.total:.0%}".replace("%", " %")
    with_others = ", or behind who does" if cause in _HEADS and behind else ""
    return f"P99 {metric.upper()} is {part} {IN_A_SENTENCE.get(cause, CAUSES[cause])}{with_others}."


def main_wait(run: Latencies, rows: Ints) -> list[str]:
    """The longest wait of each of `rows`, as a key of `CAUSES`; "" of one that never waited."""
    waits = np.stack([run.column(f"wait_{name}")[rows] for name in WAITS])
    longest = waits.argmax(axis=0)
    return [WAITS[at] if waits[at, i] > 0 else "" for i, at in enumerate(longest.tolist())]


def _of_requests(run: Latencies, metric: str) -> dict[str, Ints]:
    after = run.clocks.of_requests
    if metric == "e2e":
        return run.clocks.waits() | after
    stalled = np.where(run.ttft >= 0, run.column("stalled_first"), 0)
    return run.clocks.waits() | {"prefill": after["prefill"], "stalled": stalled}


def _bands(length: Ints, weight: Ints, parts: Mapping[str, Ints]) -> list[Band]:
    """Of values that count `weight` times each."""
    seen = np.flatnonzero(weight > 0)
    order = seen[np.argsort(length[seen], kind="stable")]
    last = np.cumsum(weight[order])
    count = int(last[-1]) if len(last) else 0
    if not count:
        return []
    found = []
    for name, low, high in BANDS:
        first = min(int(low * count), count - 1)
        ranks = first + 1, max(round(high * count), first + 1)
        begin, end = np.searchsorted(last, ranks)
        chosen = order[begin : end + 1]
        inside = _overlap(last[begin : end + 1], weight[chosen], ranks)
        means = weighted_means({key: each[chosen] for key, each in parts.items()}, inside)
        shown = {key: means[key] / PS_PER_S for key in CAUSES if means.get(key)}
        found.append(Band(name, ranks, shown))
    return found


def _overlap(last: Ints, weight: Ints, ranks: tuple[int, int]) -> NDArray[np.float64]:
    """How many of each value's ranks lie within `ranks`."""
    begin = np.maximum(last - weight + 1, ranks[0])
    inside: NDArray[np.int64] = np.minimum(last, ranks[1]) - begin + 1
    return inside.astype(np.float64)
