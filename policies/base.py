"""The seam between a policy and the engine: what a policy may see and do.

A policy decides who runs in the next step and does nothing else. It is a frozen dataclass of
settings without memory; everything that changes lives in the `Step` it is given. All times
are whole picoseconds. A policy sees the declared maximum, never the true output length.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from traces.trace import Request

ALL = 1 << 60
"""No limit."""


class Answer(Enum):
    """What a verb answers. Only OK is true; the others say why not, and name clocks."""

    OK = 0
    TOKENS = 1
    """No token budget left (or the whole prompt does not fit what is left)."""
    BLOCKS = 2
    """Not enough free blocks, or this step preempted somebody."""
    RESERVE = 3
    """Enough free blocks, but not above the reserve."""
    SEATS = 4
    """`max_running` sequences run already."""
    LANE = 5
    """Its lane's share is used up."""
    BATCH = 6
    """The policy waits for a batch to fill."""

    def __bool__(self) -> bool:
        return self is Answer.OK


@dataclass(frozen=True)
class Stable:
    """ "In this same state I would decide the same": steps may be leapt over.

    A policy that returns None is asked at every step: right, and merely slower.
    """

    until: int | None = None
    """But ask again at this time at the latest; also wakes a step that fed nobody."""
    arrivals: bool = True
    """Whether any arrival may change the decision. False: only one that queues ahead of a
    refused head does."""
    in_order: bool = False
    """More than "the same": until somebody starves for blocks I feed all who run, as far as the
    budget goes, in order of admission; then I admit from the head of my only queue until
    somebody is refused. As long as that is so, I need not be asked at all."""


ALWAYS = Stable()
"""The same state gives the same decision; any arrival changes the state."""
BEHIND_HEAD = Stable(arrivals=False)
"""The same, and an arrival behind a refused head changes nothing."""
IN_ORDER = Stable(arrivals=False, in_order=True)
"""And what changes is taken in order: what `admit_in_order` after `feed_or_evict` comes to."""


class View(Protocol):
    """What a policy sees of a sequence. Read only."""

    @property
    def arrival(self) -> int: ...
    @property
    def queued_at(self) -> int:
        """When it last entered the queue."""
        ...

    @property
    def waited(self) -> int:
        """Picoseconds in the queue in earlier stays, stalls included."""
        ...

    @property
    def index(self) -> int:
        """Row of the trace: the last tie-breaker."""
        ...

    @property
    def prompt(self) -> int: ...
    @property
    def declared(self) -> int: ...
    @property
    def priority(self) -> int: ...
    @property
    def tenant(self) -> str: ...
    @property
    def admitted_at(self) -> int:
        """When it was last admitted."""
        ...

    @property
    def known(self) -> int:
        """Prompt + outputs so far."""
        ...

    @property
    def computed(self) -> int:
        """Tokens whose KV is in the pool."""
        ...

    @property
    def todo(self) -> int:
        """known - computed: 1 = a decode."""
        ...

    @property
    def blocks(self) -> int:
        """Blocks that it holds."""
        ...

    @property
    def preemptions(self) -> int: ...
    @property
    def evicted_step(self) -> int:
        """Number of the step that preempted it last; -1 = never."""
        ...

    @property
    def passed_over(self) -> int:
        """Admissions that went past it while it was at the head."""
        ...


class Queue(Protocol):
    """A live view of the waiting sequences of one lane, in order. len() is O(1).

    Iterating while admitting is fine: an admitted sequence is gone from it, a refused one
    is stepped past.
    """

    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[View]: ...
    def __getitem__(self, at: int) -> View: ...


