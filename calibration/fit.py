"""Measured steps → a cost curve, with its error on steps it has not seen.

Repeats become medians; `solve.py` fits them. Two corrections go in there:

- the sum: relative least squares lands below the mean, and queueing amplifies. One heavy equation
  a class asks that its predictions sum to its measurements; a last scaling makes the whole exact.
- mixed steps: where enough were measured, the second decode triple is the first plus rises ≥ 0,
  so a mixed step never costs less than its decodes alone (captured graph sizes aside).

With few steps (`smooth`) g is c·(n0^r + N^r)^(1/r) written out as a table, n0 and r by search.
The LM head's h is left to importers of per-layer times: in whole steps it is one with g and the
per-sequence terms.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from scipy.optimize import nnls

from calibration.errors import errors_by_class, predicted_seconds
from calibration.profile import ClassErrors, Cost, Errors, Measured, Parts, Profile
from calibration.raw import SHAPE, RawHeader
from calibration.solve import Form, solve

TABLE_POINTS = {"decode": 20, "prefill": 70}
"""Distinct shapes without and with prefill from which on g is a table."""
LEAST_POINTS = 20
ENGINE_CLOCK = "engine steps"
"""The clock of a log whose times run from step to step, so the host is in them."""
FOLDS = 5
LARGEST = 0.2
"""Share of each class held out as its largest steps."""


@dataclass(frozen=True, kw_only=True)
class Fitted:
    """A cost form and how far to trust it."""

    cost: Cost
    form: Form
    errors: Errors
    measured: Measured
    steps: int
    points: int
    """Distinct shapes among the steps."""


def fit_steps(
    rows: pd.DataFrame, *, form: Form | None = None, captured: tuple[int, ...] = (), seed: int = 0
) -> Fitted:
    """Fit rows of a raw table; `form` is chosen by the number of points unless given.

    Raises ValueError, in words, where the rows cannot support a fit.
    """
    host = rows[rows["kind"] == "host"]
    points = one_a_shape(rows[rows["kind"] != "host"])
    check_support(points)
    form = form or form_for(points)
    device = solve(points, form, captured)
    predicted = predicted_seconds(device.step_time(), points)
    errors = Errors(
        fit=errors_by_class(points, predicted),
        held_out_random=_held_out_random(points, form, captured, seed),
        held_out_largest=_held_out_largest(points, predicted, form, captured),
        note=f"{len(points)} shapes in {len(rows) - len(host)} steps; random: {FOLDS} folds; "
        f"largest: the dearest {LARGEST:.0%} of each class, fitted on the rest",
    )
    return Fitted(
        cost=_with_host(device, host),
        form=form,
        errors=errors,
        measured=ranges(points),
        steps=len(rows) - len(host),
        points=len(points),
    )


def fitted_profile(
    header: RawHeader, fitted: Fitted, name: str, *, pool_rule: str = "recorded", note: str = ""
) -> Profile:
    """The profile of a fit: what the header states, and what the steps support."""
    cost = fitted.cost
    host = cost.t0 + cost.tS + cost.tB > 0 or header.clock == ENGINE_CLOCK
    mixed = cost.mixed is not None or fitted.errors.fit.mixed is not None
    absent = {"host overhead": not host, "mixed steps": not mixed, "host-device transfers": True}
    return Profile(
        schema=1,
        units="seconds",
        name=name,
        device=header.device,
        model=header.model,
        dtype=header.dtype,
        kv_dtype=header.dtype,
        tp=header.tp,
        engine=header.engine,
        engine_version=header.engine_version,
        source=header.source,
        licence=header.licence,
        date=header.date,
        machine=f"{header.machine}; {header.clock}"
        + (f", {header.threads} threads" if header.threads else ""),
        form=fitted.form,
        kv_bytes_per_token=header.kv_bytes_per_token,
        pool_tokens=header.pool_tokens,
        pool_rule=pool_rule,
        max_model_len=header.max_model_len,
        measured=fitted.measured,
        parts=Parts(
            host="measured" if host else "missing",
            projections="measured",
            head="measured",
            prefill_attention="measured",
            decode_attention="measured",
            mixed="measured" if mixed else "modelled",
        ),
        missing=tuple(what for what, is_absent in absent.items() if is_absent),
        note=note,
        errors=fitted.errors,
        cost=cost,
    )


def form_for(points: pd.DataFrame) -> Form:
    """A table where there is enough for its knots, else the smooth form."""
    prefills = int((points["chunks"] > 0).sum())
    enough = (
        len(points) - prefills >= TABLE_POINTS["decode"] and prefills >= TABLE_POINTS["prefill"]
    )
    return "table" if enough else "smooth"


def one_a_shape(rows: pd.DataFrame) -> pd.DataFrame:
    """The median over a shape's repeats.

    The mean in a log without repeats: there, outliers are part of the time that passed.
    """
    grouped = rows.groupby(["kind", *SHAPE], sort=False)["seconds"]
    return (grouped.median() if rows["repeat"].any() else grouped.mean()).reset_index()


def check_support(points: pd.DataFrame) -> None:
    """Raises ValueError that says what is missing."""
    if len(points) < LEAST_POINTS:
        raise ValueError(
            f"{len(points)} distinct step shapes cannot support a fit, expected {LEAST_POINTS} or "
            "more"
        )
    varied = {
        "decode": ("decodes", "context"),
        "prefill": ("prefill_tokens",),
    }
    with_kind = {
        "decode": points[points["kind"] == "decode"],
        "prefill": points[points["chunks"] > 0],
    }
    for kind, columns in varied.items():
        some = with_kind[kind]
        if some.empty:
            raise ValueError(f"no {kind} steps: what they cost cannot be fitted from the others")
        for name in columns:
            if some[name].nunique() < 2:
                raise ValueError(
                    f"{name} is {some[name].iloc[0]} in every {kind} step: its cost cannot be told "
                    "from the step's own; measure at least two values"
                )


def ranges(points: pd.DataFrame) -> Measured:
    """Lowest and highest of what a profile states as measured."""
    chunked = points[points["chunks"] > 0]
    decoding = points[points["decodes"] > 0]
    longest = [
        *(decoding["context"] / decoding["decodes"] + 1),
        *(chunked["reach"] / chunked["chunks"]),
    ]
    blocks = points.loc[points["block_size"] > 0, "block_size"]

    def span(values: Any) -> tuple[int, int]:
        return int(min(values)), int(max(values))

    return Measured(
        tokens=span(points["prefill_tokens"] + points["decodes"]),
        sequences=span(points["chunks"] + points["decodes"]),
        decode_context=span(decoding["context"]),
        attended=span(chunked["area2"] // 2),
        context=span(longest),
        block_size=span(blocks) if len(blocks) else None,
    )


def _with_host(cost: Cost, host: pd.DataFrame) -> Cost:
    """Add what the host was timed to spend: t0 + tS·S + tB·B."""
    if host.empty:
        return cost
    points = one_a_shape(host)
    sequences = points["chunks"] + points["decodes"]
    matrix = np.column_stack([np.ones(len(points)), sequences, points["table"]])
    seconds = points["seconds"].to_numpy(dtype=float)
    terms, _ = nnls(matrix / seconds[:, None], np.ones(len(points)))
    t0, tS, tB = map(float, terms)
    return cost.model_copy(update={"t0": t0, "tS": tS, "tB": cost.tB + tB})


def _held_out_random(
    points: pd.DataFrame, form: Form, captured: tuple[int, ...], seed: int
) -> ClassErrors:
    """Each fold priced by a fit on the others."""
    fold = np.random.default_rng(seed).permutation(len(points)) % FOLDS
    predicted = np.empty(len(points))
    for k in range(FOLDS):
        step_time = solve(points[fold != k], form, captured).step_time()
        predicted[fold == k] = predicted_seconds(step_time, points[fold == k])
    return errors_by_class(points, predicted)


def _held_out_largest(
    points: pd.DataFrame, size: np.ndarray, form: Form, captured: tuple[int, ...]
) -> ClassErrors | None:
    """The largest steps of each class (by predicted time, so that noise does not choose them),
    priced by a fit on the rest; None where too few are left."""
    rank = pd.Series(size, index=points.index).groupby(points["kind"]).rank(pct=True)
    large = (rank > 1 - LARGEST).to_numpy()
    rest = points[~large]
    try:
        check_support(rest)
    except ValueError:
        return None
    step_time = solve(rest, form, captured).step_time()
    return errors_by_class(points[large], predicted_seconds(step_time, points[large]))
