"""What happened, written down in columns: one row a leap, one row a request.

Nothing is kept per token. Leaps are unrolled into steps when the run is over.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import Any, cast

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from calibration.step_time import StepShape, StepTime
from policies.base import Answer
from simulator.columns import Columns
from simulator.leap import Leap
from simulator.sequence import Sequence
from simulator.step import StepBuilder
from simulator.undisturbed import ITS_WAITS, UNDISTURBED, Derived
from simulator.unroll import ReplicaSteps, steps_frame
from simulator.window import LEAP_COLUMNS, Outside
from traces.records import (
    REQUEST_COLUMNS,
    SPELL_COLUMNS,
    STALL_COLUMNS,
    Records,
)
from traces.trace import PS_PER_S, Ints, Trace

Progress = Callable[[int, int], None]
"""Called now and then with (requests ended, requests in the trace)."""
LABELS = ("reason", "tenant", "lane")
"""Texts of a request, kept as codes."""
NO_WAITS = (0,) * len(Answer)
_HEAD = slice(Answer.TOKENS.value, Answer.BATCH.value + 1)
"""A sequence's clocks at the head of the queue, in the order of `WAITS`."""


class ReplicaLog:
    """The columns of one replica."""

    def __init__(self, replica: int, block_size: int) -> None:
        self.replica = replica
        self.block_size = block_size
        self.leaps = Columns(LEAP_COLUMNS)
        self.grown = array("i")
        """Blocks taken in the further steps of each leap, one after the other."""
        self.extra = array("q")
        """What these steps took beyond the arithmetic series; empty where blocks cost nothing."""
        self.queued = array("q")
        """When sequences arrived in the queue."""
        self.withdrawn = array("q")
        """When sequences left the queue without being scheduled."""
        self.unfed = 0
        """Evictions in steps that fed nobody, and so have no row: the next row counts them."""
        self.fragmented = 0
        """Picoseconds that a head waited though the blocks sufficed in sum."""
        self.needless = 0
        """Evictions after which the victim's blocks would still have been free."""

    def scheduled(self, step: StepBuilder) -> tuple[int, int, int, int, int]:
        """What only the moment of scheduling knows: free blocks, preempted, tick, slots
        allocated but unused, blocks of sequences that got no token."""
        group = step.group
        unused = group.table * self.block_size - group.context - step.tokens
        idle = 0 if step.tick else group.table
        for seq in step.chunks:
            unused += len(seq.table) * self.block_size - seq._computed
            if seq not in step.fed:
                idle += len(seq.table)
        preempted = len(step.preempted) + self.unfed
        self.unfed = 0
        if step.preempted:
            self._count_needless(step)
        return step.pool.free, preempted, group.ticks if step.tick else -1, unused, idle

    def stepped(
        self,
        leap: Leap,
        shape: StepShape,
        host: int,
        known: tuple[int, int, int, int, int],
        admitted: int,
        finished: int,
    ) -> None:
        """A leap is over."""
        prefill, chunks, decodes, area2, _, context, _, _, _, _ = shape
        free, preempted, tick, unused, idle = known
        self.leaps.add(
            (
                leap.start, leap.first, leap.growth, leap.steps, prefill, chunks, decodes, area2,
                context, host, free, admitted, preempted, finished, tick, unused, idle,
            )
        )  # fmt: skip
        if leap.steps > 1:
            self.grew(leap)

    def grew(self, leap: Leap) -> None:
        """What the further steps of a leap took."""
        self.grown.extend(leap.grown)
        if leap.extra is not None:
            self.extra.extend(leap.extra)

    def _count_needless(self, step: StepBuilder) -> None:
        free = step.pool.free
        for _, _, _, held in reversed(step.preempted):
            if held <= free:
                self.needless += 1
                free -= held

    def steps(self, outside: Outside | None, prices: StepTime | None) -> ReplicaSteps:
        """What was written, as steps. Nothing can be written any more."""
        return ReplicaSteps(self, outside, prices)


