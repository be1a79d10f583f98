"""Synthetic load: one stream a purpose, conversations, clients, prefixes, classes."""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np
import pytest

from traces.presets import PRESETS
from traces.statistics import describe
from traces.synthesize import Workload, synthesize
from traces.trace import Trace

PLAIN: dict[str, Any] = {"rate": 5.0, "requests": 200, "prompt": 100, "output": 20}
LOGNORMAL = {"kind": "lognormal", "mean": 800, "p99": 3000}
TALKS = {"turns": {"kind": "uniform", "min": 1, "max": 5}, "think_s": 4.0}


def make(seed: int = 1, /, **changes: Any) -> Trace:
    return synthesize(Workload.from_table(PLAIN | changes), seed)


def test_the_scenario_of_the_design_is_a_workload() -> None:
    trace = make(
        arrivals="poisson",
        rate=12.0,
        requests=2000,
        prompt={"kind": "lognormal", "mean": 1000, "p99": 4000, "max": 8192},
        output={"kind": "lognormal", "mean": 250, "p99": 1200, "max": 2048},
        declared=2048,
    )
    assert len(trace) == 2000
    assert trace.prompt.mean() == pytest.approx(1000, rel=0.05)
    assert (trace.declared == 2048).all()
    assert any("cut at 8192" in note and "mean 999" in note for note in trace.notes)


def test_other_lengths_keep_the_arrivals_and_another_rate_keeps_the_lengths() -> None:
    base, longer, faster = make(prompt=LOGNORMAL), make(), make(prompt=LOGNORMAL, rate=10.0)
    assert base.arrival.tolist() == longer.arrival.tolist()
    assert base.prompt.tolist() == faster.prompt.tolist()
    assert base.arrival == pytest.approx(2 * faster.arrival, abs=2)


def test_fewer_requests_are_the_beginning_of_more() -> None:
    short, long = make(requests=50, sessions=TALKS), make(sessions=TALKS)
    assert short.prompt.tolist() == long.prompt[:50].tolist()
    assert short.arrival.tolist() == long.arrival[:50].tolist()


def test_f7_rate_inf_is_all_at_0_in_order() -> None:
    trace = make(rate=math.inf, prompt=LOGNORMAL)
    assert set(trace.arrival.tolist()) == {0}
    assert trace.prompt.tolist() == make(prompt=LOGNORMAL).prompt.tolist()


def test_a_duration_holds_as_many_as_arrive_in_it() -> None:
    trace = make(requests=None, duration_s=200.0)
    assert len(trace) == pytest.approx(1000, abs=130)
    assert trace.arrival.max() < 200 * 10**12


def test_d4_the_prompt_of_a_turn_is_all_that_was_said_before_it() -> None:
    trace = make(sessions=TALKS, prompt=LOGNORMAL, output=LOGNORMAL)
    rows = list(trace.requests())
    assert len(rows) == 200
    for row in rows:
        assert sum(part.tokens for part in row.content) == row.prompt
        if row.after < 0:
            assert len(row.content) == 1
            continue
        before = rows[row.after]
        assert before.index < row.index
        assert before.session == row.session
        *old, answer, new = row.content
        assert tuple(old) == before.content
        assert (answer.stream, answer.start, answer.tokens) == (-before.index - 1, 0, before.output)
        assert new.stream == before.content[0].stream


def test_d4_closed_loop_turns_wait_and_think() -> None:
    trace = make(sessions=TALKS, requests=4000)
    later = trace.after >= 0
    assert later.mean() == pytest.approx(2 / 3, abs=0.03)
    assert trace.arrival[later].mean() / 1e12 == pytest.approx(4.0, rel=0.1)
    own = trace.arrival[~later]
    assert (np.diff(own) >= 0).all()
    # Three turns a conversation: they start at a third of the rate of requests.
    assert len(own) / (own[-1] / 1e12) == pytest.approx(5 / 3, rel=0.1)


def test_d4_open_loop_turns_have_times_of_their_own() -> None:
    trace = make(sessions=TALKS | {"loop": "open"}, requests=3000)
    assert (trace.after == -1).all()
    assert (np.diff(trace.arrival) >= 0).all()
    for session in range(20):
        rows = np.flatnonzero(trace.session == session)
        assert trace.prompt[rows].tolist() == [100 + 120 * turn for turn in range(len(rows))]
        for turn, row in enumerate(rows.tolist()):
            answers = [part.stream for part in trace.content(row) if part.stream < 0]
            assert answers == [-int(rows[earlier]) - 1 for earlier in range(turn)]


def test_a_conversation_ends_before_it_exceeds_its_context() -> None:
    trace = make(sessions={"turns": 10, "max_context": 500})
    assert (trace.prompt + trace.output).max() == 480
    assert np.bincount(trace.session)[:-1].tolist() == [4] * (len(trace) // 4 - 1)
    assert any("exceeded max_context" in note for note in trace.notes)


def test_clients_have_one_request_each_at_a_time() -> None:
    trace = make(rate=None, clients={"count": 3}, requests=10)
    assert trace.after.tolist() == [-1, -1, -1, 0, 1, 2, 3, 4, 5, 6]
    assert trace.arrival.tolist() == [0] * 10


def test_clients_hold_conversations_one_after_another() -> None:
    trace = make(
        rate=None, clients={"count": 2, "think_s": 5.0}, requests=12, sessions={"turns": 3}
    )
    assert trace.session.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3]
    assert trace.after.tolist() == [-1, 0, 1, -1, 3, 4, 2, 6, 7, 5, 9, 10]


