"""What a validation runs: requests, and loads from light to heavy preemption."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from calibration.grid import Limits
from calibration.step_time import Predicted
from policies.chunked import Chunked
from simulator.engine import Engine
from simulator.run import simulate
from traces.lengths import Lognormal
from traces.synthesize import Workload, synthesize
from traces.trace import PS_PER_S, Trace


@dataclass(frozen=True, kw_only=True)
class Exercise:
    """The requests; their rate follows from what the device can do."""

    requests: int = 120
    prompt: Lognormal = field(default_factory=lambda: Lognormal(mean=120, p99=480, max=900))
    output: Lognormal = field(default_factory=lambda: Lognormal(mean=32, p99=128, max=256))
    token_budget: int = 256
    seats: int = 32
    repeats: int = 3
    """Executed runs of each load."""
    seed: int = 0

    @property
    def longest(self) -> int:
        """Tokens of the longest request that there can be."""
        return (self.prompt.max or 0) + (self.output.max or 0)

    @property
    def pool(self) -> int:
        """Tokens for every seat at twice the mean: does not bind until a load makes it smaller."""
        return max(int(2 * self.seats * (self.prompt.mean + self.output.mean)), self.longest)

    def limits(self) -> Limits:
        """The grid that spans it: steps beyond would be measured for nothing."""
        return Limits(
            sequences=self.seats,
            tokens=self.token_budget,
            context=max(self.longest, self.token_budget) + 1,
            held=int(1.25 * self.pool),
        )

    def trace(self, rate: float) -> Trace:
        """Poisson arrivals at `rate` per second; all at once where infinite."""
        load = Workload(rate=rate, requests=self.requests, prompt=self.prompt, output=self.output)
        return synthesize(load, seed=self.seed)


@dataclass(frozen=True, kw_only=True)
class Load:
    """How hard a run is, measured in what a saturated run and the load itself need."""

    name: str
    share: float
    """Of the request rate of a saturated run."""
    pool_share: float = 1.0
    """Of the most KV that the load needs; below 1 there are preemptions."""


LOADS = (
    Load(name="light", share=0.4),
    Load(name="knee", share=0.8),
    Load(name="preemption", share=0.8, pool_share=0.3),
)


def loads_of(names: Sequence[str]) -> tuple[Load, ...]:
    """The loads of these names. Raises ValueError where there is none."""
    known = {load.name: load for load in LOADS}
    for name in names:
        if name not in known:
            raise ValueError(f"load {name!r}, expected one of {', '.join(known)}")
    return tuple(known[name] for name in dict.fromkeys(names))


class Setting(NamedTuple):
    """A load made concrete."""

    load: Load
    trace: Trace
    engine: Engine
    rate: float
    """Requests per second."""


def choose(
    load: Load, exercise: Exercise, engine: Engine, policy: Chunked, predicted: Predicted
) -> Setting:
    """Rate and pool of `load` by what simulated runs need.

    A smaller pool has no gate: with it most of the queue would wait instead of being evicted.
    """
    saturated = simulate(exercise.trace(math.inf), policy, engine, predicted)
    wall = int(saturated.requests["finished"].max())
    rate = load.share * exercise.requests * PS_PER_S / wall
    trace = exercise.trace(rate)
    if load.pool_share == 1.0:
        return Setting(load, trace, engine, rate)
    steps = simulate(trace, policy, engine, predicted).steps
    peak = engine.blocks - int(steps["free_blocks"].min())
    largest = int((trace.prompt + trace.output).max())
    pool = max(int(load.pool_share * peak) * engine.block_size, largest + engine.block_size)
    smaller = replace(engine, kv_tokens=pool, max_model_len=pool, gate=False)
    return Setting(load, trace, smaller, rate)
