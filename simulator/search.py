"""The highest rate that keeps a service level: a search among noisy, crooked curves.

A search knows nothing of simulators. It is a generator that asks for readings at (rate, seed,
requests) and is sent their margins: log(value / bound) of the worst SLA term, so that 0 is the
edge, above it the level is missed, and infinity is a rate that cannot last.

1. *Ladder.* Few, short runs from light load to just under the service rate μ. The level may also
   be missed at light load (a batch that waits to fill), so the edge is looked for above the
   highest rung that keeps it, not by halving from the ends.
2. *Edge.* The same seed at two rates serves the same requests, only closer together, so the rate
   at which a seed's margin crosses 0 is well defined and found by a few long runs. These
   crossings, one a seed, are independent: Student's t over them is the interval. Runs are made
   longer, then more, until it is narrow enough.

The *recommended* rate is lower than the middle: a new run of that length misses the level there
with 2.5 % (it is the low end of the two-sided 95 % prediction interval). No rate at or
above the low end of μ's interval is ever asked for or recommended.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Literal, NamedTuple

from reports.confidence import Interval, student

RUNGS = (0.1, 0.3, 0.5, 0.7, 0.8, 0.9, 0.95)
"""The ladder, in shares of μ."""
LOW_RUNG = 0.05
"""One more, where all are missed. Below it nothing is looked for: what few requests happen to meet
there says little."""
CAP = 0.98
"""No run is made above this share of the low end of μ's interval: it would not be stationary."""
BRACKET = 1.08
"""A crossing lies between two runs whose rates differ by this factor at most."""
MARGIN = 0.1
"""The recommended rate lies below the middle by this share at most, if longer runs can do that."""
PLAIN, LENIENT = 0.9, 1.2
"""The first runs are enough where the spread is this share of the wanted one, later ones where
it is this many times that."""
TRIES = 12
"""Runs of one seed at most; what is left between the two nearest is halved."""


class Probe(NamedTuple):
    """A run that is asked for."""

    rate: float
    seed: int
    requests: int


Ask = Generator[list[Probe], list[float], "Edge"]
"""A search: asks for the margins of probes, ends in an `Edge`."""


@dataclass(frozen=True, kw_only=True)
class Effort:
    """How hard to look."""

    precision: float = 0.05
    """Half-width of the interval, as a share of the rate."""
    runs: int = 6
    """Seeds at first."""
    most_runs: int = 12
    """Seeds at most, where runs are as long as they may be."""
    short: int = 600
    """Requests of a run of the ladder."""
    long: int = 1500
    """Requests of a run at the edge."""
    longest: int = 24_000
    """And at most."""

    def __post_init__(self) -> None:
        if not 0 < self.precision < 1:
            raise ValueError(f"precision {self.precision}: expected a share between 0 and 1")
        if self.runs < 3:
            raise ValueError(f"runs {self.runs}: an interval needs three at least")


@dataclass(frozen=True, kw_only=True)
class Edge:
    """What a search found."""

    verdict: Literal["edge", "all", "none"]
    """`all`: every tried rate keeps the level, so that only μ bounds the rate; `none`: no tried
    rate keeps it."""
    rate: Interval | None
    """The highest rate; None where no rate keeps the level."""
    recommended: float
    """0 where no rate keeps the level."""
    crossings: tuple[float, ...] = ()
    """By seed, 0, 1, …"""
    slope: float = 0.0
    """d margin / d log rate at the edge."""
    requests: int = 0
    """Of each run at the edge."""
    ladder: tuple[tuple[float, float], ...] = ()
    """(rate, margin), of single short runs."""
    missed_below: float | None = None
    """Up to this rate the level is missed as well, though a higher one keeps it."""

    @property
    def precise(self) -> float:
        """Half-width as a share of the rate."""
        if self.rate is None or not self.rate.estimate:
            return 0.0
        return self.rate.half_width / self.rate.estimate


