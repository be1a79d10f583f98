"""Padding to a captured size: rows that read and write nothing. (Capture itself needs a GPU.)"""

from __future__ import annotations

import pytest
import torch
from engines import BLOCK, logits, runner

from calibration.attention import Batch
from calibration.graphs import StaticDecode

CONTEXTS = (1, 16, 17, 40)
TABLES = (range(3), range(3, 6), range(6, 9), range(9, 12))
TOKENS = (5, 6, 7, 8)


def batch(contexts=CONTEXTS) -> Batch:
    return Batch.build([1] * len(contexts), contexts, TABLES[: len(contexts)], BLOCK)


def filled():
    """An engine whose four sequences have all but their last token in the cache."""
    engine = runner(blocks=16, attention="reference")
    torch.manual_seed(0)
    for storage in (*engine.cache.keys, *engine.cache.values):
        storage.normal_()
    return engine


def test_a_padded_decode_is_as_the_decode_alone():
    padded, plain = filled(), filled()
    step = StaticDecode(7, 64, padded.cache, "cpu")
    step.load(torch.tensor(TOKENS), batch())
    got = step.forward(padded.transformer, padded.cache)[:4]
    chunks = zip(TOKENS, CONTEXTS, TABLES, strict=True)
    expected = logits(plain, *(([token], context - 1, table) for token, context, table in chunks))
    torch.testing.assert_close(got, torch.cat(expected))
    for ours, theirs in zip(padded.cache.keys, plain.cache.keys, strict=True):
        torch.testing.assert_close(ours, theirs)


def test_a_smaller_batch_leaves_nothing_of_the_one_before():
    padded, plain = filled(), filled()
    step = StaticDecode(4, 64, padded.cache, "cpu")
    step.load(torch.tensor(TOKENS), batch())
    step.load(torch.tensor(TOKENS[:1]), batch(CONTEXTS[:1]))
    step.forward(padded.transformer, padded.cache)
    logits(plain, (TOKENS[:1], 0, TABLES[0]))
    for ours, theirs in zip(padded.cache.values, plain.cache.values, strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize(
    ("build", "fits"),
    [
        (lambda: batch(), True),
        (lambda: batch(CONTEXTS[:2]), True),
        (lambda: Batch.build([2], [5], [range(1)], BLOCK), False),
        (lambda: Batch.build([1] * 5, [9] * 5, [range(1)] * 5, BLOCK), False),
        (lambda: Batch.build([1], [65], [range(5)], BLOCK), False),
        (lambda: Batch.build([1] * 4, [64] * 4, [range(4)] * 4, BLOCK), True),
        (lambda: Batch.build([1] * 4, [64, 64, 64, 65], [range(5)] * 4, BLOCK), False),
    ],
    ids=["full", "partly", "a prefill", "too many", "too long", "the whole pool", "one too long"],
)
def test_what_does_not_fit_is_told_apart(build, fits):
    assert StaticDecode(4, 64, filled().cache, "cpu").fits(build()) is fits
