"""One setting, studied: its service rate, its highest rate, what breaks first above that."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Any, Literal

from reports.confidence import Interval, student
from reports.evidence import Evidence
from simulator.loads import Load
from simulator.model_error import Band, model_error
from simulator.runs import RunFailed, Study, Wanted
from simulator.scenario import Scenario
from simulator.search import Ask, Edge, Effort, Probe, find_edge, find_edge_once, with_spread
from traces.sla import Sla, Term

STRETCHES = 10
"""Stretches of a recording, each left out in turn, that tell how sure its figures are."""
SERVICE_RUNS = 6
GENERATIONS = 10
"""A saturated run serves so many times as many requests as run at once."""

By = Literal["lane", "tenant"]


@dataclass(frozen=True, kw_only=True)
class Objective:
    """The service level that a rate must keep."""

    sla: Sla
    attainment: float | None = None
    """With it, this share of the requests must meet all terms, each by its own values."""
    by: By | None = None
    """Every lane, or every tenant, must keep the level by itself."""

    def __post_init__(self) -> None:
        if not len(self.sla):
            raise ValueError('plan: no service level; give one, such as --sla "ttft p99 <= 0.8 s"')
        if self.attainment is not None and not 0 < self.attainment < 1:
            raise ValueError(
                f"attainment {self.attainment}: expected a share between 0 and 1, such as 0.99"
            )

    def margins(self, evidence: Evidence, without: str | None = None) -> dict[str, float]:
        return evidence.margins(self.sla, attainment=self.attainment, by=self.by, without=without)

    @property
    def least_requests(self) -> int:
        """Requests below which a percentile that is asked for is just the maximum."""
        shares = [
            1 - float(term.statistic[1:]) / 100
            for term in self.sla
            if term.statistic[0] == "p" and self.attainment is None
        ]
        if self.attainment is not None:
            shares.append(1 - self.attainment)
        return math.ceil(1 / min(shares) - 1e-9) if shares else 10


@dataclass(frozen=True, kw_only=True)
class Broken:
    """What stops a setting just above its edge."""

    term: str
    cause: str
    """A key of `reports.plans.CAUSES`."""


@dataclass(frozen=True, kw_only=True)
class Point:
    """A setting at one rate: means over its runs."""

    rate: float
    rho: float
    values: Mapping[str, float | None]
    """`ttft_p99` and so on, in seconds."""
    margin: float
    runs: int = 1


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What was found about one setting."""

    values: Mapping[str, Any]
    error: str = ""
    """Why it cannot be used; then nothing else is there."""
    service: Interval | None = None
    """μ: requests per second of the saturated server."""
    edge: Edge | None = None
    points: tuple[Point, ...] = ()
    """From light load to just above the edge."""
    at_edge: Point | None = None
    """Just below the edge."""
    breaks: Broken | None = None
    band: Band | None = None
    tokens_per_request: float = 0.0
    """Prompt and output, on average."""
    output_per_request: float = 0.0
    step_s: float = 0.0
    """The mean step at the edge."""
    peak_goodput: tuple[float, float] | None = None
    """(rate, requests per second that met every term) where that was highest."""
    same_as: Mapping[str, Any] | None = None
    """Values of a setting of which it is certain that it runs the same."""
    rooms: tuple[Mapping[str, int], ...] = field(default=(), repr=False)

    @property
    def recommended(self) -> float:
        """Requests per second; 0 where none can be recommended."""
        return self.edge.recommended if self.edge else 0.0

    @property
    def rho(self) -> float | None:
        """ρ at the recommended rate."""
        if not self.service or not self.recommended:
            return None
        return self.recommended / self.service.estimate


