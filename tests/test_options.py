"""Options of engine and policy that the field argues about, each by a case that can be counted.

Victims, orders, gate, reserve, skips, re-entry and cool-down are in `test_memory_pressure.py`,
`test_memory_admission.py` and `test_policies_fairness.py`.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import serving
from serving import Serve, ask

from calibration.step_time import Done, Executor, Predicted, Row, StepShape, StepTime
from policies import Chunked, Continuous, FairShare, FastLane
from reports.metrics import summarize
from simulator.contract import check_policy
from simulator.engine import Engine
from simulator.run import simulate
from simulator.scenario import Scenario
from simulator.settings_file import ScenarioError
from traces.trace import Segment

MS = 10**9


# Prompts or decodes first


def test_prompts_first_take_the_budget_from_decodes(serve: Serve) -> None:
    """Budget 4. Decodes first leave 3 tokens a step to a prompt of 8, prompts first leave none
    to the decode until the last chunk."""
    asks = ask(2, 6), ask(7, 1, at=1)
    decodes, prompts = (
        serve(*asks, policy=Chunked(token_budget=4, prefill_first=first)) for first in (False, True)
    )
    assert decodes.fed[1:4] == [{0: 1, 1: 3}, {0: 1, 1: 3}, {0: 1, 1: 1}]
    assert prompts.fed[1:3] == [{1: 4}, {0: 1, 1: 3}]
    assert (decodes.ttft[1], prompts.ttft[1]) == (3, 2)
    assert (max(decodes.gaps(0)), max(prompts.gaps(0))) == (1, 2)


def test_a_prompt_in_progress_comes_before_newcomers_and_decodes(serve: Serve) -> None:
    run = serve(
        ask(2, 6), ask(6, 1, at=1), ask(6, 1, at=2),
        policy=Chunked(token_budget=4, prefill_first=True),
    )  # fmt: skip
    assert run.fed[1:4] == [{1: 4}, {1: 2, 2: 2}, {2: 4}]


def test_who_enters_before_decodes_leaves_for_them_when_blocks_are_short(serve: Serve) -> None:
    """6 blocks of one token. Request 1 takes 3 in the step in which request 0 needs a fourth: it
    goes back, and its tokens with it. Somebody advances in every step."""
    run = serve(
        ask(3, 3), ask(3, 1, at=1), kv_tokens=6, block_size=1, policy=Chunked(prefill_first=True)
    )
    assert run.fed == [{0: 3}, {0: 1}, {0: 1}, {1: 3}]
    assert run.column("preemptions") == [0, 1]
    assert run.column("computed") == [5, 3]
    assert run.column("recomputed") == [0, 0]


def test_nobody_is_fed_twice_where_decodes_come_after_prompts(serve: Serve) -> None:
    """8 blocks of one token. In step 2 the prompt takes the last two, and the decode behind it
    finds none: it goes, and the prompt has no more than its two."""
    run = serve(
        ask(7, 1), ask(1, 5), kv_tokens=8, block_size=1,
        policy=Chunked(token_budget=8, long_prefill=2, prefill_first=True),
    )  # fmt: skip
    assert run.fed[:3] == [{0: 2, 1: 1}, {0: 2, 1: 1}, {0: 2}]
    assert run.steps("preempted")[2] == 1
    assert run.steps("free_blocks")[2] == 2


@pytest.mark.parametrize(
    "policy",
    [
        Chunked(token_budget=64, prefill_first=True, long_prefill=24),
        Chunked(token_budget=400, prefill_first=True, chunks=False, victim="most-blocks"),
        FairShare(token_budget=64, partials=1, cooldown=1, check_first=True),
        FastLane(token_budget=64, fast_prompt=20, cooldown=1),
    ],
    ids=["prompts first", "whole prompts first", "fair share", "fast lane"],
)
def test_they_keep_the_contract(policy: Chunked) -> None:
    assert check_policy(policy) == []


# Swap (B12)

SWAP = {"kv_tokens": 12, "block_size": 1, "kv_bytes_per_token": 10, "swap_bandwidth": 20.0}
"""Half a second a block on the way to or from the host."""


def swapping(tokens: int) -> serving.Run:
    """Two in 12 blocks, which collide in step 4, when each holds 6 and wants a seventh."""
    return serving.run(ask(3, 5), ask(3, 8), swap_tokens=tokens, watch=False, **SWAP)


def test_a_swapped_request_computes_nothing_again() -> None:
    """B12: request 1 goes to the host with 6 blocks in step 4, and comes back in step 5, for
    request 0 has ended: 3 s each way. Recomputing, its 7 tokens take one step of 1 s."""
    swapped, again = swapping(12), swapping(0)
    assert swapped.steps("preempted")[4] == again.steps("preempted")[4] == 1
    assert swapped.steps("prefill_tokens")[4:6] == [0, 0]
    assert again.steps("prefill_tokens")[4:6] == [0, 7]
    assert swapped.column("recomputed") == [0, 0]
    assert again.column("recomputed") == [0, 6]
    assert [ps / 10**12 for ps in swapped.steps("duration")] == [
        1, 1, 1, 1, 1 + 3, 1 + 3, 1, 1, 1,
    ]  # fmt: skip
    assert swapped.records.about["swaps"] == 1


def test_without_room_on_the_host_it_is_recomputed() -> None:
    """B12: room for 5 where 6 are held: as if there were none."""
    small, none = swapping(5), swapping(0)
    assert small.finished == none.finished
    assert small.column("recomputed") == none.column("recomputed")
    assert small.records.about["swaps"] == 0


# Contiguous slots (B6)


def test_room_in_sum_is_not_room_in_one_piece(serve: Serve) -> None:
    """B6: three of 4 blocks fill 12. When the first and the last have gone, 8 are free in two
    pieces: one that needs 5 waits for the middle one, paged it enters at once."""
    asks = (
        ask(1, 2, declares=4), ask(1, 4, declares=4), ask(1, 2, declares=4),
        ask(2, 2, at=2, declares=4),
    )  # fmt: skip
    settings = {"kv_tokens": 12, "block_size": 1, "policy": Chunked(reserve_max=True)}
    paged = serve(*asks, **settings)
    pieces = serve(*asks, contiguous=True, **settings)
    assert paged.scheduled == [0, 0, 0, 2]
    assert pieces.scheduled == [0, 0, 0, 4]
    assert pieces.records.about["fragmented_wait_s"] == 2
    assert paged.records.about["fragmented_wait_s"] == 0


# Tensor-parallel ranks (C9)


def ranks(evict: str) -> serving.Run:
    """Four ranks of 30 tokens, one 10 % smaller. A step takes 1 s, and 1 s a prefilled token."""
    return serving.run(
        ask(6, 6), ask(6, 10), ask(6, 7),
        kv_tokens=30, rank_kv_tokens=(30, 30, 30, 27), rank_evict=evict, block_size=1,
        step_time=StepTime(t0=1000 * MS, pP=1000 * MS), policy=Chunked(token_budget=64),
    )  # fmt: skip


def test_the_smallest_rank_binds() -> None:
    assert ranks("global").records.about["blocks"] == 27


def test_evicting_on_one_rank_alone_stalls_everybody() -> None:
    """C9: step 4 wants 30 blocks, and request 2 goes. When request 0 has ended it comes back with
    10 tokens. Globally request 1 decodes in that step, of 11 s. Locally all ranks stand still for
    the one that computes them again: a gap of 12 s."""
    together, alone = ranks("global"), ranks("local")
    assert together.column("preemptions") == alone.column("preemptions") == [0, 0, 1]
    assert together.fed[6] == {1: 1, 2: 10}
    assert alone.fed[6:8] == [{2: 10}, {1: 1, 2: 1}]
    assert max(together.gaps(1)) == 11
    assert max(alone.gaps(1)) == 12


# Pinned prefixes (D5)

SYSTEM = Segment(1, 0, 8)


def test_a_pinned_prefix_is_there_from_the_start_and_stays(serve: Serve) -> None:
    """D5: 8 shared tokens in blocks of 4, in a pool of 6 blocks. Requests with other prompts pass
    through the whole rest of the pool: unpinned, the prefix is gone when it is asked for again."""
    asks = [
        ask(10, 2, content=(SYSTEM,)),
        ask(16, 2, at=5, content=(Segment(2, 0, 16),)),
        ask(16, 2, at=10, content=(Segment(3, 0, 16),)),
        ask(10, 2, at=15, content=(SYSTEM,)),
    ]
    settings = {"kv_tokens": 28, "block_size": 4, "prefix_cache": True}
    plain = serve(*asks, **settings)
    pinned = serve(*asks, pinned_tokens=8, **settings)
    assert plain.column("hit") == [0, 0, 0, 0]
    assert pinned.column("hit") == [8, 0, 0, 8]
    assert min(pinned.steps("free_blocks")) >= 0
    assert pinned.steps("free_blocks")[0] == 7 - 3


def test_pinned_blocks_are_not_available_to_others(serve: Serve) -> None:
    """D5: 7 blocks, 2 of them pinned. 21 tokens fit the 5 that are left only for who shares."""
    asks = [
        ask(10, 1, content=(SYSTEM,)),
        ask(10, 1, content=(SYSTEM,)),
        ask(21, 2, content=(Segment(2, 0, 21),)),
        ask(21, 2, content=(SYSTEM, Segment(2, 0, 13))),
    ]
    run = serve(*asks, kv_tokens=28, block_size=4, prefix_cache=True, pinned_tokens=8)
    assert run.reasons == [
        "stop", "stop", "rejected: prompt and declared maximum exceed the pool", "stop",
    ]  # fmt: skip


def test_what_nobody_shares_cannot_be_pinned(serve: Serve) -> None:
    with pytest.raises(ValueError, match="no two requests begin with the same 8 tokens"):
        serve(ask(10, 1, content=(SYSTEM,)), prefix_cache=True, block_size=4, pinned_tokens=8)


class Runs(serving.Watcher):
    """Steps that are really run: they have no price."""

    def __init__(self) -> None:
        self.price = serving.SECOND.price
        self.rows = []

    def run(self, shape: StepShape, rows: Callable[[], list[Row]]) -> Done:
        self.rows.append(rows())
        return Done(self.price(shape))


@pytest.mark.parametrize(("executor", "hit"), [(Predicted(serving.SECOND), 24), (Runs(), 20)])
def test_what_a_victim_never_computed_is_not_read(executor: Executor, hit: int) -> None:
    """A13: 8 blocks of 4. In step 2 request 0 is given tokens 21 to 28, the blocks 5 and 6, and is
    evicted for request 1, which takes block 6. vLLM hits block 5 when request 0 comes back; where
    steps are really run, it was never computed."""
    trace = serving.trace_of([ask(31, 1, priority=2), ask(4, 3, at=1)])
    policy = Chunked(token_budget=12, long_prefill=8, order="priority", victim="priority")
    engine = Engine(kv_tokens=32, block_size=4, prefix_cache=True)
    records = simulate(trace, policy, engine, executor)
    assert records.requests["preemptions"].tolist() == [1, 0]
    assert records.requests.sort_values("request")["resumed_hit"].tolist() == [hit, 0]


# Host overhead


def rate_of(block_size: int) -> float:
    """Requests per second with a host that works for every block, in a pool that is short."""
    run = serving.run(
        *[ask(60, 80, at=i / 200) for i in range(300)],
        kv_tokens=3000, block_size=block_size, policy=Chunked(token_budget=256), watch=False,
        step_time=StepTime(
            t0=5 * MS, tB=MS // 100, tT=MS // 20, pP=MS // 100, decode=(0, MS // 100, 0)
        ),
    )  # fmt: skip
    return float(summarize(run.records)["throughput"]["requests_per_s"])


def test_the_best_block_size_lies_inside_the_range() -> None:
    """Small blocks cost host time by their number, large ones memory by their last block."""
    rate = {size: rate_of(size) for size in (4, 16, 64, 256)}
    best = max(rate.values())
    assert best in (rate[16], rate[64])
    assert rate[4] < 0.8 * best > rate[256]


def test_sharing_loses_where_nothing_is_shared(serve: Serve) -> None:
    """Naming blocks costs the host, and brings nothing where no two prompts begin alike."""
    asks = [ask(40, 10, at=i) for i in range(4)]
    settings = {"block_size": 4, "step_time": StepTime(t0=1000 * MS, tN=100 * MS)}
    plain, shared = (serve(*asks, prefix_cache=on, **settings) for on in (False, True))
    assert sum(shared.column("hit")) == 0
    assert shared.makespan > plain.makespan


def test_the_host_share_and_what_halving_it_would_bring() -> None:
    run = serving.run(
        ask(1, 10), step_time=StepTime(t0=60 * MS, decode=(40 * MS, 0, 0), p0=40 * MS)
    )
    summary = summarize(run.records)
    assert summary["steps"]["host_share"] == pytest.approx(0.6)
    assert any("60.0%" in note and "1.43" in note for note in summary["notes"])


def test_seats_that_bind_are_warned_of() -> None:
    run = serving.run(*[ask(1, 4)] * 3, max_running=1)
    summary = summarize(run.records)
    assert summary["batch"]["seats_bound_share"] == pytest.approx(8 / 12)
    assert any("engine.max_running" in note for note in summary["notes"])
    roomy = summarize(serving.run(*[ask(1, 4)] * 3).records)
    assert not any("engine.max_running" in note for note in roomy["notes"])


@pytest.mark.parametrize(("block_size", "hits"), [(128, False), (64, True)])
def test_a_prefix_shorter_than_a_block_is_warned_of(block_size: int, hits: bool) -> None:
    """D2: 100 shared tokens in blocks of 128 hit nothing."""
    load = {"rate": 5.0, "requests": 8, "prompt": 300, "output": 2, "shared": [{"tokens": 100}]}
    engine = {"prefix_cache": True, "block_size": block_size}
    summary = summarize(Scenario.of({"trace": load, "engine": engine}).run())
    assert (summary["prefix"]["hit_tokens"] > 0) == hits
    assert any("engine.block_size" in note for note in summary["notes"]) != hits


# Contradictions are refused, both named


@pytest.mark.parametrize(
    ("settings", "first", "second"),
    [
        ({"pinned_tokens": 64}, "engine.pinned_tokens", "engine.prefix_cache"),
        ({"rank_evict": "local"}, "engine.rank_evict", "engine.rank_kv_tokens"),
        (
            {"rank_evict": "local", "rank_kv_tokens": (64,), "swap_tokens": 9,
             "kv_bytes_per_token": 1},
            "engine.swap_tokens", "engine.rank_evict",
        ),
        ({"contiguous": True, "prefix_cache": True}, "engine.contiguous", "engine.prefix_cache"),
        ({"swap_tokens": 9}, "engine.swap_tokens", "engine.kv_bytes_per_token"),
    ],
)  # fmt: skip
def test_engine_settings_that_contradict(settings: dict, first: str, second: str) -> None:
    with pytest.raises(ValueError, match=first) as error:
        Engine(kv_tokens=1000, **settings)
    assert second in str(error.value)


@pytest.mark.parametrize(
    ("settings", "first", "second"),
    [
        ({"patience": 1.0}, "policy.patience", "policy.reentry"),
        (
            {"patience": 1.0, "reentry": "tail", "order": "priority"},
            "policy.patience",
            "policy.order",
        ),
        (
            {"prefill_first": True, "check_first": True},
            "policy.prefill_first",
            "policy.check_first",
        ),
        ({"aging": 1.0}, "policy.aging", "policy.order"),
    ],
)
def test_policy_settings_that_contradict(settings: dict, first: str, second: str) -> None:
    with pytest.raises(ValueError, match=first) as error:
        Chunked(**settings)
    assert second in str(error.value)


def test_a_policy_takes_only_the_options_that_it_heeds() -> None:
    with pytest.raises(ScenarioError, match=r"policy\.skips: unknown key of fast-lane"):
        Scenario.of({"policy": {"kind": "fast-lane", "skips": 3}})
    assert Scenario.of({"policy": {"kind": "chunked", "skips": 3}}).with_values(
        {"policy.kind": "fast-lane"}
    )


def test_contiguous_slots_need_a_reservation(serve: Serve) -> None:
    with pytest.raises(ValueError, match=r"engine\.contiguous.*policy\.reserve_max"):
        serve(ask(1, 1), contiguous=True, policy=Continuous())
