"""Who held which slot when: the beginning of a run laid out over its slots.

A sequence takes the lowest free slot when it is admitted and gives it back when it ends or is
preempted. In a static batch it keeps the slot, idle, until the last of its batch has ended.
Where a request was preempted several times between two tokens, its time in the queue is drawn as
one stretch; what it lost before its first token is drawn as prefill.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import Literal

import numpy as np

from reports.gaps import Ints, column
from reports.latencies import Latencies
from traces.trace import PS_PER_S

Kind = Literal["prefill", "decode", "recompute", "held"]


@dataclass(frozen=True)
class Piece:
    """One stretch of one slot, in seconds."""

    slot: int
    request: int
    kind: Kind
    start: float
    end: float


@dataclass(frozen=True, kw_only=True)
class Slots:
    """The slots of one replica up to `end`."""

    pieces: tuple[Piece, ...]
    count: int
    """Slots that the engine has (of a static batch: its size), or as many as were used."""
    used: int
    """Highest slot used, plus one."""
    preempted: tuple[tuple[int, float], ...]
    """Slot and moment of every preemption."""
    end: float

    def utilisation(self, rows: int | None = None) -> float | None:
        """Share of the time of the first `rows` slots, up to the end, in which one works."""
        rows = min(self.count, rows or self.count)
        area = rows * self.end
        busy = sum(
            min(p.end, self.end) - p.start
            for p in self.pieces
            if p.kind != "held" and p.slot < rows and p.start < self.end
        )
        return busy / area if area else None


def window(run: Latencies, requests: int = 64, replica: int = 0) -> float:
    """Seconds until the first `requests` that `replica` scheduled have ended."""
    rows = _scheduled(run, replica)[:requests]
    return int(run.column("last_token")[rows].max(initial=0)) / PS_PER_S


def slots(run: Latencies, end_s: float, replica: int = 0) -> Slots:
    """All that `replica` did with its slots from time 0 to `end_s`."""
    rows = _scheduled(run, replica)
    rows = rows[run.column("first_scheduled")[rows] < end_s * PS_PER_S]
    names = ("request", "first_scheduled", "first_token", "last_token")
    columns = [run.column(name)[rows].tolist() for name in names]
    breaks = Breaks(run)
    stays = [
        stay
        for row, request, began, first, last in zip(rows.tolist(), *columns, strict=True)
        for stay in _stays(request, began, first, last, breaks.of(row))
    ]
    stays.sort(key=lambda stay: (stay.start, stay.request))
    if run.about.get("scenario", {}).get("policy", {}).get("kind") == "static":
        _hold(stays)
    free: list[int] = []
    busy: list[tuple[float, int]] = []
    used = 0
    pieces: list[Piece] = []
    preempted = []
    for stay in stays:
        while busy and busy[0][0] <= stay.start:
            heapq.heappush(free, heapq.heappop(busy)[1])
        if free:
            slot = heapq.heappop(free)
        else:
            slot, used = used, used + 1
        heapq.heappush(busy, (stay.held_until, slot))
        pieces += [Piece(slot, stay.request, kind, a, b) for kind, a, b in stay.parts if b > a]
        if stay.held_until > stay.end:
            pieces.append(Piece(slot, stay.request, "held", stay.end, stay.held_until))
        if stay.preempted:
            preempted.append((slot, stay.end))
    count = run.slots // run.replicas if run.slots else used
    return Slots(
        pieces=tuple(pieces),
        count=max(count, used),
        used=used,
        preempted=tuple(preempted),
        end=end_s,
    )


def _scheduled(run: Latencies, replica: int) -> Ints:
    """Rows of the requests that got a token from `replica`, in the order of their first step."""
    mine = (run.column("replica") == replica) & (run.column("first_token") >= 0)
    rows = np.flatnonzero(mine)
    return rows[np.argsort(run.column("first_scheduled")[rows], kind="stable")]


@dataclass
class _Stay:
    """From an admission to the end, or to the next preemption."""

    request: int
    parts: list[tuple[Kind, float, float]]
    preempted: bool
    held_until: float = 0.0

    @property
    def start(self) -> float:
        return self.parts[0][1]

    @property
    def end(self) -> float:
        return self.parts[-1][2]


class Breaks:
    """When requests were without KV, from their preemption to their next token."""

    def __init__(self, run: Latencies) -> None:
        stalls, rows = run.records.stalls, run.gaps.stall_row
        again = column(stalls, "recompute")
        lost = np.flatnonzero(again > 0)
        lost = lost[np.lexsort((column(stalls, "end")[lost], rows[lost]))]
        self._row, end = rows[lost], column(stalls, "end")[lost]
        since = end - column(stalls, "queued")[lost] - again[lost]
        self._moments = np.stack([since, end - again[lost], end], axis=1)

    def of(self, row: int) -> list[tuple[int, int, int]]:
        """Preempted, last re-admitted, next token [ps], for each break of a request."""
        first, last = np.searchsorted(self._row, (row, row + 1))
        return [(a, b, c) for a, b, c in self._moments[first:last].tolist()]


def _stays(
    request: int, began: int, first: int, last: int, breaks: list[tuple[int, int, int]]
) -> list[_Stay]:
    parts: list[tuple[Kind, float, float]] = [("prefill", began / PS_PER_S, first / PS_PER_S)]
    stays, since = [], first / PS_PER_S
    for moments in breaks:
        left, resumed, back = (moment / PS_PER_S for moment in moments)
        stays.append(_Stay(request, [*parts, ("decode", since, left)], True))
        parts, since = [("recompute", resumed, back)], back
    stays.append(_Stay(request, [*parts, ("decode", since, last / PS_PER_S)], False))
    for stay in stays:
        stay.held_until = stay.end
    return stays


def _hold(stays: list[_Stay]) -> None:
    """Members of a batch (admitted at one instant) keep their slots until the last has ended."""
    batches: dict[float, list[_Stay]] = {}
    for stay in stays:
        batches.setdefault(stay.start, []).append(stay)
    for batch in batches.values():
        until = max(stay.end for stay in batch)
        for stay in batch:
            stay.held_until = until
