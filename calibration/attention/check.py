"""Is a backend right, here and now? Random batches against the float64 reference.

    python -m calibration.attention.check triton cuda

Every slot that holds no position of a context is NaN, and so is fresh memory, so that a read out
of bounds or an output left unwritten shows. Prints one line of JSON per case: its name, the
relative error ‖out − ref‖ / ‖ref‖, and what is tolerated.
"""

from __future__ import annotations

import json
import random
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from calibration.attention import Batch, paged_attention, write_kv

TOLERANCE = {
    torch.float64: 1e-12,
    torch.float32: 1e-5,
    torch.float16: 2e-3,
    torch.bfloat16: 1e-2,
}


@dataclass(frozen=True, kw_only=True)
class Case:
    """One packed step: sequence s feeds `queries[s]` tokens and ends at `contexts[s]`."""

    name: str
    queries: tuple[int, ...]
    contexts: tuple[int, ...]
    block_size: int = 16
    kv_heads: int = 2
    group: int = 4
    head_dim: int = 64
    dtype: torch.dtype = torch.float32
    padding: int = 0
    """This many of the last sequences are padding (context 0), as in a captured graph."""


_EDGES = (1, 7, 8, 9, 15, 16, 17, 63, 64, 65, 127, 128, 129)

CASES = (
    Case(name="one token", queries=(1,), contexts=(1,)),
    Case(name="decodes at every edge", queries=(1,) * len(_EDGES), contexts=_EDGES),
    Case(name="whole prefills at every edge", queries=_EDGES, contexts=_EDGES, kv_heads=1),
    Case(name="chunks after a prefix", queries=(2, 16, 33, 40), contexts=(3, 32, 97, 300)),
    Case(name="split decodes", queries=(1,) * 4, contexts=(127, 128, 257, 700)),
    Case(name="mixed", queries=(1, 5, 1, 37, 1, 2), contexts=(1, 5, 200, 77, 150, 129)),
    Case(
        name="mixed bfloat16, head 128",
        queries=(1, 31, 1),
        contexts=(161, 95, 33),
        head_dim=128,
        dtype=torch.bfloat16,
    ),
    Case(
        name="mixed float16, three heads to one",
        queries=(1, 31, 1),
        contexts=(161, 95, 33),
        group=3,
        dtype=torch.float16,
    ),
    Case(name="padding", queries=(1,) * 5, contexts=(1, 300, 129, 7, 7), padding=2),
    Case(name="one head to one", queries=(1, 19), contexts=(140, 50), group=1, kv_heads=3),
    *(
        Case(
            name=f"blocks of {block_size}",
            queries=(1, 11, 1, 1),
            contexts=(block_size, 2 * block_size + 1, 2 * block_size, 1),
            block_size=block_size,
            dtype=torch.bfloat16,
        )
        for block_size in (8, 16, 24, 32, 64, 128)
    ),
)


def error(case: Case, backend: str, device: str = "cpu", seed: int = 0) -> float:
    """Relative error of the backend's KV write followed by its attention; NaN is a failure.

    Raises ValueError where the write left another cache than the reference's.
    """
    rng = random.Random(f"{case.name} {seed}")
    generator = torch.Generator().manual_seed(rng.getrandbits(32))
    needed = [-(-context // case.block_size) for context in case.contexts]
    blocks = sum(needed) + 3
    free = rng.sample(range(blocks), blocks)
    free_block = free.pop()
    tables = [[free.pop() for _ in range(n)] for n in needed]
    batch = Batch.build(case.queries, case.contexts, tables, case.block_size, device)
    # What stands behind a table's last entry is never used: here, a block of NaN.
    width = -(-batch.contexts // case.block_size)
    columns = torch.arange(batch.block_tables.shape[1], device=device)
    poisoned = batch.block_tables.masked_fill(columns >= width[:, None], free_block)
    real = len(needed) - case.padding
    batch.contexts[real:] = 0
    batch = replace(batch, block_tables=poisoned)
    # Every position of every context, so that the cached tokens are written the same way.
    everything = Batch.build(case.contexts, case.contexts, tables, case.block_size, device)
    everything.slots[int(everything.cu_seqlens[real]) :] = -1

    def noise(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator).to(device, case.dtype)

    q = noise(batch.tokens, case.kv_heads * case.group, case.head_dim)
    kv = noise(2, everything.tokens, case.kv_heads, case.head_dim)
    cache = torch.full(
        (2, blocks, case.block_size, case.kv_heads, case.head_dim),
        torch.nan,
        dtype=case.dtype,
        device=device,
    )
    expected = cache.clone()
    write_kv(kv[0], kv[1], expected[0], expected[1], everything.slots, "reference")
    with _poisoned_memory():
        write_kv(kv[0], kv[1], cache[0], cache[1], everything.slots, backend)
        if not torch.equal(cache.nan_to_num(nan=1e4), expected.nan_to_num(nan=1e4)):
            raise ValueError(f"{case.name}: {backend} wrote another KV cache than the reference")
        out = paged_attention(q, cache[0], cache[1], batch, case.head_dim**-0.5, backend)
    wide = cache.double()
    truth = paged_attention(q.double(), wide[0], wide[1], batch, case.head_dim**-0.5, "reference")
    return float((out.double() - truth).norm() / truth.norm())


@contextmanager
def _poisoned_memory() -> Iterator[None]:
    """`torch.empty` gives NaN instead of what happens to lie there."""
    before = torch.are_deterministic_algorithms_enabled()
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*deterministic")
            yield
    finally:
        torch.use_deterministic_algorithms(before, warn_only=warn_only)


def main(backend: str, device: str = "cpu") -> None:
    for case in CASES:
        figures = {
            "case": case.name,
            "error": error(case, backend, device),
            "tolerance": TOLERANCE[case.dtype],
        }
        print(json.dumps(figures), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
