"""What a run's steps add up to, in one pass over their columns, a part of them at a time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from traces.records import parts

NEEDED = (
    "duration", "host", "prefill_tokens", "decodes", "running", "waiting", "free_blocks", "outside",
)  # fmt: skip


@dataclass
class StepSums:
    """Sums over the steps; those over time are in floating point: exact ones can pass 2⁶³."""

    count: int = 0
    time: int = 0
    """Picoseconds of all steps."""
    host: int = 0
    """Of these, on the host."""
    tokens: int = 0
    """Tokens fed."""
    least_free: int | None = None
    """Fewest free blocks after any scheduling, of one replica."""
    used: float = 0.0
    """Block-picoseconds used."""
    running: float = 0.0
    """Sequence-picoseconds in the running set."""
    full: float = 0.0
    """Picoseconds in which every seat was taken while somebody waited."""
    outside: float = 0.0
    """Picoseconds of steps outside the grid of the profile."""


def step_sums(steps: Any, *, blocks: int, seats: int | None) -> StepSums:
    """Of a table of steps (`Records.steps`); a replica has `blocks` blocks and `seats` seats."""
    sums = StepSums()
    for duration, host, prefill, decodes, running, waiting, free, outside in parts(steps, NEEDED):
        if not len(duration):
            continue
        time = duration.astype(np.float64)
        sums.count += len(duration)
        sums.time += int(duration.sum())
        sums.host += int(host.sum())
        sums.tokens += int(prefill.sum() + decodes.sum())
        least = int(free.min())
        sums.least_free = least if sums.least_free is None else min(sums.least_free, least)
        sums.used += float(np.sum(time * (blocks - free)))
        sums.running += float(np.sum(time * running))
        sums.outside += float(np.sum(time * outside))
        if seats is not None:
            sums.full += float(np.sum(time[(running >= seats) & (waiting > 0)]))
    return sums
