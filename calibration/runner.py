"""One engine step on the device, timed: inputs, forward pass, sampling.

The measured executor and the profiler both step through here, so what is measured for a
profile is what a run executes.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Sequence
from typing import NamedTuple

import torch

from calibration.attention import Batch
from calibration.clock import CLOCKS, CudaStopwatch, HostStopwatch, Stopwatch
from calibration.graphs import DecodeGraphs
from calibration.hardware import ModelShape, find_model
from calibration.sampling import Draw, Sampling, sample
from calibration.transformer import KvCache, Transformer

DTYPES = {
    "fp64": torch.float64,
    "fp32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
}


class Chunk(NamedTuple):
    """What one sequence is fed in a step."""

    tokens: Sequence[int]
    first: int
    """Position of the first one: tokens of the sequence that are in the cache already."""
    table: Sequence[int]
    draw: Draw | None
    """How to sample after the last one; None in the middle of a prefill."""


class Outcome(NamedTuple):
    tokens: list[int]
    """Sampled, one for every chunk that asked, in order."""
    host: int
    """Picoseconds of building inputs on the host."""
    duration: int
    """Picoseconds of the step, host included."""


class Runner:
    """A transformer with its KV cache and a stopwatch. Blocks are the caller's to assign."""

    def __init__(self, transformer: Transformer, cache: KvCache, stopwatch: Stopwatch) -> None:
        self.transformer, self.cache, self.stopwatch = transformer, cache, stopwatch
        self._graphs: DecodeGraphs | None = None

    @classmethod
    def create(
        cls,
        *,
        model: str,
        device: str = "cpu",
        blocks: int,
        block_size: int = 16,
        dtype: str | None = None,
        seed: int = 0,
        clock: str = "cpu",
        threads: int = 1,
        attention: str = "auto",
    ) -> Runner:
        """Weights of `model` and a pool of `blocks` on `device`; torch gets `threads` threads.

        Raises ValueError for an unknown model, for one that the device's memory cannot hold, and
        as `check_settings` does.
        """
        dtype = check_settings(device=device, dtype=dtype, clock=clock, threads=threads)
        shape = find_model(model)
        _check_memory(shape, device, dtype, blocks * block_size)
        torch.set_num_threads(threads)
        _keep_memory()
        transformer = Transformer(
            shape, device=device, dtype=DTYPES[dtype], seed=seed, attention=attention
        )
        cache = KvCache.empty(shape, blocks, block_size, device, DTYPES[dtype])
        return cls(
            transformer, cache, CudaStopwatch() if device == "cuda" else HostStopwatch(clock)
        )

    def recut(self, block_size: int) -> Runner:
        """The same weights and storage, in blocks of another size; nothing is captured."""
        return Runner(self.transformer, self.cache.recut(block_size), self.stopwatch)

    def capture(self, sizes: Sequence[int], max_context: int) -> None:
        """From now on run decode steps of up to max(sizes) sequences as CUDA graphs."""
        self._graphs = DecodeGraphs(self.transformer, self.cache, sizes, max_context)

    def warm_up(self) -> None:
        """Run a prefill and a decode, so that the first real step finds all in its place.

        Writes into the first blocks: do it before they mean anything.
        """
        table = range(min(-(-128 // self.cache.block_size), self.cache.blocks))
        length = len(table) * self.cache.block_size
        for _ in range(2):
            self.step([Chunk([0] * length, 0, table, Draw(Sampling()))])
            self.step([Chunk([0], length - 1, table, Draw(Sampling()))])

    def step(self, chunks: Sequence[Chunk]) -> Outcome:
        """Feed every chunk, write its KV through its block table, sample where asked.

        Raises ValueError where a table is too short for its chunk or no chunk is given.
        """
        device = self.transformer.device
        self.stopwatch.start()
        batch = Batch.build(
            [len(chunk.tokens) for chunk in chunks],
            [chunk.first + len(chunk.tokens) for chunk in chunks],
            [chunk.table for chunk in chunks],
            self.cache.block_size,
            device,
        )
        tokens = torch.tensor([t for chunk in chunks for t in chunk.tokens], device=device)
        ends, draws, end = [], [], -1
        for chunk in chunks:
            end += len(chunk.tokens)
            if chunk.draw is not None:
                ends.append(end)
                draws.append(chunk.draw)
        rows = torch.tensor(ends, dtype=torch.int64, device=device)
        self.stopwatch.launch()
        logits = self._graphs.forward(tokens, batch) if self._graphs else None
        if logits is None:
            logits = self.transformer.forward(tokens, batch, self.cache, rows)
        elif len(ends) < len(tokens):
            logits = logits[rows]
        sampled: list[int] = sample(logits, draws).tolist() if draws else []
        if not draws and device == "cuda":
            torch.cuda.current_stream().synchronize()
        return Outcome(sampled, *self.stopwatch.stop())


def check_settings(*, device: str, dtype: str | None, clock: str, threads: int) -> str:
    """The dtype meant: by default fp32 on the CPU, bf16 on CUDA.

    Raises ValueError for an unknown device, dtype or clock, for CPU time over several threads
    (the calling thread's clock cannot see the others), and for cuda without a CUDA device.
    """
    if device not in ("cpu", "cuda"):
        raise ValueError(f"device {device!r} is unknown, expected cpu or cuda")
    if device == "cuda" and not torch.cuda.is_available():
        raise ValueError("device cuda: torch finds no CUDA device on this machine")
    if clock not in CLOCKS:
        raise ValueError(f"clock {clock!r} is unknown, expected one of {', '.join(CLOCKS)}")
    if device == "cpu" and clock == "cpu" and threads != 1:
        raise ValueError(f"clock cpu measures 1 thread, got {threads}: use the clock wall")
    dtype = dtype or ("fp32" if device == "cpu" else "bf16")
    if dtype not in DTYPES:
        raise ValueError(f"dtype {dtype!r} is unknown, expected one of {', '.join(DTYPES)}")
    return dtype


def _check_memory(model: ModelShape, device: str, dtype: str, tokens: int) -> None:
    """Refuse what would end in the middle of building it, or in the kernel killing us."""
    needed = model.weight_bytes(dtype) + tokens * model.kv_bytes_per_token(dtype)
    if device == "cuda":
        memory = torch.cuda.mem_get_info()[1]
    else:
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if needed > memory:
        raise ValueError(
            f"model {model.name} in {dtype} needs {needed / 2**30:.1f} GiB for weights and "
            f"{tokens} tokens of KV, the device has {memory / 2**30:.1f}"
        )


def _keep_memory() -> None:
    """Let glibc keep freed memory, as far as this process has glibc.

    By default every large tensor is mapped and unmapped anew, and its page faults make steps
    up to twice as slow from a size on: a cliff that no cost form follows.
    """
    if not sys.platform.startswith("linux"):
        return
    trim_threshold, top_pad, mmap_threshold = -1, -2, -3
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        libc.mallopt(mmap_threshold, 1 << 25)  # the most that glibc accepts
        libc.mallopt(trim_threshold, 1 << 30)
        libc.mallopt(top_pad, 1 << 26)
