"""Small real engines for the tests, and rows written by hand."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from calibration.attention import Batch
from calibration.clock import HostStopwatch
from calibration.executor import Measured
from calibration.hardware import ModelShape, find_model
from calibration.runner import Runner
from calibration.step_time import Row, StepShape
from calibration.transformer import KvCache, Transformer
from traces.trace import Request

BLOCK = 16
MINI = ModelShape(
    name="mini", layers=2, hidden=32, heads=4, kv_heads=2, head_dim=8, ffn=48, vocab=211,
    max_model_len=4096, tied=True,
)  # fmt: skip


def runner(
    model: str | ModelShape = MINI,
    *,
    blocks: int = 64,
    block_size: int = BLOCK,
    dtype: torch.dtype = torch.float64,
    attention: str = "auto",
) -> Runner:
    """By default in float64: there a batch's rounding cannot turn a near tie into other tokens."""
    torch.set_num_threads(1)
    shape = find_model(model) if isinstance(model, str) else model
    transformer = Transformer(shape, dtype=dtype, attention=attention)
    cache = KvCache.empty(shape, blocks, block_size, "cpu", dtype)
    return Runner(transformer, cache, HostStopwatch("cpu"))


def request(index: int, prompt: int, output: int, **facts: Any) -> Request:
    return Request(index=index, arrival=0, prompt=prompt, output=output, declared=output, **facts)


def engine(requests: Iterable[Request], **settings: Any) -> Measured:
    """A fresh engine on MINI."""
    return Measured.on(runner(), requests, **settings)


def step(engine: Measured, *rows: tuple[int, int, int, Sequence[int]]) -> list[int]:
    """Run rows (request, first, tokens, table); the requests that met their end of sequence."""
    return list(engine.run(StepShape(), lambda: [Row(*row) for row in rows]).stopped)


def alone(requests: Iterable[Request], **settings: Any) -> dict[int, list[int]]:
    """What each request generates by itself: whole prefill, then one token a step."""
    requests = list(requests)
    undisturbed = engine(requests, **settings)
    table = range(64)
    for one in requests:
        ended = step(undisturbed, (one.index, 0, one.prompt, table))
        for at in range(one.prompt, one.prompt + one.output - 1):
            if ended:
                break
            ended = step(undisturbed, (one.index, at, 1, table))
    return {one.index: undisturbed.outputs(one.index) for one in requests}


def logits(
    runner: Runner, *chunks: tuple[Sequence[int], int, Sequence[int]]
) -> tuple[torch.Tensor, ...]:
    """One step of chunks (tokens, first, table): each chunk's logits, a row a token."""
    lengths = [len(tokens) for tokens, _, _ in chunks]
    batch = Batch.build(
        lengths,
        [first + len(tokens) for tokens, first, _ in chunks],
        [table for _, _, table in chunks],
        runner.cache.block_size,
    )
    tokens = torch.tensor([token for tokens, _, _ in chunks for token in tokens])
    rows = torch.arange(len(tokens))
    return runner.transformer.forward(tokens, batch, runner.cache, rows).split(lengths)
