"""The non-negative least squares behind `fit.py`: points → `Cost`.

The form is linear in its coefficients once a table is written as a sum of rises between knots, so
one `scipy.optimize.nnls` on relative error gives coefficients ≥ 0 and tables that never fall.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Literal, cast, get_args

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.optimize import nnls

from calibration.profile import Cost, Decode, Table
from calibration.raw import SHAPE
from calibration.step_time import StepTime

Form = Literal["table", "smooth"]
Floats = NDArray[np.float64]

MIXED_POINTS = 20
"""Mixed shapes from which on they get decode coefficients of their own."""
ROWS_PER_KNOT = 3
LAST_SPAN = 1.5
"""The last two knots of g are so far apart at least: their slope prices what lies beyond."""
LEAST_SHARE = 1e-3
"""g is at least this share of the shortest step measured."""
SUM_WEIGHT = 2.0
"""The equation for a class's sum counts as so many times its points."""


def form_of(text: str) -> Form:
    """Raises ValueError where there is no such form."""
    for form in get_args(Form):
        if text == form:
            return cast(Form, form)
    raise ValueError(f"form {text!r}, expected {' or '.join(get_args(Form))}")


def knots_for(points: pd.DataFrame) -> list[int]:
    """Token counts where g bends: every one measured, thinned to three rows and 1/8 apart."""
    counts = (points["prefill_tokens"] + points["decodes"]).value_counts().sort_index()
    knots, rows = [int(counts.index[0])], 0
    for tokens, here in zip(counts.index.tolist(), counts.tolist(), strict=True):
        rows += here
        if tokens >= knots[-1] * 1.125 and rows >= ROWS_PER_KNOT:
            knots.append(tokens)
            rows = 0
    last = int(counts.index[-1])
    return [k for k in knots if k * LAST_SPAN <= last] + [last]


class _Columns:
    """The design matrix: named columns, one row a point."""

    def __init__(self, points: pd.DataFrame, captured: tuple[int, ...], mixed: bool) -> None:
        x = {name: points[name].to_numpy(dtype=float) for name in SHAPE}
        pad = StepTime(padded=captured).pad
        p, d = x["prefill_tokens"], x["decodes"]
        self.tokens = np.array([n if c else pad(int(n)) for n, c in zip(p + d, p, strict=True)])
        prefills, decodes = (p > 0).astype(float), (d > 0).astype(float)
        self.terms = {
            "p0": prefills,
            "pA": x["area2"] / 2,
            "pP": p,
            "pF": x["chunks"],
            "pH": x["reach"],
            "d0": decodes,
            "dD": d,
            "dK": x["context"],
        }
        if not (prefills * decodes).any():
            # Without mixed steps one of the three constants is the sum of the other two.
            del self.terms["p0"], self.terms["d0"]
        if mixed:
            both = prefills * decodes
            self.terms |= {"x0": both, "xD": both * d, "xK": both * x["context"]}
        if points.loc[points["table"] > 0, "block_size"].nunique() > 1:
            self.terms["tB"] = x["table"]
        self.classes = [points["kind"].to_numpy() == k for k in ("decode", "prefill", "mixed")]
        self.seconds = points["seconds"].to_numpy(dtype=float)

    def solve(self, table: Floats) -> tuple[Floats, dict[str, float], float]:
        """Rises of g (columns of `table`), the terms, and the residual of the fit."""
        matrix = np.column_stack([table, *self.terms.values()])
        relative = matrix / self.seconds[:, None]
        sums = [c for c in self.classes if c.any()]
        weights = [np.sqrt(SUM_WEIGHT * c.sum()) for c in sums]
        heavy = [
            w * matrix[c].sum(axis=0) / self.seconds[c].sum()
            for w, c in zip(weights, sums, strict=True)
        ]
        system = np.vstack([relative, *heavy])
        target = np.r_[np.ones(len(relative)), weights]
        scale = np.linalg.norm(system, axis=0)
        scale[scale == 0] = 1.0
        solution, residual = nnls(system / scale, target, maxiter=50 * system.shape[1])
        solution = solution / scale
        # No step is free, not even one smaller than any measured.
        solution[0] = max(solution[0], LEAST_SHARE * self.seconds.min())
        solution *= self.seconds.sum() / (matrix @ solution).sum()
        rises, terms = solution[: table.shape[1]], solution[table.shape[1] :]
        return rises, dict(zip(self.terms, map(float, terms), strict=True)), float(residual)


def solve(points: pd.DataFrame, form: Form, captured: tuple[int, ...]) -> Cost:
    both = points[points["kind"] == "mixed"]
    mixed = len(both) >= MIXED_POINTS and both["decodes"].nunique() >= 3
    columns = _Columns(points, captured, mixed)
    if form == "table":
        knots = knots_for(points)
        rises, terms, _ = columns.solve(_hats(columns.tokens, knots))
        g = Table(knots=tuple(knots), seconds=tuple(float(x) for x in np.cumsum(rises)))
    else:
        g, terms = _smooth(columns)
    terms = dict.fromkeys(("p0", "pA", "pP", "pF", "pH", "d0", "dD", "dK", "tB"), 0.0) | terms
    decode = Decode(d0=terms["d0"], dD=terms["dD"], dK=terms["dK"])
    return Cost(
        g=g,
        tB=terms["tB"],
        p0=terms["p0"],
        pA=terms["pA"],
        pP=terms["pP"],
        pF=terms["pF"],
        pH=terms["pH"],
        decode=decode,
        mixed=Decode(
            d0=decode.d0 + terms["x0"], dD=decode.dD + terms["xD"], dK=decode.dK + terms["xK"]
        )
        if mixed
        else None,
        captured=captured,
    )


def _hats(tokens: Floats, knots: list[int]) -> Floats:
    """How much of each rise between knots a step of `tokens` pays; the last goes on beyond."""
    columns = [np.ones(len(tokens))]
    for low, high in pairwise(knots):
        top = np.inf if high == knots[-1] else 1.0
        columns.append(np.clip((tokens - low) / (high - low), 0.0, top))
    return np.column_stack(columns)


def _smooth(columns: _Columns) -> tuple[Table, dict[str, float]]:
    most = float(columns.tokens.max())
    tried = [
        (columns.solve(_bend(columns.tokens, n0, r)[:, None]), n0, r)
        for n0 in np.geomspace(1, 4 * most, 25)
        for r in (1, 1.5, 2, 3, 5, 8)
    ]
    (rises, terms, _), n0, r = min(tried, key=lambda one: one[0][2])
    knots = sorted({round(x) for x in np.geomspace(1, max(2.0, 4 * most), 60)})
    seconds = rises[0] * _bend(np.array(knots, dtype=float), n0, r)
    return Table(knots=tuple(knots), seconds=tuple(float(x) for x in seconds)), terms


def _bend(tokens: Floats, n0: float, r: float) -> Floats:
    """(n0^r + N^r)^(1/r): flat up to n0, then proportional; a larger r bends more sharply."""
    logs = np.logaddexp(r * np.log(n0), r * np.log(tokens)) / r
    bent: Floats = np.exp(logs)
    return bent
