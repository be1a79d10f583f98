"""One server as a process: ask the policy, wait the step time, apply."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any, Protocol, cast

import numpy as np
import simpy

from calibration.step_time import Executor, Predicted, StepShape, StepTime
from policies.base import Answer, Policy, Stable, Step
from simulator.checks import LawBroken
from simulator.clock import SCHEDULES, STEP_ENDS, Clock, Wake
from simulator.cruise import cruise
from simulator.engine import Engine
from simulator.identity import prefix
from simulator.leap import FOREVER, Leap, count_blocks, cut, lengthen, longest, names
from simulator.recorder import ReplicaLog, RequestLog
from simulator.sequence import Sequence
from simulator.step import StepBuilder

if TYPE_CHECKING:
    from simulator.clients import Clients

FLEET_LEAP = 256
"""Steps that a leap may have in a fleet: an arrival may cut it, so longer ones are often vain."""


class Outlook(Protocol):
    """What a replica may know of what is to come."""

    @property
    def next(self) -> int | None:
        """When something happens outside next, as far as is known; None = never."""
        ...

    @property
    def more(self) -> bool:
        """Whether a request may still arrive."""
        ...

    @property
    def settled(self) -> bool:
        """Whether no replica comes or goes."""
        ...

    @property
    def quiet(self) -> bool:
        """Besides, nothing but arrivals, known beforehand and all for this replica."""
        ...

    @property
    def clients(self) -> Clients: ...
    @property
    def done(self) -> RequestLog | None: ...
    def pull(self, lane: str) -> Sequence | None:
        """If quiet: the next request, ahead of the clock; None if it cannot be served."""
        ...

    def counted(self, requests: int, tokens: int) -> None:
        """If quiet: so many more are on the replica than were delivered."""
        ...


class Replica:
    """A queue, a running set and a pool under one policy, on one executor."""

    def __init__(
        self,
        env: Clock,
        index: int,
        engine: Engine,
        policy: Policy,
        executor: Executor,
        outlook: Outlook,
        max_model_len: int,
        victims: np.random.Generator,
        on_left: Callable[[Sequence, int, str], None],
        *,
        leap: bool = True,
        solo: bool = True,
        horizon: int = FOREVER,
    ) -> None:
        self.env = env
        self.index = index
        self.policy = policy
        self.executor = executor
        self.step = StepBuilder(engine, policy, max_model_len, victims)
        self._verbs = cast(Step, self.step)
        """The same as a policy sees it: it hands back only sequences that it was given."""
        self.log = ReplicaLog(index, engine.block_size)
        self.evicted_at = -1
        """When it last preempted somebody."""
        self._lost = False
        self.engine = engine
        self._outlook = outlook
        self.on_left = on_left
        self._leap = leap
        self.solo = solo
        self.horizon = horizon
        self._prices: StepTime | None = getattr(executor, "step_time", None)
        self.step.withdraws = self._prices is None
        self._asleep: Leap | None = None
        """The leap in progress; None while idle."""
        self._shape = StepShape()
        self._host = 0
        self._plain = False
        """Blocks have no names and no places, and it is not lost with them: it may `cruise`."""
        self._ranks_apart = engine.rank_evict == "local"
        self._known = (0, 0, 0, 0, 0)
        self._wake: Wake | None = None
        """What it sleeps for."""
        self._stable: Stable | None = None
        self._heads: list[tuple[Sequence, Answer]] = []
        self._steps = 0
        self.most = FOREVER if solo else FLEET_LEAP

    # What others do to it

    def start(self) -> None:
        """Begin to run."""
        engine = self.engine
        self._plain = (
            self._leap
            and self._outlook.settled
            and isinstance(self.executor, Predicted)
            and self.executor.ahead
            and not (engine.prefix_cache or engine.contiguous or engine.swap_tokens)
            and not self._ranks_apart
        )
        self.env.process(self.run())

    def deliver(self, seq: Sequence, now: int) -> None:
        """A request arrives: queue it, and end the leap in progress if it may change a thing."""
        lane = self.step.queue.lane(seq.lane)
        self.log.queued.append(now)
        leap = self._asleep
        if leap is None:
            if seq.boundary < 0:
                seq.boundary = now
            self.step.arrive(seq)
            self._rouse()
            return
        running = leap.reach(now)
        if seq.boundary < 0:
            seq.boundary = leap.end(running)
        matters = running < leap.steps and self._matters(seq, lane[0] if lane else None)
        self.step.arrive(seq)
        if matters:
            self._shorten(leap, running, now)

    def withdraw(self, seq: Sequence, now: int) -> None:
        """A queued request goes away."""
        self.step.withdraw(seq)
        self.log.withdrawn.append(now)
        self.interrupt()

    def lose(self, now: int) -> list[Sequence]:
        """The server is gone, with all KV and the step in progress; steps that ended count.

        Returns those who were there, running ones first, in order.
        """
        self._lost = True
        if (leap := self._asleep) is not None:
            running = leap.reach(now)
            ended = running if leap.end(running) == now else running - 1
            if ended:
                cut(leap, ended)
                self._complete(leap, leap.end(ended))
            self._asleep = None
        self._count_waits(now)
        there = self.step.evacuate(now)
        for seq in there:
            self.executor.forget(seq.index)
        self._rouse()
        return there

    def interrupt(self) -> None:
        """Something changed outside: end the leap with the step in progress, or wake up."""
        leap = self._asleep
        if leap is None:
            self._rouse()
        elif leap.steps > (running := leap.reach(self.env.now)):
            self._shorten(leap, running, self.env.now)

    def _shorten(self, leap: Leap, steps: int, now: int) -> None:
        assert self._wake is not None
        cut(leap, steps)
        self._wake.move(leap.end(steps) - now)

    def _rouse(self) -> None:
        """Wake up now, if it sleeps."""
        if self._wake is not None:
            self._wake.move(0)
            self._wake = None

    # The loop

    def run(self) -> Generator[simpy.Event, Any, None]:
        """Until nobody is left and nobody is to come, the horizon, or its loss."""
        env, step, executor, log = self.env, self.step, self.executor, self.log
        now = env.now
        vain = 0
        while not self._lost:
            if self._cruises():
                self._count_waits(now)
                assert self._prices is not None
                now, over = yield from cruise(self, self._outlook, self._prices, now)
                if over:
                    return
                if now > env.now:
                    yield Wake(env, SCHEDULES + self.index, now - env.now)
            shape = self._schedule(now)
            if not step.tokens:
                if step.preempted:  # everything is different now: ask again at once
                    log.unfed += len(step.preempted)
                    vain += 1
                    if vain > self.engine.max_running:
                        raise self._broken(
                            f"asked {vain} times at one moment, it preempts and feeds nobody; "
                            "somebody must advance in every step"
                        )
                    continue
                if (wake := self._idle()) is None:
                    return
                self._wake = wake
                yield wake
                self._wake = None
                now = env.now
                continue
            vain = 0
            done = executor.run(shape, step.rows)
            leap = self._plan(now, shape, done.duration)
            if now + done.duration > self.horizon:
                return
            self._shape, self._host, self._known = shape, done.host, log.scheduled(step)
            yield self.sleep(leap)
            if self._lost:
                return
            self.awake()
            now = env.now
            for index in done.stopped:
                step.stop(index)
            for seq in self._complete(leap, now):
                executor.forget(seq.index)
                self.on_left(seq, self.index, seq.reason)
            if env.peek() == now:
                # What is sent at this very instant is seen by the next schedule.
                yield Wake(env, SCHEDULES + self.index, 0)

    def sleep(self, leap: Leap) -> Wake:
        """An event for the end of `leap`, which others may cut until then."""
        self._asleep = leap
        delay = leap.end(leap.steps) - self.env.now
        self._wake = wake = Wake(self.env, STEP_ENDS + self.index, delay)
        return wake

    def awake(self) -> None:
        """The leap is over."""
        self._asleep = self._wake = None

    def _cruises(self) -> bool:
        """Whether the policy need not be asked, as long as `cruise` knows what it would do."""
        stable = self._stable
        if not (self._plain and stable and stable.in_order and stable.until is None):
            return False
        if self.log.unfed:  # the row of the next step counts them
            return False
        return self.step.queue.first_come is not None

    def _complete(self, leap: Leap, now: int) -> list[Sequence]:
        """The steps of `leap` have passed; those who ended with them."""
        step = self.step
        finished = step.apply(leap.steps, leap.start + leap.first, now)
        self.log.stepped(
            leap, self._shape, self._host, self._known, len(step.admitted), len(finished)
        )
        return finished

    def _schedule(self, now: int) -> StepShape:
        """Ask the policy what the next step does."""
        step = self.step
        self._count_waits(now)
        step.open(now, self._outlook.more)
        self._steps += 1
        try:
            if self._ranks_apart and step.recompute_alone():
                self._stable = None
            else:
                self._stable = self.policy.schedule(self._verbs)
        except LawBroken as error:
            raise self._broken(str(error)) from None
        except Exception as error:  # whatever a stranger's code raises
            raise self._broken(f"it raised {type(error).__name__}: {error}") from error
        if self._stable is not None and not isinstance(self._stable, Stable):
            raise self._broken(f"it returned {self._stable!r}; expected a Stable, or None")
        shape = step.close()
        if step.preempted:
            self.evicted_at = now
        for victim, _, _, _ in step.preempted:
            self.executor.forget(victim.index)
        self._heads = []
        if step.queue:
            why = self._why()
            self._heads = [
                (lane[0], step.refused.get(name, why))
                for name, lane in step.queue.lanes.items()
                if lane and lane[0].first_scheduled < 0
            ]
        return shape

    def _count_waits(self, now: int) -> None:
        """The heads of the queues have waited since the last schedule."""
        since = now - self.step.now
        for seq, answer in self._heads:
            seq.wait(answer, since)
        self._heads = []
        if self.step.fragmented:
            self.log.fragmented += since
            self.step.fragmented = False

    def _broken(self, law: str) -> LawBroken:
        """The policy broke a law: who, when, which."""
        name, now = type(self.policy).__name__, self.step.now
        return LawBroken(f"policy {name}, step {self._steps} at {now} ps: {law}")

    def _why(self) -> Answer:
        """Why a head waits that the policy did not try."""
        step = self.step
        if step.preempted:
            return Answer.BLOCKS
        if not step.tokens_left:
            return Answer.TOKENS
        return Answer.BLOCKS if step.seats_left else Answer.SEATS

    def check(self, duration: int, now: int) -> None:
        """Raises `LawBroken` for a step that takes no time."""
        if duration <= 0:
            raise LawBroken(
                f"step {self._steps} at {now} ps takes {duration} ps: expected more than 0"
            )

    def _plan(self, now: int, shape: StepShape, duration: int) -> Leap:
        """The leap that begins now: how many steps may equal this one."""
        self.check(duration, now)
        step, stable, prices = self.step, self._stable, self._prices
        leap = Leap(now, duration, 0, 1, [])
        if not (step.steady and stable and prices and self._leap and self.executor.ahead):
            return leap
        until = self.horizon + 1
        if stable.until is not None:
            until = min(until, stable.until)
        queued = bool(step.queue)
        if self.solo and (stable.arrivals or not queued):
            upcoming = self._outlook.next
            if upcoming is not None and upcoming < until:
                until = upcoming
        if now + duration >= until:
            return leap
        if queued and self.engine.prefix_cache and self._head_may_hit():
            return leap
        group = step.group if step.tick else None
        chunks = [(seq, n) for seq, n in step.fed.items() if seq.group is None]
        leap.steps = min(self.most, longest(group, chunks))
        if leap.steps <= 1:
            leap.steps = 1
            return leap
        size = step.pool.block_size
        leap.growth = prices.growth(shape.prefill_tokens, shape.decodes, step.squares)
        lengthen(leap, group, chunks, size, step.pool.free - step.floor, until)
        if prices.counts_blocks:
            naming = prices.tN and self.engine.prefix_cache
            named = names(group, chunks, size, leap.steps) if naming else [0] * leap.steps
            count_blocks(leap, prices, shape.turned, named, until)
        if leap.steps > 1 and leap.end(leap.steps) > self.horizon:
            cut(leap, leap.steps - 1)
        return leap

    def _matters(self, seq: Sequence, head: Sequence | None) -> bool:
        """Whether an arrival may change the decision that the leap in progress repeats."""
        stable = self._stable
        if stable is None or stable.arrivals or head is None:
            return True
        key = self.policy.queue_key
        mine, theirs = key(seq), key(head)
        if mine is None or theirs is None:
            return False
        return (mine, seq.index) < (theirs, head.index)

    def _head_may_hit(self) -> bool:
        """Whether a running sequence computes the block that a refused head would hit next."""
        step, size = self.step, self.engine.block_size
        for lane in step.queue.lanes.values():
            if not lane:
                continue
            head = lane[0]
            wanted = list(prefix(head, size))
            at = len(step.pool.lookup(wanted))
            if at == len(wanted):
                continue
            for seq in step.running:
                if seq.computed < (at + 1) * size and step.would_name(seq, at) == wanted[at]:
                    return True
        return False

    def _idle(self) -> Wake | None:
        """Nobody was fed: what to sleep for, until something changes. None = nothing is to come."""
        env, step = self.env, self.step
        until = self._stable.until if self._stable else None
        if until is not None and until <= env.now:
            raise self._broken(
                f"nobody is fed, and it wants to be asked again at {until} ps, which is not later; "
                "somebody must advance in every step"
            )
        if step.running or step.queue:
            if until is None and not self._outlook.more:
                raise self._broken(
                    f"nobody is fed with {len(step.running)} running and {len(step.queue)} "
                    "waiting, nothing to come and no time to ask again; somebody must advance in "
                    "every step"
                )
        elif not self._outlook.more:
            return None
        # Without a time to ask again it is roused from outside, or never.
        delay = None if until is None or until > self.horizon else max(until - env.now, 0)
        return Wake(env, SCHEDULES + self.index, delay)
