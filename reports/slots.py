"""Who held which slot when: the beginning of a run laid out over its slots.

A sequence takes the lowest free slot when it is admitted and gives it back when it ends or is
preempted. In a static batch it keeps the slot, idle, until the last of its batch has ended.
Recompute after a preemption is drawn at the end of its stall; where a request was preempted
several times the records say only how long it queued in all, which is shared out in proportion.
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
    names = ("request", "first_scheduled", "first_token", "last_token", "preemptions", "stalled")
    columns = [run.column(name)[rows].tolist() for name in names]
    stays = [
        stay
        for row, *values in zip(rows.tolist(), *columns, strict=True)
        for stay in _stays(run, row, *values)
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


def _stays(
    run: Latencies,
    row: int,
    request: int,
    began: int,
    first: int,
    last: int,
    times: int,
    queue: int,
) -> list[_Stay]:
    parts: list[tuple[Kind, float, float]] = [("prefill", began / PS_PER_S, first / PS_PER_S)]
    stays, since = [], first / PS_PER_S
    for left, resumed, back in _breaks(run, row, times, queue) if times else ():
        stays.append(_Stay(request, [*parts, ("decode", since, left)], True))
        parts, since = [("recompute", resumed, back)], back
    stays.append(_Stay(request, [*parts, ("decode", since, last / PS_PER_S)], False))
    for stay in stays:
        stay.held_until = stay.end
    return stays


def _breaks(run: Latencies, row: int, times: int, queue: int) -> list[tuple[float, float, float]]:
    """When the request was preempted, re-admitted, and had its next token.

    `times` it was, and `queue` picoseconds it was in the queue for it.
    """
    mine = run.gaps.stall_row == row
    gap, end = run.gaps.stall[mine], column(run.records.stalls, "end")[mine]
    # Its longest stalls: the others are steps in which it was skipped.
    longest = np.sort(np.argsort(-gap, kind="stable")[:times])
    gap, end = gap[longest], end[longest]
    queued = min(queue / max(int(gap.sum()), 1), 1.0)
    found = []
    for length, back in sorted(zip(gap.tolist(), end.tolist(), strict=True), key=lambda g: g[1]):
        left = back - length
        found.append((left / PS_PER_S, (left + queued * length) / PS_PER_S, back / PS_PER_S))
    return found


def _hold(stays: list[_Stay]) -> None:
    """Members of a batch (admitted at one instant) keep their slots until the last has ended."""
    batches: dict[float, list[_Stay]] = {}
    for stay in stays:
        batches.setdefault(stay.start, []).append(stay)
    for batch in batches.values():
        until = max(stay.end for stay in batch)
        for stay in batch:
            stay.held_until = until
