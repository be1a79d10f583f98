"""What happened, written down in columns: one row a leap, one row a request.

Nothing is kept per token. Leaps are unrolled into steps when the run is over.
"""

from __future__ import annotations

from array import array
from typing import Any, cast

import numpy as np
import pandas as pd

from calibration.step_time import StepShape, StepTime
from policies.base import Answer
from simulator.leap import Leap
from simulator.sequence import Sequence
from simulator.step import StepBuilder
from simulator.unroll import Outside, ReplicaSteps, joined, steps_frame
from traces.records import (
    REQUEST_COLUMNS,
    SPELL_COLUMNS,
    STALL_COLUMNS,
    Records,
)
from traces.trace import PS_PER_S

_HEAD = slice(Answer.TOKENS.value, Answer.BATCH.value + 1)
"""A sequence's clocks at the head of the queue, in the order of `WAITS`."""


class ReplicaLog:
    """The columns of one replica."""

    def __init__(self, replica: int, block_size: int) -> None:
        self.replica = replica
        self.block_size = block_size
        self.big = array("q")
        """Rows of `unroll.BIG`, one a leap, one after the other."""
        self.small = array("i")
        """Rows of `unroll.SMALL`."""
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
        self.big.extend((leap.start, leap.first, leap.growth, area2, context, host))
        self.small.extend(
            (
                leap.steps, prefill, chunks, decodes, free, admitted, preempted, finished, tick,
                unused, idle,
            )
        )  # fmt: skip
        if leap.steps > 1:
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
        return ReplicaSteps(
            self.replica, self.block_size, self.big, self.small, self.grown, self.extra,
            self.queued, self.withdrawn, outside, prices,
        )  # fmt: skip


class RequestLog:
    """One row a request, of all replicas."""

    def __init__(self) -> None:
        self._ints = array("q")
        self._reasons: list[str] = []
        self._tenants: list[str] = []
        self._lanes: list[str] = []

    def left(self, seq: Sequence, replica: int, now: int, reason: str) -> None:
        """A request ended at `now`, or (`now` = -1) is still there at the horizon."""
        queued = boundary = door = 0
        head = [0] * 6
        if seq.first_scheduled >= 0:  # else there is no queue time yet for them to add up to
            queued = seq.first_scheduled - seq.arrival
            door = seq.entered - seq.arrival
            boundary = seq.boundary - seq.entered
            head = seq.waits[_HEAD]
        self._ints.extend(
            (
                seq.index, replica, seq.arrival, seq.first_scheduled, seq.first_token,
                seq.last_token, now, seq.prompt, seq.output, seq._produced, seq.declared,
                seq.priority, seq.session, seq.preemptions, seq.fed, seq.recomputed, seq.hit,
                seq.resumed_hit, seq.peak, seq.stalled, seq.stalled_first, seq.retries,
                *head, queued - sum(head) - boundary - door, boundary, door,
            )
        )  # fmt: skip
        self._reasons.append(reason)
        self._tenants.append(seq.tenant)
        self._lanes.append(seq.lane)

    def __len__(self) -> int:
        return len(self._reasons)

    def frame(self) -> pd.DataFrame:
        """Rows in trace order. The log is spent: a million rows are not kept twice."""
        names = [*REQUEST_COLUMNS]
        table = np.frombuffer(self._ints, dtype=np.int64).reshape(-1, len(names))
        order = np.argsort(table[:, 0], kind="stable")
        columns: dict[str, Any] = {name: table[order, at] for at, name in enumerate(names)}
        self._ints = array("q")
        del table
        for name, values in (
            ("reason", self._reasons),
            ("tenant", self._tenants),
            ("lane", self._lanes),
        ):
            columns[name] = pd.Categorical(values)[order]
        return pd.DataFrame(columns, copy=False)


def collect(
    requests: RequestLog,
    logs: list[ReplicaLog],
    steps: list[StepBuilder],
    outside: Outside | None,
    prices: StepTime | None,
    about: dict[str, Any],
) -> Records:
    """Join the columns of all replicas into `Records`."""
    replicas = [log.steps(outside, prices) for log in logs]
    weight = joined(replicas, "duration").astype(np.float64)
    size = logs[0].block_size
    pools = np.array([step.pool.blocks for step in steps], dtype=np.int64)
    used = pools[joined(replicas, "replica")] - joined(replicas, "free_blocks")
    allocated = size * float(used @ weight)
    unused = float(joined(replicas, "unused") @ weight)
    idle = size * float(joined(replicas, "idle_held") @ weight)
    about |= {
        "waste_share": unused / allocated if allocated else 0.0,
        "idle_held_share": idle / allocated if allocated else 0.0,
        "needless_evictions": sum(log.needless for log in logs),
        "fragmented_wait_s": sum(log.fragmented for log in logs) / PS_PER_S,
        "swaps": sum(step.swaps for step in steps),
    }
    return Records(
        requests=requests.frame(),
        steps=cast(pd.DataFrame, steps_frame(replicas)),
        spells=_flat(SPELL_COLUMNS, [step.group.spells for step in steps], replica_at=1),
        stalls=_flat(STALL_COLUMNS, [step.stalls for step in steps], replica_at=1),
        about=about,
    )


def _flat(names: tuple[str, ...], parts: list[array[int]], replica_at: int) -> pd.DataFrame:
    tables = []
    for replica, part in enumerate(parts):
        table = np.array(part, dtype=np.int64).reshape(-1, len(names) - 1)
        tables.append(np.insert(table, replica_at, replica, axis=1))
    return pd.DataFrame(np.concatenate(tables), columns=list(names))
