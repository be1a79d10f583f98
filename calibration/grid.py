"""Which steps to time: regular grids that span the range, and random mixes that fill it.

Regular grids alone mislead: with equal contexts in every row, a cost of the *longest* context
looks like a cost of the sum (20 % wrong on real batches in a prototype), round numbers sit on
the edges of blocks and tiles, and mixed steps are not the sum of their parts.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

from calibration.step_time import StepShape

Point = tuple[tuple[int, int], ...]
"""One step: for each sequence (new tokens, cached tokens); one new token is a decode."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """The range that a grid spans."""

    sequences: int
    """Decodes in one step."""
    tokens: int
    """Prefill tokens in one step."""
    context: int
    """Tokens of one sequence, new ones included."""
    held: int
    """Tokens of all sequences together: the KV pool."""

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value < 2:
                raise ValueError(f"measuring limits: {name} {value}, expected at least 2")

    def allow(self, point: Point) -> bool:
        decodes = sum(new == 1 for new, _ in point)
        return (
            decodes <= self.sequences
            and sum(new for new, _ in point) - decodes <= self.tokens
            and all(new + cached <= self.context for new, cached in point)
            and sum(new + cached for new, cached in point) <= self.held
        )


def shape_of(point: Point, block_size: int) -> StepShape:
    """The sums over the rows; every block table is as long as its sequence needs."""
    chunks = [(new, cached) for new, cached in point if new > 1]
    contexts = [cached for new, cached in point if new == 1]
    return StepShape(
        prefill_tokens=sum(new for new, _ in chunks),
        chunks=len(chunks),
        decodes=len(contexts),
        area2=sum(new * (2 * cached + new) for new, cached in chunks),
        reach=sum(new + cached for new, cached in chunks),
        context=sum(contexts),
        table=blocks_of(point, block_size),
    )


def blocks_of(point: Point, block_size: int) -> int:
    """Blocks that its sequences hold."""
    return sum(-(-(new + cached) // block_size) for new, cached in point)


def anchor(limits: Limits) -> Point:
    """The step that is timed again and again to see whether the machine changes its speed."""
    decodes = min(8, limits.sequences)
    new = min(64, limits.tokens, limits.context)
    cached = min(256, limits.context - 1, (limits.held - new) // decodes - 1)
    return ((new, 0), *[(1, cached)] * decodes)


def grid(limits: Limits, *, quick: bool = False, seed: int = 0) -> list[Point]:
    """Points within `limits`, each once, the same for the same seed. `quick` takes a third."""
    draw = random.Random(seed)
    points = [
        *_decodes(limits, quick, draw),
        *_prefills(limits, quick, draw),
        *_mixed(limits, quick, draw),
        *_random(limits, 50 if quick else 160, draw),
    ]
    return [point for point in dict.fromkeys(points) if limits.allow(point)]


def _near(context: int, limits: Limits, draw: random.Random) -> int:
    """Within 20 % of `context`.

    Round contexts sit on the edges of blocks and of a kernel's tiles, where the next token costs
    a whole one: a grid of them would see only the top of every stair.
    """
    return min(round(context * draw.uniform(0.8, 1.2)), limits.context - 1)


def _decodes(limits: Limits, quick: bool, draw: random.Random) -> Iterator[Point]:
    """Batch × context; small steps of the batch, whose cost need not be smooth, at one context."""
    contexts = [0, *_powers(128, limits.context, 4), limits.context - 1]
    for batch in _powers(1, limits.sequences, 4 if quick else 2):
        for context in contexts:
            yield tuple((1, _near(context, limits, draw)) for _ in range(batch))
    if not quick:
        for batch in _powers(3, limits.sequences, 2):
            yield tuple((1, _near(16, limits, draw)) for _ in range(batch))


def _prefills(limits: Limits, quick: bool, draw: random.Random) -> Iterator[Point]:
    """Tokens × prior context, one chunk."""
    for new in _powers(2, limits.tokens, 4 if quick else 2):
        for cached in (0, limits.context // 8, limits.context // 2):
            yield ((new, _near(cached, limits, draw)),)
        yield ((new, limits.context - new),)


def _mixed(limits: Limits, quick: bool, draw: random.Random) -> Iterator[Point]:
    """Chunk × decodes, at short and long contexts."""
    for new in _powers(16, limits.tokens, 16 if quick else 4):
        for batch in _powers(1, limits.sequences, 8 if quick else 4):
            for context in (limits.context // 32, limits.context // 4):
                decodes = [(1, _near(context, limits, draw)) for _ in range(batch)]
                yield ((new, _near(context, limits, draw)), *decodes)


def _random(limits: Limits, count: int, draw: random.Random) -> Iterator[Point]:
    """Unequal contexts, several chunks: a quarter decodes, a quarter prefills, half mixed."""

    def size(low: int, high: int) -> int:
        """Evenly on a logarithmic scale."""
        return min(high, int(low * (high / low) ** draw.random() + 0.5)) if high > low else low

    made = 0
    while made < count:
        kind = made % 4
        middle = size(16, limits.context - 1)
        decodes = size(1, limits.sequences) if kind != 1 else 0
        rows = [(1, size(max(1, middle // 8), middle * 8)) for _ in range(decodes)]
        left = size(2, limits.tokens) if kind != 0 else 0
        while left > 1:
            new = left if draw.random() < 0.5 else size(2, left)
            rows.append((new, draw.choice((0, 0, size(1, limits.context)))))
            left -= new
        point = tuple(rows)
        if limits.allow(point):
            made += 1
            yield point


def _powers(first: int, last: int, factor: int) -> list[int]:
    """first, first · factor, … and `last`."""
    values = []
    while first < last:
        values.append(first)
        first *= factor
    return [*values, last]