def study(
    scenario: Scenario,
    values: Mapping[str, Any],
    objective: Objective,
    load: Load,
    effort: Effort,
    *,
    guess: Edge | None = None,
) -> Study[Setting]:
    """Ask for the runs that tell everything about `scenario`, which is the one of `values`.

    `guess`: the edge of a similar setting, from where the search starts at once.
    """
    effort = _enough(effort, objective, load)
    service, seen = yield from _service(load, scenario)
    rooms = [one.facts["room"] for one in seen]
    history: list[tuple[Probe, Evidence]] = []
    ask: Ask
    if load.kind == "recorded":
        ask = find_edge_once(service, effort)
    else:
        ask = find_edge(service, effort, guess=guess if guess and guess.rate else None)
    try:
        probes = next(ask)
        while True:
            told = yield Wanted(
                [load.at(scenario, probe) for probe in probes], _bracket(values, probes)
            )
            history += zip(probes, told, strict=True)
            rooms += [one.facts["room"] for one in told]
            probes = ask.send([margin_of(objective, one) for one in told])
    except StopIteration as end:
        edge: Edge = end.value
    if load.kind == "recorded" and edge.rate is not None:
        middle = edge.rate.estimate
        nearest = min(history, key=lambda one: abs(math.log(one[0].rate / middle)))
        edge = with_spread(edge, _spread(objective, nearest[1]), STRETCHES)
    below, above = _around(objective, history, edge)
    last = below or [evidence for _, evidence in history]
    facts = [one.facts["summary"] for one in last]
    requests = fmean(one["requests"]["finished"] for one in facts) or 1
    output = fmean(one["throughput"]["output_tokens_per_s"] * one["duration_s"] for one in facts)
    prompt = fmean(one["throughput"]["prompt_tokens_per_s"] * one["duration_s"] for one in facts)
    at_edge = _point(objective, edge.rate.estimate, service, below) if below and edge.rate else None
    return Setting(
        values=values,
        service=service,
        edge=edge,
        points=_curve(objective, service, history),
        at_edge=at_edge,
        breaks=_breaks(objective, edge, above, history),
        band=model_error(scenario, edge, service, last) if edge.rate else None,
        tokens_per_request=(output + prompt) / requests,
        output_per_request=output / requests,
        step_s=fmean(one["steps"]["mean_s"] or 0.0 for one in facts),
        peak_goodput=_peak_goodput(objective, history),
        rooms=tuple(rooms),
    )


def _bracket(values: Mapping[str, Any], probes: Sequence[Probe]) -> str:
    rates = [probe.rate for probe in probes]
    span = f"{min(rates):.3g} to {max(rates):.3g} requests/s"
    return f"{', '.join(map(str, values.values()))}: {span}" if values else span


def _enough(effort: Effort, objective: Objective, load: Load) -> Effort:
    """Runs long enough that every percentile asked for has five samples above it at least."""
    least = 5 * objective.least_requests
    if load.kind != "drawn":
        return effort
    return replace(
        effort,
        short=max(effort.short, least),
        long=max(effort.long, 2 * least),
        longest=max(effort.longest, 4 * least),
    )


def _service(
    load: Load, scenario: Scenario
) -> Generator[Wanted, list[Evidence], tuple[Interval, list[Evidence]]]:
    seats = scenario.engine.max_running
    batch = getattr(scenario.policy.build(), "batch", None)
    if batch is not None:
        seats = min(seats, batch)
    requests = max(1000, GENERATIONS * min(seats, 512))
    seeds = range(1 if load.kind == "recorded" else SERVICE_RUNS)
    seen = yield Wanted([load.saturated(scenario, seed, requests) for seed in seeds], "saturated")
    rates = [one.facts["service_per_s"] for one in seen]
    known = [rate for rate in rates if rate]
    if not known:
        reasons = seen[0].facts["summary"]["requests"]["by_reason"]
        raise RunFailed(f"no request can be served: {reasons}")
    if len(known) < 2:
        (mu,) = known
        return Interval(estimate=mu, low=mu, high=mu, samples=1), seen
    return student(known), seen


def margin_of(objective: Objective, evidence: Evidence) -> float:
    """That of the worst term."""
    return max(objective.margins(evidence).values())


def lasts(load: Load, evidence: Evidence) -> bool:
    """The backlog does not grow. A curve of rates may end at its top: its run is all there is."""
    return load.kind != "drawn" or evidence.facts["stationary"] is not False


