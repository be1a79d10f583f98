"""What a run was doing over time: averages over equal stretches, exact, at any length of run."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from reports.gaps import column
from reports.latencies import Latencies
from traces.trace import PS_PER_S

Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Timeline:
    """One value per stretch of time; sums over replicas. Edges are in seconds since time 0."""

    edges: Floats
    running: Floats
    """Sequences running, on average over the stretch."""
    waiting: Floats
    """Sequences in the queue, on average over the time in which steps ran."""
    used_share: Floats | None
    """KV blocks that are not free, share of all; None where the pool is unknown."""
    prefill_tokens: Floats
    """Prefill tokens per step, of the steps that started in the stretch."""
    decodes: Floats
    """Decode tokens per step."""
    preempted: Floats
    """Preemptions in the stretch."""
    arrivals: Floats
    """Requests per second that arrived."""
    finishes: Floats
    """Requests per second that finished."""

    @property
    def middle(self) -> Floats:
        return (self.edges[1:] + self.edges[:-1]) / 2


def timeline(run: Latencies, stretches: int = 240, *, end_s: float | None = None) -> Timeline:
    """Of a run, from time 0 to `end_s` (default: its end), in so many stretches."""
    end = run.wall / PS_PER_S if end_s is None else end_s
    edges = np.linspace(0.0, max(end, 1e-9), stretches + 1)
    width = edges[1] - edges[0]
    steps = run.records.steps
    start = column(steps, "start") / PS_PER_S
    blocks = run.about.get("blocks")
    used = None
    if blocks:
        taken = _averages(run, blocks - column(steps, "free_blocks"), edges)
        used = taken / (blocks * run.replicas)
    count = np.histogram(start, edges)[0]

    def per_step(name: str) -> Floats:
        total = np.histogram(start, edges, weights=column(steps, name))[0]
        return np.asarray(total / np.maximum(count, 1))

    def per_second(moments: NDArray[np.int64]) -> Floats:
        return np.asarray(np.histogram(moments / PS_PER_S, edges)[0] / width)

    return Timeline(
        edges=edges,
        running=_averages(run, column(steps, "running"), edges),
        waiting=_averages(run, column(steps, "waiting"), edges),
        used_share=used,
        prefill_tokens=per_step("prefill_tokens"),
        decodes=per_step("decodes"),
        preempted=np.histogram(start, edges, weights=column(steps, "preempted"))[0].astype(float),
        arrivals=per_second(run.column("arrival")[run.arrived]),
        finishes=per_second(run.column("finished")[run.finished]),
    )


def _averages(run: Latencies, values: NDArray[np.int64], edges: Floats) -> Floats:
    """Time averages of a per-step value; 0 where no step runs; summed over replicas."""
    steps = run.records.steps
    home = column(steps, "replica")
    total = np.zeros(len(edges))
    for first, last in _runs_of(home):
        start = column(steps, "start")[first:last] / PS_PER_S
        duration = column(steps, "duration")[first:last] / PS_PER_S
        value = values[first:last]
        before = np.concatenate([[0.0], np.cumsum(value * duration)])
        at = np.searchsorted(start, edges, side="right") - 1
        inside = np.clip(edges - start[at], 0.0, duration[at])
        total += np.where(at >= 0, before[at] + value[at] * inside, 0.0)
    return np.asarray(np.diff(total) / np.diff(edges))


def _runs_of(home: NDArray[np.int64]) -> list[tuple[int, int]]:
    """First and past-the-last row of each replica (rows are ordered by replica)."""
    cuts = np.flatnonzero(np.diff(home)) + 1
    bounds = [0, *cuts.tolist(), len(home)]
    return [(a, b) for a, b in pairwise(bounds) if b > a]
