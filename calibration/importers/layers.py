"""Per-layer kernel times → profile: the CSV forms of LLMServingSim and Vidur.

LLMServingSim (microseconds): `STEM__dense.csv` (layer, tokens, time_us), `STEM__per_sequence.csv`
(layer, sequences, time_us) and `STEM__attention.csv` (prefill_chunk, kv_prefill, n_decode,
kv_decode, time_us), of which the rows with both are real *mixed* measurements. STEM is
`GPU_ORG_MODEL_DTYPE_tpN`.

Vidur (milliseconds): a folder with `mlp.csv` (num_tokens, time_stats.KERNEL.median) and
`attention.csv` (batch_size, prefill_chunk_size, kv_cache_size, time_stats.attn_*.median). It has no
LM head, no mixed steps and, in these two files, no communication.

A decoder layer runs each kernel once, LLMServingSim's `layernorm` twice; embedding and final norm
run once a step.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from calibration.errors import errors_by_class, predicted_seconds
from calibration.fit import ranges
from calibration.hardware import UTILISATION, find_gpu, find_model, pool_tokens
from calibration.importers.attention import CACHE_HOT_TOKENS, fit_attention
from calibration.importers.composed import Configuration, model_of, monotone, moved
from calibration.profile import Errors, Parts, Profile, Table
from calibration.raw import RawRow, shape_of
from calibration.step_time import StepTime

STEM = re.compile(r"(?P<gpu>[^_]+)_(?P<org>[^_]+)_(?P<model>.+)_(?P<dtype>[^_]+)_tp(?P<tp>\d+)")
ONCE = ("embedding", "final_layernorm")
TWICE = ("layernorm",)
VIDUR_KERNELS = (
    "input_layernorm", "attn_pre_proj", "attn_rope", "attn_post_proj", "post_attention_layernorm",
    "mlp_up_proj", "mlp_act", "mlp_down_proj", "add",
)  # fmt: skip
CAPTURED = (1, 2, 4, *range(8, 257, 8), *range(272, 513, 16))
"""Graph sizes that vLLM 0.19 captures, as its recorded run lists them."""
MIXED_TOKENS = 131072
"""Cached tokens beyond which mixed kernels fall off a cliff that no sum can show (3 to 4 times)."""
BATCHED_TOKENS = 2048
"""The token budget of the recorded engines, which bounds their activations."""


@dataclass(frozen=True)
class LayerTimes:
    """Seconds of all layers together."""

    dense: pd.DataFrame
    """tokens, seconds"""
    heads: pd.DataFrame
    """sequences, seconds; empty where the source has none"""
    attention: pd.DataFrame
    """chunk, prior, decodes, context (of each), seconds"""


@dataclass(frozen=True, kw_only=True)
class Origin:
    """Where a source's numbers come from."""

    source: str
    licence: str
    date: str
    captured: tuple[int, ...] = ()


LLMSERVINGSIM = Origin(
    source="LLMServingSim (casys-kaist) 5daddb2, kernels profiled layer by layer inside vLLM",
    licence="MIT",
    date="2026-08-21",
    captured=CAPTURED,
)
VIDUR = Origin(
    source="Vidur (microsoft), kernels profiled layer by layer", licence="MIT", date="2024"
)


