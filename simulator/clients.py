"""The clients: when each request of a trace is sent, and sent again.

Open loop: at its arrival. Closed loop (`after`): a think time after the end of the request that
it follows, whatever way that one ended. A client that was turned away, or whose request timed
out, may try again after a pause that doubles each time and differs a little from client to
client; its latencies count from the first send.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import Annotated

from pydantic import Field

from simulator.door import DoorSettings
from simulator.fleet import FleetSettings
from simulator.sections import Seconds
from simulator.settings_file import ScenarioError, Section
from traces.seeds import stream
from traces.trace import Request, Trace, to_ps


class RetrySettings(Section):
    """What clients do when the door turned them away, or their request timed out."""

    count: Annotated[int, Field(ge=0)] = 0
    """Times that a request is sent again; 0 = never."""
    backoff: Annotated[Seconds, Field(gt=0)] = 1.0
    """Mean pause before the first retry; it doubles with each further one."""
    jitter: Annotated[float, Field(ge=0, le=1)] = 0.5
    """Share of the pause by which it may be shorter or longer, by the seed."""

    def check(self, door: DoorSettings, fleet: FleetSettings) -> None:
        """Raises `ScenarioError` where there is nothing to try again after."""
        loses = any(change.what != "add" for change in fleet.changes)
        if self.count and not (door.turns_away or loses):
            raise ScenarioError(
                f"retry.count = {self.count} has no effect: nobody is turned away without "
                'door.timeout, or a limit with door.when_full or door.when_fast = "reject"'
            )


class Clients:
    """Hands out requests in order of sending; ties keep the trace's order."""

    def __init__(self, trace: Trace, retry: RetrySettings | None = None, seed: int = 0) -> None:
        self._rows = trace.requests()
        self._following: dict[int, list[Request]] = {}
        self._due: list[tuple[int, int, Request]] = []
        self._held = 0
        self._retry = retry or RetrySettings()
        self._seed = seed
        self._size = len(trace)
        self._jitters: list[list[float]] = []
        """One draw a request for the first retry, for the second, …: the pauses of a request
        do not depend on who else tried again."""
        self._sent: dict[int, Request] = {}
        self._attempts: dict[int, int] = {}
        if (trace.after >= 0).any():
            opening = []
            for request in trace.requests():
                if request.after >= 0:
                    self._following.setdefault(request.after, []).append(request)
                    self._held += 1
                else:
                    opening.append(request)
            self._rows = iter(opening)
        self.open_loop = not (self._held or self._retry.count)
        """Whether all sends are known from the start."""
        self._first: Request | None = next(self._rows, None)
        self.next: int | None = None
        """When the next known request is sent; None if there is none, for now."""
        self.more = True
        """Whether any request is still to be sent."""
        self._look()

    def take(self, now: int) -> Request | None:
        """The next request, if it is due by `now`."""
        if self.next is None or self.next > now:
            return None
        if self.open_loop:
            return self.pop()
        first = self._first
        if self._due and (first is None or self._due[0][:2] < (first.arrival, first.index)):
            first = heappop(self._due)[2]
        else:
            self._first = next(self._rows, None)
        if self._retry.count and first is not None:
            self._sent[first.index] = first
        self._look()
        return first

    def pop(self) -> Request:
        """Open loop: the next request, whenever it is sent. There must be one."""
        first = self._first
        assert first is not None
        self._first = following = next(self._rows, None)
        if following is None:
            self.next, self.more = None, False
        else:
            self.next = following.arrival
        return first

    @property
    def retries(self) -> bool:
        """Whether clients try again at all."""
        return self._retry.count > 0

    def attempts(self, index: int) -> int:
        """How often request `index` was sent again."""
        return self._attempts.get(index, 0)

    def try_again(self, index: int, now: int) -> bool:
        """Request `index` was turned away or timed out: whether it will be sent again."""
        if self.attempts(index) >= self._retry.count:
            return False
        attempt = self._attempts[index] = self.attempts(index) + 1
        if attempt > len(self._jitters):
            draws = stream(self._seed, "retries", str(attempt)).uniform(-1, 1, self._size)
            self._jitters.append(draws.tolist())
        mean = self._retry.backoff * 2 ** (attempt - 1)
        pause = to_ps(mean * (1 + self._retry.jitter * self._jitters[attempt - 1][index]))
        heappush(self._due, (now + pause, index, self._sent[index]))
        self._look()
        return True

    def waiting_to_try(self) -> list[Request]:
        """Requests that are to be sent again."""
        return [request for _, index, request in sorted(self._due) if self.attempts(index)]

    def ended(self, index: int, now: int) -> bool:
        """Request `index` ended: those that waited for it will be sent. True if there are any."""
        if self._sent:
            self._sent.pop(index, None)
            self._attempts.pop(index, None)
        if not self._held or index not in self._following:
            return False
        for request in self._following.pop(index):
            sent = request._replace(arrival=now + request.arrival)
            heappush(self._due, (sent.arrival, sent.index, sent))
            self._held -= 1
        self._look()
        return True

    def _look(self) -> None:
        first = self._first
        self.next = None if first is None else first.arrival
        if self._due and (first is None or self._due[0][0] < first.arrival):
            self.next = self._due[0][0]
        self.more = self.next is not None or self._held > 0
