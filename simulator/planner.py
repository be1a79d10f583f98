"""How many requests per second a replica carries, with which settings, and what stops it.

`plan` studies every setting by itself: its service rate μ from saturated runs, then the highest
rate that keeps the service level (`simulator.search`), then what breaks first above it. All
settings share the same requests seed by seed (common random numbers), and all runs are kept by
content, so that another question about the same settings reuses them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from statistics import fmean
from typing import Any

from calibration.profile import load_profile
from reports.confidence import Interval, student
from reports.evidence import Evidence, same_in_blocks
from simulator.loads import Load
from simulator.remedies import Advice, remedies
from simulator.runs import OnRound, RunFailed, Runs, Study, together
from simulator.scenario import Scenario
from simulator.search import Effort, Probe
from simulator.settings_file import one_line
from simulator.study import STRETCHES, Objective, Setting, lasts, margin_of, study
from simulator.sweep import points
from traces.sla import Term

FRESH = 10
"""Runs with new seeds that confirm the best setting's rate."""
FRESH_SEED = 1_000

Progress = Callable[[str, float], None]
"""Called with (what is being looked at, share of the settings that are done)."""


@dataclass(frozen=True, kw_only=True)
class Question:
    """What is asked: a base, the settings to choose among, and the level to keep."""

    base: Scenario
    objective: Objective
    grid: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    effort: Effort = field(default_factory=Effort)


@dataclass(frozen=True, kw_only=True)
class Confirmed:
    """The best setting's rate, run again with seeds that nobody has seen."""

    rate: float
    runs: int
    kept: int
    values: Mapping[str, Interval]
    goodput: float
    """Requests per second that met every term."""
    attainment: float
    fairness: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """Where there are lanes or tenants: each one's P99 TTFT, in seconds."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Every setting, and the best of them."""

    question: Question
    load: Load
    settings: tuple[Setting, ...]
    best: Setting | None
    confirmed: Confirmed | None
    runs_made: int
    runs_found: int


def plan(question: Question, runs: Runs, on_progress: Progress | None = None) -> Plan:
    """Study every setting, choose the best, confirm it.

    Raises ValueError for a question that cannot be answered, and for stores that cannot be used.
    """
    load = Load.of(question.base)
    _check(question, load)
    if load.kind == "recorded":
        runs.stretches = STRETCHES
    values = points(question.grid)
    found: dict[int, Setting] = {}
    scenarios: dict[int, Scenario] = {}
    for at, changes in enumerate(values):
        try:
            scenarios[at] = question.base.with_values(changes)
        except (ValueError, OSError) as error:
            found[at] = Setting(values=changes, error=one_line(error))
    families = _families(values, scenarios)
    leaders = [family[0] for family in families]
    followers = [at for family in families for at in family[1:]]
    lead = {at: family[0] for family in families for at in family}
    for group in (leaders, followers):
        studies: dict[int, Study[Setting]] = {}
        for at in group:
            leader = found.get(lead[at])
            if leader is not None and leader.edge and _same(leader, scenarios[at]):
                found[at] = replace(leader, values=values[at], same_as=leader.values, rooms=())
            else:
                guess = leader.edge if leader is not None else None
                studies[at] = study(
                    scenarios[at],
                    values[at],
                    question.objective,
                    load,
                    question.effort,
                    guess=guess,
                )
        told = on_progress and _told(on_progress, len(scenarios), len(found))
        for at, setting in together(studies, runs, told).items():
            if isinstance(setting, RunFailed):
                setting = Setting(values=values[at], error=str(setting))
            found[at] = setting
    settings = tuple(found[at] for at in range(len(values)))
    best = max(settings, key=lambda one: one.recommended, default=None)
    if best is not None and not best.recommended:
        best = None
    confirmed = None
    if best is not None and load.kind != "recorded":
        best, confirmed = _confirm(question, load, best, runs, on_progress)
        settings = tuple(best if one.values == best.values else one for one in settings)
    return Plan(
        question=question,
        load=load,
        settings=settings,
        best=best,
        confirmed=confirmed,
        runs_made=runs.made,
        runs_found=runs.found,
    )


