"""Attention times apart from the rest of a step → the prefill and decode coefficients.

For sources that give attention alone: g and h are read off their tables, so nothing is ambiguous.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from scipy.optimize import nnls

from calibration.profile import Cost, Decode

CACHE_HOT_TOKENS = 16384
"""Cached tokens of a step below which a decode benchmark finds them in the GPU's cache.

In an engine the other layers have driven them out: fit above, let the line speak below.
"""
SUM_WEIGHT = 2.0
"""The equation for a class's sum counts as so many times its points."""


def fit_attention(rows: pd.DataFrame, attention: np.ndarray, step: np.ndarray) -> Cost:
    """Coefficients ≥ 0 with the least error relative to the whole `step` (seconds, as attention).

    Each class (`kind` of a raw table) weighs the same and is asked for an unbiased sum. Decode
    rows within the cache are left out. Mixed rows give a second decode triple, never below the
    first.
    """
    hot = (rows["kind"] == "decode") & (rows["context"] < CACHE_HOT_TOKENS)
    rows, attention, step = rows[~hot], attention[~hot], step[~hot]
    x = {name: rows[name].to_numpy(dtype=float) for name in rows.columns if name != "kind"}
    prefill, decode = (x["chunks"] > 0) * 1.0, (x["decodes"] > 0) * 1.0
    both = prefill * decode
    terms = {
        "p0": prefill,
        "pA": x["area2"] / 2,
        "pP": x["prefill_tokens"],
        "pF": x["chunks"],
        "pH": x["reach"],
        "d0": decode,
        "dD": x["decodes"],
        "dK": x["context"],
    }
    if both.any():
        terms |= {"x0": both, "xD": both * x["decodes"], "xK": both * x["context"]}
    if x["chunks"].max() < 2:
        del terms["pF"]  # one with p0: a launch a step, not a chunk
    matrix = np.column_stack(list(terms.values()))
    system, target = [], []
    for kind in ("decode", "prefill", "mixed"):
        own = (rows["kind"] == kind).to_numpy()
        if own.any():
            share = 1 / np.sqrt(own.sum())
            heavy = np.sqrt(SUM_WEIGHT) / step[own].sum()
            system += [matrix[own] * (share / step[own, None]), heavy * matrix[own].sum(0)[None]]
            target += [attention[own] * share / step[own], [heavy * attention[own].sum()]]
    stacked = np.vstack(system)
    scale = np.linalg.norm(stacked, axis=0)
    scale[scale == 0] = 1.0
    solution, _ = nnls(stacked / scale, np.concatenate(target), maxiter=1000)
    found = dict.fromkeys(("pF", "x0", "xD", "xK"), 0.0)
    found |= dict(zip(terms, map(float, solution / scale), strict=True))
    first = Decode(d0=found["d0"], dD=found["dD"], dK=found["dK"])
    second = Decode(d0=first.d0 + found["x0"], dD=first.dD + found["xD"], dK=first.dK + found["xK"])
    return Cost(
        p0=found["p0"],
        pA=found["pA"],
        pP=found["pP"],
        pF=found["pF"],
        pH=found["pH"],
        decode=first,
        mixed=second if both.any() else None,
    )
