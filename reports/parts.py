"""Where the time went: TTFT and E2E split into their causes, for typical and for slow requests.

A *band* is a range of ranks by the metric: around the median, around P90, the slowest 1 %. Its
parts are means over its requests, so they add up to its mean exactly.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

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
    "prefill": "prefill",
    "stalled": "stalled after a preemption",
    "service": "prefill and decode",
}
"""Every part and what it means, in the order in which it is shown."""

BANDS = (("median", 0.45, 0.55), ("P90", 0.85, 0.95), ("slowest 1 %", 0.99, 1.0))


@dataclass(frozen=True)
class Band:
    """Mean parts, in seconds, of the requests of a band."""

    name: str
    requests: int
    parts: dict[str, float]
    """By the keys of `CAUSES`; parts that are nothing are left out."""

    @property
    def total(self) -> float:
        return sum(self.parts.values())

    def largest(self) -> str:
        """The key of the largest part."""
        return max(self.parts, key=lambda key: self.parts[key])


def bands(run: Latencies, metric: str) -> list[Band]:
    """The bands of `ttft` or `e2e`; none where nobody has it."""
    values: Ints = run.of(metric)
    rows = np.flatnonzero(values >= 0)
    rows = rows[np.argsort(values[rows], kind="stable")]
    found = []
    for name, low, high in BANDS:
        first = min(int(low * len(rows)), len(rows) - 1)
        chosen = rows[first : max(round(high * len(rows)), first + 1)]
        if len(chosen):
            found.append(Band(name, len(chosen), _parts(run, metric, chosen)))
    return found


def main_wait(run: Latencies, rows: Ints) -> list[str]:
    """The longest wait of each of `rows`, as a key of `CAUSES`; "" of one that never waited."""
    waits = np.stack([run.column(f"wait_{name}")[rows] for name in WAITS])
    longest = waits.argmax(axis=0)
    return [WAITS[at] if waits[at, i] > 0 else "" for i, at in enumerate(longest.tolist())]


def _parts(run: Latencies, metric: str, chosen: Ints) -> dict[str, float]:
    columns = {name: run.column(f"wait_{name}")[chosen] for name in WAITS}
    if metric == "ttft":
        columns["prefill"] = run.ttft[chosen] - run.queue[chosen]
    else:
        columns["stalled"] = run.column("stalled")[chosen]
        rest = run.e2e[chosen] - run.queue[chosen] - columns["stalled"]
        columns["service"] = rest
    means = {name: float(values.mean()) / PS_PER_S for name, values in columns.items()}
    return {name: means[name] for name in CAUSES if means.get(name)}
