"""Raw values -> whole numbers, exactly: token counts and times in picoseconds.

Each parser answers with the numbers and a mask of the rows it could not take; what stands in a
masked row means nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal, InvalidOperation
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from traces.readers.dialects import Clock
from traces.trace import PS_PER_S, Ints

Mask = NDArray[np.bool_]

MAX_TOKENS = 10**8
"""More tokens than this in one request is taken for an error."""
MAX_PS = 9 * 10**18
"""An int64 of picoseconds ends after 107 days."""
PS = {"s": PS_PER_S, "ms": 10**9, "ns": 10**3}


def tokens(values: list[Any], least: int = 1) -> tuple[Ints, Mask]:
    """Token counts from `least` up; "12.0" is one, "12.5" and "1,024" are not."""
    numbers, bad = whole(values)
    return numbers, bad | (numbers < least) | (numbers > MAX_TOKENS)


def whole(values: list[Any]) -> tuple[Ints, Mask]:
    """Whole numbers that fit an int64."""
    fast = _fast_whole(values)
    if fast is not None:
        return fast, np.zeros(len(values), dtype=np.bool_)
    return _one_by_one(values, lambda value: _exactly(value, 0))


def seconds_or_dates(values: list[Any], clock: Clock) -> tuple[NDArray[Any], Mask]:
    """Times in picoseconds on the clock's own scale (Python ints where an int64 is too short)."""
    if clock == "wall":
        return _dates(values)
    unit = PS[clock]
    fast = _fast_whole(values)
    if fast is not None:
        small = not len(fast) or int(np.abs(fast).max()) < MAX_PS // unit
        times = fast * unit if small else fast.astype(object) * unit
        return times, np.asarray(fast < 0)
    digits = len(str(unit)) - 1
    big = np.zeros(len(values), dtype=object)
    bad = np.zeros(len(values), dtype=np.bool_)
    for row, value in enumerate(values):
        try:
            big[row] = _exactly(value, digits, round_off=True)
        except ValueError:
            bad[row] = True
    return big, bad | (big < 0).astype(np.bool_)


def _dates(values: list[Any]) -> tuple[NDArray[Any], Mask]:
    texts = pd.Series([value if isinstance(value, str) else "" for value in values], dtype=str)
    stamps = pd.to_datetime(texts.str.strip(), format="ISO8601", utc=True, errors="coerce")
    bad = stamps.isna().to_numpy()
    nanoseconds = stamps.dt.as_unit("ns").astype("int64").to_numpy()
    first = int(nanoseconds[~bad].min()) if (~bad).any() else 0
    # From the earliest row: an int64 of picoseconds is too short for the years since 1970.
    since = np.where(bad, 0, nanoseconds - first)
    far = since > MAX_PS // 1000
    return np.where(far, MAX_PS // 1000, since) * 1000, bad | far


def _fast_whole(values: list[Any]) -> Ints | None:
    kinds = {type(value) for value in values}
    if not kinds <= {int, str} or (str in kinds and "_" in "".join(map(str, values))):
        return None
    try:
        return np.array(values, dtype=object).astype(np.int64)
    except (ValueError, OverflowError):
        return None


def _one_by_one(values: list[Any], parse: Callable[[Any], int]) -> tuple[Ints, Mask]:
    numbers = np.zeros(len(values), dtype=np.int64)
    bad = np.zeros(len(values), dtype=np.bool_)
    for row, value in enumerate(values):
        try:
            numbers[row] = parse(value)
        except (ValueError, OverflowError):
            bad[row] = True
    return numbers, bad


def _exactly(value: Any, digits: int, *, round_off: bool = False) -> int:
    """A decimal times 10^digits, as a whole number; digits beyond are an error or rounded off."""
    if isinstance(value, bool) or not isinstance(value, (int, str)) or "_" in str(value):
        raise ValueError
    try:
        number = Decimal(value)
        if not number.is_finite() or abs(number.adjusted()) > 100:
            raise ValueError
        scaled = number.scaleb(digits)
        nearest = scaled.to_integral_value()
    except InvalidOperation:
        raise ValueError from None
    if nearest != scaled and not round_off:
        raise ValueError
    return int(nearest)
