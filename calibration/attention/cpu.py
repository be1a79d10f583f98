"""The CPU path, fit to profile with: its cost is linear in the sum of contexts.

Padding every sequence to the longest would make a step cost decodes × longest context, which a
grid of equal contexts cannot see. So decodes are cut as a GPU's split-KV kernel cuts them: every
context into pieces of about 64 tokens, all pieces through one fused attention call a slab, and
a reduction that weighs each piece by its log-sum-exp. Only the last piece of a sequence is
padded, by less than a piece: a cost per sequence, not per batch. A chunk of more than one row
attends to its cached prefix (no mask) and to itself (causal), so it computes what the causal
triangle needs and little more. Python works per slab and per chunk, never per token.

Any float type; sums are in float32, or in float64 where the input is.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from calibration.attention.batch import Batch

PIECE_TOKENS = 64
"""Less pads less; more makes fewer and faster pieces. Whole blocks are taken, at least one."""
SLAB_BYTES = 1 << 20
"""K gathered at a time: it should still be in the L2 cache when it is read."""

# The operator behind scaled_dot_product_attention on CPUs, called by name because only it also
# returns the log-sum-exp that a reduction over pieces needs.
_attend = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default


def write_kv(k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, slots: Tensor) -> None:
    """Row n of k and v goes to slot `slots[n]` of the caches; negative slots are skipped."""
    if bool((slots < 0).any()):
        kept = slots >= 0
        k, v, slots = k[kept], v[kept], slots[kept]
    k_cache.view(-1, *k_cache.shape[2:]).index_copy_(0, slots, k)
    v_cache.view(-1, *v_cache.shape[2:]).index_copy_(0, slots, v)


def paged_attention(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, batch: Batch, scale: float
) -> Tensor:
    """softmax(scale · q kᵀ + causal mask) v over each sequence's own positions."""
    plan = _plan(batch, k_cache.shape[1])
    out = torch.empty_like(q)
    if plan.rows is not None:
        if batch.decodes == batch.tokens:
            out = _decode(q, k_cache, v_cache, plan, scale)
        else:
            out[plan.rows] = _decode(q[plan.rows], k_cache, v_cache, plan, scale)
    for chunk in plan.chunks:
        out[chunk.rows] = _prefill(q[chunk.rows], k_cache, v_cache, chunk, scale)
    return out


@dataclass(frozen=True, kw_only=True)
class _Chunk:
    rows: slice
    context: int
    blocks: Tensor


@dataclass(frozen=True, kw_only=True)
class _Plan:
    """What follows from a batch and a block size alone, and so is the same in every layer."""

    rows: Tensor | None
    """int64 [D]: the rows of decodes; None without any."""
    blocks: Tensor
    """int64 [pieces, blocks of a piece]: physical ids; past the context the last one again."""
    owner: Tensor
    """int64 [pieces]: index into `rows`."""
    mask: Tensor
    """bool [pieces, tokens of a piece]: positions of the context."""
    chunks: tuple[_Chunk, ...]


