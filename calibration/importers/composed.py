"""What every import of NVIDIA's composed step times shares: names, tables, provenance."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
from scipy.optimize import isotonic_regression

from calibration.hardware import MODELS, UTILISATION, find_gpu, find_model, pool_tokens
from calibration.profile import Cost, Errors, Measured, Parts, Profile, Table, profile_name

KEY = re.compile(
    r"(?P<gpu>.+)_(?P<engine>[a-z]+)(?P<version>[\d.]+)_(?P<model>[^_]+)_tp(?P<tp>\d+)_(?P<dtype>\w+)"
)
DTYPES = {"bfloat16": "bf16", "float16": "fp16", "fp8": "fp8"}
COMPOSED = "composed from measured kernels; host overhead and mixed-step penalty not included"
DATE = "2026"
"""The year of that release."""
SOURCE = "aiconfigurator-core 0.12.0 (NVIDIA), step times composed from its measured kernels"


@dataclass(frozen=True, kw_only=True)
class Configuration:
    """Which step times: names as in `hardware.py`."""

    gpu: str
    model: str
    dtype: str
    tp: int
    engine: str
    engine_version: str

    @classmethod
    def parse(cls, key: str) -> Configuration:
        """From `h100_sxm_vllm0.24.0_llama3.1-8b_tp1_bfloat16`. Raises ValueError in one line."""
        named = KEY.fullmatch(key)
        if not named or named["dtype"] not in DTYPES:
            raise ValueError(f"configuration {key!r}, expected GPU_ENGINEx.y.z_MODEL_tpN_DTYPE")
        return cls(
            gpu=find_gpu(named["gpu"]).name,
            model=model_of(named["model"]),
            dtype=DTYPES[named["dtype"]],
            tp=int(named["tp"]),
            engine=named["engine"],
            engine_version=named["version"],
        )

    @property
    def profile_name(self) -> str:
        return profile_name(self.gpu, self.model, self.dtype, self.tp)


def model_of(name: str) -> str:
    """The name in `hardware.py` of a model that a source calls `llama3.1-8b` or the like."""
    key = name.lower().rpartition("/")[2].removeprefix("meta-")
    return find_model(key if key in MODELS else key.replace("llama3", "llama-3")).name


def monotone(knots: list[int], seconds: np.ndarray) -> Table:
    """The nearest table that never falls, by relative least squares."""
    fitted = isotonic_regression(seconds, weights=seconds**-2.0).x
    return Table(knots=tuple(knots), seconds=tuple(float(x) for x in fitted))


def moved(**tables: tuple[Table, np.ndarray]) -> str:
    """By how much making tables monotone changed them, in words."""
    return "tables made monotone by isotonic fit: " + ", ".join(
        f"{name} moved by {abs(np.array(table.seconds) / raw - 1).max():.1%} at most"
        for name, (table, raw) in tables.items()
    )


def composed_profile(of: Configuration, cost: Cost, measured: Measured, errors: Errors) -> Profile:
    """The profile of composed step times, with the pool that follows from the hardware."""
    gpu, model = find_gpu(of.gpu), find_model(of.model)
    return Profile(
        schema=1,
        units="seconds",
        name=of.profile_name,
        device=of.gpu,
        model=of.model,
        dtype=of.dtype,
        kv_dtype="bf16",
        tp=of.tp,
        engine=of.engine,
        engine_version=of.engine_version,
        source=SOURCE,
        licence="Apache-2.0",
        date=DATE,
        machine=f"{of.tp} × {of.gpu}, measured by NVIDIA",
        kv_bytes_per_token=model.kv_bytes_per_token("bf16", of.tp),
        pool_tokens=pool_tokens(gpu, model, dtype=of.dtype, tp=of.tp),
        pool_rule=f"({UTILISATION} · memory − weights / tp − activations) / KV bytes per token",
        max_model_len=model.max_model_len,
        measured=measured,
        parts=Parts(
            host="missing",
            projections="measured",
            head="measured",
            prefill_attention="interpolated",
            decode_attention="measured",
            mixed="modelled",
        ),
        missing=("host overhead", "mixed-step penalty", "host-device transfers"),
        note=COMPOSED,
        errors=errors,
        cost=cost,
    )
