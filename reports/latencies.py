"""The latencies of every request of a run, once computed and shared by tables, pictures, pages."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reports.clocks import Clocks
from reports.gaps import Gaps, column
from reports.percentiles import Distribution
from reports.step_sums import StepSums, step_sums
from traces.records import Records
from traces.trace import PS_PER_S

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

DONE = ("stop", "length")
"""Reasons of a request that got all it was to get."""


class Latencies:
    """Per-request times of `records` in picoseconds, -1 where a request has none.

    Definitions are those at the top of `reports.metrics`. Rows are positions in
    `records.requests`.
    """

    def __init__(self, records: Records) -> None:
        self.records = records
        self.about: dict[str, Any] = records.about

    def column(self, name: str) -> Ints:
        return column(self.records.requests, name)

    @cached_property
    def gaps(self) -> Gaps:
        return Gaps(self.records)

    @cached_property
    def clocks(self) -> Clocks:
        return Clocks(self.records, self.gaps)

    @cached_property
    def arrived(self) -> Bools:
        """Was sent before the run ended. Closed-loop requests may never be."""
        return np.asarray(self.column("arrival") >= 0)

    @cached_property
    def finished(self) -> Bools:
        """Got all its tokens, or as many as the cap allows."""
        done: Bools = self.records.requests["reason"].isin(DONE).to_numpy(dtype=bool)
        return self.arrived & done

    @cached_property
    def unfinished(self) -> Bools:
        """Still waiting or running when the run ended."""
        still: Bools = (self.records.requests["reason"] == "").to_numpy(dtype=bool)
        return self.arrived & still

    @cached_property
    def queue(self) -> Ints:
        return self._since_arrival("first_scheduled")

    @cached_property
    def ttft(self) -> Ints:
        return self._since_arrival("first_token")

    @cached_property
    def prefill(self) -> Ints:
        return np.where(self.ttft >= 0, self.ttft - self.queue, -1)

    @cached_property
    def e2e(self) -> Ints:
        return np.where(self.finished, self._since_arrival("last_token"), -1)

    @cached_property
    def tpot(self) -> NDArray[np.float64]:
        produced = self.column("produced")
        several = self.finished & (produced >= 2)
        spread = self.column("last_token") - self.column("first_token")
        return np.where(several, spread / np.maximum(produced - 1, 1), -1.0)

    @cached_property
    def longest_gap(self) -> Ints:
        return self.gaps.longest()

    def of(self, metric: str) -> NDArray[Any]:
        """Values per request of `ttft`, `queue`, `e2e` or `tpot`; -1 where there is none."""
        return getattr(self, metric)  # type: ignore[no-any-return]

    def distribution(self, metric: str, chosen: Bools | None = None) -> Distribution:
        """Of a metric over all requests that have it, or over the `chosen` of them."""
        if metric == "itl":
            return self.pooled_gaps if chosen is None else self.gaps.pooled(chosen)
        values = self.of(metric)
        return Distribution(values[values >= 0 if chosen is None else chosen & (values >= 0)])

    @cached_property
    def pooled_gaps(self) -> Distribution:
        return self.gaps.pooled()

    @cached_property
    def steps(self) -> StepSums:
        """What the steps add up to."""
        seats = self.slots // self.replicas if self.slots else None
        return step_sums(self.records.steps, blocks=self.about.get("blocks") or 0, seats=seats)

    @cached_property
    def step_end(self) -> int:
        """End of the last step; 0 where there is none."""
        if not len(self.records.steps):
            return 0
        steps = self.records.steps
        return int((column(steps, "start") + column(steps, "duration")).max())

    @cached_property
    def wall(self) -> int:
        """T_wall in picoseconds: to the last finish, or to the horizon if work was left."""
        ends = self.column("finished")[self.finished]
        end = int(ends.max()) if len(ends) else self.step_end
        horizon = self.about.get("horizon_s")
        if self.unfinished.any():
            end = max(self.step_end, round(horizon * PS_PER_S) if horizon else 0)
        return end

    @property
    def span(self) -> int:
        """The time that rates are taken over: T_wall, or what a cut by arrival left of it."""
        return int(self.about.get("span_ps", self.wall))

    @cached_property
    def slots(self) -> int | None:
        """Seats of all replicas: the engine's, or a static batch where that is smaller."""
        seats = self.about.get("max_running")
        if seats is None:
            return None
        policy = self.about.get("scenario", {}).get("policy", {})
        batch = policy.get("batch") if policy.get("kind") == "static" else None
        return int(min(seats, batch) if batch else seats) * self.replicas

    @property
    def replicas(self) -> int:
        return int(self.about.get("replicas", 1))

    def _since_arrival(self, name: str) -> Ints:
        moment = self.column(name)
        return np.where(self.arrived & (moment >= 0), moment - self.column("arrival"), -1)
