"""One packed step for the attention kernels, and the work that it holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True, kw_only=True, eq=False)
class Batch:
    """The query tokens of S sequences packed into N rows, and where their KV lies.

    Row `cu_seqlens[s] + j` is token j of the step for sequence s, at position
    `contexts[s] - query + j`. The KV of position p lies in block `block_tables[s, p // block_size]`
    at offset `p % block_size`; the caller writes the new tokens' KV (`write_kv`) before it attends.
    Blocks may stand anywhere, also twice (a shared prefix). All tensors are on the device of the
    KV cache, contiguous, and never modified: backends keep what they derive from them.

    A sequence of context 0 and one row is padding (a captured graph larger than its batch): its
    output is zero. A negative slot is not written.
    """

    cu_seqlens: Tensor
    """int32 [S + 1]: row offsets, from 0 to N; every sequence has at least one row."""
    contexts: Tensor
    """int32 [S]: tokens in the cache once this step's are written, cached + new."""
    block_tables: Tensor
    """int32 [S, max blocks]: physical ids; entries beyond the needed ones are never used."""
    slots: Tensor
    """int64 [N]: block × block_size + offset where each row's KV goes."""
    positions: Tensor
    """int64 [N]: each row's position in its sequence (for RoPE)."""
    max_query: int
    """The most rows of one sequence. An upper bound is fine."""
    max_context: int
    """The longest context. An upper bound is fine."""
    decodes: int
    """Sequences with exactly one row."""
    decode_context: int
    """The sum of their contexts. An upper bound is fine."""

    @property
    def sequences(self) -> int:
        return self.contexts.shape[0]

    @property
    def tokens(self) -> int:
        return self.slots.shape[0]

    @classmethod
    def build(
        cls,
        queries: Sequence[int],
        contexts: Sequence[int],
        tables: Sequence[Sequence[int]],
        block_size: int,
        device: torch.device | str = "cpu",
    ) -> Batch:
        """From Python numbers: sequence s feeds `queries[s]` tokens and ends at `contexts[s]`.

        Raises ValueError where a context is shorter than its query or its table too short.
        """
        for s, (query, context, table) in enumerate(zip(queries, contexts, tables, strict=True)):
            if not 1 <= query <= context:
                raise ValueError(f"sequence {s}: {query} new tokens in a context of {context}")
            if len(table) * block_size < context:
                raise ValueError(
                    f"sequence {s}: {len(table)} blocks of {block_size} hold no {context} tokens"
                )
        if not queries:
            raise ValueError("a batch needs at least one sequence, got none")
        widths = [len(table) for table in tables]
        # Long tables are most of the host's work in a step: no Python object per entry is made.
        flat = np.fromiter(chain.from_iterable(tables), np.int32, sum(widths))
        padded = torch.zeros(len(tables), max(widths), dtype=torch.int32)
        filled = torch.arange(padded.shape[1]) < torch.tensor(widths)[:, None]
        padded[filled] = torch.from_numpy(flat)
        lengths = torch.tensor(contexts, dtype=torch.int32)
        counts = torch.tensor(queries)
        ends = counts.cumsum(0)
        sequence = torch.repeat_interleave(counts)
        positions = torch.arange(int(ends[-1])) + (lengths - ends)[sequence]
        block = padded[sequence, positions // block_size].long()
        cu_seqlens = torch.zeros(len(queries) + 1, dtype=torch.int32)
        cu_seqlens[1:] = ends
        return cls(
            cu_seqlens=cu_seqlens.to(device),
            contexts=lengths.to(device),
            block_tables=padded.to(device),
            slots=(block * block_size + positions % block_size).to(device),
            positions=positions.to(device),
            max_query=max(queries),
            max_context=max(contexts),
            decodes=sum(query == 1 for query in queries),
            decode_context=sum(c for q, c in zip(queries, contexts, strict=True) if q == 1),
        )


def flops(batch: Batch, heads: int, head_dim: int) -> int:
    """Multiplications and additions that causal attention needs: 4·head_dim per row, head and
    attended position (a dot product and an accumulation). The softmax is not counted."""
    return 4 * heads * head_dim * int((batch.positions + 1).sum())


def bytes_moved(
    batch: Batch, heads: int, kv_heads: int, head_dim: int, block_size: int, itemsize: int
) -> int:
    """The fewest bytes attention moves through device memory.

    Reads K and V of every context once, the queries and the block tables' used entries once;
    writes the output once. A kernel that reads a context once per tile of queries moves more.
    """
    contexts = batch.contexts.long()
    kv = 2 * kv_heads * head_dim * itemsize * int(contexts.sum())
    rows = 2 * heads * head_dim * itemsize * batch.tokens
    tables = 4 * int(((contexts + block_size - 1) // block_size).sum())
    return kv + rows + tables


def write_bytes(tokens: int, kv_heads: int, head_dim: int, itemsize: int) -> int:
    """Bytes `write_kv` moves: K and V of each row read and written, and its slot read."""
    return tokens * (4 * kv_heads * head_dim * itemsize + 8)
