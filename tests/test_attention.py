"""Attention over a paged cache: what a batch says, and that the CPU path equals the truth."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from calibration.attention import (
    Batch,
    bytes_moved,
    cpu,
    flops,
    paged_attention,
    write_bytes,
    write_kv,
)
from calibration.attention.check import CASES, TOLERANCE, Case, error


@pytest.fixture
def batch() -> Batch:
    """A decode on 6 cached tokens and a chunk of 3 on 2, in blocks of 4."""
    return Batch.build([1, 3], [7, 5], [[3, 1], [0, 2]], block_size=4)


def test_batch_places_new_tokens_behind_the_cached_ones(batch: Batch) -> None:
    assert batch.cu_seqlens.tolist() == [0, 1, 4]
    assert batch.positions.tolist() == [6, 2, 3, 4]
    assert batch.slots.tolist() == [1 * 4 + 2, 0 * 4 + 2, 0 * 4 + 3, 2 * 4 + 0]
    assert (batch.sequences, batch.tokens, batch.max_query, batch.max_context) == (2, 4, 3, 7)
    assert (batch.decodes, batch.decode_context) == (1, 7)


@pytest.mark.parametrize(
    ("queries", "contexts", "tables", "message"),
    [
        ([2], [1], [[0]], "sequence 0: 2 new tokens in a context of 1"),
        ([1, 0], [1, 4], [[0], [1]], "sequence 1: 0 new tokens in a context of 4"),
        ([1], [9], [[0, 1]], "sequence 0: 2 blocks of 4 hold no 9 tokens"),
        ([], [], [], "a batch needs at least one sequence, got none"),
    ],
)
def test_impossible_batches_are_refused(
    queries: list[int], contexts: list[int], tables: list[list[int]], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        Batch.build(queries, contexts, tables, block_size=4)


def test_work_is_counted_by_hand(batch: Batch) -> None:
    # The decode attends to 7 positions, the chunk to 3 + 4 + 5; 2 heads of 8, 4 FLOPs each.
    assert flops(batch, heads=2, head_dim=8) == 4 * 2 * 8 * (7 + 3 + 4 + 5)
    # K and V of 7 + 5 tokens and one KV head; q and out of 4 rows, 2 heads; 2 + 2 table entries.
    moved = bytes_moved(batch, heads=2, kv_heads=1, head_dim=8, block_size=4, itemsize=2)
    assert moved == 2 * 12 * 8 * 2 + 2 * 4 * 2 * 8 * 2 + 4 * 4
    assert write_bytes(4, kv_heads=1, head_dim=8, itemsize=2) == 4 * (2 * 2 * 8 * 2 + 8)


def test_the_reference_is_plain_causal_attention() -> None:
    """Blocks in order make the cache a dense tensor that torch's own attention takes."""
    k, v = torch.randn(2, 4, 4, 2, 8, dtype=torch.float64)
    q = torch.randn(13, 4, 8, dtype=torch.float64)
    batch = Batch.build([13], [13], [[0, 1, 2, 3]], block_size=4)
    dense = torch.nn.functional.scaled_dot_product_attention(
        q.transpose(0, 1),
        k.flatten(0, 1)[:13].transpose(0, 1),
        v.flatten(0, 1)[:13].transpose(0, 1),
        is_causal=True,
        enable_gqa=True,
    )
    out = paged_attention(q, k, v, batch, 8**-0.5, "reference")
    torch.testing.assert_close(out, dense.transpose(0, 1))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_cpu_equals_the_reference(case: Case) -> None:
    assert error(case, "cpu") <= TOLERANCE[case.dtype]


@settings(max_examples=40, deadline=None)
@given(
    lengths=st.lists(st.tuples(st.integers(0, 150), st.integers(1, 70)), min_size=1, max_size=6),
    block_size=st.integers(8, 128),
    group=st.integers(1, 5),
    seed=st.integers(0, 99),
)
def test_cpu_equals_the_reference_on_any_batch(
    lengths: list[tuple[int, int]], block_size: int, group: int, seed: int
) -> None:
    case = Case(
        name="any",
        queries=tuple(new for _, new in lengths),
        contexts=tuple(cached + new for cached, new in lengths),
        block_size=block_size,
        group=group,
        head_dim=16,
        dtype=torch.float64,
    )
    assert error(case, "cpu", seed=seed) <= TOLERANCE[torch.float64]


def test_large_scores_do_not_overflow() -> None:
    """Pieces whose log-sum-exps are 10⁴ apart are weighed without overflow."""
    k, v = torch.randn(2, 10, 16, 1, 16, dtype=torch.float64)
    q = 1e4 * torch.randn(2, 2, 16, dtype=torch.float64)
    batch = Batch.build([1, 1], [160, 100], [list(range(10))] * 2, block_size=16)
    expected = paged_attention(q, k, v, batch, 1.0, "reference")
    torch.testing.assert_close(paged_attention(q, k, v, batch, 1.0, "cpu"), expected)


def test_decode_reads_the_sum_of_contexts_not_the_longest() -> None:
    """One long context among many short ones pads nobody: what is gathered stays linear."""
    contexts = [50] * 31 + [5000]
    tables = [list(range(-(-context // 16))) for context in contexts]
    plan = cpu._plan(Batch.build([1] * 32, contexts, tables, 16), 16)
    gathered = plan.blocks.numel() * 16
    assert sum(contexts) <= gathered < sum(contexts) + 32 * cpu.PIECE_TOKENS


@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_padding_rows_write_nothing_and_come_out_zero(backend: str) -> None:
    k_cache, v_cache = torch.full((2, 3, 16, 1, 16), torch.nan)
    kv = torch.randn(2, 1, 16)
    real = Batch.build([1, 1], [1, 1], [[2], [1]], block_size=16)
    padded = replace(
        real, contexts=torch.tensor([1, 0], dtype=torch.int32), slots=torch.tensor([32, -1])
    )
    write_kv(kv, kv, k_cache, v_cache, padded.slots, backend)
    assert k_cache.isfinite().sum() == v_cache.isfinite().sum() == 16
    out = paged_attention(torch.randn(2, 2, 16), k_cache, v_cache, padded, 0.25, backend)
    torch.testing.assert_close(out[0], kv[0].expand(2, 16))
    assert not out[1].any()


def test_unknown_backends_and_odd_groups_are_named(batch: Batch) -> None:
    cache = torch.zeros(4, 4, 2, 8)
    with pytest.raises(ValueError, match="attention backend 'gpu' is unknown, known: auto, ref"):
        paged_attention(torch.zeros(4, 2, 8), cache, cache, batch, 1.0, "gpu")
    with pytest.raises(ValueError, match="heads must be a multiple of kv_heads, got 3 and 2"):
        paged_attention(torch.zeros(4, 3, 8), cache, cache, batch, 1.0)
