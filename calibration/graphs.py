"""Decode steps as CUDA graphs: one launch in place of hundreds.

A graph is captured for some batch sizes; a batch runs as the next size up, filled with padding
rows that read and write nothing. Steps with prefill, and batches beyond what was captured, run
as they are.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from calibration.attention import Batch
from calibration.transformer import KvCache, Transformer

CAPTURED = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256)
"""Batch sizes captured by default on CUDA."""


class StaticDecode:
    """Inputs of a decode step of `size` rows at addresses that never change.

    Rows start as padding: context 0 and no slot. `fits` says whether a batch may be loaded.
    """

    def __init__(self, size: int, max_context: int, cache: KvCache, device: str) -> None:
        columns = -(-max_context // cache.block_size)

        def zeros(*shape: int, dtype: torch.dtype = torch.int64) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=device)

        self.size = size
        self.tokens = zeros(size)
        self.rows = torch.arange(size, device=device)
        self.batch = Batch(
            cu_seqlens=torch.arange(size + 1, dtype=torch.int32, device=device),
            contexts=zeros(size, dtype=torch.int32),
            block_tables=zeros(size, columns, dtype=torch.int32),
            slots=zeros(size) - 1,
            positions=zeros(size),
            max_query=1,
            max_context=max_context,
            decodes=size,
            decode_context=min(size * max_context, cache.tokens),
        )

    def fits(self, batch: Batch) -> bool:
        """Sums are compared too: shared prefixes may hold more than the pool."""
        return (
            batch.decodes == batch.tokens <= self.size
            and batch.max_context <= self.batch.max_context
            and batch.decode_context <= self.batch.decode_context
        )

    def load(self, tokens: Tensor, batch: Batch) -> None:
        """Copy a batch in; what is left of the rows becomes padding."""
        count, columns = batch.block_tables.shape
        ours = self.batch
        self.tokens[:count] = tokens
        ours.contexts[:count] = batch.contexts
        ours.contexts[count:] = 0
        ours.block_tables[:count, :columns] = batch.block_tables
        ours.slots[:count] = batch.slots
        ours.slots[count:] = -1
        ours.positions[:count] = batch.positions
        ours.positions[count:] = 0

    def forward(self, transformer: Transformer, cache: KvCache) -> Tensor:
        """Logits of every row, padding included."""
        # A batch object of its own: what a backend derives from it is derived in this very call.
        return transformer.forward(self.tokens, replace(self.batch), cache, self.rows)


class DecodeGraphs:
    """A captured graph for each of `sizes`, for contexts up to `max_context`."""

    def __init__(
        self, transformer: Transformer, cache: KvCache, sizes: Sequence[int], max_context: int
    ) -> None:
        self.sizes = sorted(sizes)
        self._steps: list[tuple[StaticDecode, torch.cuda.CUDAGraph, Tensor]] = []
        pool = None
        # The largest first: the others reuse its memory.
        for size in reversed(self.sizes):
            step = StaticDecode(size, max_context, cache, transformer.device)
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):  # compile and tune outside the capture
                for _ in range(2):
                    step.forward(transformer, cache)
            torch.cuda.current_stream().wait_stream(side)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=pool):
                logits = step.forward(transformer, cache)
            pool = pool or graph.pool()
            self._steps.insert(0, (step, graph, logits))

    def forward(self, tokens: Tensor, batch: Batch) -> Tensor | None:
        """Logits `[tokens, vocab]`, valid until the next call; None where no graph fits."""
        at = bisect_left(self.sizes, batch.tokens)
        if at == len(self.sizes) or not self._steps[at][0].fits(batch):
            return None
        step, graph, logits = self._steps[at]
        step.load(tokens, batch)
        graph.replay()
        return logits[: batch.tokens]
