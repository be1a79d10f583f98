"""Step logs of real engines: shape and duration per step → rows of a raw table.

Two forms, `.gz` too:

JSON   an object with `steps` (vLLM's scheduler, logged): each step has `scheduled`, a list of
       `[request, new tokens, cached tokens]`, and times in seconds: `t0`, `t3` (schedule begins,
       update ends), or `wall`, or `cpu`, or `seconds`; or with `rows` (a measured grid): each has
       `prefill` (`[[new, cached], …]`), `n_decode`, `decode_ctx` (the sum), `wall_s`, `cpu_s` and
       perhaps `sched_s`, `exec_s`, `update_s`.
       `config.block_size` gives the block tables.
CSV    columns `prefill_tokens, decodes, context` and one of `seconds`, `duration_s`,
       `duration_ms`; also `chunks, area2, reach, table` where known (else one chunk from zero
       where there is prefill).

`clock` says which time counts: `step` (default: until the next step begins, where that follows at
once, else until the update ends), `wall` or `cpu` of the forward pass alone.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

import pandas as pd

from calibration.raw import RawRow, read_text, shape_of
from calibration.step_time import StepShape

CLOCKS = ("step", "wall", "cpu")
AT_ONCE_S = 1e-3
"""A longer pause between steps is an idle engine, not part of the step."""


@dataclass(frozen=True)
class StepLog:
    """Steps as rows of a raw table, and what the log says of its engine (else None)."""

    rows: pd.DataFrame
    pool_tokens: int | None = None
    max_model_len: int | None = None


def read_step_log(path: Path | str, clock: str = "step") -> StepLog:
    """Read a log. Raises ValueError in one line."""
    path = Path(path)
    if clock not in CLOCKS:
        raise ValueError(f"clock {clock!r}, expected one of {', '.join(CLOCKS)}")
    text = read_text(path)
    config: dict[str, Any] = {}
    if text.lstrip().startswith("{"):
        try:
            log = json.loads(text)
        except json.JSONDecodeError as error:
            raise ValueError(f"{path}, line {error.lineno}: not JSON ({error.msg})") from None
        config = log.get("config", {})
        rows = list(_from_json(path, log, clock))
    else:
        rows = list(_from_csv(path, text))
    if not rows:
        raise ValueError(f"{path}: no steps")
    frame = pd.DataFrame(rows, columns=list(RawRow._fields))
    blocks, size = config.get("num_gpu_blocks"), config.get("block_size")
    # vLLM keeps its first block for itself.
    pool = (int(blocks) - 1) * int(size) if blocks and size else None
    return StepLog(frame, pool, config.get("max_model_len"))


def _from_json(path: Path, log: dict[str, Any], clock: str) -> Iterator[RawRow]:
    block_size = int(log.get("config", {}).get("block_size", 0))
    if steps := log.get("steps"):
        for i, step in enumerate(steps):
            try:
                fed = [(int(new), int(cached)) for _, new, cached in step["scheduled"]]
                follows = steps[i + 1].get("t0") if i + 1 < len(steps) else None
                seconds = _duration(step, follows, clock)
            except (KeyError, TypeError, ValueError) as error:
                raise ValueError(f"{path}: steps[{i}]: {error!r}, expected {EXPECTED}") from None
            if fed:
                yield _checked(
                    f"{path}: steps[{i}]", shape_of(fed, block_size), seconds, block_size
                )
    elif rows := log.get("rows"):
        for i, row in enumerate(rows):
            try:
                chunks = [(int(new), int(cached)) for new, cached in row["prefill"]]
                decodes, context = int(row["n_decode"]), int(row["decode_ctx"])
                seconds = _grid_duration(row, clock)
            except (KeyError, TypeError, ValueError) as error:
                raise ValueError(f"{path}: rows[{i}]: {error!r}, expected {EXPECTED}") from None
            shape = shape_of(chunks, block_size)
            shape = shape._replace(
                decodes=shape.decodes + decodes,
                context=shape.context + context,
                table=shape.table + _tables(decodes, context, block_size),
            )
            yield _checked(f"{path}: rows[{i}]", shape, seconds, block_size)
    else:
        raise ValueError(f"{path}: neither 'steps' nor 'rows', expected {EXPECTED}")


EXPECTED = "scheduled [[request, new, cached], …] with times, or prefill, n_decode, decode_ctx"


def _tables(decodes: int, context: int, block_size: int) -> int:
    """Block-table entries of `decodes` sequences of equal context."""
    return -(-(context // decodes + 1) // block_size) * decodes if decodes and block_size else 0


def _duration(step: dict[str, Any], follows: float | None, clock: str) -> float:
    if clock != "step":
        return float(step[clock])
    if "t3" not in step:
        return float(step["seconds"] if "seconds" in step else step["wall"])
    busy = follows is not None and follows - step["t3"] < AT_ONCE_S
    return float((follows if busy else step["t3"]) - step["t0"])


def _grid_duration(row: dict[str, Any], clock: str) -> float:
    whole = ("sched_s", "exec_s", "update_s")
    if clock == "step" and all(name in row for name in whole):
        return sum(float(row[name]) for name in whole)
    return float(row["cpu_s" if clock == "cpu" else "wall_s"])


def _from_csv(path: Path, text: str) -> Iterator[RawRow]:
    try:
        frame = pd.read_csv(StringIO(text), comment="#")
    except (pd.errors.ParserError, pd.errors.EmptyDataError) as error:
        raise ValueError(f"{path}: not a table of steps: {error}") from None
    units = {"seconds": 1.0, "duration_s": 1.0, "duration_ms": 1e-3}
    time = next((name for name in units if name in frame), None)
    missing = [x for x in ("prefill_tokens", "decodes", "context") if x not in frame]
    if missing or time is None:
        want = missing[0] if missing else "one of " + ", ".join(units)
        raise ValueError(f"{path}, line 1: column {want} is missing")
    for i, row in enumerate(frame.to_dict("records")):
        place = f"{path}, line {i + 2}"
        try:
            p = int(row["prefill_tokens"])
            shape = StepShape(
                p,
                int(row.get("chunks", p > 0)),
                int(row["decodes"]),
                int(row.get("area2", p * p)),
                int(row.get("reach", p)),
                int(row["context"]),
                int(row.get("table", 0)),
            )
            seconds = float(row[time]) * units[time]
        except (TypeError, ValueError) as error:
            raise ValueError(f"{place}: {error}, expected whole numbers and a time") from None
        yield _checked(place, shape, seconds, int(row.get("block_size", 0)))


def _checked(place: str, shape: StepShape, seconds: float, block_size: int) -> RawRow:
    if not 0 < seconds < 1e6:
        raise ValueError(f"{place}: duration {seconds} s, expected more than 0")
    if min(shape) < 0 or not shape.tokens or (shape.chunks > 0) != (shape.prefill_tokens > 0):
        raise ValueError(f"{place}: shape {tuple(shape)}, expected a step that feeds tokens")
    return RawRow.of(shape, seconds, block_size)
