"""The door: what can never be served is refused, and limits hold or turn away the rest (C11).

A request passes two limits in this order: the rate (a token bucket), then the room (requests in
flight). Each either holds it outside, first come, first served, or turns it away. One that was
not first scheduled within `timeout` of being sent leaves, wherever it waits.
"""

from __future__ import annotations

from collections import deque
from typing import Annotated, Literal

from pydantic import Field

from policies.base import Policy
from simulator.engine import Engine
from simulator.identity import prefix
from simulator.sections import Positive, Seconds
from simulator.sequence import Sequence
from simulator.settings_file import ScenarioError, Section
from traces.trace import PS_PER_S, Request, to_ps

RATE = "rejected: rate limit"
ROOM = "rejected: too many in flight"


class DoorSettings(Section):
    """Limits in front of the replicas, and how long a request waits at most."""

    max_in_flight: Positive | None = None
    """Requests queued and running at once. Default: no limit."""
    in_flight_per: Literal["fleet", "replica"] = "fleet"
    """Whether that many are let into the whole fleet, or to each replica."""
    when_full: Literal["hold", "reject"] = "hold"
    """Beyond it, a request waits outside, or is turned away."""
    max_rate: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """Requests per second let in, on average. Default: no limit."""
    burst: Positive = 1
    """Requests that may come at once after a quiet time (size of the token bucket)."""
    when_fast: Literal["hold", "reject"] = "hold"
    """Beyond the rate, a request waits outside, or is turned away."""
    timeout: Annotated[Seconds, Field(gt=0)] | None = None
    """A request that is not first scheduled within this time of its sending leaves. Default:
    never."""
    divert: Annotated[Seconds, Field(ge=0)] = 0.0
    """A replica that evicted somebody within this time gets no request, if another one did not;
    0 = off."""

    def check(self) -> None:
        """Raises `ScenarioError` for settings that have no effect without another."""
        limits = {
            "in_flight_per": "max_in_flight",
            "when_full": "max_in_flight",
            "burst": "max_rate",
            "when_fast": "max_rate",
        }
        for name, limit in limits.items():
            value = getattr(self, name)
            if value != type(self).model_fields[name].default and getattr(self, limit) is None:
                raise ScenarioError(
                    f"door.{name} = {value!r} has no effect without door.{limit}: expected both"
                )

    @property
    def turns_away(self) -> bool:
        """Whether a request can be turned away that could have been served."""
        return (
            (self.max_in_flight is not None and self.when_full == "reject")
            or (self.max_rate is not None and self.when_fast == "reject")
            or self.timeout is not None
        )


class Pace:
    """A token bucket in whole picoseconds: `burst` tokens at most, one more every `gap`."""

    def __init__(self, rate: float, burst: int) -> None:
        self._gap = max(1, round(PS_PER_S / rate))
        self._slack = (burst - 1) * self._gap
        self._full_at = 0
        """When the bucket would be full again."""

    @property
    def next(self) -> int:
        """From when on there is a token."""
        return self._full_at - self._slack

    def take(self, now: int) -> bool:
        """Take a token, if there is one."""
        if now < self.next:
            return False
        self._full_at = max(now, self._full_at) + self._gap
        return True


class Door:
    """Turns a `Request` into a `Sequence`, or says why not; keeps those held outside."""

    def __init__(
        self,
        engine: Engine,
        policy: Policy,
        settings: DoorSettings | None = None,
        pinned: tuple[int, ...] = (),
    ) -> None:
        self._engine = engine
        self._pinned = pinned
        """Identities of the blocks that every replica keeps for good."""
        self._policy = policy
        self._slots = engine.blocks * engine.block_size
        self.settings = settings = settings or DoorSettings()
        self.max_model_len = min(engine.max_model_len, self._slots)
        """The least of the model's limit and the pool."""
        self.pace = Pace(settings.max_rate, settings.burst) if settings.max_rate else None
        self.paced: deque[Sequence] = deque()
        """Held for the rate."""
        self.outside: deque[Sequence] = deque()
        """Held for room; all came before those that are held for the rate."""
        self._timeout = None if settings.timeout is None else to_ps(settings.timeout)
        self._deadlines: deque[tuple[int, Sequence]] = deque()

    def enter(self, request: Request) -> tuple[Sequence, str]:
        """The sequence, and "" or the reason why it can never be served."""
        prompt, output, declared = request.prompt, request.output, request.declared
        room = self._engine.max_model_len - prompt
        if not declared:
            declared = output
        if self._engine.output_cap is not None:
            declared = min(declared, self._engine.output_cap)
        if declared > room:
            declared = max(room, 0)
        goal = output if output < declared else declared
        if goal > self.max_model_len - prompt:
            goal = max(self.max_model_len - prompt, 0)
        seq = Sequence(request, declared, goal, self._policy.lane(request))
        if room < 1:
            return seq, "rejected: prompt reaches max_model_len"
        # The last token is never fed (rule A5); at least one more than the prompt must fit, for
        # the run's model limit is no more than the pool.
        slots = self._slots - self._others(seq) if self._pinned else self._slots
        if prompt + (declared - 1 if declared > 2 else 1) > slots:
            return seq, "rejected: prompt and declared maximum exceed the pool"
        return seq, ""

    def _others(self, seq: Sequence) -> int:
        """Slots of pinned blocks that are of no use to `seq`."""
        pins, size = self._pinned, self._engine.block_size
        own = 0
        for pin, identity in zip(pins, prefix(seq, size), strict=False):
            if pin != identity:
                break
            own += 1
        return (len(pins) - own) * size

    @property
    def open(self) -> bool:
        """Whether nobody is ever held, turned away, timed out or diverted."""
        limits = self.settings
        return not (limits.max_in_flight or limits.max_rate or limits.timeout or limits.divert)

    @property
    def holds(self) -> bool:
        """Whether anybody is held outside."""
        return bool(self.outside or self.paced)

    def drop(self, seq: Sequence) -> None:
        """Let go of one that is held."""
        (self.outside if seq in self.outside else self.paced).remove(seq)

    def watch(self, seq: Sequence, now: int) -> None:
        """`seq` was sent `now`: its time runs."""
        if self._timeout is not None:
            self._deadlines.append((now + self._timeout, seq))

    @property
    def deadline(self) -> int | None:
        """When the next of those that were never scheduled leaves."""
        waiting = self._deadlines
        while waiting and (waiting[0][1].first_scheduled >= 0 or waiting[0][1].ended):
            waiting.popleft()
        return waiting[0][0] if waiting else None

    def expired(self, now: int) -> Sequence | None:
        """The next one whose time is over."""
        deadline = self.deadline
        if deadline is None or deadline > now:
            return None
        return self._deadlines.popleft()[1]
