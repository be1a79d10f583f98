"""Several replicas behind a router (C8): who takes a request, and what a lost one costs.

Where nothing else is said every step takes one second.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from serving import SECOND, Ask, Serve, ask, trace_of

import simulator.run
from benchmarks.workloads import WORKLOADS
from calibration.step_time import Predicted, StepTime
from policies import Chunked, Continuous, FairShare, FastLane, Static
from simulator.clients import RetrySettings
from simulator.clock import Clock
from simulator.door import DoorSettings
from simulator.engine import Engine
from simulator.fleet import Change, FleetSettings
from simulator.run import simulate
from simulator.scenario import Scenario
from traces.records import Records
from traces.trace import PS_PER_S, Segment


def two(router: str = "least-outstanding", **more) -> FleetSettings:
    return FleetSettings(replicas=2, router=router, **more)


class TestRouters:
    def test_round_robin_takes_turns(self, serve: Serve):
        run = serve(*[ask(10, 5)] * 7, fleet=FleetSettings(replicas=3, router="round-robin"))
        assert run.column("replica") == [0, 1, 2, 0, 1, 2, 0]

    def test_loads_count_queued_and_running_and_ties_go_to_the_first(self, serve: Serve):
        """One seat each: whoever comes third is queued, and still counts."""
        asks = [ask(10, 10), ask(10, 10), ask(10, 1), ask(10, 1), ask(10, 1, at=0.5)]
        assert serve(*asks, max_running=1, fleet=two()).column("replica") == [0, 1, 0, 1, 0]

    def test_who_has_finished_no_longer_counts(self, serve: Serve):
        run = serve(ask(10, 9), ask(10, 2), ask(10, 1, at=2), fleet=two())
        assert run.column("replica") == [0, 1, 1]

    def test_least_tokens_weighs_prompts_and_declared_outputs(self, serve: Serve):
        run = serve(ask(900, 5), ask(10, 5, declares=500), *[ask(10, 5)] * 3,
                    fleet=two("least-tokens"))  # fmt: skip
        assert run.column("replica") == [0, 1, 1, 1, 1]

    def test_of_two_the_better_is_that_of_all_where_there_are_two(self, serve: Serve):
        asks = [ask(10, 1 + at % 7, at=at / 3) for at in range(30)]
        choices = [serve(*asks, fleet=two(name)).column("replica")
                   for name in ("power-of-two", "least-outstanding")]  # fmt: skip
        assert choices[0] == choices[1]

    @pytest.mark.parametrize("router", ["random", "power-of-two"])
    def test_chance_follows_the_seed(self, serve: Serve, router: str):
        def choices(seed: int) -> list[int]:
            fleet = FleetSettings(replicas=4, router=router)
            return serve(*[ask(10, 3)] * 40, fleet=fleet, seed=seed).column("replica")

        assert choices(1) == choices(1) != choices(2)
        assert set(choices(1)) == {0, 1, 2, 3}

    def test_a_prefix_stays_where_its_blocks_are(self, serve: Serve):
        asks = [ask(40, 2, at=5 * at, content=(Segment(at % 3, 0, 32),)) for at in range(12)]
        near = serve(*asks, fleet=two("prefix-affinity"), prefix_cache=True)
        turns = serve(*asks, fleet=two("round-robin"), prefix_cache=True)
        homes = near.column("replica")
        assert all(homes[at] == homes[at % 3] for at in range(12))
        assert sum(near.column("hit")) == 9 * 32
        assert sum(turns.column("hit")) == 6 * 32

    def test_unless_that_replica_is_overloaded(self, serve: Serve):
        asks = [ask(40, 50, content=(Segment(1, 0, 32),)) for _ in range(6)]
        patient = serve(*asks, fleet=two("prefix-affinity", overload=100.0))
        assert patient.column("replica") == [0] * 6
        usual = serve(*asks, fleet=two("prefix-affinity"))
        assert usual.column("replica").count(1) >= 2

    def test_stale_loads_send_the_herd_to_one_replica(self, serve: Serve):
        """Read at 0 and at 10: until then everybody sees two idle replicas."""
        asks = [ask(10, 50, at=at) for at in (1, 2, 3, 10, 11)]
        assert serve(*asks, fleet=two(refresh=10)).column("replica") == [0, 0, 0, 1, 1]
        assert serve(*asks, fleet=two()).column("replica") == [0, 1, 0, 1, 0]

    def test_a_replica_that_evicts_is_spared(self, serve: Serve):
        """The first and the third collide on replica 0; the fifth would be its turn again."""
        asks = [ask(60, 60), ask(10, 90), ask(60, 60), ask(10, 1, at=30), ask(10, 1, at=31)]
        given = {"kv_tokens": 160, "gate": False, "fleet": two("round-robin")}
        plain = serve(*asks, **given)
        assert plain.column("preemptions")[2] > 0
        assert plain.column("replica") == [0, 1, 0, 1, 0]
        diverted = serve(*asks, **given, door=DoorSettings(divert=1000))
        assert diverted.column("replica") == [0, 1, 0, 1, 1]

    def test_a_limit_per_replica_fills_each_then_holds(self, serve: Serve):
        door = DoorSettings(max_in_flight=1, in_flight_per="replica")
        run = serve(ask(10, 5), ask(10, 2), ask(10, 1), fleet=two("round-robin"), door=door)
        assert run.column("replica") == [0, 1, 1]
        assert run.scheduled == [0, 0, 2]


def lose(at: float, replica: int = 0) -> Change:
    return Change(at=at, what="lose", replica=replica)


class TestChanges:
    def test_a_lost_step_is_lost_and_what_was_streamed_stays(self, serve: Serve):
        """Two tokens by 2; the step to 3 is lost. One prefill of 12 on the other replica from 3
        on gives the third token at 4, the sixth at 7."""
        run = serve(ask(10, 6), ask(10, 9), fleet=two(changes=[lose(2.5)]))
        assert run.column("replica") == [1, 1]
        assert run.ttft == [1, 1]
        assert run.finished == [7, 9]
        assert run.column("preemptions") == [1, 0]
        assert run.column("computed")[0] == 11 + 15  # 12 by the prefill, 3 more decodes
        assert run.column("recomputed")[0] == 11

    def test_a_step_that_ends_at_that_instant_counts(self, serve: Serve):
        run = serve(ask(10, 6), ask(10, 9), fleet=two(changes=[lose(2)]))
        assert run.finished[0] == 6

    def test_who_was_queued_there_waits_elsewhere(self, serve: Serve):
        run = serve(
            ask(10, 8), ask(10, 4), ask(10, 1),
            max_running=1, fleet=two("round-robin", changes=[lose(1.5)]),
        )  # fmt: skip
        assert run.scheduled == [0, 0, 11]  # behind the first, which has seven tokens to go
        assert run.finished == [11, 4, 12]

    def test_a_drained_one_finishes_what_it_has(self, serve: Serve):
        drain = Change(at=2.5, what="drain", replica=0)
        run = serve(ask(10, 9), *[ask(10, 9, at=3)] * 3, fleet=two(changes=[drain]))
        assert run.column("replica") == [0, 1, 1, 1]
        assert run.column("preemptions") == [0] * 4
        assert run.finished[0] == 9

    def test_an_added_one_takes_requests_when_it_has_loaded(self, serve: Serve):
        add = Change(at=2, what="add", load=3)
        asks = [ask(10, 20, at=at) for at in (0, 4, 5, 6)]
        run = serve(*asks, fleet=FleetSettings(changes=[add]))
        assert run.column("replica") == [0, 0, 1, 1]
        assert run.records.about["replicas"] == 2

    def test_without_any_replica_requests_end_with_a_reason(self, serve: Serve):
        fleet = FleetSettings(changes=[lose(2.5)])
        run = serve(ask(10, 6), ask(10, 1, at=4), fleet=fleet)
        assert run.reasons == ["lost: no replica left", "rejected: no replica left"]
        assert run.column("produced") == [2, 0]

    def test_or_wait_for_the_one_to_come(self, serve: Serve):
        add = Change(at=5, what="add", load=1)
        run = serve(ask(10, 6), ask(10, 1, at=4), fleet=FleetSettings(changes=[lose(2.5), add]))
        assert run.served == 2
        assert run.scheduled == [0, 6]
        assert run.seconds("wait_door") == [0, 2]
        assert run.finished[0] == 6 + 4
        assert run.seconds("stalled")[0] == 3.5

    def test_the_notes_say_what_happened(self, serve: Serve):
        run = serve(ask(10, 6), ask(10, 9), fleet=two(changes=[lose(2.5)]))
        assert "Lost replica 0 at 2.5 s: 1 requests went elsewhere." in run.records.about["notes"]


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ('fleet.router="best"', "fleet.router = 'best': expected one of round-robin"),
        ('fleet.changes=[{at=1,what="lose",replica=3}]', "of replica 3, which is not there"),
        ('fleet.changes=[{at=1,what="lose"}]', "expected which replica"),
        ('fleet.changes=[{at=1,what="add",replica=1}]', "expected no replica"),
        ("fleet.overload=3", "fleet.router = 'least-outstanding': expected router = \"prefix"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(table: str, said: str):
    with pytest.raises(ValueError, match=re.escape(said)):
        Scenario().with_set(table)


def test_blind_routers_need_no_fresh_loads():
    with pytest.raises(ValueError, match=r"fleet.refresh = 1 has no effect with fleet.router"):
        Scenario().with_set("fleet.refresh=1", "fleet.replicas=2", 'fleet.router="random"')


def test_one_device_is_one_replica():
    with pytest.raises(ValueError, match=r"fleet.replicas = 2 contradicts executor.kind"):
        Scenario().with_set("fleet.replicas=2", 'executor.kind="measured"')


def test_seats_times_time_is_service():
    """Little's law, exactly: running sequences over time are the services that were given."""
    work = WORKLOADS[0]
    records = simulate(
        work.trace(400, rate=4 * work.rate), work.policy, work.engine, Predicted(work.step_time),
        fleet=FleetSettings(replicas=4),
    )  # fmt: skip
    requests, steps = records.requests, records.steps
    assert (steps["running"] * steps["duration"]).sum() == (
        requests["finished"] - requests["first_scheduled"]
    ).sum()
    for replica, mine in steps.groupby("replica"):
        served = requests[requests["replica"] == replica]
        assert mine["finished"].sum() == len(served)


