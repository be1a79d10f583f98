"""Ask the wheel `aiconfigurator-core` (extra `aiconfigurator`) for a grid of step times.

The same grid that was recorded as CSV, with the projections' tokens finer: kernels jump just past
tile edges. Mixed steps are composed as the source composes steps: projections of all tokens, head
of all sequences, attention of prefill and of decode.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from calibration.hardware import find_gpu, find_model
from calibration.importers.aiconfigurator import MS, Grid, grid_of
from calibration.importers.composed import Configuration

PATHS = {
    "llama-3.1-8b": "meta-llama/Meta-Llama-3.1-8B",
    "llama-3.1-70b": "meta-llama/Meta-Llama-3.1-70B",
    "qwen3-32b": "Qwen/Qwen3-32B",
}
QUANTISED = {"bf16": {}, "fp8": {"gemm_quant_mode": "fp8", "kvcache_quant_mode": "bfloat16"}}
BATCHES = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 160, 192, 256, 320, 384, 448, 512)
CONTEXTS = (128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768)
NEW = (64, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 8192, 16384)
PRIOR = (0, 2048, 8192, 32768)
REQUESTS = (1, 2, 4)
TOKENS = (
    1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 129, 160, 192, 224, 256, 257, 320, 384, 448, 512, 513,
    640, 768, 769, 896, 1024, 1025, 1280, 1536, 1792, 2048, 2560, 3072, 4096, 6144, 8192, 12288,
    16384, 32768,
)  # fmt: skip
MIXED = 300
"""Random mixed steps, to state the error on."""


class Split(NamedTuple):
    """Milliseconds of one step."""

    attention: float
    head: float
    rest: float


class Step(NamedTuple):
    """How the wheel prices the two pure steps."""

    decode: Callable[[int, int], Split]
    """By batch and context."""
    prefill: Callable[[int, int, int], Split]
    """By requests, new and cached tokens of each."""


def query(
    system: str, model: str, tp: int, dtype: str, version: str = "current"
) -> tuple[Grid, Configuration]:
    """The grid of one vLLM configuration, and its name.

    Raises ValueError in one line where the wheel is missing or has no data for it.
    """
    gpu, name = find_gpu(system).name, find_model(model).name
    if name not in PATHS:
        raise ValueError(f"model {model!r}: aiconfigurator knows {', '.join(PATHS)}")
    if dtype not in QUANTISED:
        raise ValueError(f"dtype {dtype!r}, expected one of {', '.join(QUANTISED)}")
    step, literal = _compiled(system.replace("-", "_"), PATHS[name], tp, dtype, version)
    of = Configuration(
        gpu=gpu, model=name, dtype=dtype, tp=tp, engine="vllm", engine_version=literal
    )
    return _grid(step), of


def _grid(step: Step) -> Grid:
    decode = pd.DataFrame(
        [(b, c, *step.decode(b, c)) for b, c in itertools.product(BATCHES, CONTEXTS)],
        columns=["batch", "context", "attn_ms", "logits_ms", "rest_ms"],
    )
    prefill = pd.DataFrame(
        [
            (n, new, prior, *step.prefill(n, new, prior))
            for n, new, prior in itertools.product(REQUESTS, NEW, PRIOR)
        ],
        columns=[
            "num_requests", "new_tokens_per_req", "prefix_per_req",
            "attn_ms", "logits_ms", "rest_ms",
        ],
    )  # fmt: skip
    for frame in decode, prefill:
        frame["step_ms"] = frame["attn_ms"] + frame["logits_ms"] + frame["rest_ms"]
    grid = grid_of(decode, prefill, _mixed(step))
    rest = pd.DataFrame(
        {"tokens": TOKENS, "seconds": [step.decode(n, CONTEXTS[0]).rest * MS for n in TOKENS]}
    )
    return Grid(grid.rows, grid.parts, rest)


def _mixed(step: Step) -> pd.DataFrame:
    """The sizes of the recorded mixed grid, drawn at random."""
    draw = np.random.default_rng(0)
    rows = []
    for _ in range(MIXED):
        requests, decodes = int(draw.integers(1, 5)), int(draw.integers(1, 384))
        new = round(4 * 2 ** draw.uniform(0, 11) / requests) + 1
        prior, context = int(draw.choice([0, 512, 2048, 8192])), round(64 * 2 ** draw.uniform(0, 8))
        ms = (
            step.prefill(requests, new, prior).attention
            + step.decode(decodes, context).attention
            + step.decode(requests * new + decodes, CONTEXTS[0]).rest
            + step.decode(requests + decodes, CONTEXTS[0]).head
        )
        rows.append((requests, new, prior, decodes, context, ms))
    names = "num_prefill new_tokens_per_req prefix_per_req num_decode decode_context step_ms"
    return pd.DataFrame(rows, columns=names.split())


def _compiled(system: str, path: str, tp: int, dtype: str, version: str) -> tuple[Step, str]:
    """The wheel's engine behind `Step`, and the version it stands for."""
    try:
        from aiconfigurator_core.sdk import engine
    except ImportError:
        raise ValueError(
            "importing from aiconfigurator needs its wheel: pip install 'batchlab[aiconfigurator]'"
        ) from None
    logging.getLogger("aiconfigurator_core").setLevel(logging.CRITICAL)
    try:
        literal = str(engine._literal_backend_version(system, "vllm", version, None, None))
        handle: Any = engine.EngineHandle.compile(
            path, system, "vllm", backend_version=literal, tp_size=tp, **QUANTISED[dtype]
        )
    except Exception as error:
        reason = " ".join(str(error).split())
        raise ValueError(
            f"aiconfigurator has no {system}, vllm {version}, tp {tp}: {reason}"
        ) from None

    def decode(batch: int, context: int) -> Split:
        # The wheel counts the cached tokens of a step of osl 2 as isl + 2.
        return _split(handle.decode_step_per_op(gen_tokens=batch, isl=max(1, context - 2), osl=2))

    def prefill(requests: int, new: int, prior: int) -> Split:
        context, _ = handle.run_static_per_op(
            batch_size=requests, isl=prior + new, osl=1, prefix=prior, mode="static_ctx"
        )
        return _split(context)

    return Step(decode, prefill), literal


def _split(kernels: list[tuple[str, float, float, str]]) -> Split:
    ms = {name.partition("_")[2]: value for name, value, _, _ in kernels}
    attention, head = ms["attention"], ms["logits_gemm"]
    return Split(attention, head, sum(ms.values()) - attention - head)
