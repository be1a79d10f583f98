"""Settings of one replica's engine: the KV pool and the limits around it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


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
    pinned_tokens: int = 0
    """Pin the full blocks of the beginning that most requests share, such as a system prompt, up
    to so many tokens: computed before the run, never evicted, no room for anything else (D5)."""
    output_cap: int | None = None
    """Cut outputs at this many tokens; the reason recorded is "length"."""

    contiguous: bool = False
    """A sequence's blocks must lie in one piece, as before paging: shows fragmentation. Needs a
    policy that reserves to the declared maximum."""
    swap_tokens: int = 0
    """Room on the host for the KV of preempted sequences; 0 = recompute."""
    swap_bandwidth: float = 25e9
    """Bytes per second between host and device."""
    kv_bytes_per_token: int = 0
    """Of one token over all layers; needed for swapping."""
    rank_kv_tokens: tuple[int, ...] = ()
    """Pools of the tensor-parallel ranks where they differ: one block table, the smallest
    binds, and `kv_tokens` is at most that."""
    rank_evict: Literal["global", "local"] = "global"
    """Who evicts when the smallest rank is full: all ranks together, or that rank alone, so
    that the others keep their blocks and wait for its recomputation (C9)."""

    def __post_init__(self) -> None:
        if self.swap_tokens and self.kv_bytes_per_token < 1:
            raise ValueError(
                f"engine.swap_tokens = {self.swap_tokens} needs engine.kv_bytes_per_token: "
                f"{self.kv_bytes_per_token}, expected at least 1"
            )
        if self.swap_tokens and not self.swap_bandwidth > 0:
            raise ValueError(
                f"engine.swap_bandwidth = {self.swap_bandwidth}: expected bytes per second > 0"
            )
        if self.pinned_tokens and not self.prefix_cache:
            raise ValueError(
                f"engine.pinned_tokens = {self.pinned_tokens} contradicts engine.prefix_cache = "
                "false: expected prefix_cache = true"
            )
        if self.pinned_tokens and not 1 <= self.pinned_tokens // self.block_size < self.blocks:
            raise ValueError(
                f"engine.pinned_tokens = {self.pinned_tokens}: expected at least a block of "
                f"{self.block_size} tokens, and less than the pool of {self.blocks} blocks"
            )
        if self.rank_evict == "local" and not self.rank_kv_tokens:
            raise ValueError(
                'engine.rank_evict = "local" has no effect without engine.rank_kv_tokens: expected '
                "the pools of ranks that differ"
            )
        if self.rank_evict == "local" and self.swap_tokens:
            raise ValueError(
                f'engine.swap_tokens = {self.swap_tokens} contradicts engine.rank_evict = "local", '
                "by which a victim is recomputed: choose one"
            )
        if self.contiguous and (self.prefix_cache or self.swap_tokens):
            other = "prefix_cache" if self.prefix_cache else "swap_tokens"
            raise ValueError(f"engine.contiguous contradicts engine.{other}: choose one")

    @property
    def blocks(self) -> int:
        """Blocks that a sequence can have on every rank."""
        return min((self.kv_tokens, *self.rank_kv_tokens)) // self.block_size
