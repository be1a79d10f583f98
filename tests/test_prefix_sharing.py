"""Rules A12-A14 and cases D1-D6: blocks of equal prefixes are shared."""

from __future__ import annotations

from typing import Any

import pytest
from serving import Run, Serve, ask

from policies import Chunked
from simulator.blocks import BlockPool
from traces.trace import Segment


def same(tokens: int, stream: int = 0, start: int = 0) -> tuple[Segment, ...]:
    """Tokens that are the same wherever they appear."""
    return (Segment(stream, start, tokens),)


def shared(serve: Serve, *asks: Any, **settings: Any) -> Run:
    return serve(*asks, **{"prefix_cache": True, "policy": Chunked(token_budget=8192)} | settings)


@pytest.mark.parametrize(("tokens", "hit"), [(64, 48), (63, 48), (65, 64), (16, 0), (17, 16)])
def test_the_same_prompt_twice_hits_all_but_its_end(serve: Serve, tokens: int, hit: int) -> None:
    """A12, D1: full blocks of 16, and never the whole prompt: at most (known - 1) // 16."""
    one = ask(tokens, 2, content=same(tokens))
    run = shared(serve, one, one._replace(at=5))
    assert run.column("hit") == [0, hit]
    assert run.fed[2] == {1: tokens - hit}


def test_what_is_the_same_ends_with_the_first_difference(serve: Serve) -> None:
    """A12: identities are chained. The second differs in its third block; its fourth, the same
    tokens again, is another block."""
    first = ask(65, 1, content=same(65))
    other = ask(65, 1, at=2, content=(Segment(0, 0, 32), Segment(7, 0, 16), Segment(0, 48, 17)))
    assert shared(serve, first, other).column("hit") == [0, 32]


def test_nothing_is_shared_where_nothing_is_known(serve: Serve) -> None:
    """Tokens without identity are a request's own; without the cache nothing is looked up."""
    own = ask(64, 2)
    assert shared(serve, own, own._replace(at=5)).column("hit") == [0, 0]
    known = ask(64, 2, content=same(64))
    assert serve(known, known._replace(at=5)).column("hit") == [0, 0]


@pytest.mark.parametrize(
    ("block_size", "hit"), [(8, 96), (16, 96), (32, 96), (64, 64), (128, 0), (256, 0)]
)
def test_larger_blocks_share_less(serve: Serve, block_size: int, hit: int) -> None:
    """D2: 100 tokens in common of 200: floor(100 / B) · B."""
    asks = [ask(200, 2, at=at, content=same(100)) for at in (0.0, 5.0)]
    assert shared(serve, *asks, block_size=block_size).column("hit") == [0, hit]


def test_larger_blocks_waste_more(serve: Serve) -> None:
    """D2: the last block of (100, 21) is emptier the larger it is."""
    waste = [
        serve(ask(100, 21), block_size=size, kv_tokens=4096).records.about["waste_share"]
        for size in (8, 16, 32, 64, 128, 256)
    ]
    assert waste == sorted(waste)
    # 100 … 120 tokens in a block of 128, then in one of 256.
    assert waste[4:] == [pytest.approx(1 - 110 / 128), pytest.approx(1 - 110 / 256)]


def test_ten_in_one_step_share_with_the_first_of_them(serve: Serve) -> None:
    """A13, D3: a block can be hit as soon as it is scheduled. 2000 tokens are 125 blocks, 124 of
    which may hit: 1984 tokens."""
    run = shared(serve, *[ask(2000, 10, content=same(2000))] * 10, kv_tokens=16_000)
    assert run.scheduled == [0] * 10
    assert run.fed[0] == {0: 2000, **dict.fromkeys(range(1, 10), 16)}
    assert run.column("hit") == [0] + [1984] * 9
    # 124 blocks in common and the last one each; in step 1 everybody takes one more.
    assert [1000 - free for free in run.steps("free_blocks")[:2]] == [134, 144]


def test_ten_one_after_the_other_find_what_was_left(serve: Serve) -> None:
    """D3: spaced by 20 s nobody runs when the next one comes, and all is still there."""
    asks = [ask(2000, 10, at=20.0 * number, content=same(2000)) for number in range(10)]
    run = shared(serve, *asks, kv_tokens=16_000)
    assert run.column("hit") == [0] + [1984] * 9
    assert run.steps("free_blocks")[::10] == [1000 - 125] * 10


