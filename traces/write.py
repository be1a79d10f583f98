"""Trace -> a file that `read_trace` reads back as the same rows."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from traces.trace import PS_PER_S, Trace

OPTIONAL = {"declared": 0, "priority": 0, "session": -1, "after": -1}
"""Columns written only where a row differs from the neutral value."""


def write_trace(trace: Trace, path: str | Path) -> None:
    """Write in our own dialect: CSV, or JSON lines where the name ends in .jsonl.

    Only JSON lines hold the identity of prompts: CSV of a trace that has one raises ValueError.
    """
    path = Path(path)
    if path.suffix == ".jsonl":
        lines = (json.dumps(row, separators=(",", ":")) for row in _rows(trace))
        with path.open("w", encoding="utf-8", newline="\n") as file:
            file.writelines(line + "\n" for line in lines)
    elif path.suffix == ".csv":
        if len(trace.content_stream):
            raise ValueError(
                f"{path}: CSV cannot hold which prompts share a prefix; name the file .jsonl"
            )
        with path.open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(_columns(trace))
            writer.writerows(row.values() for row in _rows(trace))
    else:
        raise ValueError(f"{path}: expected a name that ends in .csv or .jsonl")


def seconds_text(ps: int) -> str:
    """Picoseconds as exact decimal seconds."""
    whole, rest = divmod(ps, PS_PER_S)
    return f"{whole}.{rest:012d}".rstrip("0").rstrip(".")


def _columns(trace: Trace) -> list[str]:
    names = [name for name, neutral in OPTIONAL.items() if (getattr(trace, name) != neutral).any()]
    if trace.tenants != ("",):
        names.append("tenant")
    if trace.labels:
        names.append("label")
    return ["arrival", "prompt", "output", *names]


def _rows(trace: Trace) -> Iterator[dict[str, Any]]:
    names = _columns(trace)
    identified = len(trace.content_stream) > 0
    for request in trace.requests():
        row: dict[str, Any] = {name: getattr(request, name, None) for name in names}
        row["arrival"] = seconds_text(request.arrival)  # text: a float loses picoseconds
        if trace.labels:
            row["label"] = trace.labels[request.index]
        if identified:
            row["content"] = [[part.stream, part.start, part.tokens] for part in request.content]
        yield row