class RequestLog:
    """One row a request, of all replicas."""

    def __init__(self, trace: Trace, block_size: int, on_progress: Progress | None = None) -> None:
        self.lane = ""
        """The lane of those who were undisturbed."""
        self._trace = trace
        self._block_size = block_size
        self._on_progress = on_progress
        self._rows = Columns((*REQUEST_COLUMNS, *LABELS))
        self._undisturbed = Columns(UNDISTURBED)
        self._codes: dict[str, dict[str, int]] = {name: {} for name in LABELS}

    def undisturbed(self, seq: Sequence, now: int) -> None:
        """A request ended at `now` on the only replica, without preemption, cache hit or retry,
        and all its tokens came: what else there is to say of it follows from the trace."""
        waits = seq.waits or NO_WAITS
        self._undisturbed.add(
            (
                seq.index, seq.first_scheduled, seq.boundary, seq.first_token, now, seq.goal,
                seq.declared, *waits[ITS_WAITS],
            )
        )  # fmt: skip

    def left(self, seq: Sequence, replica: int, now: int, reason: str) -> None:
        """A request ended at `now`, or (`now` = -1) is still there at the horizon."""
        first = seq.first_scheduled
        queued = boundary = door = 0
        head = NO_WAITS[_HEAD]
        if first >= 0:  # else there is no queue time yet for them to add up to
            queued = first - seq.arrival
            door = seq.entered - seq.arrival
            boundary = seq.boundary - seq.entered
            if seq.waits:
                head = tuple(seq.waits[_HEAD])
        reasons, tenants, lanes = self._codes.values()
        self._rows.add(
            (
                seq.index, replica, seq.arrival, first, seq.first_token,
                seq.last_token, now, seq.prompt, seq.output, seq._produced, seq.declared,
                seq.priority, seq.session, seq.preemptions, seq.fed, seq.recomputed, seq.hit,
                seq.resumed_hit, seq.peak, seq.stalled, seq.stalled_first, seq.retries,
                *head, queued - sum(head) - boundary - door, boundary, door,
                reasons.setdefault(reason, len(reasons)),
                tenants.setdefault(seq.tenant, len(tenants)),
                lanes.setdefault(seq.lane, len(lanes)),
            )
        )  # fmt: skip
        if len(self) % 512 == 0:
            self.tell()

    def tell(self) -> None:
        """Say how far the run is."""
        if self._on_progress is not None:
            self._on_progress(len(self), len(self._trace))

    def __len__(self) -> int:
        return len(self._rows) + len(self._undisturbed)

    @property
    def tables(self) -> tuple[Columns, Columns]:
        """Where rows are written: whole ones, and short ones of the undisturbed."""
        return self._rows, self._undisturbed

    def some(self, packs: tuple[slice, slice]) -> dict[str, NDArray[Any]]:
        """Columns and labels of some `packs` of the two `tables`, in the order of ending."""
        rows, short = self.tables
        derived = Derived(self._trace, self._block_size, short, packs[1])

        def both(name: str, more: Ints) -> Ints:
            return np.concatenate([rows.column(name, packs[0]), more])

        columns: dict[str, NDArray[Any]]
        columns = {name: both(name, derived.column(name)) for name in REQUEST_COLUMNS}
        for name, codes in self._codes.items():
            values = both(name, derived.codes(name, codes, self.lane))
            columns[name] = np.array(list(codes), dtype=object)[values]
        # Who never finished, at -1, stands behind all others.
        order = np.argsort(columns["finished"].astype(np.uint64), kind="stable")
        return {name: values[order] for name, values in columns.items()}

    def frame(self) -> pd.DataFrame:
        """Rows in trace order. The log is spent."""
        rows, short = self._rows, self._undisturbed
        request = np.concatenate([rows.column("request"), short.column("request")])
        order = np.argsort(request, kind="stable")
        derived = Derived(self._trace, self._block_size, short)
        columns: dict[str, Any] = {}
        # Untouched zeros take no memory: most columns of a million requests are nothing but.
        table = np.zeros((len(REQUEST_COLUMNS), len(order)), dtype=np.int64)
        for row, name in zip(table, REQUEST_COLUMNS, strict=True):
            values = np.concatenate([rows.column(name), derived.column(name)])
            if values.any():
                np.take(values, order, out=row)
            columns[name] = row
        for name, codes in self._codes.items():
            values = np.concatenate([rows.column(name), derived.codes(name, codes, self.lane)])
            texts = sorted(codes)
            place = np.array([texts.index(text) for text in codes], dtype=np.int64)
            columns[name] = pd.Categorical.from_codes(
                place[values[order]], categories=pd.Index(texts)
            )
        rows.clear()
        short.clear()
        return pd.DataFrame(columns, copy=False)


def collect(
    requests: RequestLog,
    logs: list[ReplicaLog],
    steps: list[StepBuilder],
    outside: Outside | None,
    prices: StepTime | None,
    about: dict[str, Any],
) -> Records:
    """Join the columns of all replicas into `Records`. What was logged of requests is spent."""
    replicas = [log.steps(outside, prices) for log in logs]
    about |= {
        **_shares(replicas, [step.pool.blocks for step in steps]),
        "needless_evictions": sum(log.needless for log in logs),
        "fragmented_wait_s": sum(log.fragmented for log in logs) / PS_PER_S,
        "swaps": sum(step.swaps for step in steps),
    }
    return Records(
        requests=requests.frame(),
        steps=cast(pd.DataFrame, steps_frame(replicas)),
        spells=_joined(SPELL_COLUMNS, [step.group.spells for step in steps]),
        stalls=_joined(STALL_COLUMNS, [step.stalls for step in steps]),
        about=about,
    )


def _shares(replicas: list[ReplicaSteps], pools: list[int]) -> dict[str, float]:
    """Allocated but unused slots, and blocks held by who got no token, over time."""
    allocated = unused = idle = 0.0
    for steps, blocks in zip(replicas, pools, strict=True):
        for window in steps.windows:
            of_all, of_these, of_idle = window.held(blocks)
            allocated += of_all
            unused += of_these
            idle += steps.block_size * of_idle
    if not allocated:
        return {"waste_share": 0.0, "idle_held_share": 0.0}
    return {"waste_share": unused / allocated, "idle_held_share": idle / allocated}


def _joined(names: tuple[str, ...], parts: list[Columns]) -> pd.DataFrame:
    """The rows of all replicas, one replica after the other. The parts are spent."""
    columns = {
        name: np.repeat(np.arange(len(parts)), [len(part) for part in parts])
        if name == "replica"
        else np.concatenate([part.column(name) for part in parts])
        for name in names
    }
    for part in parts:
        part.clear()
    return pd.DataFrame(columns, copy=False)