def find_edge(service: Interval, effort: Effort, *, guess: Edge | None = None) -> Ask:
    """Look for the highest rate below the `service` rate.

    `guess`: the edge of a similar setting, from where the search starts at once.
    """
    cap = CAP * service.low
    if cap <= 0:
        return Edge(verdict="none", rate=None, recommended=0.0)
    near = _near(guess, cap)
    ladder: tuple[tuple[float, float], ...] = ()
    missed = None
    if near is None:
        ladder = yield from _climb(service.estimate, cap, effort.short)
        kept = [at for at, (_, margin) in enumerate(ladder) if margin <= 0]
        if not kept:
            return Edge(verdict="none", rate=None, recommended=0.0, ladder=ladder)
        missed = max((r for r, m in ladder[: kept[-1]] if m > 0), default=None)
        near = _between(ladder, kept[-1], cap)
    lines = [_Line(seed=seed, cap=cap, at=near[0], slope=near[1]) for seed in range(effort.runs)]
    requests = effort.long if guess is None else max(effort.long, guess.requests)
    first = True
    while True:
        yield from _refine(lines, requests)
        found = _pooled(lines)
        lack = _lack(found, effort)
        # Stopping when the spread happens to look small would make intervals too narrow: what
        # the first runs say of it decides how long the others are, and these are believed.
        if lack <= (PLAIN if first else LENIENT) or found.estimate < RUNGS[0] * service.estimate:
            break
        first = False
        middle, slope = found.estimate, _middle([line.slope for line in lines])
        if requests < effort.longest:
            # Longer runs also have less of a bias, which more seeds would not cure.
            requests = min(round(requests * min((1.2 * lack) ** 2, 8.0)), effort.longest)
            lines = [_Line(seed=line.seed, cap=cap, at=middle, slope=slope) for line in lines]
        elif len(lines) < effort.most_runs:
            more = range(len(lines), min(2 * len(lines), effort.most_runs))
            lines += [_Line(seed=seed, cap=cap, at=middle, slope=slope) for seed in more]
        else:
            break
    return _edge(lines, found, service, requests, ladder, missed)


def find_edge_once(service: Interval, effort: Effort) -> Generator[list[Probe], list[float], Edge]:
    """The same where the load cannot be drawn again: one recording, replayed at other rates.

    The interval is left to the caller (`with_spread`): it knows how sure a margin is.
    """
    cap = CAP * service.low
    ladder = yield from _climb(service.estimate, cap, effort.short)
    kept = [at for at, (_, margin) in enumerate(ladder) if margin <= 0]
    if not kept:
        return Edge(verdict="none", rate=None, recommended=0.0, ladder=ladder)
    at, slope = _between(ladder, kept[-1], cap)
    line = _Line(seed=0, cap=cap, at=at, slope=slope)
    yield from _refine([line], effort.long)
    middle = line.crossing()
    if not middle:
        return Edge(verdict="none", rate=None, recommended=0.0, ladder=ladder)
    return Edge(
        verdict="all" if line.capped else "edge",
        rate=Interval(estimate=middle, low=middle, high=middle, samples=1),
        recommended=middle,
        crossings=(middle,),
        slope=line.slope,
        requests=effort.long,
        ladder=ladder,
        missed_below=max((r for r, m in ladder[: kept[-1]] if m > 0), default=None),
    )


def with_spread(edge: Edge, error: float, groups: int) -> Edge:
    """The edge of a recording with an interval: `error` is the standard error of the margin
    there, from leaving out each of `groups` stretches of the recording in turn."""
    from scipy.special import stdtrit

    if edge.rate is None or edge.verdict == "all":
        return edge
    middle, error = edge.rate.estimate, error / edge.slope

    def reach(share: float) -> float:
        return 1 - math.exp(-float(stdtrit(groups - 1, share)) * error)

    wide = middle * reach(0.975)
    rate = Interval(estimate=middle, low=middle - wide, high=middle + wide, samples=groups)
    return replace(edge, rate=rate, recommended=middle * (1 - reach(0.975)))


def _pooled(lines: Sequence[_Line]) -> Interval:
    """Where the mean of the seeds' values crosses the bound, with Student's t over crossings.

    Values grow as rate^slope near the edge, and it is they that chance spreads: their mean
    crosses a little below the mean of the crossings.
    """
    crossings = [line.crossing() for line in lines]
    found = student(crossings)
    if min(crossings) <= 0:
        return found
    slope = _middle([line.slope for line in lines])
    middle = fmean(one**-slope for one in crossings) ** (-1 / slope)
    low, high = middle - found.half_width, middle + found.half_width
    return replace(found, estimate=middle, low=low, high=high)


def _lack(found: Interval, effort: Effort) -> float:
    """How many times as wide as wanted the interval, or the way down to a safe rate, is."""
    if not found.estimate:
        return 1.0
    width = found.half_width / found.estimate
    return max(width / effort.precision, (1 - _safe(found) / found.estimate) / MARGIN)


def _safe(found: Interval) -> float:
    """The low end of the 95 % prediction interval for one more run."""
    # student(): half-width = t·s/√n; of a prediction: t·s·√(1 + 1/n).
    return found.estimate - found.half_width * math.sqrt(found.samples + 1)