@pytest.mark.parametrize("replicas", [1, 4, 16])
def test_at_most_five_events_a_request(monkeypatch, replicas: int):
    events = 0

    class Counting(Clock):
        def step(self) -> None:
            nonlocal events
            events += 1
            super().step()

    monkeypatch.setattr(simulator.run, "Clock", Counting)
    work = WORKLOADS[0]
    trace = work.trace(150 * replicas, rate=replicas * work.rate)
    simulate(trace, work.policy, work.engine, Predicted(work.step_time),
             fleet=FleetSettings(replicas=replicas))  # fmt: skip
    assert events <= 5 * len(trace)


# Anything goes

POLICIES = (
    Chunked(token_budget=48),
    Chunked(token_budget=32, long_prefill=8, order="longest-wait", demote=0.4),
    Continuous(token_budget=200),
    Static(batch=2, timeout=2),
    FastLane(token_budget=48, fast_prompt=20),
    FairShare(token_budget=48),
)
TIMES = (
    SECOND,
    StepTime(t0=PS_PER_S // 2, g=((1, 2), (PS_PER_S // 64, PS_PER_S // 32)), decode=(0, 0, 1001)),
)
times = st.integers(0, 40).map(lambda n: n / 2)


@st.composite
def loads(draw) -> list[Ask]:
    """Requests in order of arrival; some follow one before them, after a pause."""
    count = draw(st.integers(1, 25))
    found: list[Ask] = []
    for index, at in enumerate(sorted(draw(times) for _ in range(count))):
        prompt, who = draw(st.integers(1, 70)), draw(st.integers(0, 2))
        after = draw(st.integers(0, index - 1)) if index and draw(st.integers(0, 5)) == 0 else -1
        content = (Segment(draw(st.integers(0, 1)), 0, prompt),) if draw(st.booleans()) else ()
        found.append(ask(prompt, draw(st.integers(1, 40)), at if after < 0 else draw(times) % 3,
                         priority=who, tenant=who, after=after, content=content))  # fmt: skip
    return found


doors = st.builds(
    DoorSettings,
    max_in_flight=st.none() | st.integers(2, 6),
    in_flight_per=st.just("fleet"),
    when_full=st.just("hold"),
    max_rate=st.none() | st.sampled_from([0.5, 1.0, 3.0]),
    timeout=st.none() | times.filter(bool),
).flatmap(
    lambda door: st.builds(
        lambda per, full, fast: door.model_copy(
            update=({"in_flight_per": per, "when_full": full} if door.max_in_flight else {})
            | ({"when_fast": fast} if door.max_rate else {})
        ),
        st.sampled_from(["fleet", "replica"]),
        st.sampled_from(["hold", "reject"]),
        st.sampled_from(["hold", "reject"]),
    )
)


@st.composite
def fleets(draw) -> FleetSettings:
    replicas = draw(st.integers(1, 3))
    changes = []
    for replica in range(replicas):
        if what := draw(st.sampled_from(["", "", "lose", "drain"])):
            changes.append(Change(at=draw(times), what=what, replica=replica))
    for _ in range(draw(st.integers(0, 2))):
        changes.append(Change(at=draw(times), what="add", load=draw(times)))
    router = draw(st.sampled_from(["least-outstanding", "least-tokens", "round-robin",
                                   "power-of-two", "prefix-affinity"]))  # fmt: skip
    refresh = 0.0 if router == "round-robin" else draw(st.sampled_from([0.0, 0.0, 1.5]))
    return FleetSettings(replicas=replicas, router=router, refresh=refresh, changes=changes)


@settings(max_examples=120, deadline=None)
@given(
    loads(), doors, fleets(), st.integers(0, 2), st.sampled_from(POLICIES), st.sampled_from(TIMES),
    st.sampled_from([160, 400]), st.booleans(), st.sampled_from([0, 0, 64]),
    st.none() | st.integers(1, 30),
)  # fmt: skip
def test_leaping_changes_nothing_and_everybody_ends_once(
    asks, door, fleet, retries, policy, step_time, pool, cache, swap, horizon
):
    """Requests, tokens, blocks and waits are conserved (checked after every run), whatever
    happens to replicas and at the door, with ties at every second."""
    retry = RetrySettings(count=retries if door.turns_away else 0, backoff=1, jitter=0.5)
    trace = trace_of(asks)
    engine = Engine(kv_tokens=pool, block_size=16, max_running=4, gate=not cache,
                    prefix_cache=cache, swap_tokens=swap,
                    kv_bytes_per_token=1000)  # fmt: skip

    def run(leap: bool) -> Records:
        return simulate(
            trace, policy, engine, Predicted(step_time), door=door, retry=retry, fleet=fleet,
            leap=leap, horizon=None if horizon is None else horizon * PS_PER_S,
        )  # fmt: skip

    leapt, stepped = run(True), run(False)
    for name in ("requests", "steps", "spells", "stalls"):
        assert getattr(leapt, name).equals(getattr(stepped, name)), name
    assert leapt.about == stepped.about
    requests = leapt.requests
    if horizon is None:
        assert sorted(requests["request"]) == list(range(len(asks)))
        assert (requests["finished"] >= 0).all()
    assert (requests["retries"] <= retries).all()
    late = requests["reason"] == "timeout"
    assert (requests["first_scheduled"][late] < 0).all()


def test_the_same_bytes_whatever_the_hash_seed():
    program = (
        "from benchmarks.workloads import WORKLOADS as W\n"
        "from calibration.step_time import Predicted as P\n"
        "from simulator.run import simulate\n"
        "from simulator.fleet import FleetSettings as F, Change as C\n"
        "from simulator.door import DoorSettings as D\n"
        "from simulator.clients import RetrySettings as R\n"
        "import hashlib\n"
        "w = W[5]\n"
        "r = simulate(w.trace(150, rate=9), w.policy, w.engine, P(w.step_time),\n"
        "  door=D(max_in_flight=60, when_full='reject', timeout=5, divert=2),\n"
        "  retry=R(count=2), fleet=F(replicas=3, router='power-of-two',\n"
        "  changes=[C(at=9, what='lose', replica=1)]))\n"
        "print(hashlib.md5(r.requests.to_csv().encode() + r.steps.to_csv().encode()).hexdigest())\n"
    )
    said = {
        subprocess.run(
            [sys.executable, "-c", program], check=True, capture_output=True, text=True,
            env=os.environ | {"PYTHONHASHSEED": seed},
        ).stdout
        for seed in ("1", "2")
    }  # fmt: skip
    assert len(said) == 1
