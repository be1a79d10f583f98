"""How sure a number is: stationarity, warm-up, and intervals.

**Stationary.** The backlog at a time is the number of requests that have arrived and not ended.
Over the second half of the span of arrivals it is averaged in `BATCHES` equal stretches and a
line is fitted through the averages. The run is *not* stationary where the line rises by more than
`GROWTH` of the requests that arrived in that half (and by `LEAST` requests at least), and the
rise is more than chance (one-sided, 5 %). The drain after the last arrival is left out: it always
falls.

The answer is None where nobody can tell: all requests arrive at once, so that there is no rate; the
backlog rises by no more than arrivals and departures are uneven anyhow; or the run is short (fewer
than `FEW` requests, or a span of less than `LONG` times what the first tenth of them took), when a
backlog may rise because an empty server fills. A short run is *not* stationary all the same where
its last quarter of requests took `SLOWER` times as long as its first: filling does not do that.

**Warm-up.** MSER-5: of the requests in order of arrival, cut as many as make the standard error of
the mean of the rest smallest, in fives, at most half. `without_ends` cuts by arrival and says so.

**Intervals.** Between runs with independent seeds: Student's t over one value a run. Between
variants on the same seeds: the same over the differences of pairs. Within one long run the values
of neighbours depend on each other: it is cut into consecutive batches by arrival, and Student's t
is taken over the batches' own statistics (batch means; for percentiles, sectioning).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from reports.gaps import column
from reports.latencies import Latencies
from reports.percentiles import Distribution, percentile, shown
from traces.records import Records
from traces.trace import PS_PER_S

BATCHES = 8
GROWTH = 0.015
LEAST = 3.0
FEW = 100
LONG = 8
SLOWER = 1.5


@dataclass(frozen=True, kw_only=True)
class Stationarity:
    """The verdict on a run's backlog, with what it rests on."""

    stationary: bool | None
    """None: no rate to judge (fewer than ten requests, or all at once), or too short to tell."""
    growth: float = 0.0
    """Requests by which the fitted backlog rises over the second half of the arrivals."""
    arrived: int = 0
    """Requests that arrived in that half."""
    p_value: float = 1.0
    """Chance of such a rise without a trend."""

    def sentence(self) -> str:
        """The verdict in words."""
        if not self.arrived:
            return "no arrival rate to judge: the requests come at once, or too few of them"
        over = f"over the second half of the arrivals ({self.growth / self.arrived:+.1%} of them)"
        if self.stationary is None:
            return f"too short to tell: the backlog moves by {self.growth:+.0f} requests {over}"
        if self.stationary:
            return f"stationary: the backlog moves by {self.growth:+.0f} requests {over}"
        return f"NOT stationary: the backlog grows by {self.growth:.0f} requests {over}"


def stationarity(arrival: NDArray[np.int64], left: NDArray[np.int64]) -> Stationarity:
    """Judge a run by when requests arrived, and when those that ended did.

    In any order; where all ended, `left` stands row by row beside `arrival`.
    """
    if len(arrival) < 10 or arrival.min() == arrival.max():
        return Stationarity(stationary=None)
    slower = _slower(arrival, left)
    arrival, left = np.sort(arrival), np.sort(left)
    start = (arrival[0] + arrival[-1]) / 2
    edges = np.linspace(start, arrival[-1], 16 * BATCHES + 1)
    moments = (edges[1:] + edges[:-1]) / 2
    backlog = np.searchsorted(arrival, moments, "right") - np.searchsorted(left, moments, "right")
    stretches = backlog.reshape(BATCHES, -1).mean(axis=1)
    slope, p_value = _rising(stretches)
    growth = slope * BATCHES
    arrived = int(np.sum(arrival >= start))
    rises = growth > max(GROWTH * arrived, LEAST) and p_value < 0.05
    if rises:
        sure = growth > _uneven(arrival, left, edges[::16])
        sure = sure and (slower or not _short(arrival, left))
    else:
        sure = not _short(arrival, left)
    verdict = not rises if sure else None
    return Stationarity(stationary=verdict, growth=growth, arrived=arrived, p_value=p_value)