@lru_cache(maxsize=2)
def _plan(batch: Batch, block_size: int) -> _Plan:
    queries = batch.cu_seqlens.diff()
    contexts = batch.contexts.long()
    decodes = (queries == 1).nonzero().flatten()
    contexts_d = contexts[decodes]
    width = max(1, PIECE_TOKENS // block_size)
    pieces = -(-contexts_d // (width * block_size))
    owner = torch.repeat_interleave(pieces)
    nth = torch.arange(owner.numel()) - (pieces.cumsum(0) - pieces)[owner]
    last = (contexts_d - 1) // block_size
    column = torch.minimum(nth[:, None] * width + torch.arange(width), last[owner, None])
    position = nth[:, None] * (width * block_size) + torch.arange(width * block_size)
    chunks = []
    for s in (queries > 1).nonzero().flatten().tolist():
        context = int(contexts[s])
        chunks.append(
            _Chunk(
                rows=slice(int(batch.cu_seqlens[s]), int(batch.cu_seqlens[s + 1])),
                context=context,
                blocks=batch.block_tables[s, : -(-context // block_size)].long(),
            )
        )
    return _Plan(
        rows=batch.cu_seqlens[decodes].long() if decodes.numel() else None,
        blocks=batch.block_tables[decodes[owner, None], column].long(),
        owner=owner,
        mask=position < contexts_d[owner, None],
        chunks=tuple(chunks),
    )


def _decode(q: Tensor, k_cache: Tensor, v_cache: Tensor, plan: _Plan, scale: float) -> Tensor:
    """q [D, heads, head_dim], one row per decoding sequence."""
    block_size, kv_heads, head_dim = k_cache.shape[1:]
    pieces, width = plan.blocks.shape
    length = width * block_size
    # The query heads that share a KV head are the rows of one small attention problem.
    grouped = q.view(q.shape[0], kv_heads, -1, head_dim)[plan.owner]
    row_bytes = kv_heads * head_dim * k_cache.element_size()
    slab = max(1, SLAB_BYTES // (length * row_bytes))
    parts, sums = [], []
    for start in range(0, pieces, slab):
        ids = plan.blocks[start : start + slab].flatten()
        seen = plan.mask[start : start + slab]
        k = k_cache.index_select(0, ids).view(-1, length, kv_heads, head_dim)
        v = v_cache.index_select(0, ids).view(-1, length, kv_heads, head_dim)
        # Slots past the context hold anything, NaN too, which a mask of −∞ alone would let through.
        unseen = (~seen).flatten().nonzero().flatten()
        bias = None
        if unseen.numel():
            k.view(-1, kv_heads, head_dim).index_fill_(0, unseen, 0)
            v.view(-1, kv_heads, head_dim).index_fill_(0, unseen, 0)
            bias = torch.zeros(seen.shape, dtype=q.dtype).masked_fill_(~seen, -torch.inf)
            bias = bias[:, None, None]
        part, lse = _attend(
            grouped[start : start + slab],
            k.transpose(1, 2),
            v.transpose(1, 2),
            attn_mask=bias,
            scale=scale,
        )
        parts.append(part)
        sums.append(lse)
    if not parts:
        return torch.zeros_like(q)
    part, lse = torch.cat(parts), torch.cat(sums)
    return _reduce(part, lse, plan.owner, q)


def _reduce(part: Tensor, lse: Tensor, owner: Tensor, q: Tensor) -> Tensor:
    """Pieces' outputs weighed by exp(lse); a sequence without a piece comes out zero.

    Also where each sequence is one piece: skipping it then would make steps of short contexts
    cheaper by a jump that no sum over the batch can see.
    """
    shape = (q.shape[0], *lse.shape[1:])
    index = owner[:, None, None].expand_as(lse)
    top = lse.new_full(shape, -torch.inf).scatter_reduce_(0, index, lse, "amax")
    weight = (lse - top[owner]).exp()
    total = lse.new_zeros(shape).index_add_(0, owner, weight).clamp_(min=1)
    out = weight.new_zeros(*shape, q.shape[-1])
    out.index_add_(0, owner, part.to(weight.dtype) * (weight / total[owner])[..., None])
    return out.reshape(q.shape).to(q.dtype)


def _prefill(q: Tensor, k_cache: Tensor, v_cache: Tensor, chunk: _Chunk, scale: float) -> Tensor:
    """q [rows, heads, head_dim], the last rows of one context."""
    kv_heads, head_dim = k_cache.shape[2:]
    rows = q.shape[0]
    cached = chunk.context - rows
    # KV heads are the batch and the query heads of one the heads: K and V need no repeating.
    grouped = q.view(rows, kv_heads, -1, head_dim).permute(1, 2, 0, 3)

    def gather(cache: Tensor) -> Tensor:
        flat = cache.index_select(0, chunk.blocks).flatten(0, 1)[: chunk.context]
        per_head = flat.transpose(0, 1)[:, None]
        return per_head.expand(-1, grouped.shape[1], -1, -1)

    k, v = gather(k_cache), gather(v_cache)
    out, lse = _attend(grouped, k[:, :, cached:], v[:, :, cached:], is_causal=True, scale=scale)
    if cached:
        past, past_lse = _attend(grouped, k[:, :, :cached], v[:, :, :cached], scale=scale)
        share = torch.sigmoid(past_lse - lse)[..., None].to(out.dtype)
        out = torch.lerp(out, past, share)
    rows_first: Tensor = out.permute(2, 0, 1, 3)
    return rows_first.reshape(q.shape)