def _told(on_progress: Progress, settings: int, known: int) -> OnRound:
    def told(done: int, all: int, going: int, about: Sequence[str]) -> None:
        share = (settings - going) / settings if known else 0.8 * (settings - going) / settings
        text = f"{going} of {settings} settings, run {done} of {all}"
        on_progress(f"{text}; {about[0]}" if about else text, share)

    return told


def _check(question: Question, load: Load) -> None:
    """Raises ValueError where the load holds too few requests for what is asked of it."""
    least = question.objective.least_requests
    if load.kind != "recorded" or load.requests >= least:
        return
    raise ValueError(
        f"plan: {load.requests} requests are too few for {question.objective.sla}: it takes "
        f"{least} at least to measure that, and {10 * least} to measure it well"
    )


def _families(
    values: Sequence[Mapping[str, Any]], scenarios: Mapping[int, Scenario]
) -> list[list[int]]:
    """Settings that differ in nothing but their block size."""
    families: dict[str, list[int]] = {}
    for at in scenarios:
        rest = {key: value for key, value in values[at].items() if key != "engine.block_size"}
        families.setdefault(repr(rest), []).append(at)
    return list(families.values())


def _same(leader: Setting, scenario: Scenario) -> bool:
    """Whether all that the leader ran would run the same with this one's block size."""
    profile = load_profile(scenario.profile_name)
    prices = scenario.host.added_to(profile.step_time())
    if scenario.engine.prefix_cache or prices.tB or prices.tT or prices.tN:
        return False
    engine = scenario.engine_limits(profile)
    return all(
        same_in_blocks(
            room, block_size=engine.block_size, blocks=engine.blocks, reserve=engine.reserve
        )
        for room in leader.rooms
    )


def _confirm(
    question: Question, load: Load, best: Setting, runs: Runs, on_progress: Progress | None
) -> tuple[Setting, Confirmed]:
    """Run the recommended rate with fresh seeds; lower it until nine in ten keep the level."""
    objective = question.objective
    edge = best.edge
    assert edge is not None
    scenario = question.base.with_values(best.values)
    rate = edge.recommended
    for _ in range(5):
        probes = [Probe(rate, FRESH_SEED + at, edge.requests) for at in range(FRESH)]
        if on_progress:
            on_progress(f"confirming {rate:.3g}/s with {FRESH} fresh seeds", 1.0)
        seen = [
            one
            for one in runs.of([load.at(scenario, probe) for probe in probes])
            if isinstance(one, Evidence)
        ]
        kept = sum(margin_of(objective, one) <= 0 for one in seen)
        lasting = sum(lasts(load, one) for one in seen)
        if kept >= 0.9 * len(seen) and 2 * lasting > len(seen):
            break
        rate *= 0.97
    measured = {}
    for metric in ("ttft", "itl", "tpot", "e2e"):
        term = Term(metric=metric, statistic="p99", bound_s=1.0)
        known = [value for one in seen if math.isfinite(value := one.values(term))]
        if len(known) > 1:
            measured[f"{metric}_p99"] = student(known)
    share = fmean(one.goodput_share(objective.sla) for one in seen)
    return replace(best, edge=replace(edge, recommended=rate)), Confirmed(
        rate=rate,
        runs=len(seen),
        kept=kept,
        values=measured,
        goodput=share * rate,
        attainment=share,
        fairness=_fairness(seen),
    )


def _fairness(seen: Sequence[Evidence]) -> dict[str, dict[str, float]]:
    term = Term(metric="ttft", statistic="p99", bound_s=1.0)
    return {
        name: {key: fmean(one.values(term, f"{name}={key}") for one in seen) for key in keys}
        for name, keys in seen[0].classes.items()
    }


