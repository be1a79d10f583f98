"""Attention over a paged KV cache: one interface, three backends that agree.

    write_kv(k, v, k_cache, v_cache, batch.slots)
    out = paged_attention(q, k_cache, v_cache, batch, scale)

q [N, heads, head_dim] packs the query tokens of many sequences (`Batch`); k and v of the new
tokens are [N, kv_heads, head_dim]; the caches are [blocks, block_size, kv_heads, head_dim],
contiguous. Causal; heads is a multiple of kv_heads (GQA). Softmax and sums are in float32 or
wider, whatever the dtype.

| backend | device | for |
|---|---|---|
| `reference` | any | the truth: one sequence at a time, float64 too |
| `cpu` | CPU | profiling: cost linear in the sum of contexts, no padding to the longest |
| `triton` | CUDA (or Triton's interpreter) | the GPU: split-KV decode, tiled prefill |

`auto` is `triton` on CUDA and `cpu` elsewhere.
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

from torch import Tensor

from calibration.attention.batch import Batch, bytes_moved, flops, write_bytes

__all__ = [
    "BACKENDS",
    "Batch",
    "bytes_moved",
    "flops",
    "paged_attention",
    "write_bytes",
    "write_kv",
]

BACKENDS = {
    "reference": "calibration.attention.reference",
    "cpu": "calibration.attention.cpu",
    "triton": "calibration.attention.triton_launch",
}


def write_kv(
    k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, slots: Tensor, backend: str = "auto"
) -> None:
    """Writes row n of k and v into slot `slots[n]` of the caches, in place.

    Slots are int64, block × block_size + offset, distinct; a negative one is skipped.
    """
    _backend(backend, k_cache).write_kv(k, v, k_cache, v_cache, slots)


def paged_attention(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, batch: Batch, scale: float, backend: str = "auto"
) -> Tensor:
    """Attends every row of q to its own sequence up to its own position; same shape and dtype.

    Reads only slots that hold a position below its sequence's context; changes nothing.
    """
    heads, kv_heads = q.shape[1], k_cache.shape[2]
    if heads % kv_heads:
        raise ValueError(f"heads must be a multiple of kv_heads, got {heads} and {kv_heads}")
    out: Tensor = _backend(backend, q).paged_attention(q, k_cache, v_cache, batch, scale)
    return out


def _backend(name: str, tensor: Tensor) -> ModuleType:
    if name == "auto":
        name = "triton" if tensor.is_cuda else "cpu"
    if name not in BACKENDS:
        raise ValueError(
            f"attention backend {name!r} is unknown, known: auto, {', '.join(BACKENDS)}"
        )
    return import_module(BACKENDS[name])
