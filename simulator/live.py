"""The simulator in real time: requests come while it runs, tokens go out as steps end.

The very loop of `simulate` (`World`, `Replica`, the policies, the pool) on the same clock of
picoseconds, which `Live.run` lets follow the asyncio loop's own: what is due is processed, then
it sleeps until the next event or the next request. Steps are never leapt over, so that each
token goes out on time; nothing is kept of the past.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from array import array
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from calibration.step_time import Done, Executor, Row, StepShape
from policies.base import Policy
from simulator.clients import Clients, RetrySettings
from simulator.clock import OUTSIDE, Clock, Wake
from simulator.door import Door, DoorSettings
from simulator.engine import Engine
from simulator.fleet import Fleet, FleetSettings
from simulator.leap import FOREVER
from simulator.recorder import ReplicaLog
from simulator.replica import Replica
from simulator.sequence import Sequence
from simulator.world import World
from traces.seeds import stream
from traces.trace import PS_PER_S, Request, Segment, Trace

EARLY = 1000
"""Picoseconds by which asyncio's timers may go off early: the resolution of its clock."""
KEPT = 512
"""Steps after which what is kept of them for records is forgotten."""


class Answered:
    """What a request's client gets: tokens as they appear, then the end."""

    def __init__(self, request: Request) -> None:
        self.request = request
        self.produced = 0
        """Tokens that appeared so far."""
        self.reason: str | None = None
        """Why it ended, as in `Records`; None while it goes on."""
        self.hit = 0
        """Prompt tokens found in the prefix cache."""
        self.times: list[int] = []
        """When the first and the last token appeared, picoseconds."""
        self._news = asyncio.Event()

    async def more(self, than: int) -> int:
        """Wait until more than `than` tokens are there, or it ended; how many there are."""
        while self.produced <= than and self.reason is None:
            self._news.clear()
            await self._news.wait()
        return self.produced

    def tokens(self, produced: int, now: int) -> None:
        """It has `produced` tokens now."""
        if produced > self.produced:
            if not self.produced:
                self.times = [now, now]
            self.times[1] = now
            self.produced = produced
            self._news.set()

    def end(self, reason: str) -> None:
        self.reason = reason
        self._news.set()


class Inbox(Clients):
    """Clients that nobody knows of beforehand: they send when they send."""

    def __init__(self) -> None:
        super().__init__(Trace.of([], [], []), RetrySettings())
        self._sent_now: deque[Request] = deque()
        self.more = True

    def send(self, request: Request) -> None:
        self._sent_now.append(request)

    def take(self, now: int) -> Request | None:
        return self._sent_now.popleft() if self._sent_now else None

    def _look(self) -> None:
        self.next = None  # nothing is known of what is to come,
        self.more = True  # but it may come at any time


@dataclass
class Hangups:
    """An executor that ends those whose client has gone with the token they get next."""

    inner: Executor
    gone: set[int]
    ahead: bool = False

    def run(self, shape: StepShape, rows: Callable[[], list[Row]]) -> Done:
        done = self.inner.run(shape, rows)
        return done._replace(stopped=(*done.stopped, *sorted(self.gone))) if self.gone else done

    def forget(self, request: int) -> None:
        self.inner.forget(request)


class _Told(ReplicaLog):
    """Tells of each step that is over, and forgets it."""

    def __init__(self, replica: int, block_size: int, stepped: Callable[[], None]) -> None:
        super().__init__(replica, block_size)
        self._stepped = stepped

    def stepped(self, *what: Any) -> None:
        super().stepped(*what)
        self._stepped()


def _empty(replica: Replica) -> None:
    """Forget what is kept for records."""
    for kept in vars(replica.log).values():
        if isinstance(kept, array):
            del kept[:]
    for rows in (replica.log.leaps, replica.step.stalls, replica.step.group.spells):
        rows.clear()


