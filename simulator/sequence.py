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

    __slots__ = (
        "_computed", "_produced", "admitted_at", "arrival", "boundary", "chain", "content",
        "declared", "ended", "entered", "evicted_step", "fed", "first_scheduled", "first_token",
        "goal", "group", "high_water", "hit", "hold", "index", "joined", "lane", "last_token",
        "lost_at", "output", "passed_over", "peak", "place", "preemptions", "priority", "prompt",
        "queued_at", "recomputed", "replica", "resumed_hit", "retries", "session", "spell",
        "stalled", "stalled_first", "stalled_then", "swapped", "table", "tenant", "waited", "waits",
    )  # fmt: skip

    def __init__(self, request: Request, declared: int, goal: int, lane: str) -> None:
        self.index = request.index
        self.arrival = request.arrival
        self.prompt = request.prompt
        self.output = request.output
        self.declared = declared
        """Declared output tokens, cut to what the engine can ever give."""
        self.goal = goal
        """Output tokens at which it ends. Not in the policy's view."""
        self.priority = request.priority
        self.tenant = request.tenant
        self.session = request.session
        self.content = request.content
        self.lane = lane
        self.table: list[int] = []
        """Physical block ids in logical order."""
        self.swapped = 0
        """Blocks of its KV that lie on the host."""
        self.hold = 0
        """Token slots reserved at admission; 0 = on demand."""
        self._computed = 0
        self._produced = 0
        self.group: Decodes | None = None
        self.joined = 0
        """Ticks of the group before it joined."""
        self.spell = 0
        """First tick whose gap it sees."""
        self.place = 0
        """Counts admissions on its replica: running order."""
        self.chain: list[int] = []
        """Chained identities of its full blocks, as far as worked out."""
        self.queued_at = request.arrival
        self.entered = -1
        """When it was first let in by the door."""
        self.replica = -1
        """Where it is; -1 = outside."""
        self.retries = 0
        """Times that its client had sent it before."""
        self.ended = False
        """It was turned away, timed out or finished."""
        self.admitted_at = -1
        self.boundary = -1
        """First schedule at or after its arrival."""
        self.first_scheduled = -1
        self.first_token = -1
        self.last_token = -1
        self.waited = 0
        self.stalled = 0
        self.stalled_first = 0
        """Of these, before its first token."""
        self.lost_at = -1
        """When it was first preempted since its last token; -1 = it was not."""
        self.stalled_then = 0
        """What `stalled` was at that moment."""
        self.waits = [0] * len(Answer)
        """Picoseconds at the head of its lane, by the answer that it got."""
        self.preemptions = 0
        self.passed_over = 0
        self.evicted_step = -1
        self.fed = 0
        """Tokens fed to the model so far, recomputation included."""
        self.recomputed = 0
        self.high_water = 0
        """Most tokens ever computed: below it, feeding is recomputation."""
        self.hit = 0
        self.resumed_hit = 0
        self.peak = 0
        """Most blocks held when it last lost or returned them."""

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