class Step(Protocol):
    """The step under construction: the verbs. One per replica, reused."""

    @property
    def now(self) -> int: ...
    @property
    def number(self) -> int:
        """Steps so far on this replica."""
        ...

    @property
    def tokens(self) -> int:
        """Tokens scheduled in this step so far."""
        ...

    @property
    def tokens_left(self) -> int: ...
    @property
    def seats_left(self) -> int: ...
    @property
    def free_blocks(self) -> int: ...
    @property
    def pool_blocks(self) -> int:
        """Blocks of the whole pool."""
        ...

    @property
    def more_to_come(self) -> bool:
        """Whether any request may still arrive."""
        ...

    @property
    def running(self) -> Sequence[View]:
        """In admission order; a resumed sequence goes to the end."""
        ...

    @property
    def prefilling(self) -> Collection[View]:
        """Running sequences with more than a decode to do, or paused; few."""
        ...

    @property
    def unfinished(self) -> int:
        """Running prompts that this step, as built so far, does not complete."""
        ...

    @property
    def evictions_in_a_row(self) -> int:
        """Steps with evictions that directly precede this one."""
        ...

    @property
    def paused(self) -> bool:
        """Whether admissions are paused: since `pause`, until its share is free."""
        ...

    @property
    def lanes(self) -> Collection[str]:
        """Lanes that have had a request."""
        ...

    def waiting(self, lane: str | None = None) -> Queue: ...

    def wanted(self, lane: str, most: int = ALL) -> int:
        """Prefill tokens that `lane` could use now, running chunks first, `most` a sequence."""
        ...

    def served(self, lane: str) -> int:
        """Tokens of service that `lane` has had, lifted to the least of the waiting lanes when
        it comes back from idleness: what fair sharing compares."""
        ...

    def shortage(self, most: int = ALL) -> int:
        """Blocks that are missing to feed every running sequence."""
        ...

    def draw(self, n: int) -> int:
        """A random number below `n`, from the replica's stream "victims"."""
        ...

    def pause(self, share: float) -> None:
        """No admissions until `share` of the pool is free, or nobody runs."""
        ...

    def feed_running(
        self, most: int = ALL, lane: str | None = None, within: int = ALL
    ) -> View | None:
        """Feed running sequences not yet fed, in admission order, from `within` tokens.

        Each gets min(todo, most, budget left, max_model_len - computed - 1); `most` binds only
        where todo > 1, so 0 means decodes alone; zero tokens is a skip, not a barrier. Returns
        the first whose blocks cannot be had; called again, it goes on with that one and the
        same amount.
        """
        ...

    def feed(self, seq: View, tokens: int) -> Answer:
        """Feed one running sequence, once a step."""
        ...

    def admit(
        self, seq: View, most: int = ALL, *, within: int = ALL, whole: bool = False, hold: int = 0
    ) -> Answer:
        """Start a waiting sequence with min(todo, most) tokens: seats, budget, gate, reserve.

        What exceeds `within` or the budget is cut off, or refused if `whole` and it can fit a
        step at all. `hold`: reserve that many token slots at once. After a preemption in this
        step it answers BLOCKS.
        """
        ...

    def preempt(self, seq: View) -> None:
        """Take a running sequence's KV; it re-enters the queue. Its tokens of this step return."""
        ...

    def wait(self, seq: View, why: Answer) -> None:
        """Say why a sequence is not tried, on purpose: LANE or BATCH."""
        ...


Victim = Callable[[Step], View]
"""Whom to preempt, of `step.running`."""


class Policy(Protocol):
    """A frozen dataclass of settings that decides, and remembers nothing.

    One under which somebody may wait for ever while others keep coming says who, in a text
    property `starves`.
    """

    @property
    def token_budget(self) -> int: ...

    def lane(self, request: Request) -> str:
        """The lane a request queues in; "" by default."""
        ...

    def queue_key(self, seq: View) -> tuple[int, ...] | None:
        """Sort key in the queue, fixed while it waits; None = first come, first served."""
        ...

    def schedule(self, step: Step) -> Stable | None:
        """Decide the next step by calling the verbs of `step`."""
        ...


def feed_or_evict(
    step: Step, victim: Victim, most: int = ALL, lane: str | None = None, within: int = ALL
) -> None:
    """Feed the running set; while somebody starves for blocks, preempt (rules A1, A9).

    When the starved one is itself the victim, the pass over the running set ends.
    """
    floor = step.tokens_left - min(within, step.tokens_left)
    while starved := step.feed_running(most, lane, step.tokens_left - floor):
        out = victim(step)
        step.preempt(out)
        if out is starved:
            return


def evict_then_feed(step: Step, victim: Victim, most: int = ALL) -> None:
    """Check the memory of the whole running set first, then evict, then feed (B10).

    The walk of `feed_or_evict` may evict somebody whom a later look shows needless: a victim's
    own need for blocks goes with it.
    """
    while step.running and step.shortage(most) > 0:
        step.preempt(victim(step))
    feed_or_evict(step, victim, most)


def feed_prompts(step: Step, victim: Victim, most: int = ALL) -> None:
    """Feed unfinished prompts and nobody else; while one starves for blocks, preempt.

    When the starved one is itself the victim, the pass ends.
    """
    for seq in [seq for seq in step.prefilling if seq.todo > 1]:
        while seq in step.running and step.tokens_left:
            if step.feed(seq, min(most, step.tokens_left)) is not Answer.BLOCKS:
                break
            step.preempt(out := victim(step))
            if out is seq:
                return


def admit_in_order(
    step: Step,
    most: int = ALL,
    lane: str | None = None,
    within: int = ALL,
    whole: bool = False,
    skips: int = 0,
    partials: int = 0,
    reserve_max: bool = False,
) -> Answer:
    """Admit from the head of the queue until somebody is refused (rule A2); the last answer.

    With `skips`, one refused for lack of blocks may be passed over that many times (B8). With
    `partials`, nobody enters while so many running prompts are unfinished. With `reserve_max`,
    KV is reserved to the declared maximum.
    """
    answer = Answer.OK
    queue = step.waiting(lane)
    if not queue:
        return answer
    floor = step.tokens_left - min(within, step.tokens_left)
    for seq in queue:
        if partials and step.unfinished >= partials:
            step.wait(seq, Answer.LANE)
            return Answer.LANE
        hold = seq.prompt + seq.declared - 1 if reserve_max else 0
        answer = step.admit(seq, most, within=step.tokens_left - floor, whole=whole, hold=hold)
        if answer is Answer.OK:
            continue
        if answer not in (Answer.BLOCKS, Answer.RESERVE) or seq.passed_over >= skips:
            return answer
    return answer
