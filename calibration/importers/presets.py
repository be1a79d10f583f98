"""`presets.json`: the cost form fitted to aiconfigurator-core's grids → the profiles that ship.

`batchlab profile import presets FILE -o DIR` makes `calibration/profiles/*.json` again. The
recorded tables dip in places; here they are made monotone by an isotonic fit, and errors restated
on the recorded grids (`aiconfigurator/` beside the file) where the configuration has one, else
the preset's own with the change of the tables named.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import isotonic_regression

from calibration.errors import errors_by_class, predicted_seconds
from calibration.hardware import MODELS, UTILISATION, find_gpu, find_model, pool_tokens
from calibration.importers.aiconfigurator import read_grid
from calibration.profile import (
    ClassErrors,
    Cost,
    Decode,
    Error,
    Errors,
    Measured,
    Parts,
    Profile,
    ProfileError,
    Table,
)

KEY = re.compile(
    r"(?P<gpu>.+)_(?P<engine>[a-z]+)(?P<version>[\d.]+)_(?P<model>[^_]+)_tp(?P<tp>\d+)_(?P<dtype>\w+)"
)
DTYPES = {"bfloat16": "bf16", "float16": "fp16", "fp8": "fp8"}
COMPOSED = "composed from measured kernels; host overhead and mixed-step penalty not included"
SOURCE = "aiconfigurator-core 0.12.0 (NVIDIA), step times composed from its measured kernels"
GRID_CONTEXT = 65536
"""The recorded prefill grids reach 32,768 new tokens on 32,768 cached ones."""


def read_presets(path: Path | str) -> list[Profile]:
    """One profile for each configuration in the file. Raises ProfileError in one line."""
    path = Path(path)
    try:
        presets = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ProfileError(f"{path}: cannot be read as JSON: {error}") from None
    if not isinstance(presets, dict) or not presets:
        raise ProfileError(f"{path}: expected a JSON object of presets by name")
    try:
        return [_profile(key, preset, path.parent) for key, preset in presets.items()]
    except (KeyError, TypeError) as error:
        raise ProfileError(f"{path}: not a preset file: {error!r}") from None


def profile_name(gpu: str, model: str, dtype: str, tp: int = 1) -> str:
    """`<gpu>_<model>_<dtype>[_tp<n>]`, with the model in the short form `llama3.1-8b`."""
    short = model.replace("llama-", "llama")
    return f"{gpu}_{short}_{dtype}" + (f"_tp{tp}" if tp > 1 else "")


def monotone(knots: list[int], seconds: np.ndarray) -> Table:
    """The nearest table that never falls, by relative least squares."""
    fitted = isotonic_regression(seconds, weights=seconds**-2.0).x
    return Table(knots=tuple(knots), seconds=tuple(float(x) for x in fitted))


def model_of(short: str) -> str:
    """The name in `hardware.py` of a source's model name."""
    return find_model(short if short in MODELS else short.replace("llama3", "llama-3")).name


def _profile(key: str, preset: dict[str, Any], folder: Path) -> Profile:
    named = KEY.fullmatch(key)
    if not named:
        raise ProfileError(f"preset {key!r}, expected GPU_ENGINEx.y.z_MODEL_tpN_DTYPE")
    if preset["units"] != "ms":
        raise ProfileError(f"preset {key!r}: units {preset['units']!r}, expected 'ms'")
    gpu = find_gpu(named["gpu"])
    model = find_model(model_of(named["model"]))
    tp, dtype = int(named["tp"]), DTYPES[named["dtype"]]
    p, d = preset["prefill"], preset["decode"]
    raw = {name: np.array(preset[name]["ms"]) * 1e-3 for name in ("g", "h")}
    g, h = monotone(preset["g"]["N"], raw["g"]), monotone(preset["h"]["S"], raw["h"])
    cost = Cost(
        g=g,
        h=h,
        p0=p["p0"] * 1e-3,
        pA=p["pA"] * 1e-3,
        pP=p["pP"] * 1e-3,
        pF=p["pChunk"] * 1e-3,
        decode=Decode(d0=d["d0"] * 1e-3, dD=d["dD"] * 1e-3, dK=d["dK"] * 1e-3),
    )
    moved = "tables made monotone by isotonic fit: " + ", ".join(
        f"{name} moved by {abs(np.array(table.seconds) / raw[name] - 1).max():.1%} at most"
        for name, table in (("g", g), ("h", h))
    )
    stem = folder / "aiconfigurator" / key
    if Path(f"{stem}_decode.csv").exists():
        rows = read_grid(stem).rows
        fit = errors_by_class(rows, predicted_seconds(cost.step_time(), rows))
        note = f"{moved}; errors of the monotone form on the recorded grids of this configuration"
    else:
        own = preset["fit"]
        fit = ClassErrors(
            all=Error(
                mape=own["mape"] / 100,
                p95=own["p95"] / 100,
                max=own["mx"] / 100,
                bias=own["bias"] / 100,
            ),
            decode=Error(mape=own["dec"] / 100),
        )
        note = f"{moved}; errors as the preset states them, before that change"
    tokens, sequences = preset["g"]["N"], preset["h"]["S"]
    return Profile(
        schema=1,
        units="seconds",
        name=profile_name(gpu.name, model.name, dtype, tp),
        device=gpu.name,
        model=model.name,
        dtype=dtype,
        kv_dtype="bf16",
        tp=tp,
        engine=named["engine"],
        engine_version=named["version"],
        source=SOURCE,
        licence="Apache-2.0",
        date="2026",
        machine=f"{tp} × {gpu.name}, NVIDIA's measurements",
        kv_bytes_per_token=model.kv_bytes_per_token("bf16", tp),
        pool_tokens=pool_tokens(gpu, model, dtype=dtype, tp=tp),
        pool_rule=f"({UTILISATION} · memory − weights / tp − activations) / KV bytes per token",
        max_model_len=model.max_model_len,
        measured=Measured(
            tokens=(tokens[0], tokens[-1]),
            sequences=(sequences[0], sequences[-1]),
            context=(1, GRID_CONTEXT),
        ),
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
        errors=Errors(fit=fit, note=note),
        cost=cost,
    )
