"""The attention kernels on a device: right against the reference, fast against its own ceilings.

Part of `benchmarks/gpu.py`. Times are medians over replays of a captured graph in which every
call reads another region of the cache, so that nothing is found in the L2 and no launch is timed.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch
from torch import Tensor

from calibration.attention import Batch, bytes_moved, flops, paged_attention, write_bytes, write_kv
from calibration.attention.check import CASES, TOLERANCE, error


@dataclass(frozen=True, kw_only=True)
class Stage:
    """Where and at what size kernels are timed: the attention of Llama-3.1-8B on a GPU."""

    device: str = "cuda"
    dtype: torch.dtype = torch.bfloat16
    heads: int = 32
    kv_heads: int = 8
    head_dim: int = 128
    pool_tokens: int = 1 << 20
    copied_bytes: int = 1 << 31
    product: int = 8192
    """Rows and columns of the matrices whose product is the ceiling for arithmetic."""
    decodes: tuple[tuple[int, int], ...] = tuple(
        (batch, context) for batch in (1, 16, 64, 128, 256) for context in (1024, 4096)
    )
    prefills: tuple[tuple[int, int], ...] = ((2048, 0), (8192, 0), (512, 8192))
    block_sizes: tuple[int, ...] = (16, 32)
    tuned: tuple[int, int] = (64, 4096)

    @property
    def itemsize(self) -> int:
        return self.dtype.itemsize


QUICK = Stage(
    device="cpu",
    dtype=torch.float32,
    heads=4,
    kv_heads=2,
    head_dim=64,
    pool_tokens=1 << 13,
    copied_bytes=1 << 24,
    product=256,
    decodes=((1, 256), (8, 256)),
    prefills=((64, 0), (32, 128)),
    block_sizes=(16,),
    tuned=(4, 256),
)


def check(device: str) -> Iterator[dict[str, Any]]:
    """Every case of `calibration.attention.check`, and whether it is within its tolerance."""
    for case in CASES:
        relative = error(case, "auto", device)
        tolerance = TOLERANCE[case.dtype]
        yield {
            "case": case.name,
            "error": relative,
            "tolerance": tolerance,
            "right": relative <= tolerance,
        }


def ceilings(stage: Stage) -> dict[str, float]:
    """What the device does at its best: copied bytes (read + written) and bf16 FLOPs a second."""
    source = torch.randn(stage.copied_bytes // 4, device=stage.device)
    target = torch.empty_like(source)
    copy_s = seconds_per_call(stage, [lambda: target.copy_(source)])
    left, right = torch.randn(2, stage.product, stage.product, device=stage.device).to(stage.dtype)
    product_s = seconds_per_call(stage, [lambda: left @ right])
    return {
        "copy_bytes_per_s": 2 * stage.copied_bytes / copy_s,
        "flops_per_s": 2 * stage.product**3 / product_s,
    }


class Bench:
    """Queries, a cache of random numbers, and the ceilings that a kernel's time is held to."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.ceilings = ceilings(stage)
        shape = (2, stage.pool_tokens, stage.kv_heads, stage.head_dim)
        self.pool = torch.randn(shape, device=stage.device, dtype=stage.dtype)

    def decode(
        self, size: tuple[int, int], block_size: int, uneven: bool = False
    ) -> dict[str, Any]:
        sequences, mean = size
        contexts = [mean] * sequences
        if uneven:  # from an eighth of the mean to about four times it, at the same sum
            shares = [8 ** (2 * i / max(1, sequences - 1) - 1) for i in range(sequences)]
            contexts = [max(1, int(mean * sequences * x / sum(shares))) for x in shares]
        name = f"decode {sequences} × {mean}" + (" uneven" if uneven else "")
        return self.attention(name, [1] * sequences, contexts, block_size)

    def prefill(self, size: tuple[int, int], block_size: int) -> dict[str, Any]:
        new, cached = size
        return self.attention(f"prefill {new} on {cached}", [new], [new + cached], block_size)

    def mixed(self, block_size: int) -> dict[str, Any]:
        """One chunk beside decodes: what the parts cost alone, it should cost together."""
        (sequences, context), (new, cached) = self.stage.tuned, self.stage.prefills[-1]
        queries = [new, *[1] * sequences]
        contexts = [new + cached, *[context] * sequences]
        name = f"mixed {new} on {cached} + {sequences} × {context}"
        return self.attention(name, queries, contexts, block_size)

    def attention(
        self, name: str, queries: list[int], contexts: list[int], block_size: int, **tuning: Any
    ) -> dict[str, Any]:
        """Time, bytes and FLOPs per second, and the larger of their shares of the ceilings."""
        stage = self.stage
        batch, caches = self._place(queries, contexts, block_size)
        q = torch.randn(
            batch.tokens, stage.heads, stage.head_dim, device=stage.device, dtype=stage.dtype
        )
        attend = paged_attention
        if tuning:
            from calibration.attention.triton_launch import paged_attention as attend

        def call(cache: Tensor) -> Callable[[], Any]:
            return lambda: attend(q, cache[0], cache[1], batch, stage.head_dim**-0.5, **tuning)

        seconds = seconds_per_call(stage, [call(cache) for cache in caches])
        sizes = (stage.heads, stage.kv_heads, stage.head_dim, block_size, stage.itemsize)
        rates = {
            "copy_bytes_per_s": bytes_moved(batch, *sizes) / seconds,
            "flops_per_s": flops(batch, stage.heads, stage.head_dim) / seconds,
        }
        return {
            "kernel": name,
            "block_size": block_size,
            "us": seconds * 1e6,
            "GB_per_s": rates["copy_bytes_per_s"] / 1e9,
            "TFLOP_per_s": rates["flops_per_s"] / 1e12,
            "copy_share": rates["copy_bytes_per_s"] / self.ceilings["copy_bytes_per_s"],
            "roof_share": max(rates[key] / self.ceilings[key] for key in rates),
        }

    def write(self, tokens: int, block_size: int) -> dict[str, Any]:
        stage = self.stage
        batch, caches = self._place([tokens], [tokens], block_size)
        kv = torch.randn(
            2, tokens, stage.kv_heads, stage.head_dim, device=stage.device, dtype=stage.dtype
        )

        def call(cache: Tensor) -> Callable[[], Any]:
            return lambda: write_kv(kv[0], kv[1], cache[0], cache[1], batch.slots)

        seconds = seconds_per_call(stage, [call(cache) for cache in caches])
        moved = write_bytes(tokens, stage.kv_heads, stage.head_dim, stage.itemsize)
        share = moved / seconds / self.ceilings["copy_bytes_per_s"]
        return {
            "kernel": f"write {tokens}",
            "block_size": block_size,
            "us": seconds * 1e6,
            "GB_per_s": moved / seconds / 1e9,
            "TFLOP_per_s": 0.0,
            "copy_share": share,
            "roof_share": share,
        }

    def rows(self) -> Iterator[dict[str, Any]]:
        """Every timing, the ones that matter most first."""
        stage = self.stage
        for block_size in stage.block_sizes:
            for size in sorted(stage.decodes, reverse=True):
                yield self.decode(size, block_size)
            yield self.decode(stage.tuned, block_size, uneven=True)
            for size in stage.prefills:
                yield self.prefill(size, block_size)
            yield self.mixed(block_size)
            yield self.write(stage.prefills[0][0], block_size)
        for block_size in (8, 64, 128):
            yield self.decode(stage.tuned, block_size)

    def tuning(self) -> Iterator[dict[str, Any]]:
        """Other tiles and pieces for decode than the ones chosen without a card at hand."""
        from calibration.attention.triton_launch import Tiles

        sequences, context = self.stage.tuned
        shapes = ((64, 4, 3), (64, 4, 5), (128, 8, 3), (128, 4, 3), (32, 4, 3), (32, 4, 5))
        for keys, warps, stages in shapes:
            tiles = Tiles(rows=16, keys=keys, warps=warps, stages=stages)
            for piece in (512, 1024, 4096):
                name = f"keys {keys}, warps {warps}, stages {stages}, piece {piece}"
                yield self.attention(
                    name, [1] * sequences, [context] * sequences, 16, decode=tiles, piece=piece
                )

    def _place(
        self, queries: list[int], contexts: list[int], block_size: int
    ) -> tuple[Batch, list[Tensor]]:
        """A batch on random blocks, and as many caches for it as the pool has room for."""
        needed = [-(-context // block_size) for context in contexts]
        blocks = sum(needed)
        free = random.Random(0).sample(range(blocks), blocks)
        tables = [[free.pop() for _ in range(n)] for n in needed]
        batch = Batch.build(queries, contexts, tables, block_size, self.stage.device)
        size = blocks * block_size
        shape = (2, blocks, block_size, self.stage.kv_heads, self.stage.head_dim)
        copies = min(16, self.stage.pool_tokens // size)
        if not copies:
            raise ValueError(f"{size} tokens do not fit a pool of {self.stage.pool_tokens}")
        # K and V of one cache lie side by side: each is contiguous, as a cache must be.
        flat = self.pool.flatten(0, 1)
        return batch, [flat[2 * size * i : 2 * size * (i + 1)].view(shape) for i in range(copies)]


def seconds_per_call(stage: Stage, calls: list[Callable[[], Any]], repeats: int = 15) -> float:
    """Median over repeats of going once through all calls, per call."""
    for call in calls:
        call()
    if stage.device != "cuda":
        times = []
        for _ in range(3):
            begin = time.perf_counter()
            for call in calls:
                call()
            times.append(time.perf_counter() - begin)
        return median(times) / len(calls)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    events = [torch.cuda.Event(enable_timing=True) for _ in range(2 * repeats)]
    graph.replay()
    for begin, end in zip(events[::2], events[1::2], strict=True):
        begin.record()
        graph.replay()
        end.record()
    torch.cuda.synchronize()
    pairs = zip(events[::2], events[1::2], strict=True)
    return median(begin.elapsed_time(end) for begin, end in pairs) / 1e3 / len(calls)