def advise(plan: Plan, runs: Runs, on_cure: Callable[[str], None] | None = None) -> Advice | None:
    """Cures for trouble that the best setting, or the first where there is none, has at its edge.

    None where there is no trouble.
    """
    chosen = plan.best or next((one for one in plan.settings if one.service), None)
    if chosen is None or chosen.service is None:
        return None
    rate = chosen.edge.rate.estimate if chosen.edge and chosen.edge.rate else 0.0
    scenario = plan.load.at(
        plan.question.base.with_values(chosen.values),
        Probe(
            rate or 0.5 * chosen.service.estimate,
            FRESH_SEED,
            chosen.edge.requests if chosen.edge and rate else plan.question.effort.long,
        ),
    )
    (seen,) = runs.of([scenario])
    return None if isinstance(seen, RunFailed) else remedies(scenario, seen, runs, on_cure=on_cure)


# The plain form


def as_dict(
    plan: Plan,
    *,
    fleet: Any = None,
    flags: Sequence[Any] = (),
    advice: Any = None,
    asked_rate: float | None = None,
) -> dict[str, Any]:
    """Plain dicts, lists, strings and numbers: what is written and shown (schema 1)."""
    settings = [_setting(one) for one in plan.settings]
    best = None
    if plan.best is not None:
        best = next(one for one in settings if one["values"] == dict(plan.best.values))
    asked = None
    if asked_rate is not None and plan.best is not None and plan.best.service is not None:
        asked = {"rate": asked_rate, "rho": asked_rate / plan.best.service.estimate}
    objective = plan.question.objective
    level = str(objective.sla)
    if objective.attainment is not None:
        level = f"{objective.attainment:.6g} of requests: {level}"
    if objective.by is not None:
        level += f", for every {objective.by}"
    return {
        "schema": 1,
        "title": f"highest rate of a replica that keeps {level}",
        "sla": level,
        "settings": settings,
        "best": best,
        "pareto": _pareto(settings),
        "confirmed": plan.confirmed and asdict(plan.confirmed),
        "asked": asked,
        "fleet": fleet and asdict(fleet),
        "flags": [asdict(one) for one in flags],
        "advice": advice and asdict(advice),
    }


def named(values: Mapping[str, Any]) -> str:
    """A setting by its values, for people."""
    return ", ".join(f"{key.rpartition('.')[2]} {value}" for key, value in values.items())


def _setting(one: Setting) -> dict[str, Any]:
    edge = one.edge
    return {
        "name": named(one.values),
        "values": dict(one.values),
        "error": one.error,
        "service": one.service and asdict(one.service),
        "rate": asdict(edge.rate) if edge and edge.rate else None,
        "verdict": edge.verdict if edge else None,
        "recommended": one.recommended,
        "rho": one.rho,
        "missed_below": edge.missed_below if edge else None,
        "requests_per_run": edge.requests if edge else 0,
        "points": [asdict(point) for point in one.points],
        "at_edge": one.at_edge and asdict(one.at_edge),
        "breaks": one.breaks and asdict(one.breaks),
        "band": one.band and asdict(one.band),
        "tokens_per_request": one.tokens_per_request,
        "peak_goodput": one.peak_goodput and list(one.peak_goodput),
        "same_as": named(one.same_as) if one.same_as else None,
    }


def _pareto(settings: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Points that no other beats in rate, P99 TTFT and P99 ITL at once, by rate."""
    points = [
        {
            "name": one["name"],
            "rate": point["rate"],
            "ttft_p99": point["values"]["ttft_p99"],
            "itl_p99": point["values"]["itl_p99"],
        }
        for one in settings
        if one["same_as"] is None
        for point in one["points"]
        if point["margin"] <= 0
    ]
    whole = [p for p in points if p["ttft_p99"] is not None and p["itl_p99"] is not None]
    front = [
        p
        for p in whole
        if not any(
            q is not p
            and q["rate"] >= p["rate"]
            and q["ttft_p99"] <= p["ttft_p99"]
            and q["itl_p99"] <= p["itl_p99"]
            for q in whole
        )
    ]
    # Rates within a twentieth of each other are one row: the one with the least P99 TTFT.
    thinned: dict[int, dict[str, Any]] = {}
    for point in front:
        place = round(math.log(point["rate"]) / 0.05)
        if place not in thinned or point["ttft_p99"] < thinned[place]["ttft_p99"]:
            thinned[place] = point
    return sorted(thinned.values(), key=lambda point: -point["rate"])
