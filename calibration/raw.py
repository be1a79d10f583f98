"""The raw table: one row per timed step, as `profile measure` writes and `profile fit` reads it.

A CSV file. Its first line is `# ` and one JSON object, the header (`RawHeader`); its second line
names the columns, which are the fields of `RawRow`; then rows, which may be appended one by one,
so an interrupted measurement goes on where it stopped. Times are seconds.

    # {"schema": 1, "device": "cpu", "model": "tiny", "dtype": "fp32", …}
    kind,prefill_tokens,chunks,decodes,area2,reach,context,table,block_size,seconds,repeat
    decode,0,0,8,0,0,4096,264,16,0.004812,0

`kind` is `decode`, `prefill` or `mixed` for a whole step, where it must agree with the shape
(a chunk has more than one token), or `host`: what the host alone spends on a step of that shape
(policy, block tables, building inputs), which the other kinds' seconds do not contain.
Rows of equal shape and block size are repeats of one point.
"""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from io import StringIO
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from calibration.step_time import StepShape

RAW_SCHEMA = 1
KINDS = ("decode", "prefill", "mixed", "host")


@dataclass(frozen=True, kw_only=True)
class RawHeader:
    """Where a raw table comes from: everything a profile states that the rows do not."""

    device: str
    """What was measured: a GPU's name of `hardware.py`, or `cpu`."""
    model: str
    dtype: str
    engine: str
    engine_version: str
    date: str
    """ISO date of the measurement."""
    machine: str
    """Processor or board, driver, and how many threads."""
    clock: str
    """What the seconds are: `cpu time`, `wall time`, `cuda events`."""
    kv_bytes_per_token: int
    pool_tokens: int
    max_model_len: int
    tp: int = 1
    threads: int | None = None
    captured: tuple[int, ...] = ()
    """Graph sizes that decode-only steps are padded to."""
    source: str = "measured by Batchlab's own profiler"
    licence: str = "Apache-2.0"
    schema: int = RAW_SCHEMA


class RawRow(NamedTuple):
    """One timed step: `StepShape` without bytes moved, and how long it took."""

    kind: str
    prefill_tokens: int
    chunks: int
    decodes: int
    area2: int
    reach: int
    context: int
    table: int
    block_size: int
    seconds: float
    repeat: int = 0

    @classmethod
    def of(
        cls, shape: StepShape, seconds: float, block_size: int, repeat: int = 0, host: bool = False
    ) -> RawRow:
        return cls(
            "host" if host else kind_of(shape), *shape[:7], block_size, float(seconds), repeat
        )


