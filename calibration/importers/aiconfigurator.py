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

from calibration.errors import errors_by_class, predicted_seconds
from calibration.fit import ranges
from calibration.importers.attention import fit_attention
from calibration.importers.composed import Configuration, composed_profile, monotone, moved
from calibration.profile import Errors, Profile, Table
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
    """Fit a grid and state its errors on all of it; mixed rows take no part in the fit."""
    (g, g_raw), (h, h_raw) = _tables(grid)
    rows = grid.rows
    pure = rows.iloc[: len(grid.parts)]
    attention = fit_attention(
        pure, grid.parts["attention"].to_numpy(), pure["seconds"].to_numpy(dtype=float)
    )
    cost = attention.model_copy(update={"g": g, "h": h})
    errors = Errors(
        fit=errors_by_class(rows, predicted_seconds(cost.step_time(), rows)),
        note=moved(g=(g, g_raw), h=(h, h_raw)) + "; attention fitted on decode and prefill steps",
    )
    return composed_profile(of, cost, ranges(rows), errors)


def _tables(grid: Grid) -> list[tuple[Table, np.ndarray]]:
    """g and h, monotone, with their values before."""
    fitted = grid.rows.iloc[: len(grid.parts)]
    heads = pd.DataFrame(
        {"tokens": fitted["chunks"] + fitted["decodes"], "seconds": grid.parts["head"]}
    )
    tables = []
    for frame in grid.rest, heads:
        means = frame.groupby("tokens")["seconds"].mean().sort_index()
        raw = means.to_numpy()
        tables.append((monotone([int(x) for x in means.index], raw), raw))
    return tables


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
