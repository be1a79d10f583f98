"""Text -> columns of raw values with their places: CSV in any of its manners, JSON lines, JSON."""

from __future__ import annotations

import csv
import io
import json
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

csv.field_size_limit(1 << 30)


@dataclass(frozen=True, kw_only=True)
class Table:
    """Rows of a file. Values are text (CSV) or what JSON says, with every decimal as text."""

    path: Path
    keys: tuple[str, ...]
    """Names of the columns, as the file has them."""
    rows: int
    column: Callable[[str], list[Any]]
    """The values of a column, by its name in the file; None where a row lacks it."""
    place: Callable[[int], str]
    """Where a row is, for people: "line 7"."""

    def has(self, name: str) -> bool:
        """Whether there is a column of this name."""
        return fold(name) in map(fold, self.keys)


def read_table(path: Path, text: str) -> Table:
    """Tell CSV, JSON lines and a JSON list apart, and read the rows.

    Raises ValueError with the line where the text is broken.
    """
    start = text.lstrip()[:1]
    if start == "[":
        return _json_list(path, text)
    return _json_lines(path, text) if start == "{" else _csv(path, text)


def fold(key: str) -> str:
    """A column's name as it is compared: without regard to case and space around it."""
    return key.strip().casefold()


def cut(text: str, most: int = 80) -> str:
    """What a message quotes of a file that may be anything."""
    return text if len(text) <= most else f"{text[:most]}…"


def _csv(path: Path, text: str) -> Table:
    _, header = next(_csv_rows(text, separator := _separator(text)))
    keys = tuple(name.strip() for name in header)
    names = _names(path, keys)
    frame = _frame(text, separator, len(keys))
    if frame is None:
        # Something is uneven: the plain reader finds out what, and on which line.
        columns: list[list[str]] = [[] for _ in keys]
        rows = _csv_rows(text, separator)
        next(rows)
        for line, row in rows:
            if len(row) != len(keys) and any(field.strip() for field in row[len(keys) :]):
                raise ValueError(f"{path} line {line}: {len(row)} fields, expected {len(keys)}")
            if len(row) < len(keys):
                raise ValueError(
                    f"{path} line {line}: {len(row)} fields, expected {len(keys)} "
                    f"({keys[len(row)]} is missing)"
                )
            for values, field in zip(columns, row, strict=False):
                values.append(field)
        count = len(columns[0])
    else:
        count = len(frame)

    def column(name: str) -> list[Any]:
        at = keys.index(names[fold(name)])
        return columns[at] if frame is None else frame.iloc[:, at].tolist()

    def place(row: int) -> str:
        rows = _csv_rows(text, separator)
        next(rows)
        return f"line {next(line for number, (line, _) in enumerate(rows) if number == row)}"

    return Table(path=path, keys=keys, rows=count, column=column, place=place)


def _names(path: Path, keys: tuple[str, ...]) -> dict[str, str]:
    """Columns by the name they are compared by. Raises ValueError where two have the same."""
    names: dict[str, str] = {}
    for key in keys:
        if fold(key) in names and fold(key):
            raise ValueError(f"{path}: two columns are called {cut(key)}")
        names[fold(key)] = key
    return names


def _separator(text: str) -> str:
    header = next(line for line in text.splitlines() if line.strip())
    return max(",;\t", key=header.count)


def _csv_rows(text: str, separator: str) -> Iterator[tuple[int, list[str]]]:
    """Rows that are not blank, each with the line on which it begins."""
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator)
    line = 1
    for row in reader:
        if any(field.strip() for field in row):
            yield line, row
        line = reader.line_num + 1


def _frame(text: str, separator: str, width: int) -> pd.DataFrame | None:
    """The rows by pandas' fast reader, all as text; None where it might not see what we do."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", pd.errors.ParserWarning)
        try:
            frame = pd.read_csv(
                io.StringIO(text), sep=separator, dtype=str, na_filter=False, index_col=False
            )
        except (pd.errors.ParserError, pd.errors.ParserWarning, pd.errors.EmptyDataError):
            return None
    # A short or blank row ends in "", which the plain reader must judge.
    if frame.shape[1] != width or (len(frame) and (frame.iloc[:, -1] == "").any()):
        return None
    return frame


def _json_lines(path: Path, text: str) -> Table:
    entries: list[dict[str, Any]] = []
    lines: list[int] = []
    for line, entry in enumerate(text.split("\n"), 1):
        if not entry.strip():
            continue
        try:
            value = json.loads(entry, parse_float=str, parse_constant=str)
        except json.JSONDecodeError as error:
            if not entries and _is_document(text):
                raise _document(path) from None
            raise ValueError(
                f"{path} line {line}: broken JSON at column {error.colno} ({error.msg})"
            ) from None
        if not isinstance(value, dict):
            raise ValueError(f"{path} line {line}: expected a JSON object")
        entries.append(value)
        lines.append(line)
    return _entries(path, entries, lambda row: f"line {lines[row]}")


def _json_list(path: Path, text: str) -> Table:
    try:
        entries = json.loads(text, parse_float=str, parse_constant=str)
    except json.JSONDecodeError as error:
        raise ValueError(
            f"{path} line {error.lineno}: broken JSON at column {error.colno} ({error.msg})"
        ) from None
    for number, entry in enumerate(entries, 1):
        if not isinstance(entry, dict):
            raise ValueError(f"{path} entry {number}: expected a JSON object")
    return _entries(path, entries, lambda row: f"entry {row + 1}")


def _entries(path: Path, entries: list[dict[str, Any]], place: Callable[[int], str]) -> Table:
    keys = tuple(dict.fromkeys(key for entry in entries for key in entry))
    names = _names(path, keys)

    def column(name: str) -> list[Any]:
        key = names.get(fold(name), name)
        return [entry.get(key) for entry in entries]

    return Table(path=path, keys=keys, rows=len(entries), column=column, place=place)


def _is_document(text: str) -> bool:
    try:
        json.loads(text)
    except json.JSONDecodeError:
        return False
    return True


def _document(path: Path) -> ValueError:
    return ValueError(
        f"{path}: one JSON document, expected rows: one JSON object a line, or a list of them"
    )
