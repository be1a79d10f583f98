"""Cases B2-B5, B9-B11: what happens when the pool is too small, and what each cure does."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
import pytest
import serving
from serving import Run, Serve, ask

from calibration.step_time import StepTime
from policies import Chunked, Stable, Step, feed_or_evict
from reports.metrics import summarize

MS = 10**9


def preemptions(run: Run) -> int:
    return sum(run.column("preemptions"))


def test_a_gate_spares_most_evictions(serve: Serve) -> None:
    """B2: five of 102,000 tokens in a pool of 450,000: four fit. With the gate the fifth waits;
    without, all five enter chunk by chunk and evict one another."""
    five, settings = [ask(100_000, 2000)] * 5, {"kv_tokens": 450_000, "watch": False}
    with_gate, without = (
        serve(*five, gate=gate, policy=Chunked(token_budget=8192), **settings)
        for gate in (True, False)
    )
    assert with_gate.served == without.served == 5
    assert preemptions(with_gate) == 0
    assert preemptions(without) > 100
    assert sum(without.column("recomputed")) > 20 * 450_000


@dataclass(frozen=True, kw_only=True)
class ReserveMax(Chunked):
    """Chunked prefill that reserves what a request declares."""

    def schedule(self, step: Step) -> Stable | None:
        feed_or_evict(step, self.evict)
        for seq in step.waiting():
            if not step.admit(seq, hold=seq.prompt + seq.declared - 1):
                break
        return Stable(arrivals=False)


@cache
def margin(reserve: float, policy: type[Chunked] = Chunked) -> dict[str, float]:
    """B3: 450 requests of (1000, 5000 ± 20 %) at once, 128 seats, a pool of 299,584 tokens."""
    outputs = np.random.default_rng(3).integers(4000, 6001, 450).tolist()
    run = serving.run(
        *(ask(1000, output, declares=6000) for output in outputs),
        policy=policy(token_budget=8192),
        step_time=StepTime(t0=10 * MS, pP=MS // 50, decode=(0, MS // 20, 0)),
        watch=False, reserve=reserve, kv_tokens=299_584, max_running=128,
    )  # fmt: skip
    summary = summarize(run.records)
    return {
        "preemptions": preemptions(run),
        "itl_p99": summary["itl_s"]["p99"],
        "ttft_p99": summary["ttft_s"]["p99"],
        "ttft_mean": summary["ttft_s"]["mean"],
        "tokens_per_s": summary["throughput"]["output_tokens_per_s"],
    }


def test_a_margin_trades_evictions_for_waiting() -> None:
    """B3: preemptions fall steeply and the ITL tail with them; first tokens come later."""
    none, thin, some, wide = (margin(reserve) for reserve in (0.0, 0.02, 0.1, 0.25))
    assert none["preemptions"] > 2 * thin["preemptions"] > 3 * some["preemptions"]
    assert none["itl_p99"] > 5 * thin["itl_p99"]
    assert thin["ttft_p99"] < some["ttft_p99"] < wide["ttft_p99"]
    assert thin["ttft_mean"] < some["ttft_mean"] < wide["ttft_mean"]


def test_too_little_margin_and_too_much_cost_throughput() -> None:
    """B3: the best lies between none and a quarter; never evicting costs a third and more."""
    assert margin(0.05)["tokens_per_s"] > margin(0.0)["tokens_per_s"]
    assert margin(0.05)["tokens_per_s"] > margin(0.25)["tokens_per_s"]
    never = margin(0.0, ReserveMax)
    assert never["preemptions"] == 0
    assert never["tokens_per_s"] < margin(0.05)["tokens_per_s"] / 1.5


@cache
def loaded(seed: int, blocks: int, policy: Chunked = Chunked(), gate: bool = True) -> Run:  # noqa: B008
    """B4: 300 requests, Poisson 4/s at 20 ms a step, prompts 64-1024, outputs 16-512."""
    random = np.random.default_rng(seed)
    at = np.cumsum(random.exponential(1 / 4, 300)).tolist()
    prompt = random.integers(64, 1025, 300).tolist()
    output = random.integers(16, 513, 300).tolist()
    return serving.run(
        *map(ask, prompt, output, at),
        policy=policy, step_time=StepTime.constant(20 * MS), watch=False, seed=seed,
        kv_tokens=16 * blocks, gate=gate,
    )  # fmt: skip


def recompute_share(victim: str, seed: int, blocks: int) -> float:
    run = loaded(seed, blocks, Chunked(victim=victim))
    assert run.served == 300
    return sum(run.column("recomputed")) / sum(run.column("computed"))


VICTIMS = ("least-computed", "last-in", "longest-wait", "most-computed")
"""From the one that loses the least work to the one that loses the most."""


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_whom_to_evict_decides_how_much_is_computed_again(seed: int) -> None:
    """B4: nothing is at 2800 blocks; at 800 and 400 the rules rank the same for every seed."""
    assert [recompute_share(victim, seed, 2800) for victim in VICTIMS] == [0] * 4
    for blocks in (800, 400):
        shares = [recompute_share(victim, seed, blocks) for victim in VICTIMS]
        assert shares == sorted(shares)
        assert 0.1 < shares[0] < shares[-1] / 1.5


def test_the_largest_number_of_evictions_of_one_is_what_a_rule_hides() -> None:
    """B4: the least work is lost by evicting a few again and again; age protects from that."""
    worst = {
        victim: max(
            max(loaded(seed, 800, Chunked(victim=victim)).column("preemptions"))
            for seed in (1, 2, 3)
        )
        for victim in ("least-computed", "last-in", "longest-running")
    }
    assert worst["longest-running"] <= 2 < worst["last-in"] < worst["least-computed"]


def test_a_stall_is_one_gap_and_nothing_is_lost(serve: Serve) -> None:
    """B5: two of (160, 400) in 46 blocks of 16. Both hold 23 until they have 368 tokens in the
    pool; the step that starts at second 209 wants 24 + 24. Request 1 goes with 209 tokens made,
    comes back when request 0 ends at second 400, and goes on with its 210th."""
    run = serve(ask(160, 400), ask(160, 400), kv_tokens=46 * 16)
    assert run.steps("preempted").index(1) == 209
    assert run.fed[209] == {0: 1}
    assert run.fed[400] == {1: 160 + 209}
    assert run.ttft == [1, 1]
    assert [len(times) for times in run.token_times] == [400, 400]
    assert run.gaps(1) == [1] * 208 + [401 - 209] + [1] * 190
    assert (
        run.finished
        == [400, 591]
        == [ttft + sum(run.gaps(request)) for request, ttft in enumerate(run.ttft)]
    )


def test_where_a_victim_comes_back_moves_the_tail() -> None:
    """B9: at the head of the queue it waits less and others more, at the tail the reverse."""
    stalled = {
        reentry: summarize(loaded(1, 800, Chunked(reentry=reentry)).records)
        for reentry in ("head", "tail")
    }
    assert stalled["head"]["itl_s"]["max"] < stalled["tail"]["itl_s"]["max"] / 1.5
    assert stalled["head"]["ttft_s"]["p99"] != stalled["tail"]["ttft_s"]["p99"]


@pytest.mark.parametrize("check_first", [False, True])
def test_needless_evictions_are_counted(serve: Serve, check_first: bool) -> None:
    """B10: 14 blocks of one token hold 8 + 5 + 1 after step 1. The next chunk of request 0 wants
    4. Request 2 goes first and returns 1, which is not enough; request 1 returns 5. Of the 2
    blocks that are left over request 2 could have kept its own."""
    run = serve(
        ask(12, 1), ask(4, 9), ask(1, 9, at=1), kv_tokens=14, block_size=1,
        policy=Chunked(token_budget=8, long_prefill=4, check_first=check_first),
    )  # fmt: skip
    assert run.steps("preempted")[2] == 2
    assert run.steps("free_blocks")[2] == 2
    assert run.records.about["needless_evictions"] >= 1


def test_checking_the_whole_running_set_first_feeds_nobody_in_vain(serve: Serve) -> None:
    """B10: request 0, the least urgent, is given the last block and then evicted for request 1
    with 6 blocks in hand; checking first evicts it with 5. Nobody else notices."""
    naive, checked = (
        serve(
            ask(3, 6, priority=1), ask(3, 4, at=1), kv_tokens=10, block_size=1,
            policy=Chunked(order="priority", victim="priority", check_first=check_first),
        )
        for check_first in (False, True)
    )  # fmt: skip
    assert naive.fed == checked.fed
    assert naive.finished == checked.finished


def test_during_a_cool_down_nobody_enters(serve: Serve) -> None:
    """B11: 12 blocks of one token. Step 4 evicts request 1 and leaves 5 free; a request of one
    token comes. At once it could enter in step 5. With a pause after every eviction until half
    the pool is free, it waits until request 0 ends."""
    asks = ask(3, 9), ask(3, 9), ask(1, 1, at=4)
    for cooldown, expected in ((0, 5), (1, 9)):
        policy = Chunked(cooldown=cooldown, cooldown_free=0.5, reentry="tail")
        run = serve(*asks, kv_tokens=12, block_size=1, policy=policy)
        assert run.steps("preempted")[4] == 1
        assert run.scheduled == [0, 0, expected]


def test_a_cool_down_spares_evictions_at_a_price() -> None:
    """B11: off by default; under pressure a tenth fewer evictions at least."""
    assert Chunked().cooldown == 0
    thrashing = loaded(1, 400, gate=False)
    cooled = loaded(1, 400, Chunked(cooldown=1, cooldown_free=0.2), gate=False)
    assert thrashing.served == cooled.served == 300
    assert preemptions(cooled) < 0.9 * preemptions(thrashing)
    assert cooled.makespan > thrashing.makespan