def read_llmservingsim(stem: Path | str) -> tuple[LayerTimes, Configuration]:
    """Read the three tables of one GPU and model. Raises ValueError in one line."""
    named = STEM.fullmatch(Path(stem).name)
    if not named:
        raise ValueError(f"{stem}: expected a path that ends in GPU_ORG_MODEL_DTYPE_tpN")
    gpu = re.sub(r"^rtx", "rtx-", named["gpu"].lower()).replace("-pro", "-pro-")
    of = Configuration(
        gpu=find_gpu(gpu).name,
        model=model_of(named["model"]),
        dtype=named["dtype"],
        tp=int(named["tp"]),
        engine="vllm",
        engine_version="0.19.0",
    )
    layers = find_model(of.model).layers
    dense = _read(f"{stem}__dense.csv", "layer", "tokens", "time_us")
    times = dense["layer"].map(lambda name: 1 if name in ONCE else layers * (1 + (name in TWICE)))
    dense["seconds"] = dense["time_us"] * times * 1e-6
    heads = _read(f"{stem}__per_sequence.csv", "layer", "sequences", "time_us")
    heads["seconds"] = heads["time_us"] * 1e-6
    raw = _read(
        f"{stem}__attention.csv", "prefill_chunk", "kv_prefill", "n_decode", "kv_decode", "time_us"
    )
    attention = pd.DataFrame(
        {
            "chunk": raw["prefill_chunk"],
            "prior": raw["kv_prefill"],
            "decodes": raw["n_decode"],
            "context": raw["kv_decode"],
            "seconds": raw["time_us"] * layers * 1e-6,
        }
    )
    return LayerTimes(
        dense.groupby("tokens", as_index=False)[["seconds"]].sum(),
        heads.groupby("sequences", as_index=False)[["seconds"]].sum(),
        attention,
    ), of


def read_vidur(
    folder: Path | str, *, gpu: str, model: str, tp: int = 1, block_size: int = 16
) -> tuple[LayerTimes, Configuration]:
    """Read `mlp.csv` and `attention.csv` of a folder. Raises ValueError in one line."""
    shape, device = find_model(model), find_gpu(gpu)
    mlp_path, attention_path = Path(folder) / "mlp.csv", Path(folder) / "attention.csv"
    mlp = _read(mlp_path, "num_tokens", "num_tensor_parallel_workers")
    mlp = mlp[mlp["num_tensor_parallel_workers"] == tp]
    raw = _read(attention_path, "batch_size", "prefill_chunk_size", "kv_cache_size")
    for name, value in ("num_tensor_parallel_workers", tp), ("block_size", block_size):
        raw = raw[raw[name] == value] if name in raw else raw
    for path, frame in (mlp_path, mlp), (attention_path, raw):
        if frame.empty:
            raise ValueError(f"{path}: no rows for tp {tp}, block size {block_size}")
    kernels = [f"time_stats.{name}.median" for name in VIDUR_KERNELS]
    dense = pd.DataFrame(
        {
            "tokens": mlp["num_tokens"],
            "seconds": mlp.reindex(columns=kernels).fillna(0.0).sum(axis=1) * shape.layers * 1e-3,
        }
    )
    prefill = raw["prefill_chunk_size"] > 0
    spent = [f"time_stats.attn_{name}.median" for name in ("prefill", "decode", "kv_cache_save")]
    attention = pd.DataFrame(
        {
            "chunk": raw["prefill_chunk_size"],
            "prior": raw["kv_cache_size"].where(prefill, 0),
            "decodes": raw["batch_size"].where(~prefill, 0),
            "context": raw["kv_cache_size"].where(~prefill, 0),
            "seconds": raw.reindex(columns=spent).fillna(0.0).sum(axis=1) * shape.layers * 1e-3,
        }
    )
    of = Configuration(
        gpu=device.name,
        model=shape.name,
        dtype="fp16",
        tp=tp,
        engine="sarathi",
        engine_version="unknown",
    )
    return LayerTimes(
        dense.groupby("tokens", as_index=False)[["seconds"]].mean(),
        pd.DataFrame({"sequences": [], "seconds": []}),
        attention.groupby(["chunk", "prior", "decodes", "context"], as_index=False).mean(),
    ), of


