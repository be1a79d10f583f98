"""The steps of some leaps, column by column."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from calibration.step_time import StepTime, interpolate
from simulator.columns import Columns
from traces.trace import Ints

LEAP_COLUMNS = (
    "start", "first", "growth", "steps", "prefill_tokens", "chunks", "decodes", "area2",
    "decode_context", "host", "free_blocks", "admitted", "preempted", "finished", "tick",
    "unused", "idle_held",
)  # fmt: skip
"""Of a leap; where steps differ, of its first. Beside what `STEP_COLUMNS` says: `unused` are token
slots allocated but unused, `idle_held` blocks of sequences that got no token."""

Outside = Callable[[dict[str, Ints]], Ints]
"""Columns of steps (`prefill_tokens`, `decodes`, `chunks`, `area2`, `decode_context`) → 0 or 1."""


class Log(Protocol):
    """What a replica wrote down."""

    replica: int
    block_size: int
    leaps: Columns
    """Rows of `LEAP_COLUMNS`."""
    # Of each step of a leap but its first:
    grown: array[int]
    """Blocks it took."""
    extra: array[int]
    """What it took beyond the arithmetic series; all empty where blocks cost nothing."""
    queued: array[int]
    """When sequences arrived in the queue."""
    withdrawn: array[int]
    """When sequences left the queue without being scheduled."""


class Passed(NamedTuple):
    """What all windows so far come to."""

    steps: int = 0
    further: int = 0
    """Of these, those that are not the first of their leap."""
    gone: int = 0
    """Sequences that had left the queue for the batch, less those that came back."""
    finished: int = 0
    """Sequences that had ended."""


class Window:
    """The steps of some of the leaps: what is worked out on the way is not as large as all.

    It keeps no view of the log's arrays, which could not grow meanwhile.
    """

    def __init__(
        self,
        log: Log,
        outside: Outside | None,
        prices: StepTime | None,
        before: Passed,
        packs: slice,
        leaps: slice = slice(None),
    ) -> None:
        """Of some `packs`, those `leaps`, which follow on what has passed `before`."""
        self._log = log
        self._outside = outside
        self._prices = prices
        self._before = before
        self._packs = packs
        self._leaps = leaps
        self._shared: dict[str, Ints] | None = None
        """What several columns need, while they are made."""
        times = self._leap("steps")
        self._of = np.repeat(np.arange(len(times), dtype=np.intp), times)
        """Of each step: which leap it is part of."""
        self._count = len(self._of)
        gone = int((self._leap("admitted") - self._leap("preempted")).sum())
        self.passed = Passed(
            before.steps + self._count,
            before.further + self._count - len(times),
            before.gone + gone,
            before.finished + int(self._leap("finished").sum()),
        )
        self.rows = slice(before.steps, self.passed.steps)
        """Where they stand among the steps of the replica."""

    def column(self, name: str) -> Ints:
        """One value a step: a column of `STEP_COLUMNS`."""
        make = _COLUMNS.get(name)
        return self._each(name) if make is None else make(self)

    def columns(self, names: tuple[str, ...]) -> tuple[Ints, ...]:
        """Several columns: what they share is worked out once."""
        self._shared = {}
        found = tuple(map(self.column, names))
        self._shared = None
        return found

    def _once(self, name: str, make: Callable[[], Ints]) -> Ints:
        """A new array, even where it has been worked out before."""
        if self._shared is None:
            return make()
        if name not in self._shared:
            self._shared[name] = make()
        return self._shared[name].copy()

    def _leap(self, name: str) -> Ints:
        return self._log.leaps.column(name, self._packs)[self._leaps]

    def _each(self, name: str) -> Ints:
        return self._once(name, lambda: self._spread(self._leap(name)))

    def _spread(self, per_leap: Ints) -> Ints:
        """The value of its leap, for every step."""
        if not per_leap.any():
            return np.zeros(self._count, dtype=np.int64)
        return per_leap.take(self._of)

    @property
    def _first(self) -> Ints:
        """Of each leap: its first step."""
        times = self._leap("steps")
        return np.cumsum(times) - times

    def _nth(self) -> Ints:
        """Number of the step in its leap, from 0."""
        return self._once("nth", self._count_up)

    def _count_up(self) -> Ints:
        return np.arange(self._count, dtype=np.int64) - self._spread(self._first)

    def _since(self, per_step: Ints) -> Ints:
        """Running sum within each leap, from 0 at its first step: `per_step` is 0 there."""
        total = np.cumsum(per_step)
        total -= self._spread(total[self._first])
        return total

    def _further(self, values: array[int]) -> Ints:
        """The log's `values` of the further steps, 0 at the first of each leap."""
        out = np.zeros(self._count, dtype=np.int64)
        rest = np.ones(self._count, dtype=np.bool_)
        rest[self._first] = False
        out[rest] = _seen(values)[self._before.further : self.passed.further]
        return out

    def _taken(self) -> Ints:
        """Blocks that its leap has taken by the step, those at its first step left out."""
        return self._since(self._further(self._log.grown))

    def _at_first(self, name: str) -> Ints:
        out = np.zeros(self._count, dtype=np.int64)
        out[self._first] = self._leap(name)
        return out

    def held(self, blocks: int) -> tuple[float, float, float]:
        """Over time, of a pool of `blocks`: slots allocated and, of these, unused, in
        slot-picoseconds; blocks of who got no token, in block-picoseconds."""
        nth, taken = self._nth(), self._taken()
        free = self._each("free_blocks")
        free -= taken
        unused = self._spread(self._leap("prefill_tokens") + self._leap("decodes"))
        unused *= -nth
        taken *= self._log.block_size
        unused += taken
        unused += self._each("unused")
        nth *= self._each("growth")
        nth += self._each("first")
        if len(self._log.extra):
            nth += self._further(self._log.extra)
        weight = nth.astype(np.float64)
        np.subtract(blocks, free, out=free)
        return (
            self._log.block_size * float(free @ weight),
            float(unused @ weight),
            float(self._each("idle_held") @ weight),
        )

    def whose(self) -> Ints:
        return np.full(self._count, self._log.replica, dtype=np.int64)

    def duration(self) -> Ints:
        duration = self._nth()
        duration *= self._each("growth")
        duration += self._each("first")
        if self._log.extra:
            duration += self._further(self._log.extra)
        return duration

    def start(self) -> Ints:
        nth = self._nth()
        start = nth * (nth - 1) // 2
        start *= self._each("growth")
        nth *= self._each("first")
        start += nth
        if self._log.extra:
            extra = self._further(self._log.extra)
            start += self._since(extra) - extra
        start += self._each("start")
        return start

    def host(self) -> Ints:
        host = self._each("host")
        return host + self._further(self._log.extra) if self._log.extra else host

    def interference(self) -> Ints:
        if self._prices is None:
            return np.zeros(self._count, dtype=np.int64)
        first, growth = _beyond_decodes(self._leap, self._prices)
        beyond = self._spread(growth) * self._nth()
        beyond += self._spread(first)
        np.maximum(beyond, 0, out=beyond)
        return beyond

    def decode_context(self) -> Ints:
        return self._each("decode_context") + self._each("decodes") * self._nth()

    def running(self) -> Ints:
        finished = self._leap("finished")
        running = np.cumsum(self._leap("admitted") - self._leap("preempted") - finished)
        running += finished + (self._before.gone - self._before.finished)
        return self._spread(running)

    def waiting(self) -> Ints:
        start = self.start()
        waiting = np.searchsorted(_seen(self._log.queued), start, side="right")
        waiting -= np.searchsorted(_seen(self._log.withdrawn), start, side="right")
        gone = np.cumsum(self._leap("admitted") - self._leap("preempted"))
        waiting -= self._spread(gone + self._before.gone)
        return waiting

    def end_finished(self) -> Ints:
        out = np.zeros(self._count, dtype=np.int64)
        out[self._first + self._leap("steps") - 1] = self._leap("finished")
        return out

    def free_blocks(self) -> Ints:
        return self._each("free_blocks") - self._taken()

    def admitted(self) -> Ints:
        return self._at_first("admitted")

    def preempted(self) -> Ints:
        return self._at_first("preempted")

    def tick(self) -> Ints:
        tick = self._each("tick")
        return np.where(tick >= 0, tick + self._nth(), -1)

    def beyond_grid(self) -> Ints:
        if self._outside is None:
            return np.zeros(self._count, dtype=np.int64)
        prefill = self._each("prefill_tokens")
        needed = ("decodes", "chunks", "decode_context")
        columns = {name: self.column(name) for name in needed} | {"prefill_tokens": prefill}
        # A chunk's 2A grows by 2q² a step; q² is at most P² where there is one chunk.
        columns["area2"] = self._each("area2") + 2 * self._nth() * prefill**2
        return self._outside(columns)


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
}
"""All others are the same in every step of a leap."""


def _seen(values: array[int]) -> NDArray[np.signedinteger]:
    """The same numbers, not copied. While somebody holds them no more can be appended."""
    return np.frombuffer(values, dtype=values.typecode)


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