def test_shared_prompts_stand_in_front_of_their_share() -> None:
    trace = make(
        requests=4000, shared=[{"tokens": 300, "share": 0.6}, {"tokens": 50, "share": 0.2}]
    )
    first = [row.content[0].stream if row.content else None for row in trace.requests()]
    assert first.count(0) / 4000 == pytest.approx(0.6, abs=0.03)
    assert first.count(1) / 4000 == pytest.approx(0.2, abs=0.03)
    assert sorted(set(trace.prompt.tolist())) == [100, 150, 400]


def test_classes_have_their_own_lengths_tenant_and_priority() -> None:
    classes = [
        {"name": "chat", "weight": 3.0, "prompt": 50},
        {"name": "batch", "weight": 1.0, "output": 900, "priority": 2, "tenant": "nightly"},
    ]
    trace = make(requests=4000, classes=classes)
    assert trace.tenants == ("chat", "nightly")
    batch = trace.tenant == 1
    assert batch.mean() == pytest.approx(0.25, abs=0.03)
    assert set(trace.prompt[batch].tolist()) == {100}
    assert set(trace.output[batch].tolist()) == {900}
    assert set(trace.priority[batch].tolist()) == {2}
    assert set(trace.prompt[~batch].tolist()) == {50}


def test_declared_is_a_constant_exact_or_unknown() -> None:
    assert set(make().declared.tolist()) == {0}
    exact = make(declared="exact", output=LOGNORMAL)
    assert exact.declared.tolist() == exact.output.tolist()
    short = make(declared=10)
    assert short.notes == ("200 requests would produce more than they declare",)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"rate": 0}, "trace.rate: 0, expected greater than 0"),
        ({"rate": -2}, "trace.rate: -2"),
        ({"rate": math.nan}, "trace.rate: nan"),
        ({"rate": None}, "rate: missing"),
        ({"promt": 3}, "trace.promt: unknown key; did you mean 'prompt'?"),
        ({"requests": 0}, "trace.requests: 0"),
        ({"clients": {"count": 2}}, "rate and clients contradict each other"),
        ({"rate": math.inf, "requests": None, "duration_s": 5}, "rate = inf"),
        ({"sessions": {"turns": 2, "lop": "open"}}, "trace.sessions.lop: unknown key; did you"),
        ({"sessions": {"turns": 2, "loop": "both"}}, "trace.sessions.loop: 'both'"),
        ({"shared": [{"tokens": 5, "share": 0.7}] * 2}, "the shares of all add up to over 1"),
        ({"classes": [{"name": "a", "wait": 1}]}, "trace.classes.0.wait: unknown key"),
        ({"classes": [{"name": "a"}, {"name": "a"}]}, "the name 'a' occurs twice"),
        ({"declared": "exat"}, "trace.declared: 'exat', expected tokens (at least 1) or \"exact\""),
        ({"preset": "chatt"}, "preset 'chatt' is unknown; did you mean 'chat'?"),
    ],
)
def test_wrong_settings_are_one_line_that_names_them(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=re.escape(said)) as caught:
        make(**changes)
    assert "\n" not in str(caught.value)


def test_a_closed_loop_of_clients_refuses_an_open_one_of_sessions() -> None:
    with pytest.raises(ValueError, match="contradict each other"):
        make(rate=None, clients={"count": 2}, sessions=TALKS | {"loop": "open"})


@pytest.mark.parametrize("name", PRESETS)
def test_presets_are_workloads_at_the_lengths_that_they_name(name: str) -> None:
    workload = Workload.from_table({"preset": name})
    assert PRESETS[name].source
    trace = synthesize(workload, 0)
    assert len(trace) == workload.requests
    assert describe(trace).prompt.mean > 1000  # type: ignore[union-attr]


def test_chat_has_the_lengths_of_azures_conversations() -> None:
    about = describe(synthesize(Workload.from_table({"preset": "chat", "requests": 50_000}), 0))
    assert about.prompt is not None
    assert about.output is not None
    assert about.prompt.mean == pytest.approx(1155, rel=0.02)
    assert about.prompt.p99 == pytest.approx(4142, rel=0.05)
    assert about.output.mean == pytest.approx(211, rel=0.02)
    assert about.rate == pytest.approx(5.53, rel=0.03)


def test_a_preset_is_changed_by_the_keys_beside_it() -> None:
    workload = Workload.from_table({"preset": "chat", "prompt": {"max": 2000}, "rate": 1.0})
    assert workload.rate == 1.0
    assert workload.prompt.max == 2000
    assert workload.prompt.mean == 1155  # type: ignore[union-attr]
    closed = Workload.from_table({"preset": "chat", "clients": {"count": 8}})
    assert closed.rate is None


def test_infinite_cache_reuse_of_conversations_is_all_but_what_is_new() -> None:
    trace = make(sessions=TALKS, prompt=LOGNORMAL, requests=500)
    prompts = {row.index: row for row in trace.requests()}
    old = sum(
        prompts[row.after].prompt + prompts[row.after].output
        for row in trace.requests()
        if row.after >= 0
    )
    assert describe(trace).prefix_reuse == pytest.approx(old / trace.prompt.sum())
