"""Whom to preempt when blocks run out: each picks one of the running sequences.

Ties go to the one admitted last, which has the least to lose.
"""

from __future__ import annotations

from collections.abc import Sequence

from policies.base import Victim, View


def last_in(running: Sequence[View]) -> View:
    """The one admitted last (rule A9)."""
    return running[-1]


def least_urgent(running: Sequence[View]) -> View:
    """Highest (priority, arrival): the least urgent, of these the latest (rule A11)."""
    return max(running, key=lambda seq: (seq.priority, seq.arrival))


def most_blocks(running: Sequence[View]) -> View:
    """The one whose blocks free the most room."""
    return max(reversed(running), key=lambda seq: seq.blocks)


def least_computed(running: Sequence[View]) -> View:
    """The one that loses the least work."""
    return min(reversed(running), key=lambda seq: seq.computed)


def most_computed(running: Sequence[View]) -> View:
    """The one that loses the most work: the baseline that shows why not to."""
    return max(reversed(running), key=lambda seq: seq.computed)


def longest_wait(running: Sequence[View]) -> View:
    """The one that has waited longest in all: hits those who suffered already."""
    return max(reversed(running), key=lambda seq: seq.waited)


def longest_running(running: Sequence[View]) -> View:
    """The one admitted longest ago."""
    return min(running, key=lambda seq: seq.admitted_at)


VICTIMS: dict[str, Victim] = {
    "last-in": last_in,
    "priority": least_urgent,
    "most-blocks": most_blocks,
    "least-computed": least_computed,
    "most-computed": most_computed,
    "longest-wait": longest_wait,
    "longest-running": longest_running,
}
