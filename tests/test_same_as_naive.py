"""The fast engine, leaping or not, and the naive loop give the same records.

Random traces, policies and options, with memory from tight to ample; times, blocks and budgets
are small so that ties, preemptions and odd remainders are the rule.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from benchmarks import naive
from calibration.step_time import Predicted, StepTime
from policies import Chunked, Continuous, FairShare, FastLane, Policy, Static
from policies.order import ORDERS
from policies.settings import Settings
from policies.victims import VICTIMS
from simulator.engine import Engine
from simulator.run import simulate
from traces.records import REQUEST_COLUMNS, STEP_COLUMNS, Records
from traces.trace import Segment, Trace

CHUNKED: dict[str, type[Chunked]] = {
    "chunked": Chunked,
    "fast-lane": FastLane,
    "fair-share": FairShare,
}

LONGEST = 60
"""Tokens of a prompt, and of an output, at most."""


def examples(count: int) -> settings:
    """So many random cases, however long each takes to draw and to run."""
    return settings(
        max_examples=count,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )


@dataclass(frozen=True)
class Case:
    trace: Trace
    policy: Policy
    engine: Engine
    step_time: StepTime
    horizon: int


@st.composite
def traces(draw: st.DrawFn, identified: bool) -> Trace:
    count = draw(st.integers(1, 24))
    lengths = st.integers(1, LONGEST)
    arrival, at = [], 0
    for _ in range(count):
        at += draw(st.sampled_from((0, 0, 500, 1000, 1730, 20_000)))
        arrival.append(at)
    after = [-1] * count
    for row in range(1, count):
        if draw(st.integers(0, 9)) == 0:
            after[row] = draw(st.integers(0, row - 1))
            arrival[row] = draw(st.sampled_from((0, 1000, 4999)))
    prompt = [draw(lengths) for _ in range(count)]
    output = [draw(lengths) for _ in range(count)]
    columns: dict[str, Any] = {}
    if identified:
        columns["content"] = [draw(contents(row, tokens)) for row, tokens in enumerate(prompt)]
    return Trace.of(
        arrival=arrival,
        prompt=prompt,
        output=output,
        declared=[draw(st.sampled_from((0, tokens, tokens + 5, LONGEST))) for tokens in output],
        priority=[draw(st.integers(0, 2)) for _ in range(count)],
        tenant=[draw(st.integers(0, 2)) for _ in range(count)],
        tenants=("a", "b", "c"),
        after=after,
        **columns,
    )


@st.composite
def contents(draw: st.DrawFn, row: int, tokens: int) -> tuple[Segment, ...]:
    """Part of a prompt: from a few shared streams, or what an earlier request generated."""
    first = draw(st.integers(0, tokens))
    stream = draw(st.integers(-row, 2))
    parts = [Segment(stream, 0, first)] if first else []
    if draw(st.booleans()) and first < tokens:
        parts.append(Segment(draw(st.integers(0, 2)), draw(st.integers(0, 3)), tokens - first))
    return tuple(parts)


@st.composite
def policies(draw: st.DrawFn) -> Settings:
    reserve_max = draw(st.sampled_from((False, False, True)))
    common: dict[str, Any] = {
        "reserve_max": reserve_max,
        "demote": draw(st.sampled_from((0.0, 0.0, 0.4))),
        "order": draw(st.sampled_from(sorted(ORDERS))),
        "victim": draw(st.sampled_from(sorted(VICTIMS))),
        "reentry": draw(st.sampled_from(("head", "tail"))),
    }
    if common["order"] == "priority":
        common["aging"] = draw(st.sampled_from((0.0, 3e-9)))
    kind = draw(st.sampled_from(("static", "continuous", "whole", *CHUNKED)))
    if kind == "static":
        timeout = draw(st.sampled_from((0.0, 3e-9, 1.0)))
        return Static(batch=draw(st.integers(1, 5)), timeout=timeout, **common)
    if kind == "continuous":
        return Continuous(token_budget=draw(st.integers(2 * LONGEST, 300)), **common)
    common |= {
        "long_prefill": draw(st.sampled_from((0, 0, 3, 16))),
        "adaptive": draw(st.booleans()),
    }
    common |= {
        "cooldown": draw(st.sampled_from((0, 0, 1, 2))),
        "cooldown_free": draw(st.sampled_from((0.1, 0.5))),
    }
    if kind == "fast-lane":
        common |= {
            "share": draw(st.sampled_from((0.1, 0.3, 0.8))),
            "fast_prompt": draw(st.integers(1, 30)),
            "fast_output": draw(st.sampled_from((0, 20))),
        }
    else:
        common["partials"] = draw(st.sampled_from((0, 0, 1, 2)))
        common["check_first"] = draw(st.booleans())
    if kind in ("chunked", "whole"):
        common["skips"] = draw(st.sampled_from((0, 0, 1, 3)))
        common["prefill_first"] = not common["check_first"] and draw(st.booleans())
        if common["reentry"] == "tail" and common["order"] == "fcfs":
            common["patience"] = draw(st.sampled_from((0.0, 0.0, 5e-9)))
    if kind == "whole":
        return Chunked(token_budget=draw(st.integers(2 * LONGEST, 300)), chunks=False, **common)
    return CHUNKED[kind](token_budget=draw(st.integers(6, 90)), **common)


@st.composite
def step_times(draw: st.DrawFn) -> StepTime:
    def some() -> int:
        return draw(st.sampled_from((0, 0, 1, 7, 100)))

    return StepTime(
        t0=draw(st.sampled_from((100, 500, 1000))),
        tS=some(),
        tB=some(),
        tM=draw(st.sampled_from((0, 3))),
        tT=some(),
        tN=some(),
        g=draw(st.sampled_from((((1,), (0,)), ((1, 8, 64), (10, 500, 4000))))),
        h=draw(st.sampled_from((((1,), (0,)), ((1, 4), (3, 50))))),
        p0=some(),
        pA2=some(),
        pP=some(),
        pF=some(),
        pH=some(),
        decode=(some(), some(), some()),
        mixed=draw(st.sampled_from((None, (200, 30, 12)))),
        padded=draw(st.sampled_from(((), (1, 2, 4, 8)))),
    )


@st.composite
def cases(draw: st.DrawFn) -> Case:
    block_size = draw(st.sampled_from((1, 2, 3, 4, 7, 16, 128)))
    prefix_cache = draw(st.booleans())
    # From little more than one sequence needs to more than all need.
    tokens = draw(st.sampled_from((LONGEST, 2 * LONGEST, 3 * LONGEST, 8 * LONGEST, 100 * LONGEST)))
    policy = draw(policies())
    extra: dict[str, Any] = {}
    if not prefix_cache and policy.reserves and draw(st.booleans()):
        extra = {"contiguous": True}
    elif draw(st.booleans()):
        swap_tokens = draw(st.sampled_from((30, 10_000)))
        extra = {"swap_tokens": swap_tokens, "kv_bytes_per_token": 5}
    return Case(
        trace=draw(traces(identified=prefix_cache)),
        policy=policy,
        engine=Engine(
            kv_tokens=max(tokens, block_size),
            block_size=block_size,
            max_running=draw(st.integers(1, 6)),
            max_model_len=draw(st.sampled_from((70, 131_072))),
            reserve=draw(st.sampled_from((0.0, 0.0, 0.1, 0.4))),
            gate=draw(st.booleans()),
            prefix_cache=prefix_cache,
            output_cap=draw(st.sampled_from((None, None, 30))),
            **extra,
        ),
        step_time=draw(step_times()),
        # Some orders and victims together never let anybody finish: the longer one ends that.
        horizon=draw(st.sampled_from((60_000, 1_500_000, 1_500_000, 1_500_000))),
    )


def token_times(records: Records) -> list[list[int]]:
    """Per row of the trace, rebuilt from first tokens, spells and stalls."""
    ticks = records.steps[records.steps.tick >= 0]
    tick_ends = {
        (row.replica, row.tick): row.start + row.duration for row in ticks.itertuples(index=False)
    }
    times: dict[int, list[int]] = {
        row.request: [row.first_token] if row.first_token >= 0 else []
        for row in records.requests.itertuples(index=False)
    }
    for spell in records.spells.itertuples(index=False):
        for tick in range(spell.first_tick, spell.last_tick + 1):
            times[spell.request].append(tick_ends[spell.replica, tick])
    for stall in records.stalls.itertuples(index=False):
        times[stall.request].append(stall.end)
    for request, gaps in records.stalls.groupby("request"):
        ends = sorted(times[request])
        for end, gap in zip(gaps.end, gaps.gap, strict=True):
            assert ends[ends.index(end) - 1] == end - gap, f"request {request}: a gap is wrong"
    return [sorted(times[request]) for request in sorted(times)]


def run_fast(case: Case, leap: bool) -> Records:
    return simulate(
        case.trace,
        case.policy,
        case.engine,
        Predicted(case.step_time),
        horizon=case.horizon,
        leap=leap,
    )


def plain(frame: pd.DataFrame, columns: list[str]) -> list[dict[str, Any]]:
    """Rows as plain Python, so that a difference is readable."""
    return [
        {name: str(value) if isinstance(value, str) else int(value) for name, value in row.items()}
        for row in frame[columns].to_dict("records")
    ]


def assert_same_rows(what: str, ours: list[dict[str, Any]], truth: list[dict[str, Any]]) -> None:
    for at, (our, true) in enumerate(zip(ours, truth, strict=False)):
        different = {name: (our[name], true[name]) for name in true if our[name] != true[name]}
        assert not different, f"{what} {at}, (ours, naive): {different}"
    assert len(ours) == len(truth), f"{len(ours)} {what} rows, naive has {len(truth)}"


def assert_same_frames(one: Records, other: Records) -> None:
    for name in ("requests", "steps", "spells", "stalls"):
        left, right = getattr(one, name), getattr(other, name)
        if name in ("spells", "stalls"):
            left = left.sort_values(list(left.columns)).reset_index(drop=True)
            right = right.sort_values(list(right.columns)).reset_index(drop=True)
        frames = (getattr(frame, "frame", frame) for frame in (left, right))
        pd.testing.assert_frame_equal(*frames, obj=name)


def assert_same(case: Case) -> None:
    """naive == stepping == leaping, in every column that they share."""
    truth = naive.run(case.trace, case.policy, case.engine, case.step_time, case.horizon)
    stepped = run_fast(case, leap=False)
    leapt = run_fast(case, leap=True)
    request_columns = [*REQUEST_COLUMNS, "reason", "tenant", "lane"]
    step_columns = [name for name in STEP_COLUMNS if name not in ("tick", "outside")]
    for what, columns in (("steps", step_columns), ("requests", request_columns)):
        ours, true = (plain(getattr(run, what), columns) for run in (stepped, truth))
        assert_same_rows(what, ours, true)
    arrived = set(truth.requests.request)
    expected = [times for row, times in enumerate(truth.token_times) if row in arrived]
    assert token_times(stepped) == expected
    assert_same_frames(stepped, leapt)


@pytest.mark.parametrize("block_size", [1, 2, 4, 16, 128])
def test_a_first_look(block_size: int) -> None:
    """Three requests in a pool that holds two: readable when it fails."""
    trace = Trace.of(arrival=[0, 500, 1000], prompt=[20, 30, 10], output=[40, 20, 30], declared=60)
    engine = Engine(kv_tokens=128, block_size=block_size, max_running=4)
    step_time = StepTime(t0=1000, decode=(0, 10, 1), tB=3)
    assert_same(Case(trace, Chunked(token_budget=16), engine, step_time, 1_000_000))


@examples(120)
@given(cases())
def test_same_records(case: Case) -> None:
    assert_same(case)


@st.composite
def plain_cases(draw: st.DrawFn) -> Case:
    """Open loop under plain chunked prefill: what `simulator.cruise` goes through unasked."""
    count = draw(st.integers(1, 40))
    pauses = st.sampled_from((0, 0, 500, 1000, 1730, 5_000, 20_000))
    outputs = [draw(st.integers(1, LONGEST)) for _ in range(count)]
    block_size = draw(st.sampled_from((1, 3, 4, 16)))
    tokens = draw(st.sampled_from((2 * LONGEST, 5 * LONGEST, 8 * LONGEST, 100 * LONGEST)))
    return Case(
        trace=Trace.of(
            arrival=list(accumulate(draw(pauses) for _ in range(count))),
            prompt=[draw(st.integers(1, LONGEST)) for _ in range(count)],
            output=outputs,
            declared=[draw(st.sampled_from((0, tokens, LONGEST))) for tokens in outputs],
            tenant=[draw(st.integers(0, 1)) for _ in range(count)],
            tenants=("a", "b"),
        ),
        policy=Chunked(
            token_budget=draw(st.integers(4, 90)),
            victim=draw(st.sampled_from(("last-in", "most-blocks"))),
            reentry=draw(st.sampled_from(("head", "tail"))),
            check_first=draw(st.booleans()),
        ),
        engine=Engine(
            kv_tokens=tokens,
            block_size=block_size,
            max_running=draw(st.sampled_from((1, 3, 6, 30))),
            max_model_len=draw(st.sampled_from((70, 131_072))),
            reserve=draw(st.sampled_from((0.0, 0.0, 0.2))),
            gate=draw(st.booleans()),
            output_cap=draw(st.sampled_from((None, None, 30))),
        ),
        step_time=draw(step_times()),
        horizon=draw(st.sampled_from((30_000, 60_000, 5_000_000, 5_000_000))),
    )


@examples(80)
@given(plain_cases())
def test_same_records_of_the_plain_case(case: Case) -> None:
    assert_same(case)
