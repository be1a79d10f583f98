"""Runs of the same requests, request by request: who is served sooner, by how much, by chance?

A difference is that of one request between two runs, in which it finished in both. The interval
of the mean comes from consecutive batches by arrival (`reports.confidence`): neighbours share
their luck.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from reports.confidence import Interval, within_run
from reports.latencies import Latencies
from reports.percentiles import percentile
from traces.trace import PS_PER_S

PAIRED = ("ttft", "e2e")


@dataclass(frozen=True, kw_only=True)
class Paired:
    """`run` - `base`, in seconds: negative is sooner."""

    run: str
    base: str
    metric: str
    requests: int
    mean: float
    interval: Interval | None
    p1: float
    """The gain of those who gain most."""
    median: float
    p99: float
    """The loss of those who lose most."""
    sooner: float
    """Share of requests with a shorter one."""

    @property
    def verdict(self) -> str:
        if self.interval is None:
            return "too few to tell"
        if not self.interval.excludes_zero:
            return "no more than chance"
        return "sooner" if self.mean < 0 else "later"


def paired(runs: Mapping[str, Latencies]) -> list[Paired]:
    """Every run against the first, per metric; those of other requests are left out."""
    (base_name, base), *others = runs.items()
    found = []
    for metric in PAIRED:
        for name, run in others:
            if not _same_requests(base, run):
                continue
            mine, theirs = run.of(metric), base.of(metric)
            both = np.flatnonzero((mine >= 0) & (theirs >= 0))
            if not len(both):
                continue
            both = both[np.argsort(base.column("arrival")[both], kind="stable")]
            gain = (mine[both] - theirs[both]) / PS_PER_S
            spread = {share: percentile(gain, share) or 0.0 for share in (1, 50, 99)}
            found.append(
                Paired(
                    run=name,
                    base=base_name,
                    metric=metric.upper(),
                    requests=len(both),
                    mean=float(gain.mean()),
                    interval=within_run(gain),
                    p1=spread[1],
                    median=spread[50],
                    p99=spread[99],
                    sooner=float((gain < 0).mean()),
                )
            )
    return found


def _same_requests(one: Latencies, other: Latencies) -> bool:
    return all(
        np.array_equal(one.column(name), other.column(name))
        for name in ("request", "arrival", "prompt", "output")
    )