def _rising(values: NDArray[np.float64]) -> tuple[float, float]:
    """The slope of a straight line through `values`, and the chance of one at least as steep
    where there is no trend: a t-test of the correlation."""
    from scipy.special import stdtr  # a tenth of what importing scipy.stats costs

    # A constant backlog has no spread: no trend either. A perfect line leaves a chance of 0.
    if np.ptp(values) == 0:
        return 0.0, 1.0
    at = np.arange(len(values)) - (len(values) - 1) / 2
    slope = float(at @ values / (at @ at))
    r = min(1.0, max(-1.0, slope * float(np.std(at) / np.std(values))))
    free = len(values) - 2
    if abs(r) == 1.0:
        return slope, 0.0 if r > 0 else 1.0
    return slope, float(stdtr(free, -r * math.sqrt(free / (1 - r * r))))


def _uneven(arrival: NDArray[np.int64], left: NDArray[np.int64], edges: NDArray[Any]) -> float:
    """What a backlog without a trend moves by: neighbours in `stretches` depend on each other, but
    what each stretch adds to the backlog hardly does."""
    added = np.histogram(arrival, edges)[0] - np.histogram(left, edges)[0]
    return float(np.std(added, ddof=1)) * math.sqrt(BATCHES)


def _short(arrival: NDArray[np.int64], left: NDArray[np.int64]) -> bool:
    """Whether the run (both in order of time) may end before an empty server has filled."""
    first = min(max(len(arrival) // 10, 10), len(left))
    # Later requests are no measure: under overload they take as long as the run is.
    took = float(left[:first].mean() - arrival[:first].mean()) if first else np.inf
    return len(arrival) < FEW or float(arrival[-1] - arrival[0]) < LONG * took


def _slower(arrival: NDArray[np.int64], left: NDArray[np.int64]) -> bool:
    """Whether all ended, the last quarter to arrive after far longer than the first."""
    if len(left) < len(arrival):
        return False
    took = (left - arrival)[np.argsort(arrival, kind="stable")]
    quarter = len(took) // 4
    return bool(took[-quarter:].mean() > SLOWER * took[:quarter].mean())


@dataclass(frozen=True, kw_only=True)
class Interval:
    """An estimate with its confidence interval, in the unit of the values."""

    estimate: float
    low: float
    high: float
    samples: int
    """Runs, pairs or batches that it rests on."""
    confidence: float = 0.95

    @property
    def half_width(self) -> float:
        return (self.high - self.low) / 2

    @property
    def excludes_zero(self) -> bool:
        """Of a difference: more than chance."""
        return self.low > 0 or self.high < 0


def student(values: Sequence[float] | NDArray[Any], confidence: float = 0.95) -> Interval:
    """The mean of independent values, one a run. Raises ValueError for fewer than two."""
    from scipy.special import stdtrit

    array = np.asarray(values, dtype=float)
    if len(array) < 2:
        raise ValueError(f"an interval needs two values at least, got {len(array)}")
    mean = float(array.mean())
    reach = float(stdtrit(len(array) - 1, (1 + confidence) / 2))
    reach *= float(array.std(ddof=1)) / len(array) ** 0.5
    return Interval(
        estimate=mean,
        low=mean - reach,
        high=mean + reach,
        samples=len(array),
        confidence=confidence,
    )


def paired(
    base: Sequence[float] | NDArray[Any],
    variant: Sequence[float] | NDArray[Any],
    confidence: float = 0.95,
) -> Interval:
    """variant - base, where the i-th of both come from the same requests or seed."""
    if len(base) != len(variant):
        raise ValueError(f"pairs: {len(base)} values against {len(variant)}")
    return student(np.asarray(variant, float) - np.asarray(base, float), confidence)


def within_run(
    values: NDArray[Any], statistic: str = "mean", confidence: float = 0.95, batches: int = 20
) -> Interval | None:
    """A statistic ("mean", "p99") of one run's values in order of arrival.

    None where there are too few: a batch must hold what its percentile needs (100 for P99), and
    five batches there must be.
    """
    share = None if statistic == "mean" else float(statistic[1:])
    least = 10 if share is None else max(10, round(100 / (100 - share)))
    batches = min(batches, len(values) // least)
    if batches < 5:
        return None

    def of(part: NDArray[Any]) -> float:
        found = float(part.mean()) if share is None else percentile(part, share)
        assert found is not None
        return found

    spread = student([of(part) for part in np.array_split(values, batches)], confidence)
    whole = of(values)
    return replace(
        spread, estimate=whole, low=whole - spread.half_width, high=whole + spread.half_width
    )


def run_intervals(run: Latencies) -> dict[str, Interval]:
    """What chance alone may do to a run's figures, by label, where there is enough to tell.

    TTFT and E2E from batches of requests by arrival; ITL from stretches of equally many gaps.
    """
    order = np.argsort(run.column("arrival"), kind="stable")
    found: dict[str, Interval | None] = {}
    for metric in ("ttft", "e2e"):
        values = run.of(metric)[order]
        values = values[values >= 0] / PS_PER_S
        for statistic in ("mean", "p90", "p99"):
            found[f"{metric.upper()} {shown(statistic)}"] = within_run(values, statistic)
    found["ITL P99"] = _gap_interval(run)
    return {label: interval for label, interval in found.items() if interval is not None}


def _gap_interval(run: Latencies, batches: int = 20) -> Interval | None:
    gaps = run.clocks.gaps
    weights = gaps.weight
    seen = np.cumsum(weights)
    count = int(seen[-1]) if len(seen) else 0
    whole = run.pooled_gaps.percentile(99)
    if whole is None or count < 500 * batches:
        return None
    cuts = np.searchsorted(seen, np.arange(1, batches) * count / batches)
    parts = [
        known.percentile(99)
        for rows in np.split(np.arange(len(weights)), cuts)
        if (known := Distribution(gaps.length[rows], weights[rows])).count
    ]
    spread = student([part for part in parts if part is not None])
    whole, reach = whole / PS_PER_S, spread.half_width / PS_PER_S
    return replace(spread, estimate=whole, low=whole - reach, high=whole + reach)


def warm_up(values: NDArray[Any]) -> int:
    """How many of the first values to leave out (MSER-5): a multiple of 5, at most half."""
    fives = len(values) // 5
    if fives < 4:
        return 0
    means = np.asarray(values[: fives * 5], dtype=float).reshape(fives, 5).mean(axis=1)
    # Sums over what is left after each cut, from the end.
    left = np.arange(fives, 0, -1)
    total, squares = np.cumsum(means[::-1])[::-1], np.cumsum(means[::-1] ** 2)[::-1]
    error = (squares - total**2 / left) / left**2
    return int(np.argmin(error[: fives // 2 + 1])) * 5


def without_ends(records: Records, first: int = 0, last: int = 0) -> Records:
    """Records without the first and last so many requests by arrival; a note says so.

    What is said of requests (latencies, SLA, preemptions, rates) is then of the rest, rates over
    the span of their arrivals; what is said of steps and the pool stays that of the whole run.
    Raises ValueError where nothing would be left.
    """
    arrival = column(records.requests, "arrival")
    order = np.argsort(np.where(arrival < 0, np.iinfo(np.int64).max, arrival), kind="stable")
    sent = int((arrival >= 0).sum())
    if first < 0 or last < 0 or first + last >= sent:
        raise ValueError(f"cut: {first} first and {last} last of {sent} requests leave nothing")
    kept = np.zeros(len(arrival), dtype=bool)
    kept[order[first : sent - last]] = True
    requests = records.requests[kept].reset_index(drop=True)
    names = requests["request"]
    left = arrival[kept]
    note = (
        f"Requests are those that arrived from {left.min() / PS_PER_S:,.3f} s to "
        f"{left.max() / PS_PER_S:,.3f} s: without the first {first:,} and the last {last:,} by "
        "arrival. Steps and the KV pool are those of the whole run."
    )
    about = records.about | {
        "notes": [*records.about.get("notes", []), note],
        "span_ps": int(left.max() - left.min()),
    }
    return replace(
        records,
        requests=requests,
        spells=_of(records.spells, names),
        stalls=_of(records.stalls, names),
        about=about,
    )


def _of(table: pd.DataFrame, names: pd.Series[int]) -> pd.DataFrame:
    return table[table["request"].isin(names)].reset_index(drop=True)
