"""What if: a base against variants on the same requests, and what is more than chance.

Seed by seed, base and variant serve the same requests, so that what chance does to both falls out
of their difference. A recording cannot be drawn again: there each of ten stretches is left out in
turn (a jackknife), and the pairs are the stretches.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from reports.confidence import Interval, paired
from reports.evidence import Evidence
from simulator.loads import full_trace
from simulator.runs import RunFailed, Runs
from simulator.scenario import Scenario, parse_set
from simulator.settings_file import ScenarioError
from traces.sla import Sla, Term

RUNS = 5
STRETCHES = 10
SCALED = ("mean", "p99", "min", "max", "value", "values")
"""Settings of a length distribution that are tokens."""

_TIMES = re.compile(r"\s*([\w.]+)\s*\*=\s*([\d.]+(?:e[-+]?\d+)?)\s*", re.IGNORECASE)
_LOSE = re.compile(r"\s*(lose|drain)\s*=\s*(\d+)\s*@\s*([\d.]+\s*[a-z]*)\s*")


@dataclass(frozen=True)
class Measure:
    """A figure of a run that base and variants are compared in."""

    name: str
    kind: str
    """`seconds`, `share` or `number`: how it reads."""
    of: Callable[[Evidence, str], float | None]
    """The figure; the text picks requests, as `Evidence.values` does."""
    by_request: bool = True
    """It is one of requests, so that stretches of a recording have it."""


@dataclass(frozen=True, kw_only=True)
class Difference:
    """A variant against the base in one figure."""

    measure: str
    kind: str
    base: float | None
    variant: float | None
    change: Interval | None
    """Variant - base; None where a run has no such figure, or there is one run only."""

    @property
    def real(self) -> bool:
        """More than chance."""
        return self.change is not None and self.change.excludes_zero


@dataclass(frozen=True, kw_only=True)
class Variant:
    """What was changed, and what came of it."""

    name: str
    differences: tuple[Difference, ...]
    error: str = ""


@dataclass(frozen=True, kw_only=True)
class WhatIf:
    """All variants against one base."""

    variants: tuple[Variant, ...]
    runs: int
    """Pairs that each difference rests on."""
    pairs: str
    """What the pairs are."""


def changed(base: Scenario, text: str) -> Scenario:
    """The variant that `text` says: parts joined by ";", each

    key=value (as --set); key*=factor, with `rate`, `prompt` and `output` for what the load has;
    lose=0@10min, drain=0@10min (a replica). Raises `ScenarioError` for what does not fit.
    """
    scenario = base
    for part in text.split(";"):
        if times := _TIMES.fullmatch(part):
            scenario = _scaled(scenario, times[1], float(times[2]), part.strip())
        elif lose := _LOSE.fullmatch(part):
            scenario = _without(scenario, lose[1], int(lose[2]), lose[3].strip())
        else:
            scenario = scenario.with_values(dict([parse_set(part)]))
    return scenario


def what_if(
    base: Scenario,
    variants: Sequence[str],
    runs: Runs,
    *,
    seeds: int = RUNS,
    on_progress: Callable[[float], None] | None = None,
) -> WhatIf:
    """Run base and variants on the same requests. Variants that cannot run say why.

    Raises ValueError for no variants, or a base that cannot run.
    """
    if not variants:
        raise ValueError('whatif: no variant; give one, such as --set "rate*=2"')
    if len(set(variants)) < len(variants):
        raise ValueError("whatif: a variant is given twice")
    recorded = base.trace.file is not None
    if recorded:
        seeds, runs.stretches = 1, STRETCHES
    if seeds < 2 and not recorded:
        raise ValueError(f"--runs {seeds}: differences need two runs at least")
    scenarios = {"": base} | {text: changed(base, text) for text in variants}
    flat = [
        scenario.with_values({"seed": scenario.seed + seed})
        for scenario in scenarios.values()
        for seed in range(seeds)
    ]
    came = iter(runs.of(flat, on_progress and (lambda done, all: on_progress(done / all))))
    told = {text: [next(came) for _ in range(seeds)] for text in scenarios}
    for one in told[""]:
        if isinstance(one, RunFailed):
            raise one
    sla = base.objectives()
    ordinary = [one for one in told[""] if isinstance(one, Evidence)]
    results = []
    for text in variants:
        failed = next((one for one in told[text] if isinstance(one, RunFailed)), None)
        if failed is not None:
            results.append(Variant(name=text, differences=(), error=str(failed)))
            continue
        seen = [one for one in told[text] if isinstance(one, Evidence)]
        results.append(
            Variant(
                name=text,
                differences=tuple(
                    _difference(measure, ordinary, seen) for measure in measures(sla)
                ),
            )
        )
    pairs = f"{STRETCHES} stretches of the recording" if recorded else f"{seeds} seeds"
    return WhatIf(variants=tuple(results), runs=STRETCHES if recorded else seeds, pairs=pairs)


def measures(sla: Sla) -> list[Measure]:
    """What is compared."""
    found = [
        Measure(f"{metric.upper()} {statistic.upper()}", "seconds", _latency(metric, statistic))
        for metric, statistic in (
            ("ttft", "p50"),
            ("ttft", "p99"),
            ("itl", "p50"),
            ("itl", "p99"),
            ("e2e", "p50"),
            ("e2e", "p99"),
            ("queue", "mean"),
        )
    ]
    if len(sla):
        found.append(Measure("SLA kept by", "share", lambda one, of: one.goodput_share(sla, of)))
    return [
        *found,
        _fact("requests/s", "number", "throughput", "requests_per_s"),
        _fact("output tokens/s", "number", "throughput", "output_tokens_per_s"),
        _fact("KV used, mean", "share", "kv", "mean_used_share"),
        _fact("preemptions per request", "number", "preemptions", "per_request"),
        _fact("recomputed", "share", "preemptions", "recompute_share"),
        _fact("prefix hits", "share", "prefix", "hit_share"),
        _fact("rejected", "number", "requests", "rejected"),
    ]


def _latency(metric: str, statistic: str) -> Callable[[Evidence, str], float | None]:
    term = Term(metric=metric, statistic=statistic, bound_s=1.0)

    def of(one: Evidence, chosen: str) -> float | None:
        value = one.values(term, chosen)
        return value if math.isfinite(value) else None

    return of


def _fact(name: str, kind: str, *path: str) -> Measure:
    def of(one: Evidence, _: str) -> float | None:
        value: Any = one.facts["summary"]
        for key in path:
            value = value[key]
        return None if value is None else float(value)

    return Measure(name, kind, of, by_request=False)


def _difference(
    measure: Measure, base: Sequence[Evidence], variant: Sequence[Evidence]
) -> Difference:
    before = [measure.of(one, "") for one in base]
    after = [measure.of(one, "") for one in variant]
    change = None
    if len(base) > 1:
        change = _paired(before, after)
    elif measure.by_request:
        change = _paired(_pseudo(measure, base[0]), _pseudo(measure, variant[0]))
    return Difference(
        measure=measure.name,
        kind=measure.kind,
        base=_mean(before),
        variant=_mean(after),
        change=change,
    )


def _pseudo(measure: Measure, one: Evidence) -> list[float | None]:
    """Jackknife pseudo-values: independent in effect, one a stretch."""
    whole = measure.of(one, "")
    left = [measure.of(one, f"without={at}/{STRETCHES}") for at in range(STRETCHES)]
    return [
        None if whole is None or part is None else STRETCHES * whole - (STRETCHES - 1) * part
        for part in left
    ]


def _paired(before: Sequence[float | None], after: Sequence[float | None]) -> Interval | None:
    known = [(a, b) for a, b in zip(before, after, strict=True) if a is not None and b is not None]
    if len(known) < len(before):
        return None
    return paired([a for a, _ in known], [b for _, b in known])


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if len(known) == len(values) else None


def _scaled(scenario: Scenario, key: str, factor: float, said: str) -> Scenario:
    if key in ("rate", "trace.rate") and scenario.trace.file is not None:
        return scenario.with_values({"trace.scale_rate": scenario.trace.scale_rate * factor})
    if key in ("rate", "prompt", "output"):
        key = f"trace.{key}"
    if key in ("trace.prompt", "trace.output") and scenario.trace.file is not None:
        raise ScenarioError(f"{said}: lengths of a recorded trace are what they are")
    tables: Mapping[str, Any] = scenario.resolved().tables() | {"trace": full_trace(scenario)}
    value: Any = tables
    for part in key.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    if value is None:
        raise ScenarioError(f"{said}: {key} has no value to multiply")
    scaled = {key: _times(value, factor, said)}
    name = key.removeprefix("trace.")
    if name in ("prompt", "output") and tables["trace"].get("classes"):
        scaled["trace.classes"] = [
            dict(one) | ({name: _times(one[name], factor, said)} if name in one else {})
            for one in tables["trace"]["classes"]
        ]
    return scenario.with_values(scaled)


def _times(value: Any, factor: float, said: str) -> Any:
    if isinstance(value, Mapping):
        return {
            name: _times(one, factor, said) if name in SCALED and one is not None else one
            for name, one in value.items()
        }
    if isinstance(value, list | tuple):
        return [_times(one, factor, said) for one in value]
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ScenarioError(f"{said}: {value!r} is nothing to multiply")
    return max(1, round(value * factor)) if isinstance(value, int) else value * factor


def _without(scenario: Scenario, what: str, replica: int, at: str) -> Scenario:
    changes = [one.model_dump(exclude_none=True) for one in scenario.fleet.changes]
    new = {"at": at, "what": what, "replica": replica}
    return scenario.with_values({"fleet.changes": [*changes, new]})
