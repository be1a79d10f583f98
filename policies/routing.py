"""Which replica takes a request: each router picks one of the loads that it is shown.

A load counts what is queued *and* what runs (case C8). Loads come in the order of the
replicas, so that ties go to the lowest index. A router remembers nothing itself; what the choice
needs to know of earlier ones is in `Memory`, which the fleet keeps.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from traces.trace import Segment


class Load(Protocol):
    """What a router sees of a replica."""

    @property
    def index(self) -> int: ...
    @property
    def outstanding(self) -> int:
        """Requests queued or running there."""
        ...

    @property
    def tokens(self) -> int:
        """Their prompt tokens and declared outputs."""
        ...


class Routed(Protocol):
    """What a router sees of a request."""

    @property
    def session(self) -> int: ...
    @property
    def content(self) -> tuple[Segment, ...]: ...


@dataclass(kw_only=True)
class Memory:
    """What a fleet remembers for its router."""

    draw: Callable[[int], int]
    """A random number below n, from the stream "router"."""
    overload: float = 1.5
    """`prefix_affinity`: a replica with more than this many times the mean load is avoided."""
    last: int = -1
    """The replica that took the request before."""
    homes: dict[Hashable, int] = field(default_factory=dict)
    """The replica that last took a session, or a prompt with this beginning."""


Router = Callable[[Routed, Sequence[Load], Memory], Load]
"""Chooses one of the loads, of which there is at least one."""


def round_robin(request: Routed, loads: Sequence[Load], memory: Memory) -> Load:
    """In turn."""
    return next((load for load in loads if load.index > memory.last), loads[0])


def random(request: Routed, loads: Sequence[Load], memory: Memory) -> Load:
    """Any."""
    return loads[memory.draw(len(loads))]


def least_outstanding(request: Routed, loads: Sequence[Load], memory: Memory) -> Load:
    """The one with the fewest requests queued or running."""
    return min(loads, key=lambda load: load.outstanding)


def least_tokens(request: Routed, loads: Sequence[Load], memory: Memory) -> Load:
    """The one with the fewest prompt and declared tokens of requests queued or running."""
    return min(loads, key=lambda load: load.tokens)


def power_of_two(request: Routed, loads: Sequence[Load], memory: Memory) -> Load:
    """Of two drawn at random, the one with fewer requests: nearly as good as looking at all."""
    if len(loads) == 1:
        return loads[0]
    one, other = memory.draw(len(loads)), memory.draw(len(loads) - 1)
    pair = sorted((one, other + (other >= one)))
    return least_outstanding(request, [loads[at] for at in pair], memory)


def prefix_affinity(request: Routed, loads: Sequence[Load], memory: Memory) -> Load:
    """Where its session was served last, else where a prompt with the same beginning was, so
    that the prefix cache hits; unless that replica is overloaded: then the least outstanding."""
    keys = list(_keys(request))
    most = memory.overload * (sum(load.outstanding for load in loads) / len(loads) + 1)
    by_index = {load.index: load for load in loads}
    chosen = None
    for key in keys:
        home = by_index.get(memory.homes.get(key, -1))
        if home is not None and home.outstanding + 1 <= most:
            chosen = home
            break
    if chosen is None:
        chosen = least_outstanding(request, loads, memory)
    for key in keys:
        memory.homes[key] = chosen.index
    return chosen


def _keys(request: Routed) -> Iterator[Hashable]:
    if request.session >= 0:
        yield request.session
    if request.content:
        first = request.content[0]
        yield first.stream, first.start


ROUTERS: dict[str, Router] = {
    "round-robin": round_robin,
    "random": random,
    "least-outstanding": least_outstanding,
    "least-tokens": least_tokens,
    "prefix-affinity": prefix_affinity,
    "power-of-two": power_of_two,
}
