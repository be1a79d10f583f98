"""vLLM's decisions: its recorded runs where they are at hand, and hand-computed edges always.

The edges are rules that the recorded runs never use, or would not notice (watermark, adaptive
threshold, no chunking, priority with a prefix cache, two rules of A11). Both engines take them.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from policies.base import Policy
from policies.chunked import Chunked
from simulator.engine import Engine
from tests.oracle import STEP_PS, Decisions, FastReplica, NaiveReplica, Replica, first_difference
from traces.trace import Segment, Trace

RUNS = Path(__file__).resolve().parents[2] / "shared" / "data" / "oracle"
Build = Callable[[Trace, Policy, Engine], Replica]


@pytest.fixture(params=[NaiveReplica, FastReplica], ids=["naive", "fast"])
def build(request: pytest.FixtureRequest) -> Build:
    replica: Build = request.param
    return replica


def runs() -> list[Any]:
    files = sorted(RUNS.rglob("*.json.gz"))
    missing = pytest.mark.skip(reason=f"{RUNS} is not there")
    return [pytest.param(file, id=file.name) for file in files] or [
        pytest.param(RUNS, marks=missing)
    ]


@pytest.mark.parametrize("file", runs())
def test_recorded_runs_are_equal_step_for_step(file: Path, build: Build) -> None:
    with gzip.open(file, "rt", encoding="utf-8") as text:
        assert first_difference(json.load(text), build) == ""


def decisions(
    build: Build, policy: Policy, engine: Engine, steps: int, arrival: list[int], **columns: Any
) -> list[Decisions]:
    """What each of the first `steps` steps did; `arrival` in steps."""
    trace = Trace.of(arrival=[at * STEP_PS + row for row, at in enumerate(arrival)], **columns)
    replica = build(trace, policy, engine)
    done = []
    for step in range(steps):
        for row, at in enumerate(arrival):
            if at == step:
                replica.arrive(row)
        made = replica.schedule((step + 1) * STEP_PS - 1, more_to_come=True)
        done.append(made | replica.update((step + 1) * STEP_PS))
    return done


def scheduled(made: list[Decisions]) -> list[list[list[int]]]:
    """[request, tokens, computed before] of each step."""
    return [step["scheduled"] for step in made]


def engine(blocks: int, block_size: int = 4, **settings: Any) -> Engine:
    return Engine(kv_tokens=blocks * block_size, block_size=block_size, **settings)


def test_the_reserve_stops_newcomers_but_neither_the_running_nor_an_empty_engine(
    build: Build,
) -> None:
    # 10 blocks, 2 of them reserved. Request 0 takes 8, later 9: into the reserve. Request 1
    # needs 1 (+ 2 > 2 free) and waits until nobody runs; request 2 needs 9 (+ 2 > 10), and
    # is let in when it is alone.
    made = decisions(
        build, Chunked(token_budget=64), engine(10, reserve=0.2), steps=6,
        arrival=[0, 0, 1], prompt=[32, 4, 36], output=[3, 1, 1],
    )  # fmt: skip
    assert scheduled(made) == [
        [[0, 32, 0]],
        [[0, 1, 32]],
        [[0, 1, 33]],
        [[1, 4, 0]],
        [[2, 36, 0]],
        [],
    ]
    assert [step["free_blocks_after_schedule"] for step in made] == [2, 1, 1, 9, 1, 10]


def test_an_adaptive_threshold_is_an_equal_share_of_the_budget_where_that_is_larger(
    build: Build,
) -> None:
    # Three of them: 32 // 3 = 10 tokens each. One alone is not held back.
    policy = Chunked(token_budget=32, long_prefill=4, adaptive=True)
    three = decisions(
        build, policy, engine(99), steps=1, arrival=[0, 0, 0], prompt=40, output=1
    )  # fmt: skip
    assert scheduled(three) == [[[0, 10, 0], [1, 10, 0], [2, 10, 0]]]
    # The arrival of this very step counts: the first is cut from its second step on.
    late = decisions(build, policy, engine(99), steps=2, arrival=[0, 1], prompt=60, output=1)
    assert scheduled(late) == [[[0, 32, 0]], [[0, 16, 32], [1, 16, 0]]]


def test_a_fixed_threshold_holds_where_it_is_larger_than_the_share(build: Build) -> None:
    policy = Chunked(token_budget=32, long_prefill=12, adaptive=True)
    made = decisions(build, policy, engine(99), steps=1, arrival=[0, 0, 0], prompt=40, output=1)
    assert scheduled(made) == [[[0, 12, 0], [1, 12, 0], [2, 8, 0]]]


def test_without_chunks_a_prompt_that_does_not_fit_the_budget_ends_the_loop(build: Build) -> None:
    # 7 tokens do not fit the 4 that are left; the 2 behind them would, but nobody skips ahead.
    made = decisions(
        build, Chunked(token_budget=10, chunks=False), engine(99), steps=2,
        arrival=[0, 0, 0], prompt=[6, 7, 2], output=5,
    )  # fmt: skip
    assert scheduled(made) == [[[0, 6, 0]], [[0, 1, 6], [1, 7, 0], [2, 2, 0]]]


def test_without_chunks_the_threshold_cuts_before_the_budget_is_asked(build: Build) -> None:
    made = decisions(
        build, Chunked(token_budget=10, chunks=False, long_prefill=4), engine(99), steps=1,
        arrival=[0, 0, 0], prompt=[6, 7, 3], output=5,
    )  # fmt: skip
    assert scheduled(made) == [[[0, 4, 0], [1, 4, 0]]]


PRIORITY = {"order": "priority", "victim": "priority"}


def test_an_urgent_request_evicts_one_whose_prefix_it_shares(build: Build) -> None:
    # 4 blocks. Request 0 (less urgent) computes a prompt of 2 blocks; request 1 hits both. When
    # 1 needs a block in step 2 it evicts 0, already scheduled: only 0's third block comes free,
    # for 1 holds the other two. Request 0 is resumed when 1 is gone, and hits its prompt again.
    shared = Segment(0, 0, 8)
    made = decisions(
        build, Chunked(token_budget=64, **PRIORITY), engine(4, prefix_cache=True), steps=4,
        arrival=[0, 1], prompt=[8, 12], output=[9, 2], priority=[1, 0],
        content=[(shared,), (shared,)],
    )  # fmt: skip
    assert scheduled(made) == [
        [[0, 8, 0]],
        [[0, 1, 8], [1, 4, 8]],
        [[1, 1, 12]],
        [[0, 2, 8]],
    ]
    assert made[2]["preempted"] == [[0, 9, 10, 3]]
    assert [step["free_blocks_after_schedule"] for step in made] == [2, 0, 0, 1]
    assert [step["free_blocks_after_update"] for step in made] == [2, 0, 4, 1]


def test_tokens_of_a_victim_return_but_the_starved_one_gets_no_more_than_it_asked_for(
    build: Build,
) -> None:
    # Step 2: request 0 decodes (1 of 8 tokens), so request 1 asks for 7, and for 2 blocks where
    # 1 is free. Evicting 0 leaves a budget of 8; request 1 still gets its 7.
    made = decisions(
        build, Chunked(token_budget=8, **PRIORITY), engine(6, gate=False), steps=4,
        arrival=[0, 1], prompt=[8, 40], output=9, priority=[2, 0],
    )  # fmt: skip
    assert scheduled(made) == [[[0, 8, 0]], [[0, 1, 8], [1, 7, 0]], [[1, 7, 7]], [[1, 8, 14]]]
    assert made[2]["preempted"] == [[0, 9, 10, 3]]
    assert [step["free_blocks_after_schedule"] for step in made] == [4, 1, 2, 0]


def test_whoever_evicts_itself_ends_the_pass_over_the_running_even_in_mid_list(
    build: Build,
) -> None:
    # Step 4: request 1 needs a block and is itself the least urgent. Request 2, behind it in
    # the list, needs none and yet is not fed in this step.
    made = decisions(
        build, Chunked(token_budget=64, **PRIORITY), engine(6), steps=6,
        arrival=[0, 0, 1], prompt=[4, 5, 4], output=20, priority=[0, 2, 1],
    )  # fmt: skip
    assert scheduled(made) == [
        [[0, 4, 0], [1, 5, 0]],
        [[0, 1, 4], [1, 1, 5], [2, 4, 0]],
        [[0, 1, 5], [1, 1, 6], [2, 1, 4]],
        [[0, 1, 6], [1, 1, 7], [2, 1, 5]],
        [[0, 1, 7]],
        [[0, 1, 8], [2, 1, 6]],
    ]
    assert made[4]["preempted"] == [[1, 8, 9, 2]]
    assert made[5]["waiting"] == [1]
