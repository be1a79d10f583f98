"""What happens outside the replicas: requests are sent, held, routed, timed out, sent again.

One callback, `World.act`, does all that is due at an instant, after the steps that end then and
before anybody schedules: loads are read, replicas change, times run out, held requests get in,
new ones are sent.
"""

from __future__ import annotations

from collections.abc import Callable

import simpy

from simulator.checks import LawBroken
from simulator.clients import Clients
from simulator.clock import OUTSIDE, Clock, Wake
from simulator.door import RATE, ROOM, Door
from simulator.fleet import Fleet, Member
from simulator.leap import FOREVER
from simulator.recorder import RequestLog
from simulator.sequence import Sequence
from traces.trace import PS_PER_S, Request

Ended = Callable[[Sequence, int, int, str], None]
"""Told of each request that ends: who, on which replica (-1 = none), when, why."""
GONE = "rejected: no replica left"
LOST = "lost: no replica left"
"""As `GONE`, of a request that had begun."""


class World:
    """Clients, door and fleet on the clock."""

    def __init__(
        self,
        env: Clock,
        clients: Clients,
        door: Door,
        ended: Ended,
        horizon: int,
        done: RequestLog | None = None,
    ):
        self.sent = 0
        """Requests that clients sent, each counted once."""
        self.next: int | None = 0
        """When something happens outside next, as far as is known; None = never."""
        self.more = True
        """Whether a replica may still get a request. Once False, it stays so."""
        self.notes: list[str] = []
        """What happened to the fleet: one sentence each."""
        self.fleet: Fleet
        self._env = env
        self.clients = clients
        self._door = door
        self._ended = ended
        self._horizon = horizon
        self._plain = False
        """Nothing happens outside but that clients send requests."""
        self.quiet = False
        """Besides, there is one replica, and all sends are known: it may run ahead of the clock."""
        self.settled = False
        """No replica comes or goes."""
        self.done = done
        """Where a replica that runs ahead writes down who ended."""
        self._alarm = FOREVER
        """When the next wake-up is set."""
        self._wake: Wake

    def start(self, fleet: Fleet) -> None:
        """Open the door, and start the replicas."""
        self.fleet = fleet
        self._plain = self._door.open and fleet.still and not self.clients.retries
        self.settled = self.done is not None and fleet.settled
        lone = len(fleet.members) == 1 and self.settled
        self.quiet = self._plain and lone and self.clients.open_loop
        self.act()
        for member in fleet.members:
            member.replica.start()

    def act(self, _: simpy.Event | None = None) -> None:
        """Do all that is due."""
        now = self._env.now
        self._alarm = FOREVER
        self.fleet.read(now)
        while changed := self.fleet.change(now):
            self._changed(*changed, now)
        while (late := self._door.expired(now)) is not None:
            self._expire(late, now)
        if self._door.holds:
            self._release(now)
        while (request := self.clients.take(now)) is not None:
            self._send(request, now)
        self._look()

    def left(self, seq: Sequence, replica: int, reason: str) -> None:
        """`seq` ended on its replica, with the step that ends now."""
        self.fleet.left(seq)
        followed = self._end(seq, replica, self._env.now, reason)
        if self._plain and not followed:
            return
        if self._door.outside:
            self._ring(self._env.now)
        self._look()

    # For a replica that runs ahead of the clock (`quiet`)

    def pull(self, lane: str) -> Sequence | None:
        """The next request, before its time comes on the clock; None if it cannot be served.
        `counted` is to be told of it. Raises `LawBroken` if it is not for `lane`."""
        request = self.clients.pop()
        self.sent += 1
        seq, refusal = self._door.enter(request)
        if refusal:
            self._end(seq, -1, request.arrival, refusal)
            return None
        if seq.lane != lane:
            raise LawBroken(
                f"the policy takes all in order (Stable.in_order), and has two lanes: {lane!r} and "
                f"{seq.lane!r}; expected one"
            )
        seq.entered, seq.replica = request.arrival, 0
        return seq

    def counted(self, requests: int, tokens: int) -> None:
        """So many more are on the replica than the fleet knows of."""
        self.fleet.count(self.fleet.members[0], requests, tokens)

    def unfinished(self) -> list[Sequence]:
        """Requests that were sent and are on no replica: held, or to be sent again."""
        again = [self._enter(request)[0] for request in self.clients.waiting_to_try()]
        return [*self._door.outside, *self._door.paced, *again]

    # One request

    def _send(self, request: Request, now: int) -> None:
        seq, refusal = self._enter(request)
        self.sent += not seq.retries
        if refusal:
            self._end(seq, -1, now, refusal)
            return
        door = self._door
        door.watch(seq, now)
        if door.pace is None or (not door.paced and door.pace.take(now)):
            self._admit(seq, now)
        elif door.settings.when_fast == "hold":
            door.paced.append(seq)
        else:
            self._turn_away(seq, now, RATE)

    def _enter(self, request: Request) -> tuple[Sequence, str]:
        seq, refusal = self._door.enter(request)
        seq.retries = self.clients.attempts(request.index)
        return seq, refusal

    def _admit(self, seq: Sequence, now: int) -> None:
        """Past the rate limit: is there room?"""
        door = self._door
        if not door.outside and self.fleet.take(seq, now):
            return
        if self.fleet.empty and not self.fleet.growing:
            self._turn_away(seq, now, GONE)
        elif self.fleet.empty or door.settings.when_full == "hold":
            door.outside.append(seq)
        else:
            self._turn_away(seq, now, ROOM)

    def _turn_away(self, seq: Sequence, now: int, reason: str) -> None:
        seq.ended = True
        if seq.first_scheduled >= 0:
            self._end(seq, -1, now, LOST)  # what was streamed cannot be taken back
        elif not self.clients.try_again(seq.index, now):
            self._end(seq, -1, now, reason)

    def _end(self, seq: Sequence, replica: int, now: int, reason: str) -> bool:
        """`seq` ended, in whatever way. Whether that makes a client send another request."""
        seq.ended = True
        self._ended(seq, replica, now, reason)
        return self.clients.ended(seq.index, now)

    # What is due

    def _release(self, now: int) -> None:
        """Let in whom the limits let in now."""
        door = self._door
        while door.outside and self.fleet.take(door.outside[0], now):
            door.outside.popleft()
        if door.outside and self.fleet.empty and not self.fleet.growing:
            for seq in list(door.outside):
                door.outside.remove(seq)
                self._turn_away(seq, now, GONE)
        while door.paced and door.pace is not None and door.pace.take(now):
            self._admit(door.paced.popleft(), now)

    def _expire(self, seq: Sequence, now: int) -> None:
        """`seq` was not scheduled in time."""
        replica = seq.replica
        if replica < 0:
            self._door.drop(seq)
        else:
            self.fleet.left(seq)
            self.fleet.members[replica].replica.withdraw(seq, now)
        seq.ended = True
        if not self.clients.try_again(seq.index, now):
            self._end(seq, replica, now, "timeout")

    def _changed(self, what: str, member: Member, now: int) -> None:
        """A replica was added, drained, or lost: then its requests go elsewhere."""
        at = f"replica {member.index} at {now / PS_PER_S:g} s"
        if what != "lose":
            self.notes.append(f"{'Took in' if what == 'add' else 'Drained'} {at}.")
            return
        moved = member.replica.lose(now)
        for seq in moved:
            self.fleet.left(seq)
        for place, seq in enumerate(moved):
            seq.replica = -1
            if self.fleet.take(seq, now, moved=True):
                continue
            if self.fleet.growing:  # they were in already: before all that are held
                self._door.outside.insert(place, seq)
            else:
                self._turn_away(seq, now, GONE)
        self.notes.append(f"Lost {at}: {len(moved)} requests went elsewhere.")

    # When to look again

    def _look(self) -> None:
        """Set the next wake-up, and tell the replicas when nothing is to come any more."""
        clients, door, fleet = self.clients, self._door, self.fleet
        upcoming = clients.next
        if self._plain and upcoming is not None:
            self.next = upcoming
            self._ring(upcoming)
            return
        moments = [fleet.next, door.deadline]
        if door.paced and door.pace is not None:
            moments.append(door.pace.next)
        for moment in moments:
            if moment is not None and (upcoming is None or moment < upcoming):
                upcoming = moment
        if self.more and not (
            clients.more
            or door.holds
            or fleet.may_move
            or (door.deadline is not None and clients.retries)
        ):
            self.more = False
            for member in fleet.members:
                member.replica.interrupt()
        self.next = upcoming if self.more or door.deadline is not None else None
        if self.next is not None:
            self._ring(self.next)

    def _ring(self, at: int) -> None:
        """Wake up at `at`, if that is not later than the horizon."""
        if at < self._alarm and at <= self._horizon:
            if self._alarm == FOREVER:
                self._wake = Wake(self._env, OUTSIDE, None)
                assert self._wake.callbacks is not None
                self._wake.callbacks.append(self.act)
            self._wake.move(at - self._env.now)
            self._alarm = at
