"""Cases C6-C8: lanes, orders and aging, tenants, routing."""

from __future__ import annotations

import pytest
from serving import Run, Serve, ask

from policies import Chunked, FairShare, FastLane

LONG, SHORT = 20_000, 100


def fast_lane(serve: Serve, share: float | None, shorts: int = 40) -> Run:
    """Four long prompts at 0; then a short request every second. Budget 1000."""
    asks = [ask(LONG, 5)] * 4 + [ask(SHORT, 3, at=1.0 + second) for second in range(shorts)]
    policy = (
        Chunked(token_budget=1000)
        if share is None
        else FastLane(token_budget=1000, share=share, fast_prompt=500)
    )
    return serve(*asks, policy=policy, watch=False)


def test_the_fast_lane_is_fast_whatever_is_in_the_slow_one(serve: Serve) -> None:
    """C6: 300 tokens a step are theirs, each needs 100: every one has its first token after one
    step. In one queue the first of them waits for 80 steps of prefill."""
    lanes, queue = fast_lane(serve, 0.3), fast_lane(serve, None)
    assert max(lanes.ttft[4:]) == 1
    assert queue.ttft[4] > 70


def test_the_slow_lane_pays_what_the_fast_one_takes(serve: Serve) -> None:
    """C6: of 1000 tokens a step the short ones use 100 to prefill and 2 to decode. Four prompts
    are 80,000 tokens: 80 steps alone, and with 40 × 102 tokens for the others some 84."""
    lanes, alone = fast_lane(serve, 0.3), fast_lane(serve, 0.3, shorts=0)
    assert max(alone.ttft[:4]) == pytest.approx(80, abs=1)
    assert max(lanes.ttft[:4]) == pytest.approx(80 + 40 * 0.102, abs=1)
    assert set(lanes.requests["lane"]) == {"fast", "slow"}


def test_an_unused_share_returns_to_the_rest(serve: Serve) -> None:
    """C6: with nobody fast the slow lane has the whole budget, whatever the share."""
    assert fast_lane(serve, 0.9, shorts=0).finished == fast_lane(serve, None, shorts=0).finished


def test_a_larger_share_starves_the_rest(serve: Serve) -> None:
    """C6: ten short prompts a second would use 1000 tokens: the slow lane gets what is left of
    their share, 900, 650 and 200 tokens a step. Chunks in progress count to the share, too."""
    asks = [ask(LONG, 1)] + [ask(100, 1, at=float(i // 10)) for i in range(1000)]
    finished = []
    for share in (0.1, 0.35, 0.8):
        policy = FastLane(token_budget=1000, share=share, fast_prompt=500)
        finished.append(serve(*asks, policy=policy, watch=False).finished[0])
    assert finished == [pytest.approx(LONG / left, abs=1) for left in (900, 650, 200)]


@pytest.mark.parametrize(
    ("declares", "lane"),
    [(0, "fast"), (10, "fast"), (11, "slow")],
    ids=["unknown", "small", "large"],
)
def test_a_large_declared_output_is_slow(serve: Serve, declares: int, lane: str) -> None:
    """C6: where nothing is declared the prompt alone decides."""
    policy = FastLane(fast_prompt=500, fast_output=10)
    run = serve(ask(100, 5, declares=declares), policy=policy)
    assert run.requests["lane"].tolist() == [lane]


def stream(serve: Serve, **options: object) -> Run:
    """One seat, services of 4 s, an urgent request every 4 s from 0 on; a lesser one at 1."""
    urgent = [ask(1, 4, at=4.0 * number) for number in range(50)]
    asks = sorted([*urgent, ask(1, 4, at=1.0, priority=2)], key=lambda one: one.at)
    return serve(*asks, max_running=1, policy=Chunked(order="priority", **options))


def test_priority_without_aging_starves_and_says_so(serve: Serve) -> None:
    """C7: the lesser one is served when no urgent one is left."""
    assert stream(serve).scheduled[1] == 4 * 50
    assert Chunked(order="priority").starves == "the less urgent"


def test_aging_bounds_the_wait(serve: Serve) -> None:
    """C7: a level weighs 10 s, so two levels are 20: from those that arrive 20 s after it, it is
    first. At second 24 the one that came at 20 goes before it, at 28 the one of 24 does not."""
    run = stream(serve, aging=10.0)
    assert run.scheduled[1] == 24
    assert Chunked(order="priority", aging=10.0).starves == ""


def test_the_longest_wait_counts_stalls(serve: Serve) -> None:
    """C7: 12 blocks of one token. Request 1 is evicted at second 3 having waited 0 s; request 2
    came at second 2. By queue time request 2 would be older; by arrival in the queue it is."""
    asks = ask(3, 9), ask(3, 9), ask(2, 2, at=2)
    run = serve(*asks, kv_tokens=12, block_size=1, policy=Chunked(order="longest-wait"))
    assert run.served == 3
    assert run.scheduled[2] <= run.finished[0]


def test_a_tenant_with_little_work_is_not_behind_one_with_much(serve: Serve) -> None:
    """One seat. Tenant 0 brings ten requests at 0, tenant 1 one at second 1: it is next."""
    asks = [*[ask(4, 3)] * 10, ask(4, 3, at=1, tenant=1)]
    assert serve(*asks, max_running=1, policy=Chunked()).scheduled[10] == 30
    assert serve(*asks, max_running=1, policy=FairShare()).scheduled[10] == 3


def test_tenants_share_by_tokens_not_by_requests(serve: Serve) -> None:
    """Tenant 0 has requests of 4 + 4 tokens, tenant 1 of 8 + 8: two of the one's for each of
    the other's."""
    asks = [ask(4, 4)] * 12 + [ask(8, 8, tenant=1)] * 6
    run = serve(*asks, max_running=1, policy=FairShare(token_budget=64))
    order = sorted(range(18), key=lambda request: run.scheduled[request])
    for half in (order[:9], order[9:]):
        assert sum(request >= 12 for request in half) == 3
