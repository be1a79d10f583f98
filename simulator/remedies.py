"""Trouble recognised, and its cures tried in simulation, in the order an operator would.

Trouble is a preemption rate above `TOO_MANY`, or an avalanche (`reports.avalanche`). Before the
cures two other causes are ruled out: blocks of the wrong size, and prefix sharing that does not
take hold. Then the cures, mildest first, each by itself on the scenario as it is: keep more of
the pool in reserve; curb the request that holds it; let fewer in. The first that ends the trouble
and keeps the throughput is the advice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from calibration.profile import load_profile
from reports.evidence import Evidence
from simulator.runs import RunFailed, Runs
from simulator.scenario import Scenario
from traces.statistics import describe

TOO_MANY = 0.05
"""Preemptions per request."""
RESERVES = (0.15, 0.25)
HOG = 0.2
"""A request that holds more than this share of the pool is curbed."""
DEMOTE = 0.1
WASTE = 0.05
REUSABLE = 0.1
KEPT = 0.95
"""A cure may not cost more than the rest of the throughput."""
DIVERT_S = 10.0


@dataclass(frozen=True, kw_only=True)
class State:
    """What a run with trouble, or a cure, came to."""

    preemptions: float
    """Per request."""
    recomputed: float
    """Share of the tokens fed."""
    ttft_p99: float | None
    itl_p99: float | None
    output_tokens_per_s: float
    avalanche: str = ""
    """In words; "" where there is none."""

    @property
    def troubled(self) -> bool:
        return self.preemptions > TOO_MANY or bool(self.avalanche)


@dataclass(frozen=True, kw_only=True)
class Tried:
    """A cure, and what it did."""

    name: str
    changes: Mapping[str, Any]
    after: State | None
    error: str = ""
    """Why it could not be tried."""
    cured: bool = False


@dataclass(frozen=True, kw_only=True)
class Advice:
    """Trouble, what was tried, and what to do."""

    before: State
    tried: tuple[Tried, ...]
    ruled_out: tuple[str, ...]
    """Causes that were looked at first, and what was seen of them."""
    best: Tried | None
    """The first that cured, else the one with the fewest preemptions, if fewer than before."""


def state_of(evidence: Evidence) -> State:
    """The figures by which trouble is told."""
    summary = evidence.facts["summary"]
    found = evidence.facts["avalanche"]
    said = ""
    if found is not None:
        end = "does not end" if found["ended_s"] is None else f"ends at {found['ended_s']:,.0f} s"
        said = (
            f"an avalanche that begins at {found['began_s']:,.0f} s and {end}: throughput at "
            f"{found['throughput']:.0%} of its best, {found['evictions_per_step']:.2g} evictions "
            "a step"
        )
    return State(
        preemptions=summary["preemptions"]["per_request"] or 0.0,
        recomputed=summary["preemptions"]["recompute_share"] or 0.0,
        ttft_p99=summary["ttft_s"]["p99"],
        itl_p99=summary["itl_s"]["p99"],
        output_tokens_per_s=summary["throughput"]["output_tokens_per_s"] or 0.0,
        avalanche=said,
    )


def remedies(
    scenario: Scenario,
    evidence: Evidence,
    runs: Runs,
    *,
    on_cure: Callable[[str], None] | None = None,
) -> Advice | None:
    """Try the cures for the trouble that `evidence`, of a run of `scenario`, shows.

    None where there is no trouble.
    """
    before = state_of(evidence)
    if not before.troubled:
        return None
    ruled_out, first = _other_causes(scenario, evidence)
    tried: list[Tried] = []
    for name, changes in [*first, *_cures(scenario, evidence)]:
        if on_cure:
            on_cure(name)
        tried.append(_try(scenario, name, changes, before, runs))
        if tried[-1].cured:
            break
    return Advice(
        before=before, tried=tuple(tried), ruled_out=tuple(ruled_out), best=_best(before, tried)
    )


Cure = tuple[str, dict[str, Any]]


def _other_causes(scenario: Scenario, evidence: Evidence) -> tuple[list[str], list[Cure]]:
    """What else it could be: said where it is ruled out, else tried first."""
    said: list[str] = []
    cures: list[Cure] = []
    size = scenario.engine.block_size
    waste = evidence.facts["summary"]["kv"]["waste_share"] or 0.0
    prices = scenario.host.added_to(load_profile(scenario.profile_name).step_time())
    if waste > WASTE and size > 1:
        smaller = max(1, size // 4)
        cures.append((f"smaller blocks ({waste:.0%} wasted)", {"engine.block_size": smaller}))
    elif prices.tB or prices.tT:
        cures.append(("larger blocks", {"engine.block_size": size * 4}))
    else:
        said.append(f"block size {size}: wastes {waste:.1%} of the pool and costs no host time")
    reuse = describe(scenario.build().trace).prefix_reuse or 0.0
    prefix = evidence.facts["summary"]["prefix"]
    if not scenario.engine.prefix_cache and reuse > REUSABLE:
        cures.append(
            (f"share prefixes ({reuse:.0%} of prompts reusable)", {"engine.prefix_cache": True})
        )
    elif scenario.engine.prefix_cache and (prefix["hit_share"] or 0.0) < reuse / 2:
        cures.append(("smaller blocks, for prefixes", {"engine.block_size": max(1, size // 4)}))
    else:
        said.append(f"prefix sharing: {reuse:.0%} of the prompt tokens could be shared")
    return said, cures


def _cures(scenario: Scenario, evidence: Evidence) -> Iterator[Cure]:
    for reserve in RESERVES:
        if reserve > scenario.engine.reserve:
            yield f"reserve {reserve:.0%} of the pool", {"engine.reserve": reserve}
    memory = evidence.facts["memory"]
    if memory["largest_share"] > HOG:
        cap = max(1, int(memory["output_p99"]))
        if scenario.engine.output_cap is None or cap < scenario.engine.output_cap:
            yield f"cap outputs at their P99, {cap} tokens", {"engine.output_cap": cap}
        if hasattr(scenario.policy.build(), "demote"):
            yield f"demote who holds more than {DEMOTE:.0%}", {"policy.demote": DEMOTE}
    engine = scenario.engine_limits(load_profile(scenario.profile_name))
    room = int(0.9 * engine.blocks * engine.block_size / max(memory["tokens_mean"], 1.0))
    batch = getattr(scenario.policy.build(), "batch", 1)
    limit = min(max(room, batch, 1), engine.max_running)
    if scenario.door.max_in_flight is None:
        changes = {"door.max_in_flight": limit, "door.in_flight_per": "replica"}
        yield f"at most {limit} requests in flight per replica", changes
    if scenario.fleet.most > 1 and not scenario.door.divert:
        yield "divert from replicas that evict", {"door.divert": DIVERT_S}


def _try(
    scenario: Scenario, name: str, changes: dict[str, Any], before: State, runs: Runs
) -> Tried:
    try:
        (came,) = runs.of([scenario.with_values(changes)])
    except ValueError as error:
        came = RunFailed(str(error))
    if isinstance(came, RunFailed):
        return Tried(name=name, changes=changes, after=None, error=str(came))
    after = state_of(came)
    fast = after.output_tokens_per_s >= KEPT * before.output_tokens_per_s
    return Tried(name=name, changes=changes, after=after, cured=fast and not after.troubled)


def _best(before: State, tried: list[Tried]) -> Tried | None:
    cured = next((one for one in tried if one.cured), None)
    if cured is not None:
        return cured
    better = [
        (one.after.preemptions, at)
        for at, one in enumerate(tried)
        if one.after is not None
        and one.after.preemptions < before.preemptions
        and one.after.output_tokens_per_s >= KEPT * before.output_tokens_per_s
    ]
    return tried[min(better)[1]] if better else None
