"""Settings of one replica's engine: the KV pool and the limits around it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Engine:
    """The pool in tokens, cut into blocks, and what is admitted into it."""

    kv_tokens: int
    """Size of the pool; blocks = kv_tokens // block_size."""
    block_size: int = 16
    """Tokens a block."""
    max_running: int = 256
    """Seats: sequences running at once."""
    max_model_len: int = 131_072
    """Prompt + output at most; the run takes the least of this and the pool."""
    reserve: float = 0.0
    """Share of the pool kept free at admission (0 ≤ reserve < 1)."""
    gate: bool = True
    """Admit only what fits with all its known tokens, not just the first chunk (rule A6)."""
    prefix_cache: bool = False
    """Share full blocks of equal prefixes (rules A12-A14)."""
    output_cap: int | None = None
    """Cut outputs at this many tokens; the reason recorded is "length"."""

    @property
    def blocks(self) -> int:
        return self.kv_tokens // self.block_size
