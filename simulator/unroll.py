"""From leaps to steps: the columns of `traces.records.STEP_COLUMNS`, made when asked for.

A run leaves one row a leap. Unrolled, a million requests have millions of steps, of which a
report looks at a few columns at a time: so each column is made anew when somebody asks.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from calibration.step_time import StepTime
from simulator.window import Log, Outside, Passed, Window
from traces.records import STEP_COLUMNS, ColumnFrame
from traces.trace import Ints

PACKS = 128
"""Packs of leaps that are worked out at once."""


class ReplicaSteps:
    """The steps of one replica, column by column."""

    def __init__(self, log: Log, outside: Outside | None, prices: StepTime | None) -> None:
        """`prices`: what steps were priced with, None where they were measured."""
        self.block_size = log.block_size
        log.leaps.pack()
        self.windows: list[Window] = []
        passed = Passed()
        for pack in range(0, log.leaps.packs, PACKS):
            window = Window(log, outside, prices, passed, slice(pack, pack + PACKS))
            self.windows.append(window)
            passed = window.passed
        self.rows = passed.steps

    def column(self, name: str) -> Ints:
        """One value a step: a column of `STEP_COLUMNS`."""
        out = np.empty(self.rows, dtype=np.int64)
        for window in self.windows:
            out[window.rows] = window.column(name)
        return out


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
            yield window.columns(names)


def joined(replicas: list[ReplicaSteps], name: str) -> Ints:
    """A column over all replicas."""
    parts = [replica.column(name) for replica in replicas]
    return parts[0] if len(parts) == 1 else np.concatenate(parts)
