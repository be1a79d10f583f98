"""NVIDIA's aiconfigurator-core: step times composed from measured kernels → profile.

One grid, two sources: recorded CSV triples (`STEM_decode.csv`, `STEM_prefill.csv`,
`STEM_mixed.csv`, milliseconds; need no wheel) and the wheel (`aiconfigurator_wheel.py`).
Projections, element-wise kernels and communication depend on the step's tokens alone and become
g, the LM head h; attention is fitted on top (`attention.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.optimize import isotonic_regression

from calibration.errors import errors_by_class, predicted_seconds
from calibration.fit import ranges
from calibration.importers.attention import fit_attention
from calibration.importers.composed import Configuration, composed_profile, monotone, moved
from calibration.profile import Cost, Errors, Profile, Table
from calibration.raw import RawRow, shape_of

MS = 1e-3
COLUMNS = {
    "decode": ("batch", "context", "step_ms", "attn_ms", "logits_ms"),
    "prefill": (
        "num_requests", "new_tokens_per_req", "prefix_per_req", "step_ms", "attn_ms", "logits_ms",
    ),
    "mixed": (
        "num_prefill", "new_tokens_per_req", "prefix_per_req", "num_decode", "decode_context",
        "step_ms",
    ),
}  # fmt: skip


ATTENTION_SHARE = 0.15
"""Share of a mixed step up to which its attention leaves its projections readable."""
MEASURED_WEIGHT = 20.0
"""How much a token count of the source's own grid counts against one read off a mixed step."""
BEND = 0.015
MOST_KNOTS = 80


@dataclass(frozen=True)
class Grid:
    """One configuration's steps: rows of a raw table, decode and prefill before mixed.

    `parts` splits the decode and prefill rows into attention, head and rest (seconds);
    `rest` is that rest by tokens of a step, finer where the source allows.
    """

    rows: pd.DataFrame
    parts: pd.DataFrame
    rest: pd.DataFrame


def read_grid(stem: Path | str) -> Grid:
    """Read `STEM_decode.csv` and its two siblings. Raises ValueError in one line."""
    decode, prefill, mixed = (_frame(Path(f"{stem}_{kind}.csv"), kind) for kind in COLUMNS)
    return grid_of(decode, prefill, mixed)


def grid_of(decode: pd.DataFrame, prefill: pd.DataFrame, mixed: pd.DataFrame) -> Grid:
    """The three tables as steps; a mixed row without decodes is a prefill."""
    steps = [
        ([(1, context)] * batch, ms) for batch, context, ms in _columns(decode, "decode", "step_ms")
    ]
    steps += [
        ([(new, prior)] * requests, ms)
        for requests, new, prior, ms in _columns(prefill, "prefill", "step_ms")
    ]
    steps += [
        ([(new, prior)] * requests + [(1, context)] * decodes, ms)
        for requests, new, prior, decodes, context, ms in _columns(mixed, "mixed", "step_ms")
    ]
    rows = pd.DataFrame(
        [RawRow.of(shape_of(fed), ms * MS, 0) for fed, ms in steps], columns=list(RawRow._fields)
    )
    parts = pd.concat([decode, prefill], ignore_index=True)
    attention, head = parts["attn_ms"] * MS, parts["logits_ms"] * MS
    rest = parts["step_ms"] * MS - attention - head
    tokens = (rows["prefill_tokens"] + rows["decodes"]).iloc[: len(parts)]
    return Grid(
        rows,
        pd.DataFrame({"attention": attention, "head": head, "rest": rest}),
        pd.DataFrame({"tokens": tokens, "seconds": rest}),
    )


def grid_profile(grid: Grid, of: Configuration) -> Profile:
    """Fit a grid and state its errors on all of it."""
    rows, pure = grid.rows, grid.rows.iloc[: len(grid.parts)]
    attention = fit_attention(
        pure, grid.parts["attention"].to_numpy(), pure["seconds"].to_numpy(dtype=float)
    )
    heads = grid.parts["head"].groupby(pure["chunks"] + pure["decodes"]).mean().sort_index()
    h_raw = heads.to_numpy()
    h = monotone([int(sequences) for sequences in heads.index], h_raw)
    g, g_raw = _projections(grid, attention.model_copy(update={"h": h}))
    cost = attention.model_copy(update={"g": g, "h": h})
    errors = Errors(
        fit=errors_by_class(rows, predicted_seconds(cost.step_time(), rows)),
        note=moved(g=(g, g_raw), h=(h, h_raw)) + "; attention fitted on decode and prefill steps, "
        "g also on mixed steps with little attention",
    )
    return composed_profile(of, cost, ranges(rows), errors)


def _projections(grid: Grid, others: Cost) -> tuple[Table, np.ndarray]:
    """g, and its values before they were made monotone.

    Kernels jump just past tile edges, which a coarse grid does not show: what attention and head
    leave of mixed steps fills the gaps where that is most of the step.
    """
    mixed = grid.rows.iloc[len(grid.parts) :]
    apart = predicted_seconds(others.step_time(), mixed)
    clear = apart < ATTENTION_SHARE * mixed["seconds"]
    filling = pd.DataFrame(
        {
            "tokens": (mixed["prefill_tokens"] + mixed["decodes"])[clear],
            "seconds": (mixed["seconds"] - apart)[clear],
            "weight": 1.0,
        }
    )
    points = pd.concat([grid.rest.assign(weight=MEASURED_WEIGHT), filling])
    points["product"] = points["seconds"] * points["weight"]
    sums = points.groupby("tokens")[["product", "weight"]].sum().sort_index()
    tokens, weight = sums.index.to_numpy(dtype=int), sums["weight"].to_numpy()
    raw = sums["product"].to_numpy() / weight
    seconds = isotonic_regression(raw, weights=weight / raw**2).x
    knots = _bends(tokens, seconds)
    table = Table(
        knots=tuple(int(n) for n in tokens[knots]),
        seconds=tuple(float(s) for s in seconds[knots]),
    )
    return table, raw[knots]


def _bends(x: np.ndarray, y: np.ndarray) -> list[int]:
    """The fewest points, by greed, whose polyline stays within BEND of all."""
    kept = [0, len(x) - 1]
    while len(kept) < MOST_KNOTS:
        off = np.abs(np.interp(x, x[kept], y[kept]) / y - 1)
        if off.max() < BEND:
            break
        kept = sorted({*kept, int(off.argmax())})
    return kept


def _columns(frame: pd.DataFrame, kind: str, last: str) -> zip[tuple[int, ...]]:
    names = COLUMNS[kind][: COLUMNS[kind].index(last) + 1]
    return zip(*(frame[name].tolist() for name in names), strict=True)


def _frame(path: Path, kind: str) -> pd.DataFrame:
    try:
        frame = pd.read_csv(path)
    except (OSError, pd.errors.ParserError, pd.errors.EmptyDataError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: cannot be read as CSV: {error}") from None
    for name in COLUMNS[kind]:
        if name not in frame:
            raise ValueError(f"{path}, line 1: column {name!r} is missing")
        numbers = pd.to_numeric(frame[name], errors="coerce")
        if (bad := ~(numbers >= 0)).any():
            at = int(bad.to_numpy().argmax())
            value = frame[name].iloc[at]
            raise ValueError(f"{path}, line {at + 2}: {name} {value}, expected 0 or more")
    return frame
