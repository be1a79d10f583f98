"""How the waiting queue is ordered.

Each order gives a sort key that does not change while a sequence waits, smallest first; ties
go to the earlier row of the trace. None means first come, first served: new arrivals at the
tail, preempted sequences where `reentry` says.
"""

from __future__ import annotations

from collections.abc import Callable

from policies.base import View

Key = tuple[int, ...]


def fcfs(seq: View) -> None:
    """First come, first served."""


def longest_wait(seq: View) -> Key:
    """Longest accumulated wait first, stalls after preemption included.

    All waits grow at the same rate, so `queued_at - waited` ranks them for good.
    """
    return (seq.queued_at - seq.waited,)


def priority(seq: View) -> Key:
    """Most urgent first, then by arrival (rule A11). Starves the less urgent under load."""
    return (seq.priority, seq.arrival)


def aged_priority(seq: View, level: int) -> Key:
    """As `priority`, but every `level` picoseconds of waiting count as one level more urgent.

    A less urgent request is passed by those that arrive within its levels × `level` only, so
    its wait is bounded. All waits grow at the same rate: the key is fixed.
    """
    return (seq.priority * level + seq.queued_at - seq.waited, seq.arrival)


def shortest_prompt(seq: View) -> Key:
    """Fewest known tokens first. Starves long prompts under load."""
    return (seq.known, seq.arrival)


ORDERS: dict[str, Callable[[View], Key | None]] = {
    "fcfs": fcfs,
    "longest-wait": longest_wait,
    "priority": priority,
    "shortest-prompt": shortest_prompt,
}

STARVES = {"priority": "the less urgent", "shortest-prompt": "long prompts"}
"""Who may wait for ever under an order; nobody under the others."""
