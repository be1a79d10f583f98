"""The replicas as a fleet: who is there, what the router sees of them, who takes a request."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as AbstractSequence
from typing import Annotated, Literal, NamedTuple

import numpy as np
from pydantic import Field, field_validator

from policies.routing import ROUTERS, Memory
from simulator.door import DoorSettings
from simulator.replica import Replica
from simulator.sections import Positive, Seconds
from simulator.sequence import Sequence
from simulator.settings_file import ScenarioError, Section
from traces.trace import to_ps

BLIND = ("round-robin", "random")
"""Routers that look at no load."""


class Change(Section):
    """A replica is lost, drained or added at a stated time."""

    at: Annotated[Seconds, Field(ge=0)]
    """When."""
    what: Literal["lose", "drain", "add"]
    """`lose`: its KV and the step in progress are gone, and all its requests go to others, which
    recompute what they need; `drain`: it takes no more requests; `add`: a new replica, whose
    index follows those before it."""
    replica: Annotated[int, Field(ge=0)] | None = None
    """Which one is lost or drained, counted from 0."""
    load: Annotated[Seconds, Field(ge=0)] = 0.0
    """Time until an added one takes requests: start, weights, warm-up."""


class FleetSettings(Section):
    """How many replicas there are, how requests are spread, and what happens to them."""

    replicas: Positive = 1
    """Replicas at the start, each one engine of its own."""
    router: str = "least-outstanding"
    """Who takes a request: `round-robin`, `random`, `least-outstanding`, `least-tokens`,
    `power-of-two`, or `prefix-affinity` (same session or same beginning, same replica)."""
    overload: Annotated[float, Field(ge=1, allow_inf_nan=False)] = 1.5
    """`prefix-affinity` leaves a replica that has more than this many times the mean load."""
    refresh: Annotated[Seconds, Field(ge=0)] = 0.0
    """The router sees loads as they were when last read, every so much time; 0 = as they are."""
    changes: list[Change] = Field(default_factory=list)
    """Replicas lost, drained and added: `[{ at = 60, what = "lose", replica = 1 }]`."""

    @field_validator("router")
    @classmethod
    def _known(cls, router: str) -> str:
        if router not in ROUTERS:
            raise ValueError(f"expected one of {', '.join(ROUTERS)}")
        return router

    @property
    def most(self) -> int:
        """Replicas that ever are, added ones included."""
        return self.replicas + sum(change.what == "add" for change in self.changes)

    def check(self, door: DoorSettings) -> None:
        """Raises `ScenarioError` for settings that contradict each other or have no effect."""
        there = set(range(self.replicas))
        total = self.replicas
        for change in sorted(self.changes, key=lambda change: change.at):
            said = f"fleet.changes: {change.what} at {change.at:g} s"
            if change.what == "add":
                if change.replica is not None:
                    raise ScenarioError(
                        f"{said} with replica = {change.replica}: a new one is number {total}; "
                        "expected no replica"
                    )
                there.add(total)
                total += 1
                continue
            if change.load:
                raise ScenarioError(f"{said} with load = {change.load:g}: expected no load time")
            if change.replica is None:
                raise ScenarioError(f"{said}: expected which replica, such as replica = 0")
            if change.replica not in there:
                raise ScenarioError(
                    f"{said} of replica {change.replica}, which is not there then: expected one "
                    f"of {', '.join(map(str, sorted(there))) or 'none'}"
                )
            if change.what == "lose":
                there.remove(change.replica)
        if self.overload != 1.5 and self.router != "prefix-affinity":
            raise ScenarioError(
                f"fleet.overload = {self.overload:g} has no effect with fleet.router = "
                f'{self.router!r}: expected router = "prefix-affinity"'
            )
        if self.refresh and self.router in BLIND and not door.divert:
            raise ScenarioError(
                f"fleet.refresh = {self.refresh:g} has no effect with fleet.router = "
                f"{self.router!r}, which looks at no load"
            )
        if door.divert and self.most == 1:
            raise ScenarioError(
                f"door.divert = {door.divert:g} contradicts fleet.replicas = 1: there is no other "
                "replica to go to"
            )


class Seen(NamedTuple):
    """A load as it was read."""

    index: int  # type: ignore[assignment]  # hides tuple.index, which nobody calls
    outstanding: int
    tokens: int
    evicted_at: int


class Member:
    """A replica, and what the fleet knows of it."""

    def __init__(self, replica: Replica, *, ready: bool) -> None:
        self.replica = replica
        self.index = replica.index
        self.ready = ready
        """Takes requests."""
        self.closed = False
        """Lost or drained."""
        self.outstanding = 0
        self.tokens = 0
        self.seen = Seen(self.index, 0, 0, -1)

    @property
    def evicted_at(self) -> int:
        """When it last preempted somebody; -1 = never."""
        return self.replica.evicted_at


class Fleet:
    """Members by index, and the router with its memory."""

    def __init__(
        self,
        settings: FleetSettings,
        door: DoorSettings,
        replicas: list[Replica],
        draws: np.random.Generator,
    ) -> None:
        self.members = [
            Member(replica, ready=replica.index < settings.replicas) for replica in replicas
        ]
        self.in_flight = 0
        self.settings = settings
        self._open = [member for member in self.members if member.ready]
        self._route = ROUTERS[settings.router]
        self._memory = Memory(draw=lambda n: int(draws.integers(n)), overload=settings.overload)
        self._divert = to_ps(door.divert)
        self._refresh = to_ps(settings.refresh) if len(replicas) > 1 else 0
        self._read_at = 0
        self._changes = sorted(self._timed(), key=lambda change: change[0])
        per_replica = door.in_flight_per == "replica"
        self._per_replica = door.max_in_flight if per_replica else None
        self._in_all = None if per_replica else door.max_in_flight

    def _timed(self) -> Iterator[tuple[int, str, int]]:
        """(time, what, replica); a new one is ready when it has loaded."""
        index = self.settings.replicas
        for change in sorted(self.settings.changes, key=lambda change: change.at):
            if change.what == "add":
                yield to_ps(change.at) + to_ps(change.load), "add", index
                index += 1
            else:
                assert change.replica is not None
                yield to_ps(change.at), change.what, change.replica

    # What is to come

    @property
    def next(self) -> int | None:
        """When the fleet changes, or loads are read, next."""
        change = self._changes[0][0] if self._changes else None
        if not self._refresh:
            return change
        read = self._read_at + self._refresh
        return read if change is None else min(read, change)

    @property
    def settled(self) -> bool:
        """Whether no replica is to come or go."""
        return not self._changes

    @property
    def still(self) -> bool:
        """Whether nothing happens to it by itself."""
        return self.settled and not self._refresh

    @property
    def growing(self) -> bool:
        """Whether a replica is still to be added."""
        return any(what == "add" for _, what, _ in self._changes)

    @property
    def may_move(self) -> bool:
        """Whether requests of one replica may come to another, as things stand."""
        return any(
            what == "lose" and self.members[index].outstanding for _, what, index in self._changes
        )

    def change(self, now: int) -> tuple[str, Member] | None:
        """The next change that is due, done."""
        if not self._changes or self._changes[0][0] > now:
            return None
        _, what, index = self._changes.pop(0)
        member = self.members[index]
        member.closed |= what != "add"
        member.ready = not member.closed
        self._open = [member for member in self.members if member.ready]
        return what, member

    def read(self, now: int) -> None:
        """Read the loads, if it is time."""
        if self._refresh and now >= self._read_at + self._refresh:
            self._read_at = now - now % self._refresh
            for member in self.members:
                member.seen = Seen(
                    member.index, member.outstanding, member.tokens, member.evicted_at
                )

    # Requests

    @property
    def empty(self) -> bool:
        """Nobody takes requests."""
        return not self._open

    def take(self, seq: Sequence, now: int, *, moved: bool = False) -> bool:
        """Give `seq` to a replica. False if none has room; one that `moved` was in already."""
        if self._in_all is not None and self.in_flight >= self._in_all and not moved:
            return False
        members = self._open
        if self._per_replica is not None and not moved:
            members = [m for m in members if m.outstanding < self._per_replica]
        if not members:
            return False
        member = members[0]
        if len(self.members) > 1:
            member = self._choose(seq, members, now)
        if seq.entered < 0:
            seq.entered = seq.queued_at = now
            seq.waited = now - seq.arrival
        seq.replica = member.index
        self.count(member, 1, seq.prompt + seq.declared)
        member.replica.deliver(seq, now)
        return True

    def count(self, member: Member, requests: int, tokens: int) -> None:
        """So many more are on a replica."""
        self.in_flight += requests
        member.outstanding += requests
        member.tokens += tokens

    def _choose(self, seq: Sequence, members: list[Member], now: int) -> Member:
        loads: AbstractSequence[Member | Seen] = (
            [member.seen for member in members] if self._refresh else members
        )
        if self._divert:
            since = max(now - self._divert, 0)
            loads = [load for load in loads if load.evicted_at < since] or loads
        chosen = self._route(seq, loads, self._memory).index
        self._memory.last = chosen
        return self.members[chosen]

    def left(self, seq: Sequence) -> None:
        """`seq` is no longer on its replica."""
        self.count(self.members[seq.replica], -1, -seq.prompt - seq.declared)