def test_a_shared_block_is_free_when_its_last_holder_goes(serve: Serve) -> None:
    """D3: two share 3 blocks of 16; the second to go frees them. Each has 2 blocks of its own."""
    one = ask(64, 2, content=same(64))
    run = shared(serve, one, one._replace(output=4), ask(4, 1, at=6), kv_tokens=160)
    # 10 blocks: 3 + 1 + 1, then one more each; request 0 goes after step 1.
    assert run.steps("free_blocks")[:3] == [5, 3, 5]
    assert run.steps("free_blocks")[-1] == 9


def test_generated_tokens_are_a_prefix_of_the_next_turn(serve: Serve) -> None:
    """D4: turn 2 asks with all before it: 32 + 17 tokens, and 15 of its own; the 17 are what
    request 0 generated (stream -1). Its last token was never computed, so 48 are there."""
    first = ask(32, 17, content=same(32))
    second = ask(64, 1, after=0, at=3, content=(*same(32), Segment(-1, 0, 17)))
    run = shared(serve, first, second)
    assert run.column("hit") == [0, 48]


def test_a_follow_up_comes_a_pause_after_the_end(serve: Serve) -> None:
    """D4: closed loop: request 1 is sent 3 s after request 0 ended, never before."""
    run = serve(ask(10, 5), ask(10, 2, after=0, at=3), ask(10, 1, after=1))
    assert run.arrived == [0, 8, 10]
    assert run.finished == [5, 10, 11]


def test_a_victim_finds_its_own_blocks_again(serve: Serve) -> None:
    """A12, A14 at a resume: 16 blocks of 2. In step 4 both want a ninth: request 1 goes with 8
    full blocks and 17 tokens known. Request 0 takes the last one of them, so 14 tokens are
    found; 2 that had been computed are computed again, and the seventeenth."""
    run = shared(
        serve,
        *(ask(13, 6, content=same(13, stream)) for stream in (0, 1)),
        kv_tokens=32, block_size=2, policy=Chunked(token_budget=64),
    )  # fmt: skip
    assert run.column("preemptions") == [0, 1]
    assert run.column("resumed_hit") == [0, 14]
    assert run.column("recomputed") == [0, 2]
    assert run.fed[6] == {1: 3}


# A14: the free list


def test_the_least_recently_used_name_goes_first() -> None:
    """A14: two tables are let go, the one of block 0 first: block 0 is taken first."""
    pool = BlockPool(2, 16)
    old, new = pool.take(1), pool.take(1)
    pool.name(old[0], 11)
    pool.name(new[0], 12)
    pool.release(old)
    pool.release(new)
    assert pool.take(1) == [0]
    assert pool.lookup([11]) == []
    assert pool.lookup([12]) == [1]


def test_a_table_is_let_go_tail_first() -> None:
    """A14: the end of a prefix is of less use than its beginning, and goes before it."""
    pool = BlockPool(3, 16)
    table = pool.take(3)
    for block, identity in zip(table, (11, 12, 13), strict=True):
        pool.name(block, identity)
    pool.release(table)
    assert pool.take(2) == [2, 1]
    assert pool.lookup([11, 12, 13]) == [0]


def test_blocks_without_a_name_go_before_those_with_one() -> None:
    """A14: block 1 was let go last, and is taken first."""
    pool = BlockPool(2, 16)
    named, plain = pool.take(1), pool.take(1)
    pool.name(named[0], 11)
    pool.release(named)
    pool.release(plain)
    assert pool.take(1) == [1]


def test_a_hit_takes_a_block_off_the_free_list() -> None:
    """A14: it cannot be taken any more, and is free again when it is let go."""
    pool = BlockPool(1, 16)
    table = pool.take(1)
    pool.name(table[0], 11)
    pool.release(table)
    assert (pool.free, pool.idle([0])) == (1, 1)
    found = pool.lookup([11])
    pool.share(found)
    assert (pool.free, pool.references(0)) == (0, 1)
    pool.release(found)
    assert pool.free == 1


def test_copies_are_kept_and_the_oldest_is_found() -> None:
    """A14: no de-duplication."""
    pool = BlockPool(2, 16)
    first, second = pool.take(1), pool.take(1)
    pool.name(first[0], 11)
    pool.name(second[0], 11)
    assert pool.lookup([11]) == first
    pool.release(first)
    pool.take(1)
    assert pool.lookup([11]) == second
