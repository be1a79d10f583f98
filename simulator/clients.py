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
        self._closed = bool((trace.after >= 0).any())
        self._following: dict[int, list[Request]] = {}
        self._due: list[tuple[int, int, Request]] = []
        self._held = 0
        if self._closed:
            opening = []
            for request in trace.requests():
                if request.after >= 0:
                    self._following.setdefault(request.after, []).append(request)
                    self._held += 1
                else:
                    opening.append(request)
            self._rows = iter(opening)
        self._next: Request | None = next(self._rows, None)

    @property
    def next(self) -> int | None:
        """When the next known request is sent; None if there is none, for now."""
        if self._due and (self._next is None or self._due[0][0] < self._next.arrival):
            return self._due[0][0]
        return None if self._next is None else self._next.arrival

    @property
    def more(self) -> bool:
        """Whether any request is still to be sent."""
        return self._next is not None or bool(self._due) or self._held > 0

    def take(self, now: int) -> Request | None:
        """The next request, if it is due by `now`."""
        first = self._next
        if self._due and (first is None or self._due[0][:2] < (first.arrival, first.index)):
            return heappop(self._due)[2] if self._due[0][0] <= now else None
        if first is None or first.arrival > now:
            return None
        self._next = next(self._rows, None)
        return first

    def ended(self, index: int, now: int) -> bool:
        """Request `index` ended: those that waited for it will be sent. True if there are any."""
        following = self._following.pop(index, None)
        if not following:
            return False
        for request in following:
            sent = request._replace(arrival=now + request.arrival)
            heappush(self._due, (sent.arrival, sent.index, sent))
            self._held -= 1
        return True
