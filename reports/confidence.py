"""How sure a number is: stationarity of a run.

**Stationary.** The backlog at a time is the number of requests that have arrived and not ended.
Over the second half of the span of arrivals it is averaged in `BATCHES` equal stretches and a
line is fitted through the averages. The run is *not* stationary where the line rises by more than
`GROWTH` of the requests that arrived in that half (and by `LEAST` requests at least), and the
rise is more than chance (one-sided, 5 %). The drain after the last arrival is left out: it always
falls. Where all requests arrive at once there is no rate, and the answer is None.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

BATCHES = 8
GROWTH = 0.015
LEAST = 3.0


@dataclass(frozen=True, kw_only=True)
class Stationarity:
    """The verdict on a run's backlog, with what it rests on."""

    stationary: bool | None
    """None: no rate to judge (fewer than ten requests, or all at once)."""
    growth: float = 0.0
    """Requests by which the fitted backlog rises over the second half of the arrivals."""
    arrived: int = 0
    """Requests that arrived in that half."""
    p_value: float = 1.0
    """Chance of such a rise without a trend."""

    def sentence(self) -> str:
        """The verdict in words."""
        if self.stationary is None:
            return "no arrival rate to judge: the requests come at once, or too few of them"
        share = self.growth / self.arrived if self.arrived else 0.0
        over = f"over the second half of the arrivals ({share:+.1%} of them)"
        if self.stationary:
            return f"stationary: the backlog moves by {self.growth:+.0f} requests {over}"
        return f"NOT stationary: the backlog grows by {self.growth:.0f} requests {over}"


def stationarity(arrival: NDArray[np.int64], left: NDArray[np.int64]) -> Stationarity:
    """Judge a run by when requests arrived, and when those that ended did (any order)."""
    from scipy import stats  # half a second to import: not where nothing is summarised

    arrival, left = np.sort(arrival), np.sort(left)
    if len(arrival) < 10 or arrival[-1] == arrival[0]:
        return Stationarity(stationary=None)
    start = (arrival[0] + arrival[-1]) / 2
    edges = np.linspace(start, arrival[-1], 16 * BATCHES + 1)
    moments = (edges[1:] + edges[:-1]) / 2
    backlog = np.searchsorted(arrival, moments, "right") - np.searchsorted(left, moments, "right")
    stretches = backlog.reshape(BATCHES, -1).mean(axis=1)
    line = stats.linregress(np.arange(BATCHES), stretches, alternative="greater")
    growth = float(line.slope) * BATCHES
    arrived = int(np.sum(arrival >= start))
    # A constant backlog has no spread: no trend either. A perfect line leaves a p-value of 0.
    p_value = 1.0 if np.ptp(stretches) == 0 else float(line.pvalue)
    rises = growth > max(GROWTH * arrived, LEAST) and p_value < 0.05
    return Stationarity(stationary=not rises, growth=growth, arrived=arrived, p_value=p_value)
