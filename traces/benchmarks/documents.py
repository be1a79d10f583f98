"""A result file -> its JSON documents: one, several one after the other, or one a line."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from traces.readers.source import read_text

EPOCH_S = 1e9
"""Above it a number of seconds is a date (2001 and later); below, a clock since some start."""


def documents(path: Path) -> list[Any]:
    """All documents of a file, gzipped or not. Bare NaN and Infinity, as Python's own tools
    write them, are numbers. Raises ValueError with file and line."""
    text = read_text(path)
    found = []
    decoder = json.JSONDecoder()
    at = _skip(text, 0)
    while at < len(text):
        try:
            document, at = decoder.raw_decode(text, at)
        except json.JSONDecodeError as error:
            line = text.count("\n", 0, error.pos) + 1
            cut = error.pos >= len(text.rstrip()) or error.msg.startswith("Unterminated")
            said = "ends in the middle" if cut else error.msg
            raise ValueError(
                f"{path} line {line}: not whole JSON ({said}), expected the result file of a "
                "benchmark"
            ) from None
        found.append(document)
        at = _skip(text, at)
    return found


def _skip(text: str, at: int) -> int:
    while at < len(text) and (text[at].isspace() or text[at] in ",\x1e"):
        at += 1
    return at


class Fields:
    """An object of a document, and where it stands: values come checked, errors with the place."""

    def __init__(self, values: Any, where: str) -> None:
        if not isinstance(values, dict):
            raise ValueError(f"{where}: {_short(values)}, expected an object")
        self.values = values
        self.where = where

    def get(self, *paths: str) -> Any:
        """The first value that is there, by dotted paths; None where there is none, or null."""
        for path in paths:
            at: Any = self.values
            for key in path.split("."):
                at = at.get(key) if isinstance(at, dict) else None
            if at is not None:
                return at
        return None

    def number(self, *paths: str, least: float = 0.0, scale: float = 1.0) -> float | None:
        """A finite number of at least `least`, times `scale`; None where there is none or NaN."""
        value = self.get(*paths)
        if value is None:
            return None
        return checked(value, f"{self.where}: {paths[0]}", least, scale)

    def count(self, *paths: str) -> int | None:
        """A whole number of 0 or more; None where there is none."""
        value = self.get(*paths)
        return None if value is None else counted(value, f"{self.where}: {paths[0]}")

    def text(self, *paths: str) -> str:
        value = self.get(*paths)
        return "" if value is None else str(value)

    def column(self, name: str, rows: int | None = None) -> list[Any]:
        """A list of `rows` values; empty where there is none."""
        value = self.get(name)
        if value is None:
            return []
        if not isinstance(value, list):
            raise ValueError(f"{self.where}: {name} {_short(value)}, expected a list")
        if rows is not None and len(value) != rows:
            raise ValueError(
                f"{self.where}: {name} has {len(value)} values, expected {rows}, as many as there "
                "are requests"
            )
        return value


def checked(value: Any, where: str, least: float = 0.0, scale: float = 1.0) -> float | None:
    """A number of at least `least`, times `scale`; None for NaN, as tools write for "none"."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{where} {_short(value)}, expected a number")
    if math.isnan(value):
        return None
    if value < least or math.isinf(value):
        raise ValueError(f"{where} {value}, expected a number of at least {least:g}")
    return value * scale


def counted(value: Any, where: str) -> int:
    """A whole number of 0 or more."""
    whole = isinstance(value, int | float) and not isinstance(value, bool)
    if not whole or not math.isfinite(value) or value < 0 or value != int(value):
        raise ValueError(f"{where} {_short(value)}, expected a whole number of 0 or more")
    return int(value)


def gaps(values: Any, where: str, scale: float = 1.0) -> tuple[float, ...]:
    """A list of gaps; NaN entries are refused, for then nothing after them is known."""
    if values is None:
        return ()
    if not isinstance(values, list):
        raise ValueError(f"{where} {_short(values)}, expected a list of times")
    found = []
    for at, value in enumerate(values):
        gap = checked(value, f"{where}[{at}]", 0.0, scale)
        if gap is None:
            raise ValueError(f"{where}[{at}] NaN, expected a time")
        found.append(gap)
    return tuple(found)


def one_clock(moments: Sequence[float | None], where: str) -> None:
    """Raises ValueError where some times are dates and others count from a start."""
    known = [(at, moment) for at, moment in enumerate(moments) if moment is not None]
    dates = [at for at, moment in known if moment >= EPOCH_S]
    others = [at for at, moment in known if moment < EPOCH_S]
    if dates and others:
        raise ValueError(
            f"{where}: request {others[0]} was sent at {moments[others[0]]} s and request "
            f"{dates[0]} at {moments[dates[0]]} s, expected one clock"
        )


def same_clock(moment: float | None, other: float | None) -> float | None:
    """`moment`, if it can be of the clock that `other` is of."""
    if moment is None or other is None or (moment >= EPOCH_S) != (other >= EPOCH_S):
        return None
    return moment


def _short(value: Any) -> str:
    text = json.dumps(value, default=str)
    return text if len(text) <= 40 else text[:37] + "..."
