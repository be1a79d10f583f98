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


def write_trace(trace: Trace, path: str | Path) -> tuple[str, ...]:
    """Write in our own dialect: CSV, or JSON lines where the name ends in .jsonl.

    Only JSON lines hold which prompts share a prefix. Answers with notes on what was left out;
    raises ValueError for another ending and OSError where the file cannot be written.
    """
    path = Path(path)
    if path.suffix == ".jsonl":
        lines = (json.dumps(row, separators=(",", ":")) for row in _rows(trace))
        with path.open("w", encoding="utf-8", newline="\n") as file:
            file.writelines(line + "\n" for line in lines)
    elif path.suffix == ".csv":
        with path.open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(_columns(trace))
            writer.writerows(row.values() for row in _rows(trace, identity=False))
        if len(trace.content_stream):
            return (f"{path.name} does not hold which prompts share a prefix; .jsonl would",)
    else:
        raise ValueError(f"{path}: expected a name that ends in .csv or .jsonl")
    return ()


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


def _rows(trace: Trace, *, identity: bool = True) -> Iterator[dict[str, Any]]:
    names = _columns(trace)
    identified = identity and len(trace.content_stream) > 0
    for request in trace.requests():
        row: dict[str, Any] = {name: getattr(request, name, None) for name in names}
        row["arrival"] = seconds_text(request.arrival)  # text: a float loses picoseconds
        if trace.labels:
            row["label"] = trace.labels[request.index]
        if identified:
            row["content"] = [[part.stream, part.start, part.tokens] for part in request.content]
        yield row
