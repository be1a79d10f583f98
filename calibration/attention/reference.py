"""The truth: one sequence at a time, in plain torch, on any device and in any float type."""

from __future__ import annotations

import torch
from torch import Tensor

from calibration.attention.batch import Batch


def write_kv(k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, slots: Tensor) -> None:
    """Row n of k and v goes to slot `slots[n]` of the caches; negative slots are skipped."""
    kept = slots >= 0
    k_cache.view(-1, *k_cache.shape[2:])[slots[kept]] = k[kept]
    v_cache.view(-1, *v_cache.shape[2:])[slots[kept]] = v[kept]


def paged_attention(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, batch: Batch, scale: float
) -> Tensor:
    """softmax(scale · q kᵀ + causal mask) v over each sequence's own positions."""
    block_size, kv_heads = k_cache.shape[1:3]
    group = q.shape[1] // kv_heads
    out = torch.zeros_like(q)
    ends = batch.cu_seqlens.tolist()
    for s, context in enumerate(batch.contexts.tolist()):
        if not context:
            continue
        rows = slice(ends[s], ends[s + 1])
        blocks = batch.block_tables[s, : -(-context // block_size)].long()
        k = k_cache[blocks].flatten(0, 1)[:context].repeat_interleave(group, dim=1)
        v = v_cache[blocks].flatten(0, 1)[:context].repeat_interleave(group, dim=1)
        scores = torch.einsum("qhd,khd->hqk", q[rows], k) * scale
        seen = torch.arange(context, device=q.device) <= batch.positions[rows, None]
        weights = scores.masked_fill(~seen, -torch.inf).softmax(dim=-1)
        out[rows] = torch.einsum("hqk,khd->qhd", weights, v)
    return out
