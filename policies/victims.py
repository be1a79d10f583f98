"""Whom to preempt when blocks run out: each picks one of the running sequences.

Ties go to the one admitted last, which has the least to lose.
"""

from __future__ import annotations

from policies.base import Step, Victim, View

SPARE_STEPS = 64
"""`most_blocks` spares whoever was evicted within so many steps."""


def last_in(step: Step) -> View:
    """The one admitted last (rule A9)."""
    return step.running[-1]


def least_urgent(step: Step) -> View:
    """Highest (priority, arrival): the least urgent, of these the latest (rule A11)."""
    return max(step.running, key=lambda seq: (seq.priority, seq.arrival))


def most_blocks(step: Step) -> View:
    """The one whose blocks free the most room.

    Within 10 % of the most, it spares whoever was evicted lately: else long sequences that
    lose their KV come back only to lose it again.
    """
    most = max(seq.blocks for seq in step.running)
    close = [seq for seq in step.running if 10 * seq.blocks >= 9 * most]
    lately = step.number - SPARE_STEPS
    rested = [seq for seq in close if seq.evicted_step < max(lately, 0)] or close
    return max(reversed(rested), key=lambda seq: seq.blocks)


def least_computed(step: Step) -> View:
    """The one that loses the least work."""
    return min(reversed(step.running), key=lambda seq: seq.computed)


def most_computed(step: Step) -> View:
    """The one that loses the most work: the baseline that shows why not to."""
    return max(reversed(step.running), key=lambda seq: seq.computed)


def longest_wait(step: Step) -> View:
    """The one that has waited longest in all: hits those who suffered already."""
    return max(reversed(step.running), key=lambda seq: seq.waited)


def longest_running(step: Step) -> View:
    """The one admitted longest ago."""
    return min(step.running, key=lambda seq: seq.admitted_at)


def random(step: Step) -> View:
    """Anyone."""
    return step.running[step.draw(len(step.running))]


def demoting(victim: Victim, share: float) -> Victim:
    """Whoever holds most, of those with more than `share` of the pool; else as `victim` says."""

    def choose(step: Step) -> View:
        hogs = [seq for seq in step.running if seq.blocks > share * step.pool_blocks]
        return max(reversed(hogs), key=lambda seq: seq.blocks) if hogs else victim(step)

    return choose


VICTIMS: dict[str, Victim] = {
    "last-in": last_in,
    "priority": least_urgent,
    "most-blocks": most_blocks,
    "least-computed": least_computed,
    "most-computed": most_computed,
    "longest-wait": longest_wait,
    "longest-running": longest_running,
    "random": random,
}
