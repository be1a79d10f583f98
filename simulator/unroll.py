"""From leaps to steps: the columns of `traces.records.STEP_COLUMNS`, made when asked for.

A run leaves one row a leap. Unrolled, a million requests have millions of steps, of which a
report looks at a few columns at a time: so each column is made anew when somebody asks.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from calibration.step_time import StepTime, interpolate
from simulator.columns import Columns
from traces.records import STEP_COLUMNS, ColumnFrame
from traces.trace import Ints

LEAP_COLUMNS = (
    "start", "first", "growth", "steps", "prefill_tokens", "chunks", "decodes", "area2",
    "decode_context", "host", "free_blocks", "admitted", "preempted", "finished", "tick",
    "unused", "idle_held",
)  # fmt: skip
"""Of a leap; where steps differ, of its first."""
HELD = ("unused", "idle_held")
"""Columns of a step beside `STEP_COLUMNS`: token slots allocated but unused, and blocks of
sequences that got no token."""

PACKS = 32
"""Packs of leaps that are worked out at once."""

Outside = Callable[[dict[str, Ints]], Ints]
"""Columns of steps (`prefill_tokens`, `decodes`, `chunks`, `area2`, `decode_context`) → 0 or 1."""


class ReplicaSteps:
    """The steps of one replica, column by column."""

    def __init__(
        self,
        replica: int,
        block_size: int,
        leaps: Columns,
        grown: array[int],
        extra: array[int],
        queued: array[int],
        withdrawn: array[int],
        outside: Outside | None,
        prices: StepTime | None,
    ) -> None:
        """`leaps` are rows of `LEAP_COLUMNS`. `grown` and `extra` have one entry for each step
        of a leap but its first: blocks it took, and what it took beyond the arithmetic series.
        `prices`: what steps were priced with, None where they were measured."""
        self.replica = replica
        self.block_size = block_size
        self.queued = np.frombuffer(queued, dtype=np.int64)
        self.withdrawn = np.frombuffer(withdrawn, dtype=np.int64)
        self.outside = outside
        self.prices = prices
        leaps.pack()
        self.windows: list[Window] = []
        before: Window | None = None
        for pack in range(0, leaps.packs, PACKS):
            before = Window(self, leaps, slice(pack, pack + PACKS), grown, extra, before)
            self.windows.append(before)
        self.rows = before.rows.stop if before else 0

    def column(self, name: str) -> Ints:
        """One value a step: a column of `STEP_COLUMNS` or `HELD`."""
        out = np.empty(self.rows, dtype=np.int64)
        for window in self.windows:
            out[window.rows] = window.column(name)
        return out


class Window:
    """The steps of some of the leaps: what is worked out on the way is not as large as all."""

    def __init__(
        self,
        of: ReplicaSteps,
        leaps: Columns,
        packs: slice,
        grown: array[int],
        extra: array[int],
        before: Window | None,
    ) -> None:
        self._all = of
        self._leaps = leaps
        self._packs = packs
        self._before = before
        times = self._leap("steps")
        self._of = np.repeat(np.arange(len(times), dtype=np.int32), times)
        """Of each step: which leap it is part of."""
        self._count = len(self._of)
        begin = before.rows.stop if before else 0
        self.rows: slice = slice(begin, begin + self._count)
        """Where they stand among the steps of the replica."""
        passed = before.further.stop if before else 0
        self.further: slice = slice(passed, passed + self._count - len(times))
        """The same of the steps that are not the first of their leap."""
        self._grown = np.frombuffer(grown, dtype=np.int32)[self.further]
        self._extra = np.frombuffer(extra, dtype=np.int64)[self.further]
        gone = int((self._leap("admitted") - self._leap("preempted")).sum())
        self.gone: int = gone + (before.gone if before else 0)
        """Sequences that had left the queue for the batch, less those that came back."""
        self.finished: int = int(self._leap("finished").sum()) + (before.finished if before else 0)
        """Sequences that had ended."""

    def column(self, name: str) -> Ints:
        """One value a step: a column of `STEP_COLUMNS` or `HELD`."""
        make = _COLUMNS.get(name)
        return self._each(name) if make is None else make(self)

    def _leap(self, name: str) -> Ints:
        return self._leaps.column(name, self._packs)

    def _each(self, name: str) -> Ints:
        return self._spread(self._leap(name))

    def _spread(self, per_leap: Ints) -> Ints:
        """The value of its leap, for every step."""
        # Twice as fast as with narrow numbers for indices.
        return per_leap.take(self._of.astype(np.intp))

    @property
    def _first(self) -> Ints:
        """Of each leap: its first step."""
        times = self._leap("steps")
        return np.cumsum(times) - times

    def _nth(self) -> Ints:
        """Number of the step in its leap, from 0."""
        return np.arange(self._count, dtype=np.int64) - self._spread(self._first)

    def _since(self, per_step: Ints) -> Ints:
        """Running sum within each leap, from 0 at its first step: `per_step` is 0 there."""
        total = np.cumsum(per_step)
        total -= self._spread(total[self._first])
        return total

    def _further(self, values: NDArray[np.signedinteger]) -> Ints:
        """`values` of the further steps, 0 at the first of each leap."""
        out = np.zeros(self._count, dtype=np.int64)
        rest = np.ones(self._count, dtype=np.bool_)
        rest[self._first] = False
        out[rest] = values
        return out

    def _at_first(self, name: str) -> Ints:
        out = np.zeros(self._count, dtype=np.int64)
        out[self._first] = self._leap(name)
        return out

    def whose(self) -> Ints:
        return np.full(self._count, self._all.replica, dtype=np.int64)

    def duration(self) -> Ints:
        duration = self._nth()
        duration *= self._each("growth")
        duration += self._each("first")
        if len(self._extra):
            duration += self._further(self._extra)
        return duration

    def start(self) -> Ints:
        nth = self._nth()
        start = nth * (nth - 1) // 2
        start *= self._each("growth")
        nth *= self._each("first")
        start += nth
        if len(self._extra):
            extra = self._further(self._extra)
            start += self._since(extra) - extra
        start += self._each("start")
        return start

    def host(self) -> Ints:
        host = self._each("host")
        return host + self._further(self._extra) if len(self._extra) else host

    def interference(self) -> Ints:
        if self._all.prices is None:
            return np.zeros(self._count, dtype=np.int64)
        first, growth = _beyond_decodes(self._leap, self._all.prices)
        beyond = self._spread(growth) * self._nth()
        beyond += self._spread(first)
        np.maximum(beyond, 0, out=beyond)
        return beyond

    def decode_context(self) -> Ints:
        return self._each("decode_context") + self._each("decodes") * self._nth()

    def running(self) -> Ints:
        finished = self._leap("finished")
        running = np.cumsum(self._leap("admitted") - self._leap("preempted") - finished)
        running += finished
        if self._before:
            running += self._before.gone - self._before.finished
        return self._spread(running)

    def waiting(self) -> Ints:
        start = self.start()
        waiting = np.searchsorted(self._all.queued, start, side="right")
        waiting -= np.searchsorted(self._all.withdrawn, start, side="right")
        gone = np.cumsum(self._leap("admitted") - self._leap("preempted"))
        if self._before:
            gone += self._before.gone
        waiting -= self._spread(gone)
        return waiting

    def end_finished(self) -> Ints:
        out = np.zeros(self._count, dtype=np.int64)
        out[self._first + self._leap("steps") - 1] = self._leap("finished")
        return out

    def free_blocks(self) -> Ints:
        return self._each("free_blocks") - self._since(self._further(self._grown))

    def admitted(self) -> Ints:
        return self._at_first("admitted")

    def preempted(self) -> Ints:
        return self._at_first("preempted")

    def tick(self) -> Ints:
        tick = self._each("tick")
        return np.where(tick >= 0, tick + self._nth(), -1)

    def unused(self) -> Ints:
        fed = self._each("prefill_tokens") + self._each("decodes")
        grown = self._since(self._further(self._grown))
        return self._each("unused") + self._all.block_size * grown - fed * self._nth()

    def beyond_grid(self) -> Ints:
        if self._all.outside is None:
            return np.zeros(self._count, dtype=np.int64)
        prefill = self._each("prefill_tokens")
        needed = ("decodes", "chunks", "decode_context")
        columns = {name: self.column(name) for name in needed} | {"prefill_tokens": prefill}
        # A chunk's 2A grows by 2q² a step; q² is at most P² where there is one chunk.
        columns["area2"] = self._each("area2") + 2 * self._nth() * prefill**2
        return self._all.outside(columns)


_COLUMNS: dict[str, Callable[[Window], Ints]] = {
    "replica": Window.whose,
    "start": Window.start,
    "duration": Window.duration,
    "host": Window.host,
    "interference": Window.interference,
    "decode_context": Window.decode_context,
    "running": Window.running,
    "waiting": Window.waiting,
    "free_blocks": Window.free_blocks,
    "admitted": Window.admitted,
    "preempted": Window.preempted,
    "finished": Window.end_finished,
    "tick": Window.tick,
    "outside": Window.beyond_grid,
    "unused": Window.unused,
}
"""All others are the same in every step of a leap."""


def steps_frame(replicas: list[ReplicaSteps]) -> ColumnFrame:
    """The steps of all replicas, by (replica, start)."""
    return ColumnFrame(
        names=tuple(STEP_COLUMNS),
        rows=sum(replica.rows for replica in replicas),
        make=lambda name: joined(replicas, name),
        parts=lambda names: parts(replicas, names),
    )


def parts(replicas: list[ReplicaSteps], names: tuple[str, ...]) -> Iterator[tuple[Ints, ...]]:
    """The columns `names`, some steps at a time."""
    for replica in replicas:
        for window in replica.windows:
            yield tuple(map(window.column, names))


def joined(replicas: list[ReplicaSteps], name: str) -> Ints:
    """A column over all replicas."""
    parts = [replica.column(name) for replica in replicas]
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def _beyond_decodes(leap: Callable[[str], Ints], prices: StepTime) -> tuple[Ints, Ints]:
    """What the first step of each leap takes beyond its decodes alone, and each next one more.

    Host work per block counts as the decodes' own, whoever's the blocks are.
    """
    decodes = leap("decodes")
    sizes, at = np.unique(decodes, return_inverse=True)
    model = [
        interpolate(prices.g, prices.pad(size)) + interpolate(prices.h, size)
        for size in sizes.tolist()
    ]
    fixed, per_sequence, per_token = prices.decode
    alone = leap("host") - prices.tS * leap("chunks") + np.array(model, dtype=np.int64)[at]
    alone += fixed + per_sequence * decodes + per_token * leap("decode_context")
    decoding = decodes > 0
    first = np.where(decoding, leap("first") - alone, 0)
    return first, np.where(decoding, leap("growth") - per_token * decodes, 0)
