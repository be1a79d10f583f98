"""Chunked prefill: running sequences first, then prompts in chunks from what is left.

The rules of vLLM's V1 scheduler (A1-A10 of its behaviour): decodes and unfinished chunks share
one list in admission order and one token budget, so no decode waits for a whole prefill.
"""

from __future__ import annotations

from dataclasses import dataclass

from policies.base import (
    ALL,
    ALWAYS,
    BEHIND_HEAD,
    IN_ORDER,
    Answer,
    Stable,
    Step,
    admit_in_order,
    evict_then_feed,
    feed_or_evict,
    feed_prompts,
)
from policies.settings import Settings
from traces.trace import PS_PER_S


@dataclass(frozen=True, kw_only=True)
class Chunked(Settings):
    """A larger `token_budget` lowers TTFT and raises the ITL tail."""

    long_prefill: int = 0
    """Tokens of one prompt a step at most, while others run or wait; 0 = no limit."""
    adaptive: bool = False
    """Raise that limit, where there is one, to an equal share of the budget if that is larger."""
    chunks: bool = True
    """False: a prompt is prefilled whole, when it fits what is left of the budget."""
    prefill_first: bool = False
    """Prompts before decodes: what they leave of the budget is for decodes, not the reverse."""
    partials: int = 0
    """Admit nobody while so many running prompts are unfinished; 0 = no limit."""
    skips: int = 0
    """Times that a sequence refused for lack of blocks may be passed over; 0 = never."""
    check_first: bool = False
    """Evict by the need of the whole running set, not one by one as blocks run out."""
    cooldown: int = 0
    """After so many steps in a row with evictions, pause admissions; 0 = never."""
    cooldown_free: float = 0.1
    """Until this share of the pool is free."""
    patience: float = 0.0
    """Seconds after which the head of the queue has a running sequence preempted for it; 0 =
    never. Needs reentry = "tail", or the two would swap places for ever."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("long_prefill", "partials", "skips", "cooldown", "patience"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"policy.{name} = {getattr(self, name)}: expected at least 0")
        if not 0 < self.cooldown_free <= 1:
            raise ValueError(
                f"policy.cooldown_free = {self.cooldown_free}: expected more than 0, at most 1"
            )
        if self.patience and self.reentry != "tail":
            raise ValueError(
                f"policy.patience = {self.patience} contradicts policy.reentry = "
                f'{self.reentry!r}: expected reentry = "tail"'
            )
        if self.patience and self.order != "fcfs":
            raise ValueError(
                f"policy.patience = {self.patience} contradicts policy.order = {self.order!r}, by "
                "which a victim may come back before the one it made way for: "
                'expected order = "fcfs"'
            )
        if self.prefill_first and self.check_first:
            raise ValueError(
                "policy.prefill_first = true contradicts policy.check_first = true, which looks at "
                "decodes and prompts at once: choose one"
            )

    @property
    def starves(self) -> str:
        """Under `patience`, too, whoever it evicts again and again before its prompt is done."""
        late = "prompts whose prefill takes longer than policy.patience" if self.patience else ""
        return " and ".join(filter(None, (super().starves, late)))

    @property
    def in_order(self) -> bool:
        """Whether, while blocks suffice, all run and enter in plain order. Not claimed for what
        is derived from this class: it may do something else."""
        return (
            type(self) is Chunked
            and self.order == "fcfs"
            and self.chunks
            and not (self.partials or self.cooldown or self.patience or self.reserve_max)
        )

    def most(self, step: Step) -> int:
        """Prefill tokens a sequence may get in this step (rule A3)."""
        if not self.long_prefill:
            return ALL
        crowd = len(step.running) + len(step.waiting())
        if crowd <= 1:
            return ALL
        share = self.token_budget // crowd if self.adaptive else 0
        return max(self.long_prefill, share)

    def schedule(self, step: Step) -> Stable | None:
        most = self.most(step)
        if self.prefill_first:
            feed_prompts(step, self.evict, most)
            answer = self.enter(step, most)
            self.feed(step, most)
        else:
            self.feed(step, most)
            answer = self.enter(step, most)
        if answer is None:
            return ALWAYS
        if self.patience and not answer:
            return self.make_way(step, answer)
        if self.prefill_first or self.long_prefill or self.skips:
            return ALWAYS
        return IN_ORDER if self.in_order else BEHIND_HEAD

    def feed(self, step: Step, most: int) -> None:
        """Feed the running set, and evict where its blocks are short."""
        (evict_then_feed if self.check_first else feed_or_evict)(step, self.evict, most)

    def admits(self, step: Step) -> bool:
        """Whether anybody may enter now, or admissions cool down."""
        if self.cooldown and step.evictions_in_a_row >= self.cooldown:
            step.pause(self.cooldown_free)
        return not step.paused

    def enter(self, step: Step, most: int) -> Answer | None:
        """Admit from the head of the queue: the last answer, or None while admissions cool down."""
        if not self.admits(step):
            return None
        return admit_in_order(
            step,
            most,
            whole=not self.chunks,
            skips=self.skips,
            partials=self.partials,
            reserve_max=self.reserve_max,
        )

    def make_way(self, step: Step, answer: Answer) -> Stable:
        """Preempt somebody if the head waits for a seat or blocks, longer than `patience`."""
        due = step.waiting()[0].queued_at + round(self.patience * PS_PER_S)
        if answer is Answer.TOKENS or len(step.running) < 2:
            return ALWAYS
        if step.now < due:
            return Stable(until=due)
        step.preempt(self.evict(step))
        return ALWAYS
