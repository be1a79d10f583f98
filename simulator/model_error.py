"""How far a planned rate may be off because step times are: a band beside the interval.

An interval covers chance alone. If every step takes 1 + e times as long as the profile says, a
server at rate λ is the same server with a slower clock: its latencies are those that the profile
gives at rate λ·(1 + e), times 1 + e. So the highest rate for given bounds is the one at which the
margins are ln(1 + e) below 0, divided by 1 + e; it is read off the curve that the search
measured, without another run.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean

from calibration.profile import Profile, load_profile
from reports.confidence import Interval
from reports.evidence import Evidence
from simulator.scenario import Scenario
from simulator.search import CAP, Edge

HOST_S = 0.001
"""Assumed host time of a step where a profile has none: scheduling and launching of an engine
that overlaps most of it."""
MIXED = 0.8
"""Assumed penalty on the decode part of mixed steps where it was not measured; on cards where it
was, decodes beside a prefill cost 1.6 to 2 times as much per cached token."""
UNKNOWN = 0.05
"""Assumed error of step times where a profile states none."""


@dataclass(frozen=True, kw_only=True)
class Band:
    """Highest rates if step times are off."""

    low: float
    central: float
    high: float
    slower: float
    """Share by which steps may take longer: error and missing parts."""
    faster: float
    error: float
    """The profile's own error of step times."""
    held_out: bool
    """That error was measured on data that the fit had not seen."""
    missing: tuple[tuple[str, float], ...]
    """Parts that the profile lacks, and what each may add to step times."""


def model_error(
    scenario: Scenario, edge: Edge, service: Interval, seen: Sequence[Evidence]
) -> Band | None:
    """The band around `edge`; `seen` are runs near it. None where no rate was found."""
    if edge.rate is None or not edge.rate.estimate:
        return None
    profile = load_profile(scenario.profile_name)
    error, held_out = _stated(profile)
    missing = tuple(_missing(profile, scenario, seen))
    slower = error + sum(share for _, share in missing)
    return Band(
        low=_rate(edge, service, slower),
        central=edge.rate.estimate,
        high=_rate(edge, service, -min(error, 0.5)),
        slower=slower,
        faster=error,
        error=error,
        held_out=held_out,
        missing=missing,
    )


def _stated(profile: Profile) -> tuple[float, bool]:
    held_out = profile.errors.held_out_random or profile.errors.held_out_largest
    classes = held_out or profile.errors.fit
    known = [
        one.mape for one in (classes.decode, classes.prefill, classes.mixed, classes.all) if one
    ]
    return (max(known), held_out is not None) if known else (UNKNOWN, False)


def _missing(
    profile: Profile, scenario: Scenario, seen: Sequence[Evidence]
) -> list[tuple[str, float]]:
    found = []
    step = fmean(one.facts["summary"]["steps"]["mean_s"] or 0.0 for one in seen)
    if profile.parts.host == "missing" and not scenario.host.per_step and step:
        found.append((f"host overhead, {HOST_S * 1e3:g} ms a step assumed", HOST_S / step))
    if profile.parts.mixed in ("missing", "modelled") and profile.cost.mixed is None:
        decode = profile.cost.decode
        shares = []
        for one in seen:
            sums, steps = one.facts["mixed"], one.facts["summary"]["steps"]
            spent = (steps["mean_s"] or 0.0) * steps["count"]
            part = decode.d0 * sums["steps"] + decode.dD * sums["decodes"]
            part += decode.dK * sums["context"]
            shares.append(part / spent if spent else 0.0)
        if share := MIXED * fmean(shares):
            found.append((f"mixed-step penalty, {MIXED:.0%} on decodes assumed", share))
    return found


def _rate(edge: Edge, service: Interval, error: float) -> float:
    """The highest rate if steps take 1 + `error` times as long."""
    assert edge.rate is not None
    wanted = -math.log1p(error)
    middle = edge.rate.estimate
    below = [(rate, m) for rate, m in edge.ladder if rate < 0.98 * middle and math.isfinite(m)]
    knots = [*((math.log(rate), margin) for rate, margin in below), (math.log(middle), 0.0)]
    slope = max(edge.slope, 0.5)
    if wanted >= 0 or len(knots) == 1:
        at = math.log(middle) + wanted / slope
    else:
        at = knots[0][0] + (wanted - knots[0][1]) / slope
        for (x0, y0), (x1, y1) in pairwise(knots):
            if y0 <= wanted <= y1:
                at = x0 + (x1 - x0) * (wanted - y0) / (y1 - y0)
    return min(math.exp(at), CAP * service.estimate) / (1 + error)
