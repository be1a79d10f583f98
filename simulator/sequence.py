"""The progress of one request through one engine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from policies.base import Answer
from traces.trace import Request

if TYPE_CHECKING:
    from simulator.decodes import Decodes


class Sequence:
    """What changes while a request is served; its facts are copied from the `Request`.

    A member of the decode group (`group` is set) advances without being touched: its counters
    are what they were when it joined, plus the ticks since. `computed`, `produced`, `known`
    and `todo` add them; the fields with an underscore do not.
    """

    # What most sequences never touch costs nothing to make: its neutral value is the class's.
    swapped = 0
    """Blocks of its KV that lie on the host."""
    hold = 0
    """Token slots reserved at admission; 0 = on demand."""
    group: Decodes | None = None
    joined = 0
    """Ticks of the group before it joined."""
    spell = 0
    """First tick whose gap it sees."""
    place = 0
    """Counts admissions on its replica: running order."""
    entered = -1
    """When it was first let in by the door."""
    replica = -1
    """Where it is; -1 = outside."""
    retries = 0
    """Times that its client had sent it before."""
    ended = False
    """It was turned away, timed out or finished."""
    admitted_at = -1
    boundary = -1
    """First schedule at or after its arrival."""
    first_scheduled = -1
    first_token = -1
    last_token = -1
    waited = 0
    stalled = 0
    stalled_first = 0
    """Of these, before its first token."""
    lost_at = -1
    """When it was first preempted since its last token; -1 = it was not."""
    stalled_then = 0
    """What `stalled` was at that moment."""
    waits: list[int] | None = None
    """Picoseconds at the head of its lane, by the answer that it got; None = none."""
    preemptions = 0
    passed_over = 0
    evicted_step = -1
    fed = 0
    """Tokens fed to the model so far, recomputation included."""
    recomputed = 0
    high_water = 0
    """Most tokens that were computed when it was preempted: below it, feeding is recomputation."""
    hit = 0
    resumed_hit = 0
    peak = 0
    """Most blocks held when it last lost or returned them."""
    _computed = 0
    _produced = 0

    def __init__(self, request: Request, declared: int, goal: int, lane: str) -> None:
        (
            self.index, self.arrival, self.prompt, self.output, _, self.priority, self.tenant,
            self.session, _, self.content,
        ) = request  # fmt: skip
        self.declared = declared
        """Declared output tokens, cut to what the engine can ever give."""
        self.goal = goal
        """Output tokens at which it ends. Not in the policy's view."""
        self.lane = lane
        self.table: list[int] = []
        """Physical block ids in logical order."""
        self.chain: list[int] = []
        """Chained identities of its full blocks, as far as worked out."""
        self.queued_at = self.arrival

    def wait(self, answer: Answer, time: int) -> None:
        """It stood at the head of its lane for `time` with this answer."""
        if self.waits is None:
            self.waits = [0] * len(Answer)
        self.waits[answer.value] += time

    @property
    def computed(self) -> int:
        """Tokens whose KV is in the pool."""
        group = self.group
        return self._computed if group is None else self._computed + group.ticks - self.joined

    @property
    def produced(self) -> int:
        """Output tokens so far."""
        group = self.group
        return self._produced if group is None else self._produced + group.ticks - self.joined

    @property
    def known(self) -> int:
        """Prompt + outputs so far: tokens whose values are known."""
        return self.prompt + self.produced

    @property
    def todo(self) -> int:
        """Known tokens not yet computed; 1 = a decode."""
        return 1 if self.group is not None else self.prompt + self._produced - self._computed

    @property
    def blocks(self) -> int:
        """Blocks it holds."""
        group = self.group
        if group is None:
            return len(self.table)
        return max(len(self.table), -(-(self.computed + group.fed) // group.block_size))

    @property
    def reason(self) -> str:
        """Why it ends at its goal: "stop", or "length" if something cut its output."""
        return "stop" if self.goal >= self.output else "length"
