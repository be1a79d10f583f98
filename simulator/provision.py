"""The smallest fleet for a rate: replicas through a real router, not by division alone.

Division says how many replicas of a known rate are needed; the router says whether they do. A
large fleet often needs fewer (bursts meet idle neighbours), a bad router or uneven requests more.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from statistics import fmean

import numpy as np

from calibration.profile import load_profile
from simulator.loads import DAY_S, Load
from simulator.planner import Question
from simulator.runs import RunFailed, Runs
from simulator.scenario import Scenario
from simulator.search import CAP, Probe
from simulator.study import Objective, Setting, lasts, margin_of
from simulator.workload import load_trace
from traces.trace import PS_PER_S

SEEDS = 3
FLEET_SEED = 2_000
PARTS = 24
"""Of a recorded or shaped load: the rate is looked at in so many parts."""
MOST = 512

Progress = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What a fleet costs at a stated price."""

    per_gpu_hour: float
    per_hour: float
    per_million_tokens: float
    """Prompt and output."""
    per_million_output_tokens: float


@dataclass(frozen=True, kw_only=True)
class FleetPlan:
    """How many replicas a rate takes."""

    target: float
    """Requests per second, on average."""
    peak: float
    """In the busiest part of the load; the target itself where the rate is steady."""
    divided: int
    """Replicas by division of the target by the recommended rate."""
    replicas: int
    """The fewest that kept the level in every run."""
    gpus: int
    spare: int
    """Replicas for N + 1."""
    survives: bool | None
    """N + 1 replicas keep the level although one is lost half-way; None: not tried."""
    headroom: float
    """Share by which the rate may grow before the highest rate of that many replicas."""
    gpu_hours_per_day: float
    elastic_gpu_hours_per_day: float
    """If replicas followed the load, part by part; the same where it is steady."""
    cost: Cost | None
    router: str
    tried: tuple[tuple[int, bool], ...]


def provision(
    question: Question,
    load: Load,
    setting: Setting,
    runs: Runs,
    *,
    target: float,
    gpu_hour_price: float | None = None,
    on_progress: Progress | None = None,
) -> FleetPlan:
    """Find the fewest replicas of `setting` for `target` requests per second.

    Raises ValueError where no number up to 512 does.
    """
    assert setting.edge is not None
    assert setting.service is not None
    assert setting.edge.rate is not None
    scenario = question.base.with_values(setting.values)
    known: dict[int, bool] = {}

    def keeps(replicas: int) -> bool:
        if replicas not in known:
            if on_progress:
                on_progress(f"{replicas} replicas at {target:g} requests/s")
            fleet = scenario.with_values({"fleet.replicas": replicas})
            known[replicas] = _keeps(question.objective, load, setting, fleet, target, runs)
        return known[replicas]

    most = MOST * CAP * setting.service.low
    if target > most:
        raise ValueError(
            f"plan: {target:g} requests/s take more than {MOST} replicas: expected at most "
            f"{most:.3g} requests/s"
        )
    divided = math.ceil(target / setting.recommended)
    least = max(1, math.ceil(target / (CAP * setting.service.low)))
    replicas = min(max(divided, least), MOST)
    while replicas > least and keeps(replicas - 1):
        replicas -= 1
    while not keeps(replicas):
        replicas += max(1, replicas // 20)
        if replicas > MOST:
            raise ValueError(
                f"plan: {MOST} replicas do not keep the level at {target:g} requests/s"
            )
    gpus = load_profile(scenario.profile_name).tp
    rates = _rates(scenario, load, target)
    elastic = fmean(max(1, math.ceil(rate / setting.recommended)) for rate in rates)
    if load.kind == "drawn":
        elastic = replicas
    return FleetPlan(
        target=target,
        peak=max(rates),
        divided=divided,
        replicas=replicas,
        gpus=replicas * gpus,
        spare=replicas + 1,
        survives=_survives(question.objective, load, setting, scenario, target, replicas, runs),
        headroom=replicas * setting.edge.rate.estimate / target - 1,
        gpu_hours_per_day=replicas * gpus * 24,
        elastic_gpu_hours_per_day=min(elastic, replicas) * gpus * 24,
        cost=_cost(setting, target, replicas * gpus, gpu_hour_price),
        router=scenario.fleet.router,
        tried=tuple(sorted(known.items())),
    )


def _probes(load: Load, setting: Setting, target: float) -> list[Probe]:
    assert setting.edge is not None
    seeds = range(1 if load.kind == "recorded" else SEEDS)
    return [Probe(target, FLEET_SEED + seed, setting.edge.requests) for seed in seeds]


def _keeps(
    objective: Objective, load: Load, setting: Setting, fleet: Scenario, target: float, runs: Runs
) -> bool:
    """The level is kept in every run, each as long as a replica's own runs were."""
    probes = _probes(load, setting, target)
    replicas = fleet.fleet.replicas
    return _all_keep(objective, load, [load.at(fleet, p, replicas=replicas) for p in probes], runs)


def _all_keep(objective: Objective, load: Load, scenarios: list[Scenario], runs: Runs) -> bool:
    """Every run keeps the level; the backlog, of which chance has a say, in most of them."""
    growing = 0
    for one in runs.of(scenarios):
        if isinstance(one, RunFailed):
            raise one
        if margin_of(objective, one) > 0:
            return False
        growing += not lasts(load, one)
    return 2 * growing <= len(scenarios)


def _survives(
    objective: Objective,
    load: Load,
    setting: Setting,
    scenario: Scenario,
    target: float,
    replicas: int,
    runs: Runs,
) -> bool | None:
    """N + 1 replicas, one of them lost when half of the requests have come."""
    if scenario.fleet.changes:
        return None
    scenarios = []
    for probe in _probes(load, setting, target):
        fleet = scenario.with_values({"fleet.replicas": replicas + 1})
        run = load.at(fleet, probe, replicas=replicas + 1)
        seconds = load.span_s or probe.requests * (replicas + 1) / target
        if load.kind == "recorded":
            seconds = load.requests / target
        lost = {"at": round(seconds / 2, 3), "what": "lose", "replica": 0}
        scenarios.append(run.with_values({"fleet.changes": [lost]}))
    return _all_keep(objective, load, scenarios, runs)


def _rates(scenario: Scenario, load: Load, target: float) -> list[float]:
    """Requests per second in each part of the load."""
    if load.kind == "drawn":
        return [target]
    one = load.at(scenario, Probe(target, 0, 0))
    arrival = load_trace(one.trace, one.seed, 1 << 30).arrival
    span = int(arrival.max()) or 1
    counts, _ = np.histogram(arrival, bins=PARTS, range=(0, span))
    return [float(count) / (span / PS_PER_S / PARTS) for count in counts.tolist()]


def _cost(setting: Setting, target: float, gpus: int, price: float | None) -> Cost | None:
    if price is None:
        return None
    millions = target * DAY_S / 24 / 1e6
    return Cost(
        per_gpu_hour=price,
        per_hour=gpus * price,
        per_million_tokens=gpus * price / (millions * setting.tokens_per_request),
        per_million_output_tokens=gpus * price / (millions * setting.output_per_request),
    )
