"""Many equal steps at once, exactly.

A step may be followed by equal ones while nobody is admitted, preempted or done, each chunk
keeps its size, and the blocks are there. Their durations are an arithmetic series, so k steps
need one event, and the step in progress at any moment follows in closed form.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from itertools import accumulate
from math import isqrt

from calibration.step_time import StepShape, StepTime
from simulator.sequence import Sequence
from simulator.step import StepBuilder

FOREVER = 1 << 62
NOTHING: list[int] = []


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
        ahead = time - self.start
        if ahead <= self.first or self.steps == 1:
            return 1
        if not self.growth:
            step = -(-ahead // self.first)
        else:
            b = 2 * self.first - self.growth
            step = (isqrt(b * b + 8 * self.growth * ahead) - b) // (2 * self.growth)
            step = max(step, 1)
            while step < self.steps and self.end(step) < time:
                step += 1
        return min(step, self.steps)


def plan(
    step: StepBuilder,
    shape: StepShape,
    start: int,
    first: int,
    prices: StepTime,
    most: int,
    until: int,
) -> Leap:
    """As many equal steps as can follow this closed one, itself included.

    At most `most`; none begins at or after `until`. Conditions: the next finish may be the
    leap's last step; no chunk completes; blocks suffice, and the gate answers the same.
    """
    if step.tick:
        most = min(most, step.group.next_end())
    chunks = []
    if step.fed:
        chunks = [(seq, n) for seq, n in step.fed.items() if seq.group is None]
        for seq, n in chunks:
            most = min(most, (seq.todo - 1) // n)
    growth = prices.growth(shape, step.squares)
    if most <= 1 or start + first >= until:
        return Leap(start, first, growth, 1, NOTHING)
    leap = Leap(start, first, growth, most, NOTHING)
    leap.steps = leap.reach(until)
    if leap.steps == 1:
        return leap
    grown = _needs(step, chunks, leap.steps - 1)
    total = list(accumulate(grown))
    free = step.pool.free - step.floor
    if total[-1] > free:
        fits = bisect_right(total, free)
        del grown[fits:], total[fits:]
        leap.steps = fits + 1
    leap.grown = grown
    if prices.counts_blocks and leap.steps > 1:
        naming = prices.tN and step.group.eager  # without a prefix cache nothing gets a name
        named = _names(step, chunks, leap.steps - 1) if naming else [0] * len(grown)
        leap.extra = [
            prices.tB * all_grown
            + prices.tT * (now_grown - shape.turned)
            + prices.tN * (now_named - shape.named)
            for all_grown, now_grown, now_named in zip(total, grown, named, strict=True)
        ]
        durations = (first + growth * j + more for j, more in enumerate([0, *leap.extra]))
        leap.ends = list(accumulate(durations, initial=start))[1:]
        cut(leap, leap.reach(until))
    return leap


def cut(leap: Leap, steps: int) -> None:
    """End the leap after `steps` steps."""
    leap.steps = steps
    del leap.grown[steps - 1 :]
    if leap.ends is not None and leap.extra is not None:
        del leap.ends[steps:], leap.extra[steps - 1 :]


def _needs(step: StepBuilder, chunks: list[tuple[Sequence, int]], steps: int) -> list[int]:
    """Blocks that each of the next `steps` steps takes."""
    needs = step.group.due_ahead(1, steps) if step.tick else [0] * steps
    size = step.pool.block_size
    for seq, n in chunks:
        held = len(seq.table)
        for ahead in range(1, steps + 1):
            short = -(-(seq.computed + n * (ahead + 1)) // size) - held
            if short > 0:
                needs[ahead - 1] += short
                held += short
    return needs


def _names(step: StepBuilder, chunks: list[tuple[Sequence, int]], steps: int) -> list[int]:
    """Blocks that fill up in each of the next `steps` steps."""
    size = step.pool.block_size
    named = [step.group.filling(ahead) if step.tick else 0 for ahead in range(1, steps + 1)]
    for seq, n in chunks:
        for ahead in range(1, steps + 1):
            computed = seq.computed + n * ahead
            named[ahead - 1] += (computed + n) // size - computed // size
    return named
