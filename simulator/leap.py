"""Many equal steps at once, exactly.

A step may be followed by equal ones while nobody is admitted, preempted or done, each chunk
keeps its size, and the blocks are there. Their durations are an arithmetic series, so k steps
need one event, and the step in progress at any moment follows in closed form.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from itertools import accumulate
from math import sqrt

from calibration.step_time import StepTime
from simulator.decodes import Decodes
from simulator.sequence import Sequence

FOREVER = 1 << 62


@dataclass(slots=True)
class Leap:
    """`steps` steps from `start`: the first lasts `first`, each next one `growth` more.

    `grown` are the blocks that steps 2, 3, … took. Where blocks cost host time, the closed form
    does not hold: `extra` is what these steps take beyond it, `ends` lists every step's end.
    """

    start: int
    first: int
    growth: int
    steps: int
    grown: list[int]
    extra: list[int] | None = None
    ends: list[int] | None = None

    def end(self, step: int) -> int:
        """When step number `step` (1 = the first) ends."""
        if self.ends is not None:
            return self.ends[step - 1]
        return self.start + step * self.first + self.growth * (step * (step - 1) // 2)

    def reach(self, time: int) -> int:
        """The first step that ends at or after `time`; `steps` if none does."""
        if self.ends is not None:
            return min(bisect_left(self.ends, time) + 1, self.steps)
        if self.end(self.steps) <= time:
            return self.steps
        ahead = time - self.start
        if ahead <= self.first:
            return 1
        first, growth = self.first, self.growth
        if not growth:
            return -(-ahead // first)
        # The root in floating point, then exactly: it may be off by one step either way.
        b = 2.0 * first - growth
        step = int((sqrt(b * b + 8.0 * growth * ahead) - b) / (2.0 * growth)) or 1
        end = step * first + growth * (step * (step - 1) // 2)
        while end < ahead:
            end += first + growth * step
            step += 1
        while end - first - growth * (step - 1) >= ahead:
            step -= 1
            end -= first + growth * step
        return step


Chunks = list[tuple[Sequence, int]]
"""Sequences outside the decode group, and the tokens that each step feeds them."""


def longest(group: Decodes | None, chunks: Chunks) -> int:
    """Steps that can be equal to a steady one, itself included, before somebody ends.

    The next finish may be the leap's last step; no prompt completes.
    """
    most = group.next_end() if group is not None else FOREVER
    for seq, n in chunks:
        most = min(most, (seq.todo - 1) // n)
    return most


def lengthen(
    leap: Leap, group: Decodes | None, chunks: Chunks, size: int, free: int, until: int
) -> None:
    """Cut `leap` to steps none of which begins at or after `until`, and whose blocks are `free`.

    `group`: the decode group, where it is fed; its counters stand before the first step. `size`:
    tokens a block.
    """
    leap.steps = steps = leap.reach(until)
    if steps == 1:
        return
    further = steps - 1
    grown = group.due_ahead(1, further) if group is not None else [0] * further
    for seq, n in chunks:
        # What it reserved, or what the first step gave or promised it.
        held = max(len(seq.table), -(-(seq.computed + n) // size))
        for ahead in range(further):
            short = -(-(seq.computed + n * (ahead + 2)) // size) - held
            if short > 0:
                grown[ahead] += short
                held += short
    if sum(grown) > free:
        leap.steps = bisect_right(list(accumulate(grown)), free) + 1
        del grown[leap.steps - 1 :]
    leap.grown = grown


def count_blocks(leap: Leap, prices: StepTime, turned: int, names: list[int], until: int) -> None:
    """Add what blocks cost the host: how many the first step `turned`, and each step `names`."""
    leap.extra = [
        prices.tB * all_grown + prices.tT * (grown - turned) + prices.tN * (named - names[0])
        for all_grown, grown, named in zip(
            accumulate(leap.grown), leap.grown, names[1:], strict=True
        )
    ]
    durations = (leap.first + leap.growth * j + more for j, more in enumerate([0, *leap.extra]))
    leap.ends = list(accumulate(durations, initial=leap.start))[1:]
    cut(leap, leap.reach(until))


def names(group: Decodes | None, chunks: Chunks, size: int, steps: int) -> list[int]:
    """Blocks that fill up in each of `steps` steps."""
    named = [0] * steps if group is None else [group.filling(ahead) for ahead in range(steps)]
    for seq, n in chunks:
        for ahead in range(steps):
            computed = seq.computed + n * ahead
            named[ahead] += (computed + n) // size - computed // size
    return named


def cut(leap: Leap, steps: int) -> None:
    """End the leap after `steps` steps."""
    leap.steps = steps
    del leap.grown[steps - 1 :]
    if leap.ends is not None and leap.extra is not None:
        del leap.ends[steps:], leap.extra[steps - 1 :]