def layer_profile(times: LayerTimes, of: Configuration, origin: Origin) -> Profile:
    """Fit per-layer times; errors are of whole steps put together from them.

    Attention rows that the GPU's KV pool could not hold take no part.
    """
    gpu, model = find_gpu(of.gpu), find_model(of.model)
    pool = pool_tokens(gpu, model, dtype=of.dtype, tp=of.tp, batched_tokens=BATCHED_TOKENS)
    dense = times.dense.sort_values("tokens")
    g_raw = dense["seconds"].to_numpy()
    g = monotone([int(n) for n in dense["tokens"]], g_raw)
    change = {"g": (g, g_raw)}
    h = Table(knots=(1,), seconds=(0.0,))
    if head := len(times.heads):
        h_raw = times.heads["seconds"].to_numpy()
        h = monotone([int(s) for s in times.heads["sequences"]], h_raw)
        change["h"] = (h, h_raw)
    rows = _steps(times.attention, pool)
    attention = rows["seconds"].to_numpy(dtype=float)
    rest = predicted_seconds(StepTime(g=g.picoseconds(), h=h.picoseconds()), rows)
    rows["seconds"] = attention + rest
    fitted = fit_attention(rows, attention, rows["seconds"].to_numpy(dtype=float))
    cost = fitted.model_copy(update={"g": g, "h": h, "captured": origin.captured})
    unpadded = cost.model_copy(update={"captured": ()}).step_time()
    missing = {
        "host overhead": True,
        "LM head": not head,
        "mixed-step penalty": cost.mixed is None,
        "communication": of.tp > 1,
        "host-device transfers": True,
    }
    return Profile(
        schema=1,
        units="seconds",
        name=of.profile_name,
        device=of.gpu,
        model=of.model,
        dtype=of.dtype,
        kv_dtype=of.dtype,
        tp=of.tp,
        engine=of.engine,
        engine_version=of.engine_version,
        source=origin.source,
        licence=origin.licence,
        date=origin.date,
        machine=f"{of.tp} × {of.gpu}, measured by the source",
        kv_bytes_per_token=model.kv_bytes_per_token(of.dtype, of.tp),
        pool_tokens=pool,
        pool_rule=f"({UTILISATION} · memory − weights / tp − activations) / KV bytes per token",
        max_model_len=model.max_model_len,
        measured=ranges(rows),
        parts=Parts(
            host="missing",
            projections="measured",
            head="measured" if head else "missing",
            prefill_attention="measured",
            decode_attention="measured",
            mixed="measured" if cost.mixed else "modelled",
        ),
        missing=tuple(name for name, absent in missing.items() if absent),
        note="composed from measured kernels; host overhead not included",
        errors=Errors(
            fit=errors_by_class(rows, predicted_seconds(unpadded, rows)),
            note=f"{moved(**change)}; decode attention fitted from {CACHE_HOT_TOKENS} cached "
            f"tokens on, mixed up to {MIXED_TOKENS}; steps beyond the KV pool left out",
        ),
        cost=cost,
    )


def _steps(attention: pd.DataFrame, pool: int) -> pd.DataFrame:
    """Rows of a raw table, their seconds attention's, for what the pool and MIXED_TOKENS allow."""
    rows = []
    names = ["chunk", "prior", "decodes", "context", "seconds"]
    for chunk, prior, decodes, context, seconds in attention[names].to_numpy().tolist():
        fed = [(int(chunk), int(prior))] if chunk else []
        fed += [(1, int(context))] * int(decodes)
        shape = shape_of(fed)
        most = min(pool, MIXED_TOKENS) if chunk and decodes else pool
        if shape.tokens and shape.reach + shape.context <= most:
            rows.append(RawRow.of(shape, seconds, 0))
    return pd.DataFrame(rows, columns=list(RawRow._fields))


def _read(path: Path | str, *columns: str) -> pd.DataFrame:
    try:
        frame = pd.read_csv(path)
    except (OSError, pd.errors.ParserError, pd.errors.EmptyDataError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: cannot be read as CSV: {error}") from None
    for name in columns:
        if name not in frame:
            raise ValueError(f"{path}, line 1: column {name!r} is missing")
        if name != "layer":
            numbers = pd.to_numeric(frame[name], errors="coerce")
            if (bad := ~(numbers >= 0)).any():
                at = int(bad.to_numpy().argmax())
                value = frame[name].iloc[at]
                raise ValueError(f"{path}, line {at + 2}: {name} {value}, expected 0 or more")
    return frame
