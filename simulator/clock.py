"""The SimPy clock of a run: whole picoseconds, and ties broken on purpose."""

from __future__ import annotations

from typing import cast

import simpy
from simpy.events import EventPriority


class Clock(simpy.Environment):
    """Time in whole picoseconds since time 0."""

    def __init__(self) -> None:
        super().__init__(initial_time=0)

    @property
    def now(self) -> int:
        return cast(int, self._now)


class Wake(simpy.Event):
    """A timeout with a priority: at one instant, clients come first, then replicas by index."""

    def __init__(self, env: Clock, delay: int, priority: int) -> None:
        super().__init__(env)
        self._ok = True
        self._value = None
        env.schedule(self, EventPriority(priority), delay)
