"""The GPU path: plans and launches the Triton kernels.

A sequence of one row is a decode, whatever else is in the batch, so a mixed step launches the
split-KV decode and the prefill kernel side by side, and its decodes cost what they cost alone.
Contexts are cut into pieces of about (sum of contexts) · kv_heads / (PROGRAMS_PER_SM ·
multiprocessors) tokens: every program has about the same work, however uneven the contexts are.

What depends on the contexts is computed on the device, and grids are upper bounds that the host
knows, so nothing waits. To capture a CUDA graph, capture with a `Batch` object that was not used
before: its plan then becomes part of the graph, made anew from the tensors in each replay.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
import triton
from torch import Tensor

from calibration.attention.batch import Batch
from calibration.attention.triton_kernel import (
    decode_kernel,
    prefill_kernel,
    reduce_kernel,
    write_kernel,
)

PROGRAMS_PER_SM = 8
"""Decode programs to aim for: a few waves, so that the last one matters little."""
LEAST_PIECE = 128
"""Tokens below which splitting a context costs more than it fills."""


@dataclass(frozen=True, kw_only=True)
class Tiles:
    """Rows of queries × tokens of keys that a program holds, and how it is scheduled."""

    rows: int
    keys: int
    warps: int
    stages: int


def decode_tiles(dtype: torch.dtype, group: int) -> Tiles:
    """Two or three programs a multiprocessor, each with two tiles of K and V in flight."""
    rows = max(16, triton.next_power_of_2(group))
    if dtype is torch.float32:
        return Tiles(rows=rows, keys=32, warps=4, stages=2)
    return Tiles(rows=rows, keys=64, warps=4, stages=3)


def prefill_tiles(dtype: torch.dtype, group: int, hopper: bool = True) -> Tiles:
    """As many rows as registers hold without spilling (`tests/test_attention_cubin.py`)."""
    rows = triton.next_power_of_2(group)
    if dtype is torch.float32:
        return Tiles(rows=max(32, rows), keys=32, warps=4, stages=2)
    return Tiles(rows=max(128, rows), keys=64 if hopper else 32, warps=8, stages=3)


def write_kv(k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, slots: Tensor) -> None:
    """Row n of k and v goes to slot `slots[n]` of the caches; negative slots are skipped."""
    rows, kv_heads, head_dim = k.shape
    _contiguous_heads(k=k, v=v)
    width = kv_heads * head_dim
    write_kernel[(rows,)](
        k, v, k_cache, v_cache, slots, k.stride(0), v.stride(0),
        WIDTH=width, BLOCK=triton.next_power_of_2(width), num_warps=4, enable_fp_fusion=True,
    )  # fmt: skip


def paged_attention(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    batch: Batch,
    scale: float,
    *,
    decode: Tiles | None = None,
    prefill: Tiles | None = None,
    piece: int | None = None,
) -> Tensor:
    """softmax(scale · q kᵀ + causal mask) v over each sequence's own positions.

    Allocates the output and, where decodes are split, float32 partial results; waits for nothing.
    Tiles, and tokens of a piece, other than the default ones are for tuning.
    """
    _, heads, head_dim = q.shape
    block_size, kv_heads = k_cache.shape[1:3]
    _contiguous_heads(q=q)
    if head_dim < 16 or head_dim & (head_dim - 1):
        raise ValueError(f"head_dim must be a power of two from 16, got {head_dim}")
    group = heads // kv_heads
    decode = decode or decode_tiles(q.dtype, group)
    prefill = prefill or prefill_tiles(q.dtype, group, _hopper(q.device))
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    items = _programs(q.device) // kv_heads
    plan = _plan(batch, piece, items, decode.keys, prefill.rows // group)
    fixed = constants(heads, kv_heads, head_dim, block_size, q.dtype)
    scale_log2 = scale * math.log2(math.e)
    if batch.decodes:
        split = batch.max_context > plan.least_piece
        parts = plan.piece_owner.shape[0] if split else 0
        partial = torch.empty((parts, heads, head_dim), dtype=torch.float32, device=q.device)
        lse = torch.empty((parts, heads), dtype=torch.float32, device=q.device)
        decode_kernel[(kv_heads, plan.piece_owner.shape[0])](
            out, partial, lse, q, k_cache, v_cache, batch.block_tables, batch.cu_seqlens,
            batch.contexts, plan.piece_owner, plan.piece_offset, scale_log2, plan.piece,
            batch.sequences, batch.block_tables.stride(0), q.stride(0),
            **fixed, **launch_options(decode),
        )  # fmt: skip
        if split:
            reduce_kernel[(heads, batch.sequences)](
                out, partial, lse, batch.cu_seqlens, plan.piece_offset,
                HEADS=heads, HEAD_DIM=head_dim, PIECES=16, num_warps=4, enable_fp_fusion=True,
            )  # fmt: skip
    if batch.decodes < batch.sequences:
        prefill_kernel[(plan.tile_owner.shape[0], kv_heads)](
            out, q, k_cache, v_cache, batch.block_tables, batch.cu_seqlens, batch.contexts,
            plan.tile_owner, plan.tile_offset, scale_log2,
            batch.sequences, batch.block_tables.stride(0), q.stride(0),
            **fixed, **launch_options(prefill),
        )  # fmt: skip
    return out


def constants(
    heads: int, kv_heads: int, head_dim: int, block_size: int, dtype: torch.dtype
) -> dict[str, Any]:
    """Compile-time arguments that `_decode` and `_prefill` share."""
    interpreted = bool(triton.knobs.runtime.interpret)
    return {
        "KV_HEADS": kv_heads,
        "GROUP": heads // kv_heads,
        "HEAD_DIM": head_dim,
        "BLOCK_SIZE": block_size,
        "PRECISION": "tf32x3" if dtype is torch.float32 else "tf32",
        # The interpreter's tl.dot takes bfloat16 for integers.
        "WIDEN": interpreted and dtype is torch.bfloat16,
    }


def launch_options(tiles: Tiles) -> dict[str, int | bool]:
    return {
        "ROWS": tiles.rows,
        "KEYS": tiles.keys,
        "num_warps": tiles.warps,
        "num_stages": tiles.stages,
        "enable_fp_fusion": True,  # stated, since its default is about to change
    }


def _contiguous_heads(**tensors: Tensor) -> None:
    for name, tensor in tensors.items():
        if tensor.stride(2) != 1 or tensor.stride(1) != tensor.shape[2]:
            raise ValueError(f"{name} must be contiguous within a row, got {tensor.stride()}")


@lru_cache(maxsize=8)
def _programs(device: torch.device) -> int:
    if device.type != "cuda":  # the interpreter
        return PROGRAMS_PER_SM * 132
    return PROGRAMS_PER_SM * torch.cuda.get_device_properties(device).multi_processor_count


@lru_cache(maxsize=8)
def _hopper(device: torch.device) -> bool:
    """Warpgroup products, which leave room for larger tiles; the interpreter takes them too."""
    return device.type != "cuda" or torch.cuda.get_device_capability(device) >= (9, 0)


@dataclass(frozen=True, kw_only=True)
class _Plan:
    """Which sequence each program works for; the same in every layer of a step.

    Programs are launched by an upper bound that the host knows, so nothing waits for the device;
    owners past the last real one are `sequences`, and such programs leave at once.
    """

    least_piece: int
    piece: Tensor
    """int32 [1]: tokens of a piece, at least `least_piece`; whole tiles of keys."""
    piece_owner: Tensor
    """int32 [≥ pieces]."""
    piece_offset: Tensor
    """int32 [S + 1]: sequence s has pieces `piece_offset[s]` to `piece_offset[s + 1]`."""
    tile_owner: Tensor
    tile_offset: Tensor


@lru_cache(maxsize=2)
def _plan(batch: Batch, piece: int | None, items: int, keys: int, tokens_per_tile: int) -> _Plan:
    """About `items` pieces, or pieces of `piece` tokens."""
    queries = batch.cu_seqlens.diff()
    contexts = torch.where(queries == 1, batch.contexts, 0)
    least = piece or _ceil_div(LEAST_PIECE, keys) * keys
    even = contexts.sum(dtype=torch.int32).view(1) if piece is None else contexts.new_zeros(1)
    cut = (_ceil_div(_ceil_div(even, items), keys) * keys).clamp(min=least)
    # At least one, so that a padding row is written too.
    pieces = torch.where(queries == 1, _ceil_div(contexts, cut).clamp(min=1), 0)
    tiles = torch.where(queries > 1, _ceil_div(queries, tokens_per_tile), 0)
    # Rounding up adds less than one to each: the bounds hold for any contexts.
    most_pieces = batch.decodes + batch.decode_context // least
    if piece is None:
        most_pieces = min(most_pieces, batch.decodes + items)
    most_tiles = batch.sequences - batch.decodes + batch.tokens // tokens_per_tile
    piece_owner, piece_offset = _owners(pieces, most_pieces)
    tile_owner, tile_offset = _owners(tiles, most_tiles)
    return _Plan(
        least_piece=least,
        piece=cut,
        piece_owner=piece_owner,
        piece_offset=piece_offset,
        tile_owner=tile_owner,
        tile_offset=tile_offset,
    )


def _ceil_div(a: Any, b: Any) -> Any:
    return (a + b - 1) // b


def _owners(counts: Tensor, bound: int) -> tuple[Tensor, Tensor]:
    ends = counts.cumsum(0, dtype=torch.int32)
    items = torch.arange(bound, dtype=torch.int32, device=counts.device)
    owner = torch.searchsorted(ends, items, right=True, out_int32=True)
    return owner, torch.nn.functional.pad(ends, (1, 0))
