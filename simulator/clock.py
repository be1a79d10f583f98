"""The SimPy clock of a run: whole picoseconds, and ties broken on purpose.

At one instant: steps end, replica by replica; then what happens outside (clients, door, replicas
lost and added); then replicas schedule. So whatever is sent at the instant a step ends is seen by
the next schedule, and leaping over steps that nobody interrupts changes nothing.
"""

from __future__ import annotations

from typing import cast

import simpy
from simpy.events import EventPriority

STEP_ENDS = 1
"""Priority of the end of a step on replica 0; further ones follow. SimPy's own timeouts have
this one, too."""
OUTSIDE = 1 << 20
"""Priority of what happens outside."""
SCHEDULES = OUTSIDE + 1
"""Priority of scheduling on replica 0, where something else happens at the instant."""


class Clock(simpy.Environment):
    """Time in whole picoseconds since time 0."""

    def __init__(self) -> None:
        super().__init__(initial_time=0)

    @property
    def now(self) -> int:
        return cast(int, self._now)


class Wake(simpy.Event):
    """A timeout with a priority: what goes first at one instant."""

    def __init__(self, env: Clock, delay: int, priority: int) -> None:
        super().__init__(env)
        self._ok = True
        self._value = None
        env.schedule(self, EventPriority(priority), delay)
