"""The decoder on `tiny` in float32: what a batch, a cut or a cache block may never change."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from engines import BLOCK, logits, runner

pytestmark = pytest.mark.parametrize("attention", ["reference", "cpu"])

LONG = [(7 * i + 3) % 4096 for i in range(100)]
SHORT = [11, 12, 13, 14, 15]
FIRST_BLOCKS, OTHER_BLOCKS = range(5, 12), range(20, 27)


def tiny(attention: str):
    return runner("tiny", dtype=torch.float32, attention=attention)


def same(one: torch.Tensor, other: torch.Tensor) -> None:
    torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


def test_a_long_and_a_short_prompt_mixed_in_one_step_are_as_each_alone(attention):
    long, short = logits(tiny(attention), (LONG, 0, FIRST_BLOCKS), (SHORT, 0, OTHER_BLOCKS))
    (long_alone,) = logits(tiny(attention), (LONG, 0, FIRST_BLOCKS))
    (short_alone,) = logits(tiny(attention), (SHORT, 0, OTHER_BLOCKS))
    same(long, long_alone)
    same(short, short_alone)


def test_a_decode_beside_a_prefill_is_as_each_alone(attention):
    together, apart = tiny(attention), tiny(attention)
    for each in (together, apart):
        logits(each, (LONG, 0, FIRST_BLOCKS))
    decode, prefill = logits(together, ([99], 100, FIRST_BLOCKS), (SHORT, 0, OTHER_BLOCKS))
    same(decode, *logits(apart, ([99], 100, FIRST_BLOCKS)))
    same(prefill, *logits(apart, (SHORT, 0, OTHER_BLOCKS)))


@pytest.mark.parametrize("cuts", [(1,), (15, 16, 17), (48,), (7, 64, 99)])
def test_a_prompt_in_chunks_is_as_whole(attention, cuts):
    whole, chunked = tiny(attention), tiny(attention)
    (expected,) = logits(whole, (LONG, 0, FIRST_BLOCKS))
    edges = (0, *cuts, len(LONG))
    parts = [
        logits(chunked, (LONG[begin:end], begin, FIRST_BLOCKS))[0] for begin, end in pairwise(edges)
    ]
    same(torch.cat(parts), expected)


def test_tokens_decoded_one_by_one_are_as_prefilled(attention):
    by_one, whole = tiny(attention), tiny(attention)
    (expected,) = logits(whole, (LONG[:20], 0, FIRST_BLOCKS))
    for at, token in enumerate(LONG[:20]):
        same(*logits(by_one, ([token], at, FIRST_BLOCKS)), expected[at : at + 1])


def test_a_shared_prefix_is_as_its_recomputation(attention):
    shared = 3 * BLOCK
    engine = tiny(attention)
    logits(engine, (LONG[:shared], 0, FIRST_BLOCKS))
    table = [*FIRST_BLOCKS[:3], *OTHER_BLOCKS]
    hit, owner = logits(
        engine, (LONG[shared:], shared, table), (LONG[shared:60], shared, FIRST_BLOCKS)
    )
    (recomputed,) = logits(tiny(attention), (LONG, 0, FIRST_BLOCKS))
    same(hit, recomputed[shared:])
    same(owner, recomputed[shared:60])


def test_a_reused_block_leaks_nothing_of_its_former_owner(attention):
    used, fresh = tiny(attention), tiny(attention)
    logits(used, (LONG, 0, FIRST_BLOCKS))
    assert torch.equal(
        *logits(used, (SHORT, 0, FIRST_BLOCKS)), *logits(fresh, (SHORT, 0, FIRST_BLOCKS))
    )


def test_what_lies_outside_a_sequence_is_never_read(attention):
    poisoned, fresh = tiny(attention), tiny(attention)
    for storage in (*poisoned.cache.keys, *poisoned.cache.values):
        storage.fill_(torch.nan)
    step = (LONG[:37], 0, FIRST_BLOCKS), (SHORT, 0, OTHER_BLOCKS)
    later = ([99], 37, FIRST_BLOCKS), ([98], 5, OTHER_BLOCKS)
    for chunks in (step, later):
        for got, expected in zip(logits(poisoned, *chunks), logits(fresh, *chunks), strict=True):
            assert torch.equal(got, expected)


def test_both_attentions_agree(attention):
    (got,) = logits(tiny(attention), (LONG, 0, FIRST_BLOCKS))
    (expected,) = logits(tiny("reference"), (LONG, 0, FIRST_BLOCKS))
    same(got, expected)
