"""Cases B1, B6-B8: who may enter the pool, and who never can."""

from __future__ import annotations

import pytest
from serving import Serve, ask

from policies import Chunked, Static


@pytest.mark.parametrize(
    "giant",
    [ask(1002, 50), ask(500, 50, declares=400)],
    ids=["prompt", "declared maximum"],
)
def test_what_can_never_fit_is_rejected_and_the_rest_is_served(serve: Serve, giant) -> None:
    """B1: 50 blocks of 16 are 800 tokens: 1002 never fit, nor do 500 + 400 - 1."""
    run = serve(giant, *[ask(20, 20, at=1)] * 10, kv_tokens=800)
    assert run.reasons[0].startswith("rejected: ")
    assert run.column("computed")[0] == 0
    assert run.finished == [0] + [21] * 10
    assert run.served == 10


def test_what_fits_to_the_last_token_is_served(serve: Serve) -> None:
    """B1 from the other side: 500 + 301 - 1 = 800."""
    run = serve(ask(500, 50, declares=301), kv_tokens=800)
    assert run.reasons == ["stop"]


LONG_WORDED = ask(200, 20, declares=8000)


def test_reserving_the_maximum_serialises_and_never_preempts(serve: Serve) -> None:
    """B6: one declares 8000 tokens and makes 20, beside twenty of 50. In a pool of 8320 its
    reservation of 8199 leaves nobody else in; paged on demand, all run at once."""
    asks = LONG_WORDED, *[ask(200, 50)] * 20
    reserved = serve(*asks, kv_tokens=8320, policy=Static(batch=21, timeout=0.0))
    paged = serve(*asks, kv_tokens=8320, policy=Chunked(token_budget=8192))
    assert reserved.scheduled == [0] + [20] * 20
    assert (reserved.makespan, paged.makespan) == (70, 50)
    assert sum(reserved.column("preemptions")) == sum(paged.column("preemptions")) == 0


def test_reserving_wastes_most_of_the_pool(serve: Serve) -> None:
    """B6: twenty of (200, 50) that declare 600: 224 of the 800 slots reserved are used on
    average, 72 % are not. Paged, 16 blocks for 249 tokens: some 3 %."""
    asks = [ask(200, 50, declares=600)] * 20
    reserved = serve(*asks, kv_tokens=16_000, policy=Static(batch=20))
    paged = serve(*asks, kv_tokens=16_000, policy=Chunked(token_budget=8192))
    # A request holds 200, 201, … 249 tokens in its 50 steps.
    slots = sum(-(-tokens // 16) * 16 for tokens in range(200, 250))
    used = sum(range(200, 250))
    assert reserved.records.about["waste_share"] == pytest.approx(1 - used / (50 * 800))
    assert paged.records.about["waste_share"] == pytest.approx(1 - used / slots)
    assert reserved.records.about["waste_share"] > 0.6 > 0.05 > paged.records.about["waste_share"]


def test_declared_and_actual_output_are_kept_apart(serve: Serve) -> None:
    """B6."""
    run = serve(LONG_WORDED, kv_tokens=8320)
    assert (run.column("declared"), run.column("output"), run.column("produced")) == (
        [8000], [20], [20],
    )  # fmt: skip


def test_nobody_enters_in_a_step_with_an_eviction(serve: Serve) -> None:
    """B7: it frees 100 blocks, and ten requests of one block wait: not one of them enters."""
    small = [ask(1, 1, at=3)] * 10
    run = serve(ask(150, 60), ask(100, 60), *small, kv_tokens=254, block_size=1)
    # Step 3 would hold 153 + 103 = 256 blocks of 254: request 1 goes.
    assert run.fed[3] == {0: 1}
    assert run.steps("free_blocks")[3] == 101
    # In step 4 the victim is first in the queue and does not fit: 103 known of 100 free.
    assert run.fed[4] == {0: 1}


RUNNER = ask(110, 5)
"""Of 131 blocks it holds 111 at second 1, so that 20 are free, and ends at second 5."""
HEAD = ask(100, 1, at=1)


def test_first_come_first_served_passes_nobody_over(serve: Serve) -> None:
    """B8: the head needs 100 of the 20 free blocks; 5 and 10 wait behind it."""
    run = serve(RUNNER, HEAD, ask(5, 1, at=1), ask(10, 1, at=1), kv_tokens=131, block_size=1)
    assert run.scheduled == [0, 5, 5, 5]


def test_skipping_admits_those_who_fit(serve: Serve) -> None:
    """B8: with skips both enter at once, and the head enters when it always would have."""
    run = serve(
        RUNNER, HEAD, ask(5, 1, at=1), ask(10, 1, at=1),
        kv_tokens=131, block_size=1, policy=Chunked(skips=2),
    )  # fmt: skip
    assert run.scheduled == [0, 5, 1, 1]


def test_the_head_is_passed_over_at_most_so_many_times(serve: Serve) -> None:
    """B8: four small ones could pass it, two may."""
    small = [ask(5, 1, at=1), ask(5, 1, at=1), ask(5, 1, at=2), ask(5, 1, at=3)]
    run = serve(RUNNER, HEAD, *small, kv_tokens=131, block_size=1, policy=Chunked(skips=2))
    assert run.scheduled == [0, 5, 1, 1, 5, 5]
