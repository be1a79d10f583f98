"""A tiny server for the tests: every step takes one second, so that answers can be counted out.

def test_a_decode_takes_one_step_a_token(serve):
    run = serve(ask(10, 3))
    assert run.fed == [{0: 10}, {0: 1}, {0: 1}]
    assert run.finished == [3]
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple

import pandas as pd

from calibration.step_time import Done, Predicted, Row, StepShape, StepTime
from policies import Chunked, Policy
from simulator.clients import RetrySettings
from simulator.door import DoorSettings
from simulator.engine import Engine
from simulator.fleet import FleetSettings
from simulator.run import simulate
from traces.records import Records
from traces.trace import PS_PER_S, Segment, Trace, to_ps

SECOND = StepTime.constant(PS_PER_S)
ROOMY = 1 << 20
"""Tokens of a pool that is never short."""


class Ask(NamedTuple):
    """One request; times in seconds."""

    prompt: int
    output: int
    at: float = 0.0
    declares: int = 0
    priority: int = 0
    tenant: int = 0
    after: int = -1
    content: tuple[Segment, ...] = ()


def ask(prompt: int, output: int, at: float = 0.0, **more: Any) -> Ask:
    """A request of `prompt` and `output` tokens that arrives at second `at`."""
    return Ask(prompt, output, at, **more)


def trace_of(asks: Sequence[Ask]) -> Trace:
    tenants = max((one.tenant for one in asks), default=0) + 1
    return Trace.of(
        arrival=[to_ps(one.at) for one in asks],
        prompt=[one.prompt for one in asks],
        output=[one.output for one in asks],
        declared=[one.declares for one in asks],
        priority=[one.priority for one in asks],
        tenant=[one.tenant for one in asks],
        after=[one.after for one in asks],
        content=[one.content for one in asks],
        tenants=tuple(f"tenant {number}" for number in range(tenants)),
    )


class Watcher:
    """An executor that prices every step and writes down who was fed."""

    ahead = False

    def __init__(self, step_time: StepTime) -> None:
        self.step_time = step_time
        self.rows: list[list[Row]] = []

    def run(self, shape: StepShape, rows: Callable[[], list[Row]]) -> Done:
        self.rows.append(rows())
        return Done(self.step_time.price(shape))

    def forget(self, request: int) -> None:
        pass


@dataclass(frozen=True)
class Run:
    """What happened, in seconds, indexed by request or by step."""

    asks: Sequence[Ask]
    records: Records
    rows: list[list[Row]]
    """Per step who was fed, in running order; empty where nobody watched."""

    @cached_property
    def requests(self) -> pd.DataFrame:
        return self.records.requests.sort_values("request").set_index("request")

    @property
    def fed(self) -> list[dict[int, int]]:
        """Tokens that each request got, step by step."""
        return [{row.request: row.tokens for row in rows} for rows in self.rows]

    def seconds(self, column: str) -> list[float]:
        return [value / PS_PER_S if value >= 0 else -1 for value in self.requests[column].tolist()]

    @property
    def arrived(self) -> list[float]:
        return self.seconds("arrival")

    @property
    def scheduled(self) -> list[float]:
        """When each was first scheduled."""
        return self.seconds("first_scheduled")

    @property
    def finished(self) -> list[float]:
        return self.seconds("finished")

    @property
    def queued(self) -> list[float]:
        """Seconds in the queue before each was first scheduled."""
        return [s - a for s, a in zip(self.scheduled, self.arrived, strict=True)]

    @property
    def ttft(self) -> list[float]:
        return [f - a for f, a in zip(self.seconds("first_token"), self.arrived, strict=True)]

    @property
    def reasons(self) -> list[str]:
        return self.requests["reason"].astype(str).tolist()

    @property
    def served(self) -> int:
        """Requests that got their whole output."""
        return self.reasons.count("stop")

    def column(self, name: str) -> list[int]:
        """An integer column of the requests."""
        return [int(value) for value in self.requests[name]]

    def steps(self, name: str) -> list[int]:
        """An integer column of the steps."""
        return [int(value) for value in self.records.steps[name]]

    @property
    def makespan(self) -> float:
        return max(self.finished)

    @cached_property
    def token_times(self) -> list[list[float]]:
        """When each request got each of its tokens: in the steps that fed all it was known."""
        times: list[list[float]] = [[] for _ in self.asks]
        ends = (self.records.steps["start"] + self.records.steps["duration"]) / PS_PER_S
        for rows, end in zip(self.rows, ends.tolist(), strict=True):
            for row in rows:
                own = times[row.request]
                if row.first + row.tokens == self.asks[row.request].prompt + len(own):
                    own.append(end)
        return times

    def gaps(self, request: int) -> list[float]:
        """The time between the tokens of one request."""
        times = self.token_times[request]
        return [b - a for a, b in pairwise(times)]


def run(
    *asks: Ask,
    policy: Policy | None = None,
    step_time: StepTime = SECOND,
    watch: bool = True,
    horizon: float | None = None,
    seed: int = 0,
    leap: bool = True,
    door: DoorSettings | None = None,
    retry: RetrySettings | None = None,
    fleet: FleetSettings | None = None,
    **engine: Any,
) -> Run:
    """Serve `asks`; `engine` are settings of `Engine`, with a roomy pool where none is said.

    With `watch` the run is made twice, step by step and leaping: the answer that the test works
    out holds for both, or this fails.
    """
    trace = trace_of(asks)
    watcher = Watcher(step_time)

    def once(executor: Any) -> Records:
        return simulate(
            trace,
            policy or Chunked(),
            Engine(**{"kv_tokens": ROOMY, **engine}),
            executor,
            seed=seed,
            horizon=None if horizon is None else to_ps(horizon),
            leap=leap,
            door=door,
            retry=retry,
            fleet=fleet,
        )

    records = once(Predicted(step_time))
    if watch:
        watched = once(watcher)
        pd.testing.assert_frame_equal(
            records.requests.sort_values("request").reset_index(drop=True),
            watched.requests.sort_values("request").reset_index(drop=True),
        )
        unpriced = ["host", "interference"]  # what steps that are really run cannot tell
        pd.testing.assert_frame_equal(
            records.steps.drop(columns=unpriced), watched.steps.drop(columns=unpriced)
        )
    return Run(asks, records, watcher.rows)


Serve = Callable[..., Run]
"""`run`, as the fixture `serve` gives it."""
