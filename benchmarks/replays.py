"""Really executed runs against simulated ones of the same requests. Part of `benchmarks/gpu.py`."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

from calibration.executor import Measured
from calibration.measure import Measurement
from calibration.profile import Profile
from calibration.raw import kind_of
from calibration.step_time import Executor, Predicted, StepShape
from policies.chunked import Chunked
from reports.metrics import summarize
from simulator.engine import Engine
from simulator.run import simulate
from traces.lengths import Lognormal
from traces.synthesize import Workload, synthesize
from traces.trace import Trace

Row = dict[str, Any]
Log = list[tuple[StepShape, int, int]]

SEATS = 64
LATENCIES = ("ttft_s", "itl_s", "e2e_s", "queue_s")
STATISTICS = ("mean", "p50", "p90", "p99")


@dataclass(frozen=True, kw_only=True)
class Requests:
    """The workload; its rate follows from what the device can do."""

    count: int
    prompt: Lognormal
    output: Lognormal
    token_budget: int
    repeats: int


@dataclass(frozen=True, kw_only=True)
class Load:
    name: str
    share: float
    """Of the request rate of a saturated run."""
    pool_share: float = 1.0
    """Of the most KV that the knee needs; below 1 there are preemptions."""


LOADS = (
    Load(name="light", share=0.5),
    Load(name="knee", share=0.9),
    Load(name="preemption", share=0.9, pool_share=0.5),
)


class Validation:
    """Really executed runs against simulated ones, of the same requests."""

    def __init__(self, requests: Requests, settings: Measurement, profile: Profile) -> None:
        self.requests = requests
        self.policy = Chunked(token_budget=requests.token_budget)
        # Every seat twice the mean: the pool does not bind until a load makes it smaller.
        pool = min(
            profile.pool_tokens, int(2 * SEATS * (requests.prompt.mean + requests.output.mean))
        )
        self.engine = Engine(kv_tokens=pool, max_running=SEATS, max_model_len=pool, gate=False)
        self.predicted = Predicted(profile.step_time())
        saturated = self._summary(self._trace(math.inf), self.engine, self.predicted)
        self.capacity = saturated["throughput"]["requests_per_s"]
        self.runner = Measured.create(
            requests=(),
            model=settings.model,
            device=settings.device,
            blocks=self.engine.blocks,
            block_size=self.engine.block_size,
            clock=settings.clock,
            threads=settings.threads,
            eager=settings.eager,
        ).runner
        # The first steps of many shapes compile, allocate and find their algorithms.
        self.execute(self._trace(math.inf), self.engine)

    def execute(self, trace: Trace, engine: Engine) -> tuple[Row, Log]:
        executor = Measured.on(self.runner, trace.requests())
        return self._summary(trace, engine, executor), executor.log

    def rows(self, late: Callable[[], bool]) -> list[Row]:
        """Repeats go around the loads, so that a slow minute meets them all; once, if late."""
        runs: dict[str, list[Row]] = {load.name: [] for load in LOADS}
        for _ in range(self.requests.repeats):
            for load in LOADS:
                if late() and runs[load.name]:
                    continue
                trace, engine = self._of(load)
                executed, log = self.execute(trace, engine)
                runs[load.name].append(executed | self._bias(log))
        rows = []
        for load in LOADS:
            expected = self._summary(*self._of(load), self.predicted)
            rows += self._compared(load.name, expected, runs[load.name])
        return rows

    def _of(self, load: Load) -> tuple[Trace, Engine]:
        trace = self._trace(load.share * self.capacity)
        if load.pool_share == 1.0:
            return trace, self.engine
        peak = self._summary(trace, self.engine, self.predicted)["kv"]["peak_used_share"]
        largest = max(request.prompt + request.output for request in trace.requests())
        pool = max(int(load.pool_share * peak * self.engine.kv_tokens), largest + 16)
        return trace, replace(self.engine, kv_tokens=pool, max_model_len=pool)

    def _trace(self, rate: float) -> Trace:
        load = Workload(
            rate=rate,
            requests=self.requests.count,
            prompt=self.requests.prompt,
            output=self.requests.output,
        )
        return synthesize(load, seed=0)

    def _summary(self, trace: Trace, engine: Engine, executor: Executor) -> Row:
        return summarize(simulate(trace, self.policy, engine, executor))

    def _bias(self, log: Log) -> Row:
        """Simulated over executed time of the very same steps, by class of step, less one."""
        sums: dict[str, list[int]] = {}
        for shape, duration, _ in log:
            both = sums.setdefault(kind_of(shape), [0, 0])
            both[0] += self.predicted.step_time.price(shape)
            both[1] += duration
        sums["all"] = [sum(each) for each in zip(*sums.values(), strict=True)]
        return {"bias": {kind: ours / theirs - 1 for kind, (ours, theirs) in sums.items()}}

    def _compared(self, load: str, expected: Row, runs: list[Row]) -> list[Row]:
        rows = []
        for latency in LATENCIES:
            for statistic in STATISTICS:
                seen = [run[latency][statistic] for run in runs]
                middle, simulated = median(seen), expected[latency][statistic]
                noise = (max(seen) - min(seen)) / middle if middle else 0.0
                off = simulated / middle - 1 if middle else 0.0
                rows.append(_row(load, f"{latency} {statistic}", middle, simulated, off, noise))
        counts = [run["preemptions"]["count"] for run in runs]
        rows.append(_row(load, "preemptions", median(counts), expected["preemptions"]["count"]))
        for kind in runs[0]["bias"]:
            biases = [run["bias"][kind] for run in runs if kind in run["bias"]]
            noise = max(biases) - min(biases)
            rows.append(_row(load, f"step time, {kind}", off=median(biases), noise=noise))
        return rows


def _row(
    load: str,
    what: str,
    executed: float = math.nan,
    simulated: float = math.nan,
    off: float = math.nan,
    noise: float = math.nan,
) -> Row:
    return {
        "load": load,
        "what": what,
        "executed": executed,
        "simulated": simulated,
        "error": off,
        "spread": noise,
    }