def shape_of(rows: Iterable[tuple[int, int]], block_size: int = 0) -> StepShape:
    """The sums of a step that feeds each row's (new tokens, cached tokens); one token decodes.

    `block_size` 0 leaves the block tables out.
    """
    tokens = chunks = decodes = area2 = reach = context = table = 0
    for new, cached in rows:
        if block_size:
            table += -(-(new + cached) // block_size)
        if new == 1:
            decodes += 1
            context += cached
        else:
            tokens += new
            chunks += 1
            area2 += new * (2 * cached + new)
            reach += cached + new
    return StepShape(tokens, chunks, decodes, area2, reach, context, table)


def shapes_in(rows: pd.DataFrame) -> list[StepShape]:
    """The shape of each row of a raw table."""
    return [StepShape(*row) for row in rows[list(StepShape._fields[:7])].itertuples(index=False)]


SHAPE = [name for name in RawRow._fields if name not in ("kind", "seconds", "repeat")]
"""What tells one measured point from another."""
INTEGERS = tuple(name for name in RawRow._fields if name not in ("kind", "seconds"))


def kind_of(shape: StepShape) -> str:
    """decode, prefill or mixed."""
    if shape.chunks:
        return "mixed" if shape.decodes else "prefill"
    return "decode"


@dataclass(frozen=True)
class RawTable:
    """A header and its rows (a frame with the columns of `RawRow`)."""

    header: RawHeader
    rows: pd.DataFrame


def write_raw(path: Path | str, header: RawHeader, rows: Iterable[RawRow] = ()) -> None:
    """Write header, column names and rows; an existing file is replaced."""
    with open(path, "w", encoding="utf-8", newline="") as file:
        file.write(f"# {json.dumps(asdict(header))}\n{','.join(RawRow._fields)}\n")
    append_raw(path, rows)


def append_raw(path: Path | str, rows: Iterable[RawRow]) -> None:
    """Add rows to a table that `write_raw` began."""
    with open(path, "a", encoding="utf-8", newline="") as file:
        for row in rows:
            file.write(",".join(str(value) for value in row) + "\n")


def read_raw(path: Path | str) -> RawTable:
    """Read and check a raw table; `.gz` too.

    Raises ValueError with one line naming file, line, field, value and what was expected.
    """
    path = Path(path)
    try:
        with (gzip.open if path.suffix == ".gz" else open)(path, "rt", encoding="utf-8") as file:
            text = file.read()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: cannot be read as text: {error}") from None
    head, _, body = text.partition("\n")
    header = _header(path, head)
    try:
        rows = pd.read_csv(StringIO(body))
    except (pd.errors.ParserError, pd.errors.EmptyDataError) as error:
        raise ValueError(f"{path}: not a table of steps: {error}") from None
    missing = [name for name in RawRow._fields if name not in rows]
    if missing:
        raise ValueError(f"{path}, line 2: column {missing[0]!r} is missing")
    rows = rows[list(RawRow._fields)]
    for name in (*INTEGERS, "seconds"):
        numbers = pd.to_numeric(rows[name], errors="coerce")
        positive = numbers > 0 if name == "seconds" else numbers >= 0
        bad = ~(positive & (numbers < math.inf))
        if name != "seconds":
            bad |= numbers % 1 != 0
        if bad.any():
            wanted = "seconds above 0" if name == "seconds" else "a whole number of 0 or more"
            raise ValueError(_complaint(path, rows, bad, name, wanted))
        rows = rows.assign(**{name: numbers if name == "seconds" else numbers.astype("int64")})
    bad = ~rows["kind"].isin(KINDS)
    if bad.any():
        raise ValueError(_complaint(path, rows, bad, "kind", f"one of {', '.join(KINDS)}"))
    shape = pd.Series("decode", index=rows.index)
    shape[rows["chunks"] > 0] = "prefill"
    shape[(rows["chunks"] > 0) & (rows["decodes"] > 0)] = "mixed"
    bad = (rows["kind"] != shape) & (rows["kind"] != "host")
    if bad.any():
        raise ValueError(_complaint(path, rows, bad, "kind", f"{shape[bad].iloc[0]} by its shape"))
    return RawTable(header, rows.reset_index(drop=True))


def read_text(path: Path) -> str:
    """The text of a file, unpacked where it ends in .gz. Raises ValueError in one line."""
    try:
        if path.suffix == ".gz":
            with gzip.open(path, "rt", encoding="utf-8") as file:
                return file.read()
        return path.read_text(encoding="utf-8")
    except (OSError, EOFError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ValueError(f"{path}: cannot be read as text: {reason}") from None


def _header(path: Path, line: str) -> RawHeader:
    wanted = "'# ' and a JSON object with the header of the raw table"
    if not line.startswith("#"):
        raise ValueError(f"{path}, line 1: {line[:40]!r}, expected {wanted}")
    try:
        values: Any = json.loads(line[1:])
        assert isinstance(values, dict)
    except (json.JSONDecodeError, AssertionError):
        raise ValueError(f"{path}, line 1: {line[:40]!r}, expected {wanted}") from None
    if values.get("schema") != RAW_SCHEMA:
        raise ValueError(f"{path}, line 1: schema {values.get('schema')!r}, expected {RAW_SCHEMA}")
    known = {field.name for field in fields(RawHeader)}
    if unknown := [key for key in values if key not in known]:
        raise ValueError(f"{path}, line 1: unknown field {unknown[0]!r} in the header")
    values["captured"] = tuple(values.get("captured", ()))
    try:
        return RawHeader(**values)
    except TypeError as error:
        raise ValueError(f"{path}, line 1: header incomplete: {error}") from None


def _complaint(path: Path, rows: pd.DataFrame, bad: pd.Series[bool], name: str, want: str) -> str:
    at = int(bad.to_numpy().argmax())
    value = rows[name].iloc[at]
    return f"{path}, line {at + 3}: {name} {value!s}, expected {want}"
