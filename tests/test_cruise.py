"""Policies that take all in order are not asked while blocks suffice, and nothing changes by it.

Byte for byte against the naive loop: `test_same_as_naive.py`. Here: what is claimed and by whom,
that it saves what it should, and fleets, sessions and doors, which the naive loop does not know.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from simpy import Environment

from calibration.step_time import Predicted, StepTime
from policies import Chunked, Continuous, FairShare, FastLane, Static
from policies.base import IN_ORDER, Stable, Step, admit_in_order, feed_or_evict
from policies.routing import ROUTERS
from policies.settings import Settings
from policies.victims import last_in
from simulator.checks import LawBroken
from simulator.clients import RetrySettings
from simulator.contract import check_policy
from simulator.door import DoorSettings
from simulator.engine import Engine
from simulator.fleet import FleetSettings
from simulator.run import simulate
from tests.test_same_as_naive import LONGEST, assert_same_frames, examples, step_times
from traces.records import Records
from traces.trace import Request, Trace

STEP = StepTime(t0=1000, decode=(0, 10, 1))


@dataclass(frozen=True)
class Plain(Settings):
    """In order, and it counts how often it is asked (which no real policy may)."""

    token_budget: int = 64
    asked: list[int] = field(default_factory=list)

    def schedule(self, step: Step) -> Stable | None:
        self.asked.append(step.now)
        feed_or_evict(step, last_in)
        admit_in_order(step)
        return IN_ORDER


def steady_load(requests: int = 300, gap: int = 9_000) -> Trace:
    """Prompts of 10 to 109 tokens, 20 to 49 tokens out, evenly spaced."""
    rows = range(requests)
    return Trace.of(
        arrival=[gap * row for row in rows],
        prompt=[10 + 37 * row % 100 for row in rows],
        output=[20 + 7 * row % 30 for row in rows],
    )


def run(trace: Trace, policy: Any, blocks: int = 10_000, **how: Any) -> Records:
    engine = Engine(kv_tokens=16 * blocks, max_running=64)
    return simulate(trace, policy, engine, Predicted(STEP), **how)


class TestWhoIsAsked:
    def test_once_and_never_again_while_blocks_suffice(self) -> None:
        policy = Plain()
        records = run(steady_load(), policy)
        # At time 0, and when nobody is left.
        assert len(policy.asked) == 2
        assert len(records.steps) > 1000

    def test_at_every_step_without_leaps(self) -> None:
        policy = Plain()
        records = run(steady_load(), policy, leap=False)
        assert len(policy.asked) >= len(records.steps)

    def test_when_blocks_run_out(self) -> None:
        policy = Plain()
        records = run(steady_load(gap=2_000), policy, blocks=40)
        assert records.requests.preemptions.sum() > 20
        preempting = records.steps.frame[records.steps.preempted > 0]
        assert set(preempting.start) <= set(policy.asked)
        assert len(policy.asked) < len(records.steps)
        assert_same_frames(records, run(steady_load(gap=2_000), Plain(), blocks=40, leap=False))

    def test_a_lone_replica_runs_ahead_of_the_clock(self, monkeypatch: pytest.MonkeyPatch) -> None:
        events = 0
        once = Environment.step

        def counted(env: Environment) -> None:
            nonlocal events
            events += 1
            once(env)

        monkeypatch.setattr(Environment, "step", counted)
        run(steady_load(), Plain())
        assert events < 10


class TestWhoClaimsIt:
    def test_plain_chunked_prefill_does(self) -> None:
        assert Chunked().in_order
        assert Chunked(victim="most-blocks", reentry="tail", check_first=True).in_order

    @pytest.mark.parametrize(
        "options",
        [
            {"order": "priority"}, {"chunks": False}, {"partials": 1}, {"cooldown": 1},
            {"reserve_max": True}, {"patience": 1.0, "reentry": "tail"},
        ],
    )  # fmt: skip
    def test_other_options_do_not(self, options: dict[str, Any]) -> None:
        assert not Chunked(**options).in_order

    def test_nor_does_what_is_derived_from_it(self) -> None:
        class Mine(Chunked):
            def enter(self, step: Step, most: int) -> None:
                """Nobody may."""

        assert not Mine().in_order
        assert not FastLane().in_order
        assert not FairShare().in_order

    @pytest.mark.parametrize("policy", [Static(), Continuous(), FastLane(), FairShare()])
    def test_no_other_policy_answers_so(self, policy: Settings) -> None:
        answers = []
        schedule = type(policy).schedule  # type: ignore[attr-defined]

        class Watched(type(policy)):  # type: ignore[misc]
            def schedule(self, step: Step) -> Stable | None:
                answers.append(schedule(self, step))
                return answers[-1]

        run(steady_load(40), Watched())
        assert answers
        assert not any(answer is not None and answer.in_order for answer in answers)

    def test_a_false_claim_is_found(self) -> None:
        @dataclass(frozen=True)
        class OneByOne(Settings):
            """Admits one a step at most, and says that it takes all."""

            def schedule(self, step: Step) -> Stable | None:
                feed_or_evict(step, last_in)
                for seq in step.waiting():
                    step.admit(seq)
                    break
                return IN_ORDER

        assert "leap" in {finding.law for finding in check_policy(OneByOne())}

    def test_a_second_lane_contradicts_it(self) -> None:
        @dataclass(frozen=True)
        class TwoLanes(Plain):
            def lane(self, request: Request) -> str:
                return "odd" if request.index % 2 else "even"

        with pytest.raises(LawBroken, match="two lanes: 'even' and 'odd'; expected one"):
            run(steady_load(), TwoLanes())


@dataclass(frozen=True)
class Case:
    trace: Trace
    policy: Chunked
    engine: Engine
    step_time: StepTime
    how: dict[str, Any]


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Fleets, closed loops, limits at the door and retries, memory from tight to ample."""
    count = draw(st.integers(1, 24))
    lengths = st.integers(1, LONGEST)
    pauses = st.sampled_from((0, 0, 500, 1000, 1730, 5_000, 20_000))
    arrival = list(accumulate(draw(pauses) for _ in range(count)))
    after = [-1] * count
    if draw(st.booleans()):
        for row in range(1, count):
            if draw(st.integers(0, 2)) == 0:
                after[row] = draw(st.integers(0, row - 1))
                arrival[row] = draw(st.sampled_from((0, 1000, 4999)))
    replicas = draw(st.integers(1, 3))
    router = draw(st.sampled_from(sorted(ROUTERS)))
    blind = router in ("round-robin", "random")
    refresh = draw(st.sampled_from((0.0, 3e-9))) if replicas > 1 and not blind else 0.0
    limits: dict[str, Any] = {}
    if draw(st.booleans()):
        limits["max_in_flight"] = draw(st.integers(1, 5))
        limits["in_flight_per"] = draw(st.sampled_from(("fleet", "replica")))
        limits["when_full"] = draw(st.sampled_from(("hold", "reject")))
    if draw(st.booleans()):
        limits["timeout"] = draw(st.sampled_from((2e-9, 1e-8, 1e-7)))
    door = DoorSettings(**limits)
    retry = RetrySettings(count=draw(st.integers(0, 2)), backoff=2e-9) if door.turns_away else None
    return Case(
        trace=Trace.of(
            arrival=arrival,
            prompt=[draw(lengths) for _ in range(count)],
            output=[draw(lengths) for _ in range(count)],
            session=[draw(st.integers(0, 2)) for _ in range(count)],
            after=after,
        ),
        policy=Chunked(
            token_budget=draw(st.integers(4, 90)), reentry=draw(st.sampled_from(("head", "tail")))
        ),
        engine=Engine(
            kv_tokens=draw(st.sampled_from((2 * LONGEST, 5 * LONGEST, 100 * LONGEST))),
            block_size=draw(st.sampled_from((1, 3, 16))),
            max_running=draw(st.sampled_from((1, 3, 30))),
            reserve=draw(st.sampled_from((0.0, 0.2))),
            gate=draw(st.booleans()),
        ),
        step_time=draw(step_times()),
        how={
            "fleet": FleetSettings(replicas=replicas, router=router, refresh=refresh),
            "door": door,
            "retry": retry,
            "horizon": draw(st.sampled_from((60_000, None))),
        },
    )


@examples(60)
@given(cases())
def test_fleets_sessions_and_doors_are_the_same_step_by_step(case: Case) -> None:
    leapt, stepped = (
        simulate(
            case.trace, case.policy, case.engine, Predicted(case.step_time), leap=leap, **case.how
        )
        for leap in (True, False)
    )
    assert_same_frames(leapt, stepped)
