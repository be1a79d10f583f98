"""The SimPy clock of a run: whole picoseconds, and ties broken on purpose.

At one instant: steps end, replica by replica; then what happens outside (clients, door, replicas
lost and added); then replicas schedule. So whatever is sent at the instant a step ends is seen by
the next schedule, and leaping over steps that nobody interrupts changes nothing.
"""

from __future__ import annotations

from heapq import heappop

import simpy
from simpy.events import EventPriority

STEP_ENDS = 1
"""Priority of the end of a step on replica 0; further ones follow."""
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
        return self._now  # type: ignore[return-value]  # asked for often: without a call to cast

    def step(self) -> None:
        """Process the next event; one that was moved ahead is over when its old time comes."""
        if self._queue and self._queue[0][3].callbacks is None:
            heappop(self._queue)
        else:
            super().step()


class Wake(simpy.Event):
    """A timeout with a priority (what goes first at one instant) that can be moved ahead."""

    def __init__(self, env: Clock, priority: int, delay: int | None) -> None:
        """Without a delay it waits to be moved."""
        # As in SimPy's own Timeout, without calls: one is made for every step.
        self.env = env
        self.callbacks = []
        self._value = None
        self._ok = True
        self._priority = EventPriority(priority)
        if delay is not None:
            env.schedule(self, self._priority, delay)

    def move(self, delay: int) -> None:
        """Happen `delay` from now, which is earlier than was set."""
        self.env.schedule(self, self._priority, delay)
