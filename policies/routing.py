"""Which replica takes a request. A router sees load, counted queued and running (C8)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from traces.trace import Request


class Load(Protocol):
    """What a router sees of a replica."""

    @property
    def outstanding(self) -> int:
        """Requests queued or running there."""
        ...


Router = Callable[[Request, Sequence[Load]], int]
"""The index of the replica that takes the request. Ties go to the lowest index."""


def round_robin(request: Request, replicas: Sequence[Load]) -> int:
    """In turn, by the request's row."""
    return request.index % len(replicas)


def least_outstanding(request: Request, replicas: Sequence[Load]) -> int:
    """The replica with the fewest requests queued or running."""
    return min(range(len(replicas)), key=lambda at: replicas[at].outstanding)


ROUTERS: dict[str, Router] = {
    "round-robin": round_robin,
    "least-outstanding": least_outstanding,
}
