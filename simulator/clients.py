"""The clients: when each request of a trace is sent.

Open loop: at its arrival. Closed loop (`after`): a think time after the end of the request that
it follows, whatever way that one ended.
"""

from __future__ import annotations

from heapq import heappop, heappush

from traces.trace import Request, Trace


class Clients:
    """Hands out requests in order of sending; ties keep the trace's order."""

    def __init__(self, trace: Trace) -> None:
        self._rows = trace.requests()
        self._following: dict[int, list[Request]] = {}
        self._due: list[tuple[int, int, Request]] = []
        self._held = 0
        if (trace.after >= 0).any():
            opening = []
            for request in trace.requests():
                if request.after >= 0:
                    self._following.setdefault(request.after, []).append(request)
                    self._held += 1
                else:
                    opening.append(request)
            self._rows = iter(opening)
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
        first = self._first
        if self._due and (first is None or self._due[0][:2] < (first.arrival, first.index)):
            first = heappop(self._due)[2]
        else:
            self._first = next(self._rows, None)
        self._look()
        return first

    def ended(self, index: int, now: int) -> bool:
        """Request `index` ended: those that waited for it will be sent. True if there are any."""
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
