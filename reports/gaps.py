"""Inter-token gaps of a run, exact, from ticks, spells and stalls (see `traces.records`).

A gap between two ticks is seen by everyone whose spell covers it: its weight is a difference
array over the spells. So every question about gaps costs O(requests + steps), however many
tokens there were.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from reports.percentiles import Distribution
from traces.records import Records, parts

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


TICKING = ("replica", "tick", "start", "duration")
NO_TICKS = (np.empty(0, dtype=np.int64),) * 3


def column(frame: object, name: str) -> Ints:
    """A column of `Records` as int64, without a copy where it is one already."""
    return np.asarray(frame[name], dtype=np.int64)  # type: ignore[index]


class Gaps:
    """The gaps of every request of one run. Rows are positions in `records.requests`."""

    def __init__(self, records: Records) -> None:
        """Raises ValueError where ticks, spells and requests do not belong together."""
        self.rows = len(records.requests)
        steps, spells, stalls = records.steps, records.spells, records.stalls
        found = [
            (replica[tick >= 0], tick[tick >= 0], (start + duration)[tick >= 0])
            for replica, tick, start, duration in parts(steps, TICKING)
        ]
        replica, ticks, end = map(np.concatenate, zip(*found, strict=True)) if found else NO_TICKS
        del found
        if np.any(replica[1:] < replica[:-1]):
            raise ValueError("steps: rows are not ordered by replica")
        counts = np.bincount(replica, minlength=1)
        del replica
        self.gap: Ints = np.diff(end, prepend=end[:1])
        """Picoseconds, one per tick of all replicas; that of a replica's first tick has none."""
        offsets = np.concatenate([[0], np.cumsum(counts)])
        self.gap[offsets[:-1][counts > 0]] = 0
        for first, last in pairwise(offsets.tolist()):
            if np.any(ticks[first:last] != np.arange(last - first)):
                raise ValueError("steps: ticks of a replica are not numbered 0, 1, …")
        home = column(spells, "replica")
        if np.any(home >= len(counts)):
            raise ValueError(f"spells: replica {int(home.max())} has no ticks")
        self.first: Ints = column(spells, "first_tick") + offsets[home]
        self.last: Ints = column(spells, "last_tick") + offsets[home]
        if np.any(self.last < self.first) or np.any(self.last >= offsets[home + 1]):
            raise ValueError("spells: ticks outside those of the replica")
        self.spell_row: Ints = _rows_of(records, column(spells, "request"), "spells")
        self.stall_row: Ints = _rows_of(records, column(stalls, "request"), "stalls")
        self.stall: Ints = column(stalls, "gap")

    def count(self) -> Ints:
        """Number of gaps of each request."""
        weights = (self.last - self.first + 1).astype(np.float64)
        spelled = np.bincount(self.spell_row, weights, minlength=self.rows)
        stalled = np.bincount(self.stall_row, minlength=self.rows)
        return spelled.astype(np.int64) + stalled

    def over(self, bound: float) -> Ints:
        """Number of gaps longer than `bound` picoseconds of each request."""
        before = np.concatenate([[0], np.cumsum(self.gap > bound)])
        found = before[self.last + 1] - before[self.first]
        spelled = np.bincount(self.spell_row, found.astype(np.float64), minlength=self.rows)
        stalled = np.bincount(self.stall_row[self.stall > bound], minlength=self.rows)
        return spelled.astype(np.int64) + stalled

    def longest(self) -> Ints:
        """Longest gap of each request; -1 where it has none."""
        most = np.full(self.rows, -1, dtype=np.int64)
        # Doubling windows, one level at a time in place: a spell of n ticks is covered by two
        # windows of the largest power of two ≤ n, so a whole table of levels is never held.
        level = np.frexp((self.last - self.first + 1).astype(np.float64))[1] - 1
        window = self.gap.copy()
        by_level = np.argsort(level, kind="stable")
        cuts = np.searchsorted(level[by_level], np.arange(level.max(initial=0) + 2))
        for power in range(len(cuts) - 1):
            if power:
                half = 1 << (power - 1)
                np.maximum(window[:-half], window[half:], out=window[:-half])
            asked = by_level[cuts[power] : cuts[power + 1]]
            found = np.maximum(
                window[self.first[asked]], window[self.last[asked] + 1 - (1 << power)]
            )
            np.maximum.at(most, self.spell_row[asked], found)
        np.maximum.at(most, self.stall_row, self.stall)
        return most

    def pooled(self, chosen: Bools | None = None) -> Distribution:
        """All gaps of all requests, or of the `chosen` rows, each counted once."""
        first, last, stall = self.first, self.last, self.stall
        if chosen is not None:
            kept = chosen[self.spell_row]
            first, last, stall = first[kept], last[kept], stall[chosen[self.stall_row]]
        weights = self._seen(first, last)
        if not len(stall):
            return Distribution(self.gap, weights)
        once = np.ones(len(stall), dtype=np.int64)
        return Distribution(np.concatenate([self.gap, stall]), np.concatenate([weights, once]))

    def weights(self) -> Ints:
        """How many requests saw the gap of each tick."""
        return self._seen(self.first, self.last)

    def _seen(self, first: Ints, last: Ints) -> Ints:
        ticks = len(self.gap)
        weights = np.bincount(first, minlength=ticks)
        weights -= np.bincount(last + 1, minlength=ticks + 1)[:ticks]
        return np.cumsum(weights, out=weights)


def _rows_of(records: Records, request: Ints, table: str) -> Ints:
    """Positions in `records.requests` of the rows named `request`."""
    known = column(records.requests, "request")
    if len(known) and known[-1] == len(known) - 1 and np.array_equal(known, np.arange(len(known))):
        rows = request
    else:
        order = np.argsort(known, kind="stable")
        at = np.minimum(np.searchsorted(known[order], request), max(len(known) - 1, 0))
        rows = order[at] if len(known) else at
    if len(request) and (
        not len(known) or rows.max() >= len(known) or np.any(known[rows] != request)
    ):
        raise ValueError(f"{table}: a request that is not among the requests")
    return rows
