"""The settings that every shipped policy has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from policies.base import Victim, View
from policies.order import ORDERS, STARVES, aged_priority
from policies.victims import VICTIMS, demoting
from traces.trace import PS_PER_S, Request


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Token budget, order of the queue, and what happens to preempted sequences."""

    token_budget: int = 2048
    """Tokens a step at most."""
    order: str = "fcfs"
    """How the queue is ordered: a name in `policies.order.ORDERS`."""
    victim: str = "last-in"
    """Whom to preempt: a name in `policies.victims.VICTIMS`."""
    demote: float = 0.0
    """Preempt first whoever holds more than this share of the pool; 0 = nobody."""
    reentry: Literal["head", "tail"] = "head"
    """Where a preempted sequence queues under first come, first served."""
    reserve_max: bool = False
    """Reserve KV to the declared maximum at admission: nobody is ever preempted, fewer run."""
    aging: float = 0.0
    """Seconds of waiting that weigh as much as one level of priority, under order = "priority";
    0 = none, and the less urgent may starve."""

    def __post_init__(self) -> None:
        if self.token_budget < 1:
            raise ValueError(f"policy.token_budget = {self.token_budget}: expected at least 1")
        for name, known in (("order", ORDERS), ("victim", VICTIMS), ("reentry", ("head", "tail"))):
            if getattr(self, name) not in known:
                raise ValueError(
                    f"policy.{name} = {getattr(self, name)!r}: expected one of {', '.join(known)}"
                )
        if not 0 <= self.demote < 1:
            raise ValueError(f"policy.demote = {self.demote}: expected a share from 0 to below 1")
        if not self.aging >= 0:
            raise ValueError(f"policy.aging = {self.aging}: expected seconds ≥ 0")
        if self.aging and self.order != "priority":
            raise ValueError(
                f"policy.aging = {self.aging} has no effect with policy.order = {self.order!r}: "
                'expected order = "priority"'
            )

    def lane(self, request: Request) -> str:
        """One lane for all."""
        return ""

    def queue_key(self, seq: View) -> tuple[int, ...] | None:
        """The sort key of the chosen order."""
        if self.aging:
            return aged_priority(seq, round(self.aging * PS_PER_S))
        return ORDERS[self.order](seq)

    @property
    def starves(self) -> str:
        """Who may wait for ever while others keep coming, in words; "" = nobody."""
        return "" if self.aging else STARVES.get(self.order, "")

    @property
    def reserves(self) -> bool:
        """Whether a sequence gets all the blocks it may ever need when it is admitted."""
        return self.reserve_max

    @property
    def evict(self) -> Victim:
        """The chosen victim rule."""
        victim = VICTIMS[self.victim]
        return demoting(victim, self.demote) if self.demote else victim
