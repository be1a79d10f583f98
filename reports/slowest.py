"""Who was slowest, and each one's own strip: what happened to it, in the order in which it did."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from reports.gaps import column
from reports.latencies import Latencies
from reports.parts import main_wait
from reports.slots import Breaks
from reports.units import seconds
from traces.trace import PS_PER_S

SLOWEST = 50
PIECES_MOST = 60
"""More pieces than that are too thin to be seen."""

KINDS = {
    "queue": "waits in the queue",
    "prefill": "prefill",
    "decode": "decodes",
    "stalled": "back in the queue after a preemption",
    "recompute": "recompute after a preemption",
}


@dataclass(frozen=True)
class Piece:
    """A stretch of a strip; `share` is of the longest strip of the table."""

    kind: str
    share: float
    said: str
    steps: int = 0
    """Of a prefill: steps that it was cut into, at most."""


def slowest(run: Latencies, most: int = SLOWEST) -> list[dict[str, Any]]:
    """The requests with the longest E2E; first those that never finished, by arrival."""
    order = np.lexsort((run.column("arrival"), -run.e2e, ~run.unfinished))
    rows = order[run.arrived[order]][:most]
    table = run.records.requests.iloc[rows]

    def times(values: Any) -> list[float | None]:
        return [None if value < 0 else value / PS_PER_S for value in values[rows].tolist()]

    columns = {
        "arrival": times(run.column("arrival")),
        "queue": times(run.queue),
        "ttft": times(run.ttft),
        "gap": times(run.longest_gap),
        "e2e": times(run.e2e),
    }
    texts = {name: table[name].astype(str).tolist() for name in ("tenant", "lane", "reason")}
    counts = {
        name: table[name].tolist() for name in ("request", "prompt", "produced", "preemptions")
    }
    made = {"wait": main_wait(run, rows), "strip": _strips(run, rows.tolist())}
    every = columns | texts | counts | made
    return [dict(zip(every, values, strict=True)) for values in zip(*every.values(), strict=True)]


def stretches(run: Latencies, rows: list[int]) -> list[list[tuple[str, int, int]]]:
    """Of each row what happened to it, as (one of `KINDS`, from, to) [ps], in order of time."""
    names = ("arrival", "first_scheduled", "first_token", "last_token", "finished")
    columns = [run.column(name)[rows].tolist() for name in names]
    breaks = Breaks(run)
    found = []
    for row, arrival, began, first, last, finished in zip(rows, *columns, strict=True):
        end = last if finished >= 0 and last >= 0 else max(finished, run.step_end, last)
        pieces = [("queue", arrival, began if began >= 0 else end)]
        if began >= 0:
            pieces.append(("prefill", began, first if first >= 0 else end))
        if first >= 0:
            since = first
            for left, resumed, back in breaks.of(row):
                pieces += [
                    ("decode", since, left),
                    ("stalled", left, resumed),
                    ("recompute", resumed, back),
                ]
                since = back
            pieces.append(("decode", since, max(last, since)))
        found.append([piece for piece in pieces if piece[2] > piece[1]])
    return found


def _strips(run: Latencies, rows: list[int]) -> list[list[Piece]]:
    spans = [strip[:PIECES_MOST] for strip in stretches(run, rows)]
    ends = _StepEnds(run)
    homes = run.column("replica")[rows].tolist()
    longest = max((strip[-1][2] - strip[0][1] for strip in spans if strip), default=1)
    return [
        [
            Piece(
                kind,
                (b - a) / longest,
                f"{KINDS[kind]} {seconds((b - a) / PS_PER_S)}",
                ends.within(replica, a, b) if kind == "prefill" else 0,
            )
            for kind, a, b in strip
        ]
        for strip, replica in zip(spans, homes, strict=True)
    ]


class _StepEnds:
    """When steps with prefill ended, by replica."""

    def __init__(self, run: Latencies) -> None:
        steps = run.records.steps
        self._home = column(steps, "replica")
        self._end = column(steps, "start") + column(steps, "duration")
        self._fed = np.concatenate([[0], np.cumsum(column(steps, "chunks") > 0)])

    def within(self, replica: int, start: int, end: int) -> int:
        """Steps with prefill that began at or after `start` and ended by `end`."""
        first, last = np.searchsorted(self._home, (replica, replica + 1))
        low, high = np.searchsorted(self._end[first:last], (start, end), side="right") + first
        return int(self._fed[high] - self._fed[low])
