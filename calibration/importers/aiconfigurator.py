"""NVIDIA's aiconfigurator-core: step times composed from measured kernels → profile.

Two sources of one grid: the recorded CSV triples (`STEM_decode.csv`, `STEM_prefill.csv`,
`STEM_mixed.csv`, milliseconds; needs no wheel) and the wheel itself (`query`, an optional extra,
imported on use). Projections, element-wise kernels and communication depend on the step's tokens
alone and become g; the LM head becomes h; attention is fitted on top by prefill and decode.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from calibration.raw import RawRow, shape_of

MS = 1e-3
COLUMNS = {
    "decode": ("batch", "context", "step_ms", "attn_ms", "gemm_ms", "logits_ms"),
    "prefill": (
        "num_requests", "new_tokens_per_req", "prefix_per_req",
        "step_ms", "attn_ms", "gemm_ms", "logits_ms",
    ),
    "mixed": (
        "num_prefill", "new_tokens_per_req", "prefix_per_req",
        "num_decode", "decode_context", "step_ms",
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Grid:
    """One configuration's steps: rows of a raw table, with attention, LM head and rest apart.

    `parts` has columns attention, head, rest (seconds), one row for each decode and prefill row.
    """

    rows: pd.DataFrame
    parts: pd.DataFrame


def read_grid(stem: Path | str) -> Grid:
    """Read `STEM_decode.csv` and its two siblings. Raises ValueError in one line."""
    frames = [_frame(Path(f"{stem}_{kind}.csv"), kind) for kind in COLUMNS]
    return grid_of(*frames)


def grid_of(decode: pd.DataFrame, prefill: pd.DataFrame, mixed: pd.DataFrame) -> Grid:
    """The three tables as steps; rows of a mixed table without decodes count as prefill."""
    rows = [
        _row([(1, context)] * batch, ms)
        for batch, context, ms in _columns(decode, COLUMNS["decode"][:3])
    ]
    rows += [
        _row([(new, prior)] * requests, ms)
        for requests, new, prior, ms in _columns(prefill, COLUMNS["prefill"][:4])
    ]
    parts = pd.concat([decode, prefill], ignore_index=True)
    rows += [
        _row([(new, prior)] * requests + [(1, context)] * decodes, ms)
        for requests, new, prior, decodes, context, ms in _columns(mixed, COLUMNS["mixed"])
    ]
    attention, head = parts["attn_ms"] * MS, parts["logits_ms"] * MS
    return Grid(
        pd.DataFrame(rows, columns=list(RawRow._fields)),
        pd.DataFrame(
            {"attention": attention, "head": head, "rest": parts["step_ms"] * MS - attention - head}
        ),
    )


def _row(fed: list[tuple[int, int]], ms: float) -> RawRow:
    return RawRow.of(shape_of(fed), ms * MS, 0)


def _columns(frame: pd.DataFrame, names: tuple[str, ...]) -> zip[tuple[int, ...]]:
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
            raise ValueError(
                f"{path}, line {at + 2}: {name} {frame[name].iloc[at]}, expected 0 or more"
            )
    return frame
