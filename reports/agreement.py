"""Where a recorded run and the simulated one agree: over time, by cause, and under what load.

Columns have one value a request, in seconds.

  over time    requests in order of arrival, in ten parts of equal number; error of each part's mean
  by cause     mean E2E = queue + prefill + decode, or, where the queue was not recorded,
               TTFT + decode
  saturated    more and more requests in the system while they arrive: then latency measures how
               long the run lasted, and a small relative error says little
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

PARTS = 10
GROWTH = 1.3
"""By how much the last quarter of arrivals must find more in the system than the third did."""
FEW = 8.0
"""Fewer in the system than this is no overload."""


class Part(NamedTuple):
    """A tenth of the requests: until when they arrived, and the error of their means."""

    until_s: float
    requests: int
    errors: dict[str, float | None]


class Cause(NamedTuple):
    """Mean seconds of a part of E2E."""

    name: str
    real_s: float
    simulated_s: float
    real_share: float
    simulated_share: float


def over_time(
    arrival: Floats, simulated: Mapping[str, Floats], real: Mapping[str, Floats]
) -> list[Part]:
    """The error of each latency that both have, part by part."""
    order = np.argsort(arrival, kind="stable")
    parts = []
    for rows in np.array_split(order, min(PARTS, len(order))):
        errors: dict[str, float | None] = {}
        for metric in real:
            if metric in simulated:
                expected = float(real[metric][rows].mean())
                found = float(simulated[metric][rows].mean())
                errors[metric] = found / expected - 1 if expected else None
        parts.append(Part(float(arrival[rows].max()), len(rows), errors))
    return parts


def causes(simulated: Mapping[str, Floats], real: Mapping[str, Floats]) -> list[Cause]:
    """`ttft`, `e2e` and perhaps `queue` of both, split."""

    def split(known: Mapping[str, Floats]) -> dict[str, float]:
        first, end = float(known["ttft"].mean()), float(known["e2e"].mean())
        if "queue" not in real:
            return {"queue and prefill": first, "decode": end - first}
        queue = float(known["queue"].mean())
        return {"queue": queue, "prefill": first - queue, "decode": end - first}

    ours, theirs = split(simulated), split(real)

    def share(values: dict[str, float], name: str) -> float:
        whole = sum(values.values())
        return values[name] / whole if whole else 0.0

    return [
        Cause(name, theirs[name], ours[name], share(theirs, name), share(ours, name))
        for name in theirs
    ]


def saturated(arrival: Floats, e2e: Floats) -> bool:
    """Whether requests piled up while they arrived, or came all at once."""
    if len(arrival) < 4:
        return False
    order = np.argsort(arrival, kind="stable")
    came, left = arrival[order], np.sort(arrival + e2e)
    there = np.arange(len(came)) - np.searchsorted(left, came, side="right")
    if there[-1] < FEW:
        return False
    if came[-1] - came[0] < 0.1 * (left[-1] - came[0]):
        return True
    third, last = (float(q.mean()) for q in np.array_split(there, 4)[2:])
    return last > GROWTH * third and last >= FEW