def _spread(objective: Objective, evidence: Evidence) -> float:
    """Standard error of the margin, by leaving out each stretch of the recording in turn."""
    left = [
        max(objective.margins(evidence, without=f"{at}/{STRETCHES}").values())
        for at in range(STRETCHES)
    ]
    mean = fmean(left)
    return math.sqrt((STRETCHES - 1) / STRETCHES * sum((one - mean) ** 2 for one in left))


History = Sequence[tuple[Probe, Evidence]]


def _around(
    objective: Objective, history: History, edge: Edge
) -> tuple[list[Evidence], list[Evidence]]:
    """Of each seed, the runs at the edge that were nearest below and above its crossing."""
    below: dict[int, tuple[float, Evidence]] = {}
    above: dict[int, tuple[float, Evidence]] = {}
    for probe, evidence in history:
        if edge.rate is None or probe.requests != edge.requests:
            continue
        if margin_of(objective, evidence) <= 0:
            if probe.rate > below.get(probe.seed, (0.0,))[0]:
                below[probe.seed] = probe.rate, evidence
        elif probe.rate < above.get(probe.seed, (math.inf,))[0]:
            above[probe.seed] = probe.rate, evidence
    return [one for _, one in below.values()], [one for _, one in above.values()]


def _point(objective: Objective, rate: float, service: Interval, seen: Sequence[Evidence]) -> Point:
    values = {}
    for metric in ("ttft", "itl", "tpot", "e2e"):
        for statistic in ("p50", "p99"):
            term = Term(metric=metric, statistic=statistic, bound_s=1.0)
            known = [value for one in seen if math.isfinite(value := one.values(term))]
            values[f"{metric}_{statistic}"] = fmean(known) if known else None
    margin = fmean(max(objective.margins(one).values()) for one in seen)
    return Point(
        rate=rate, rho=rate / service.estimate, values=values, margin=margin, runs=len(seen)
    )


def _curve(objective: Objective, service: Interval, history: History) -> tuple[Point, ...]:
    """By rate; what lies within 3 % of each other is one point."""
    bins: dict[int, list[tuple[Probe, Evidence]]] = {}
    for probe, evidence in history:
        bins.setdefault(round(math.log(probe.rate) / 0.03), []).append((probe, evidence))
    return tuple(
        _point(
            objective,
            fmean(probe.rate for probe, _ in group),
            service,
            [evidence for _, evidence in group],
        )
        for _, group in sorted(bins.items())
    )


def _breaks(
    objective: Objective, edge: Edge, above: Sequence[Evidence], history: History
) -> Broken | None:
    """The term that is missed most, and what its slowest requests or gaps waited for."""
    if edge.verdict == "all":
        return None
    missed = list(above) or [evidence for _, evidence in history]
    worst = [max(margins, key=margins.__getitem__) for margins in map(objective.margins, missed)]
    (term, _), *_ = Counter(worst).most_common(1)
    causes: Counter[str] = Counter()
    for one in missed:
        slow = one.facts["slow_gaps"]
        if not term.startswith(("itl", "tpot")):
            slow = one.facts["slow"].get("e2e" if term.startswith("e2e") else "ttft", {})
        for name, part in _blamed(slow).items():
            causes[name] += part  # type: ignore[assignment]  # a Counter counts seconds as well
    return Broken(term=term, cause=max(causes, key=causes.__getitem__) if causes else "")


def _blamed(slow: Mapping[str, float]) -> dict[str, float]:
    """Parts of a latency; who stands behind the head waits for what the head waits for."""
    behind = slow.get("behind", 0.0)
    head = {
        name: part
        for name, part in slow.items()
        if name in ("tokens", "blocks", "reserve", "seats", "lane", "batch")
    }
    whole = sum(head.values())
    blamed = {name: part for name, part in slow.items() if name not in ("behind", "boundary")}
    for name, part in head.items():
        blamed[name] += behind * part / whole if whole else 0.0
    if not whole and behind:
        blamed["behind"] = behind
    return blamed


def _peak_goodput(objective: Objective, history: History) -> tuple[float, float] | None:
    reached = [
        (probe.rate, probe.rate * evidence.goodput_share(objective.sla))
        for probe, evidence in history
        if evidence.facts["stationary"] is not False
    ]
    return max(reached, key=lambda one: one[1], default=None)
