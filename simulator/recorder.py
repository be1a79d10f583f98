"""What happened, written down in columns: one row a leap, one row a request.

Nothing is kept per token. Leaps are unrolled into steps when the run is over.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd

from calibration.step_time import StepShape, StepTime, interpolate
from policies.base import Answer
from simulator.leap import Leap
from simulator.sequence import Sequence
from simulator.step import StepBuilder
from traces.records import (
    REQUEST_COLUMNS,
    SPELL_COLUMNS,
    STALL_COLUMNS,
    STEP_COLUMNS,
    Records,
)
from traces.trace import PS_PER_S, Ints

_LEAP = (
    "start", "first", "growth", "steps", "prefill_tokens", "chunks", "decodes", "area2",
    "decode_context", "host", "free_blocks", "admitted", "preempted", "finished", "tick",
    "unused", "idle_held",
)  # fmt: skip
_HEAD = slice(Answer.TOKENS.value, Answer.BATCH.value + 1)
"""A sequence's clocks at the head of the queue, in the order of `WAITS`."""

Outside = Callable[[dict[str, Ints]], Ints]
"""Columns of steps (`prefill_tokens`, `decodes`, `chunks`, `area2`, `decode_context`) → 0 or 1."""


class ReplicaLog:
    """The columns of one replica."""

    def __init__(self, replica: int, block_size: int) -> None:
        self.replica = replica
        self.block_size = block_size
        self.leaps = array("q")
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
        self.leaps.extend(
            (
                leap.start, leap.first, leap.growth, leap.steps, prefill, chunks, decodes, area2,
                context, host, free, admitted, preempted, finished, tick, unused, idle,
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

    def unroll(self, outside: Outside | None, prices: StepTime | None) -> dict[str, Ints]:
        """One row a step. `prices`: what steps were priced with, None where they were measured."""
        table = np.array(self.leaps, dtype=np.int64).reshape(-1, len(_LEAP))
        leap = dict(zip(_LEAP, table.T, strict=True))
        steps = leap["steps"]
        total = int(steps.sum())
        first = np.cumsum(steps) - steps
        nth = np.arange(total, dtype=np.int64) - np.repeat(first, steps)

        def per_step(name: str) -> Ints:
            return np.repeat(leap[name], steps)

        grown = np.zeros(total, dtype=np.int64)
        grown[nth > 0] = np.array(self.grown, dtype=np.int64)
        running_sum = np.cumsum(grown)
        grown = running_sum - np.repeat(running_sum[first] if total else running_sum, steps)
        extra = np.zeros(total, dtype=np.int64)
        if self.extra:
            extra[nth > 0] = np.array(self.extra, dtype=np.int64)
        duration = per_step("first") + per_step("growth") * nth + extra
        before = np.cumsum(duration) - duration
        start = per_step("start") + before - np.repeat(before[first] if total else before, steps)
        fed = per_step("prefill_tokens") + per_step("decodes")
        last = nth == np.repeat(steps, steps) - 1
        tick = per_step("tick")
        admitted, preempted, finished = leap["admitted"], leap["preempted"], leap["finished"]
        running = np.cumsum(admitted - preempted - finished) + finished
        gone = np.cumsum(admitted - preempted)
        queued = np.array(self.queued, dtype=np.int64)
        arrived = np.searchsorted(queued, start, side="right")
        withdrawn = np.array(self.withdrawn, dtype=np.int64)
        arrived -= np.searchsorted(withdrawn, start, side="right")
        out = {
            "replica": np.full(total, self.replica, dtype=np.int64),
            "start": start,
            "duration": duration,
            "host": per_step("host") + extra,
            "interference": np.zeros(total, dtype=np.int64),
            "prefill_tokens": per_step("prefill_tokens"),
            "chunks": per_step("chunks"),
            "decodes": per_step("decodes"),
            "decode_context": per_step("decode_context") + per_step("decodes") * nth,
            "running": np.repeat(running, steps),
            "waiting": arrived - np.repeat(gone, steps),
            "free_blocks": per_step("free_blocks") - grown,
            "admitted": np.where(nth == 0, per_step("admitted"), 0),
            "preempted": np.where(nth == 0, per_step("preempted"), 0),
            "finished": np.where(last, per_step("finished"), 0),
            "tick": np.where(tick >= 0, tick + nth, -1),
            "outside": np.zeros(total, dtype=np.int64),
            "unused": per_step("unused") + self.block_size * grown - fed * nth,
            "idle_held": per_step("idle_held"),
        }
        if prices is not None:
            first, growth = _beyond_decodes(leap, prices)
            beyond = np.repeat(first, steps) + np.repeat(growth, steps) * nth
            out["interference"] = np.maximum(beyond, 0)
        if outside is not None:
            # A chunk's 2A grows by 2q² a step; q² is at most P² where there is one chunk.
            area2 = per_step("area2") + 2 * nth * per_step("prefill_tokens") ** 2
            out["outside"] = outside({**out, "area2": area2})
        return out


def _beyond_decodes(leap: dict[str, Ints], prices: StepTime) -> tuple[Ints, Ints]:
    """What the first step of each leap takes beyond its decodes alone, and each next one more.

    Host work per block counts as the decodes' own, whoever's the blocks are.
    """
    decodes, context = leap["decodes"], leap["decode_context"]
    sizes, at = np.unique(decodes, return_inverse=True)
    model = [
        interpolate(prices.g, prices.pad(size)) + interpolate(prices.h, size)
        for size in sizes.tolist()
    ]
    fixed, per_sequence, per_token = prices.decode
    alone = leap["host"] - prices.tS * leap["chunks"] + np.array(model, dtype=np.int64)[at]
    alone += fixed + per_sequence * decodes + per_token * context
    decoding = decodes > 0
    first = np.where(decoding, leap["first"] - alone, 0)
    return first, np.where(decoding, leap["growth"] - per_token * decodes, 0)


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
        """Rows in trace order."""
        names = [*REQUEST_COLUMNS]
        table = np.array(self._ints, dtype=np.int64).reshape(-1, len(names))
        order = np.argsort(table[:, 0], kind="stable")
        columns: dict[str, Any] = {name: table[order, at] for at, name in enumerate(names)}
        for name, values in (
            ("reason", self._reasons),
            ("tenant", self._tenants),
            ("lane", self._lanes),
        ):
            columns[name] = pd.Categorical(values)[order]
        return pd.DataFrame(columns)


def collect(
    requests: RequestLog,
    logs: list[ReplicaLog],
    steps: list[StepBuilder],
    outside: Outside | None,
    prices: StepTime | None,
    about: dict[str, Any],
) -> Records:
    """Join the columns of all replicas into `Records`."""
    parts = [log.unroll(outside, prices) for log in logs]
    columns = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    weight = columns["duration"].astype(np.float64)
    pools = np.array([step.pool.blocks for step in steps], dtype=np.int64)
    used = (pools[columns["replica"]] - columns["free_blocks"]) * logs[0].block_size
    allocated = float((used * weight).sum())
    unused = columns.pop("unused")
    idle = columns.pop("idle_held") * logs[0].block_size
    about |= {
        "waste_share": float((unused * weight).sum()) / allocated if allocated else 0.0,
        "idle_held_share": float((idle * weight).sum()) / allocated if allocated else 0.0,
        "needless_evictions": sum(log.needless for log in logs),
        "fragmented_wait_s": sum(log.fragmented for log in logs) / PS_PER_S,
        "swaps": sum(step.swaps for step in steps),
    }
    return Records(
        requests=requests.frame(),
        steps=pd.DataFrame({name: columns[name] for name in STEP_COLUMNS}),
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
