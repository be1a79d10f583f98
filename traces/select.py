"""Parts and variations of a trace: pure functions from Trace to Trace."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction
from typing import Any, Literal

import numpy as np

from traces.arrivals import FASTEST
from traces.trace import PS_PER_S, Ints, Trace, to_ps


def select(trace: Trace, rows: Ints) -> Trace:
    """The given rows in the given order, with everything that names a row renamed.

    Raises ValueError where a row is kept and the row that it follows is not. What a dropped
    request generated stays one identity, under a stream that nobody generates.
    """
    place = np.full(len(trace) + 1, -1, dtype=np.int64)
    place[rows] = np.arange(len(rows))
    after = np.where(trace.after[rows] >= 0, place[trace.after[rows]], -1)
    if np.any((after < 0) & (trace.after[rows] >= 0)):
        raise ValueError("a row is kept while the row that it follows is not")
    columns: dict[str, Any] = {
        name: getattr(trace, name)[rows]
        for name in ("arrival", "prompt", "output", "declared", "priority", "tenant", "session")
    }
    content: dict[str, Any] = {}
    if len(trace.content_offsets):
        first = trace.content_offsets[:-1][rows]
        count = np.diff(trace.content_offsets)[rows]
        offsets = np.concatenate([[0], np.cumsum(count)])
        at = np.repeat(first - offsets[:-1], count) + np.arange(offsets[-1])
        streams = trace.content_stream[at]
        source = np.where(streams < 0, -streams - 1, len(trace))
        gone = (streams < 0) & (place[source] < 0)
        kept = np.where(streams < 0, -place[source] - 1, streams)
        if gone.any():
            code = np.unique(streams[gone], return_inverse=True)[1]
            kept[gone] = max(int(trace.content_stream.max()), -1) + 1 + code
        content = {
            "content_offsets": offsets,
            "content_stream": kept,
            "content_start": trace.content_start[at],
            "content_tokens": trace.content_tokens[at],
        }
    labels = tuple(trace.labels[row] for row in rows.tolist()) if trace.labels else ()
    return replace(trace, **columns, **content, after=after, labels=labels)


def roots(trace: Trace) -> Ints:
    """For each row, the row with an arrival of its own that it follows, directly or not."""
    root = np.arange(len(trace), dtype=np.int64)
    for row in np.flatnonzero(trace.after >= 0).tolist():
        root[row] = root[trace.after[row]]
    return root


def window(
    trace: Trace,
    *,
    start_s: float = 0.0,
    duration_s: float | None = None,
    limit: int | None = None,
) -> Trace:
    """The rows that arrive in `duration_s` seconds from `start_s`, at most `limit` of them.

    `start_s` becomes time 0. A row that follows another goes where its first row goes. What is
    left out is noted.
    """
    if not (start_s >= 0 and math.isfinite(start_s)):
        raise ValueError(f"start: {start_s} s, expected at least 0")
    if duration_s is not None and not duration_s > 0:
        raise ValueError(f"duration: {duration_s} s, expected above 0")
    if limit is not None and limit < 1:
        raise ValueError(f"limit: {limit} requests, expected at least 1")
    begin = to_ps(start_s)
    sent = trace.arrival[roots(trace)]
    inside = sent >= begin
    if duration_s is not None and math.isfinite(duration_s):
        inside &= sent < begin + to_ps(duration_s)
    rows = np.flatnonzero(inside)
    if len(trace) and not len(rows):
        last = int(sent.max()) / PS_PER_S
        raise ValueError(
            f"no request arrives from {start_s:g} s on"
            + (f" for {duration_s:g} s" if duration_s is not None else "")
            + f"; the last of the trace arrives at {last:.3f} s"
        )
    rows = rows[:limit]
    if len(rows) == len(trace) and begin == 0:
        return trace
    part = select(trace, rows)
    moved = np.where(part.after >= 0, part.arrival, part.arrival - begin)
    note = f"{len(rows)} of {len(trace)} requests kept: from {start_s:g} s on"
    if duration_s is not None:
        note += f", for {duration_s:g} s"
    if limit is not None:
        note += f", at most {limit}"
    return replace(part, arrival=moved).with_notes(note)


def scale_rate(trace: Trace, factor: float) -> Trace:
    """Arrivals `factor` times as fast; lengths and pauses of clients stay as they are."""
    if not 0 < factor <= FASTEST:
        raise ValueError(f"scale-rate: {factor}, expected a factor above 0, at most {FASTEST:g}")
    if factor == 1:
        return trace
    # Whole numbers all the way: a float of picoseconds is off by more than one after 2.5 hours.
    exact = Fraction(repr(factor)).limit_denominator(10**6)
    over, under = exact.numerator, exact.denominator
    if over == 0 or (len(trace) and int(trace.arrival.max()) * under // over >= 2**63):
        raise ValueError(f"scale-rate: {factor} stretches the trace beyond 107 days")
    whole, rest = np.divmod(trace.arrival, over)
    scaled = whole * under + (rest * under + over // 2) // over
    arrival = np.where(trace.after >= 0, trace.arrival, scaled)
    return replace(trace, arrival=arrival).with_notes(f"arrivals {factor:g} times as fast")


def with_declared(trace: Trace, declared: int | Literal["exact"]) -> Trace:
    """Give a declared maximum to the rows without one; "exact" = their true output."""
    if isinstance(declared, int) and declared < 1:
        raise ValueError(f'declared: {declared}, expected tokens (at least 1) or "exact"')
    given = trace.output if declared == "exact" else np.int64(declared)
    return replace(trace, declared=np.where(trace.declared > 0, trace.declared, given))
