"""Rules A9-A11: who is evicted when blocks run out, and how it comes back."""

from __future__ import annotations

import pytest
from serving import Serve, ask

from policies import Chunked


def test_the_last_of_running_goes_when_the_first_starves(serve: Serve) -> None:
    """A9: 13 blocks of one token, full after step 1. Step 2 wants 3; request 2 returns its 5."""
    run = serve(ask(3, 5), ask(3, 3), ask(4, 3), kv_tokens=13, block_size=1)
    assert run.fed[:3] == [{0: 3, 1: 3, 2: 4}, {0: 1, 1: 1, 2: 1}, {0: 1, 1: 1}]
    assert run.column("preemptions") == [0, 0, 1]


def test_several_go_until_the_starved_one_fits_and_keep_their_order(serve: Serve) -> None:
    """A9: 14 blocks, full after step 1. The next chunk of request 0 wants 4; requests 2 and 1
    return 3 each. They come back as they were: 1 before 2, with 2 + 2 tokens each."""
    run = serve(
        ask(12, 1), ask(2, 3), ask(2, 3),
        kv_tokens=14, block_size=1, policy=Chunked(token_budget=8, long_prefill=4),
    )  # fmt: skip
    assert [list(fed.items()) for fed in run.fed] == [
        [(0, 4), (1, 2), (2, 2)],
        [(0, 4), (1, 1), (2, 1)],
        [(0, 4)],
        [(1, 4), (2, 4)],
    ]
    assert run.steps("preempted") == [0, 0, 2, 0]


def test_one_that_evicts_itself_ends_the_loop(serve: Serve) -> None:
    """A9: the last of running starves: it is the victim, and the others have been fed."""
    run = serve(ask(3, 4), ask(3, 4), kv_tokens=9, block_size=1)
    # Step 1: 8 blocks; step 2: request 0 takes the ninth, request 1 starves and goes.
    assert run.fed == [{0: 3, 1: 3}, {0: 1, 1: 1}, {0: 1}, {0: 1}, {1: 5}, {1: 1}]


def test_a_victim_is_not_readmitted_in_the_same_step(serve: Serve) -> None:
    """A2, A9 (and B7): eviction frees 100 blocks, ten requests of one block wait behind it: none
    enters in that step, and none before the victim, which is at the front."""
    small = [ask(1, 1, at=2) for _ in range(10)]
    run = serve(ask(150, 60), ask(100, 60), *small, kv_tokens=254, block_size=1)
    # Step 2 wants blocks 253 and 254 of 254; step 3 wants two more: request 1 goes.
    assert run.steps("preempted")[3] == 1
    assert run.fed[3] == {0: 1}
    assert run.steps("free_blocks")[3] == 254 - 153


def test_resume_is_one_prefill_of_prompt_and_outputs(serve: Serve) -> None:
    """A10: evicted with 3 + 2 tokens known. It samples its third token, nothing twice."""
    run = serve(ask(3, 4), ask(3, 4), kv_tokens=9, block_size=1)
    assert run.fed[4] == {1: 5}
    assert run.token_times == [[1, 2, 3, 4], [1, 2, 5, 6]]
    assert run.column("recomputed") == [0, 4]
    assert run.column("produced") == [4, 4]


def test_resume_is_chunked_budgeted_and_gated(serve: Serve) -> None:
    """A10: request 1 is evicted in step 3 with 3 + 2 tokens known: 5 do not fit beside request 0
    (gate), and with a budget of 4 they are 4 + 1."""
    run = serve(ask(3, 4), ask(3, 4), kv_tokens=9, block_size=1, policy=Chunked(token_budget=4))
    assert run.fed[:4] == [{0: 3, 1: 1}, {0: 1, 1: 2}, {0: 1, 1: 1}, {0: 1}]
    assert run.fed[4:] == [{1: 4}, {1: 1}, {1: 1}]


URGENT_FIRST = Chunked(order="priority", victim="priority")


def test_priority_decides_who_is_next(serve: Serve) -> None:
    """A11: (priority, arrival): lower is more urgent; equals in order of arrival."""
    run = serve(
        ask(2, 1), ask(2, 1, priority=2), ask(2, 1, priority=1), ask(2, 1, priority=1),
        max_running=1, policy=URGENT_FIRST,
    )  # fmt: skip
    assert run.scheduled == [0, 3, 1, 2]


def test_the_victim_is_the_least_urgent_even_when_it_has_been_fed(serve: Serve) -> None:
    """A11: in step 3 request 0 is fed the tenth block, request 1 starves, and request 0 goes with
    the token that it had just been given: 5 tokens are lost, not 6."""
    run = serve(
        ask(3, 6, priority=1), ask(3, 4, at=1), kv_tokens=10, block_size=1, policy=URGENT_FIRST
    )
    assert run.fed[:4] == [{0: 3}, {0: 1, 1: 3}, {0: 1, 1: 1}, {1: 1}]
    assert run.column("preemptions") == [1, 0]
    assert run.column("recomputed") == [5, 0]


def test_evicting_itself_ends_the_loop_in_mid_list(serve: Serve) -> None:
    """A11: in step 3 request 0 takes the last of 12 blocks; request 1 starves and is itself the
    least urgent. Request 2 behind it gets nothing in that step, though 4 blocks are free."""
    run = serve(
        ask(2, 9), ask(2, 9, priority=1), ask(2, 9, at=1),
        kv_tokens=12, block_size=1, policy=URGENT_FIRST,
    )  # fmt: skip
    assert run.fed[2:5] == [{0: 1, 1: 1, 2: 1}, {0: 1}, {0: 1, 2: 1}]
    assert run.steps("free_blocks")[3] == 4


def test_equal_urgency_never_evicts_an_earlier_one(serve: Serve) -> None:
    """A11: strict comparison: of two alike, the later arrival goes."""
    run = serve(
        ask(3, 4), ask(3, 4, at=1), kv_tokens=9, block_size=1, policy=URGENT_FIRST,
    )  # fmt: skip
    assert run.column("preemptions") == [0, 1]


@pytest.mark.parametrize(
    ("victim", "evicted"),
    [
        ("last-in", 2),
        ("most-blocks", 1),
        ("least-computed", 2),
        ("most-computed", 1),
        ("longest-running", 0),
        ("longest-wait", 2),
    ],
)
def test_each_victim_rule_picks_its_own(serve, victim, evicted):
    """A9 varied: prompts of 3, 6 and, a second later, 2: after step 1 they hold 4, 7 and 2 of
    13 blocks, and one of the three must go."""
    run = serve(
        ask(3, 7), ask(6, 7), ask(2, 7, at=1),
        kv_tokens=13, block_size=1, policy=Chunked(victim=victim),
    )  # fmt: skip
    assert run.steps("free_blocks")[1] == 0
    assert run.steps("preempted")[2] == 1
    assert set(run.fed[1]) - set(run.fed[2]) == {evicted}