class Live:
    """A fleet that serves what is submitted to it, in the time of the running asyncio loop."""

    def __init__(
        self,
        engine: Engine,
        policy: Policy,
        executor: Executor,
        *,
        door: DoorSettings | None = None,
        fleet: FleetSettings | None = None,
        seed: int = 0,
    ) -> None:
        door, fleet = door or DoorSettings(), fleet or FleetSettings()
        self.engine = engine
        self.on_end: Callable[[Answered, Sequence], None] | None = None
        """Told of each request that ends."""
        self.preemptions = 0
        self.behind_s = 0.0
        """How late the last event was processed."""
        self.worst_behind_s = 0.0
        """The most of it so far."""
        self.lately_behind_s = 0.0
        """The most of it since somebody set this to 0."""
        self._env = Clock()
        self._inbox = Inbox()
        self._door = Door(engine, policy, door)
        self._open: dict[int, Answered] = {}
        self._count = 0
        self._gone: set[int] = set()
        self._submitted = asyncio.Event()
        self._broken: Exception | None = None
        self._zero = asyncio.get_running_loop().time()
        self._world = World(self._env, self._inbox, self._door, self._ended, FOREVER)
        self.replicas = [
            Replica(
                self._env, index, engine, policy, Hangups(executor, self._gone), self._world,
                self._door.max_model_len, stream(seed, "victims", str(index)), self._world.left,
                leap=False, solo=False,
            )
            for index in range(fleet.most)
        ]  # fmt: skip
        for replica in self.replicas:
            replica.log = _Told(replica.index, engine.block_size, self._tell(replica))
        self._world.start(Fleet(fleet, door, self.replicas, stream(seed, "router")))

    @property
    def now(self) -> int:
        """Picoseconds since it began, on the loop's clock."""
        return round((asyncio.get_running_loop().time() - self._zero) * PS_PER_S)

    @property
    def max_model_len(self) -> int:
        return self._door.max_model_len

    @property
    def running(self) -> int:
        return sum(len(replica.step.running) for replica in self.replicas)

    @property
    def waiting(self) -> int:
        """In queues, and held at the door."""
        held = len(self._door.outside) + len(self._door.paced)
        return held + sum(len(replica.step.queue) for replica in self.replicas)

    @property
    def used_share(self) -> float:
        """Of the KV blocks of all replicas."""
        pools = [replica.step.pool for replica in self.replicas]
        return 1 - sum(pool.free for pool in pools) / sum(pool.blocks for pool in pools)

    def submit(
        self,
        prompt: int,
        output: int,
        declared: int,
        *,
        priority: int = 0,
        tenant: str = "",
        content: tuple[Segment, ...] = (),
    ) -> Answered:
        """Send a request now. Where it is turned away at once, its `reason` says so already."""
        self._advance()
        now = max(self.now, self._env.now)
        request = Request(
            self._count, now, prompt, output, declared, priority, tenant, content=content
        )
        self._count += 1
        answered = self._open[request.index] = Answered(request)
        self._inbox.send(request)
        arrives = Wake(self._env, OUTSIDE, now - self._env.now)
        assert arrives.callbacks is not None
        arrives.callbacks.append(self._world.act)
        self._advance()
        self._submitted.set()
        return answered

    def hang_up(self, answered: Answered) -> None:
        """Its client has gone: it leaves the queue, or ends with its next token."""
        index = answered.request.index
        if index not in self._open:
            return
        self._advance()
        now = self._env.now
        held = next((s for s in (*self._door.outside, *self._door.paced) if s.index == index), None)
        if held is not None:
            self._door.drop(held)
            held.ended = True
            self._ended(held, -1, now, "hung up")
            return
        for replica in self.replicas:
            seq = next((seq for seq in replica.step.queue if seq.index == index), None)
            if seq is not None:
                replica.withdraw(seq, now)
                self._world.left(seq, replica.index, "hung up")
                self._submitted.set()
                return
        if index in self._open:
            self._gone.add(index)

    async def run(self) -> None:
        """Follow the clock until cancelled. Raises what a policy raises, or `LawBroken`."""
        while True:
            if self._broken is not None:
                raise self._broken
            self._advance()
            upcoming = self._env.peek()
            self._submitted.clear()
            if upcoming == math.inf:
                await self._submitted.wait()
                continue
            pause = (upcoming - self.now) / PS_PER_S
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._submitted.wait(), max(pause, 0.0))

    def _advance(self) -> None:
        """Process all that is due."""
        env = self._env
        now = self.now + EARLY
        upcoming = env.peek()
        if upcoming <= now:
            self.behind_s = max(0.0, (self.now - upcoming) / PS_PER_S)
            self.worst_behind_s = max(self.worst_behind_s, self.behind_s)
            self.lately_behind_s = max(self.lately_behind_s, self.behind_s)
        try:
            while env.peek() <= now:
                env.step()
        except Exception as error:  # a policy broke a law: the driver ends with it too
            self._broken = error
            self._submitted.set()
            raise

    def _tell(self, replica: Replica) -> Callable[[], None]:
        """Hand out the tokens of a step that ended on `replica`."""

        def stepped() -> None:
            step = replica.step
            now = self._env.now
            self.preemptions += len(step.preempted)
            for seq in step.running:
                answered = self._open.get(seq.index)
                if answered is not None:
                    answered.tokens(seq.produced, now)
            if step.number % KEPT == 0:
                _empty(replica)

        return stepped

    def _ended(self, seq: Sequence, replica: int, now: int, reason: str) -> None:
        answered = self._open.pop(seq.index, None)
        if answered is None:
            return
        hung_up = seq.index in self._gone
        self._gone.discard(seq.index)
        answered.hit = seq.hit
        answered.tokens(seq.produced, now)
        answered.end("hung up" if hung_up else reason)
        if self.on_end is not None:
            self.on_end(answered, seq)