def _edge(
    lines: Sequence[_Line],
    found: Interval,
    service: Interval,
    requests: int,
    ladder: tuple[tuple[float, float], ...],
    missed: float | None,
) -> Edge:
    crossings = tuple(line.crossing() for line in lines)
    capped = sum(line.capped for line in lines) * 2 > len(lines)
    if not any(crossings):
        return Edge(verdict="none", rate=None, recommended=0.0, ladder=ladder)
    rate = Interval(
        estimate=found.estimate,
        low=max(found.low, 0.0),
        high=service.high if capped else min(found.high, service.high),
        samples=len(lines),
    )
    return Edge(
        verdict="all" if capped else "edge",
        rate=rate,
        recommended=max(min(_safe(found), CAP * service.low), 0.0),
        crossings=crossings,
        slope=_middle([line.slope for line in lines]),
        requests=requests,
        ladder=ladder,
        missed_below=missed,
    )


def _near(guess: Edge | None, cap: float) -> tuple[float, float] | None:
    if guess is None or guess.rate is None:
        return None
    return min(guess.rate.estimate, cap), guess.slope


def _climb(
    service: float, cap: float, requests: int
) -> Generator[list[Probe], list[float], tuple[tuple[float, float], ...]]:
    rates = sorted({min(share * service, cap) for share in RUNGS})
    margins = yield [Probe(rate, 0, requests) for rate in rates]
    if min(margins) > 0:
        lowest = LOW_RUNG * service
        margins = (yield [Probe(lowest, 0, requests)]) + margins
        rates = [lowest, *rates]
    return tuple(zip(rates, margins, strict=True))


def _between(ladder: Sequence[tuple[float, float]], kept: int, cap: float) -> tuple[float, float]:
    """Where the margin crosses 0 above rung `kept`, and how steeply (in log rate)."""
    low, below = ladder[kept]
    if kept + 1 == len(ladder):
        return cap, 4.0
    high, above = ladder[kept + 1]
    if math.isinf(above) or math.isinf(below):
        return math.sqrt(low * high), 4.0
    slope = (above - below) / math.log(high / low)
    return low * math.exp(-below / slope) if slope > 0 else low, max(slope, 0.5)


@dataclass
class _Line:
    """The runs of one seed: its margin over the rate."""

    seed: int
    cap: float
    at: float
    """The rate to try next."""
    slope: float
    low: tuple[float, float] | None = None
    """The highest (rate, margin) that keeps the level, below `high`."""
    high: tuple[float, float] | None = None
    tried: int = 0
    done: bool = field(default=False)

    @property
    def capped(self) -> bool:
        """It keeps the level as near to μ as is tried."""
        return self.low is not None and self.high is None

    def learn(self, margin: float) -> None:
        """The margin at `at`; moves on to the next rate, or is done."""
        self.tried += 1
        if margin <= 0:
            self.low = self.at, margin
        else:
            self.high = self.at, margin
        if self.low and self.high:
            self._inside(self.low, self.high)
            return
        step = abs(margin) / self.slope if math.isfinite(margin) and self.slope > 0 else 0.25
        step = min(max(1.25 * step, 0.02), 0.3 * 1.5**self.tried)
        if margin <= 0:
            self.done = self.at >= self.cap
            self.at = min(self.at * math.exp(step), self.cap)
        else:
            self.done = self.tried >= TRIES
            self.at *= math.exp(-step)

    def _inside(self, low: tuple[float, float], high: tuple[float, float]) -> None:
        width = math.log(high[0] / low[0])
        if math.isfinite(high[1]) and math.isfinite(low[1]):
            self.slope = min(max((high[1] - low[1]) / width, 0.5), 50.0)
        self.done = width <= math.log(BRACKET) or self.tried >= TRIES
        part = min(max(self._part(low, high), 0.15), 0.85)
        self.at = low[0] * math.exp(part * width)

    @staticmethod
    def _part(low: tuple[float, float], high: tuple[float, float]) -> float:
        if not (math.isfinite(high[1]) and math.isfinite(low[1])):
            return 0.5
        return -low[1] / (high[1] - low[1])

    def crossing(self) -> float:
        """Where the margin is 0: `cap` if never before, 0 where even the lowest rate misses."""
        if self.low is None:
            return 0.0
        if self.high is None:
            return self.cap
        part = self._part(self.low, self.high)
        return float(self.low[0] * (self.high[0] / self.low[0]) ** part)


def _refine(lines: Sequence[_Line], requests: int) -> Generator[list[Probe], list[float], None]:
    while open_lines := [line for line in lines if not line.done]:
        margins = yield [Probe(line.at, line.seed, requests) for line in open_lines]
        for line, margin in zip(open_lines, margins, strict=True):
            line.learn(margin)


def _middle(values: Sequence[float]) -> float:
    ordered = sorted(values)
    return ordered[len(ordered) // 2]
