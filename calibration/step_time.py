"""How long a step takes: `StepShape` → picoseconds.

    T = t0 + tS·S + tB·B + tM·M                host: per step, sequence, block-table entry, byte
      + tT·turned + tN·named                   host: per block taken or returned, per block named
      + g[pad(N)] + h[S]                       projections and MLP by tokens; LM head by rows
      + (P > 0: p0 + pA·A + pP·P + pF·F + pH·H)
      + (D > 0: d0 + dD·D + dK·K)              with a second triple where P > 0, if measured

Every argument is a sum over the step's rows, so it costs O(changes) to keep, and over equal
steps T is an arithmetic series. Two batches with the same sums cost the same: 32 × 2000 tokens
of context and 31 × 100 + 1 × 60,900 are one shape to this form.

Coefficients are rounded to whole picoseconds once (`Cost.step_time` in profile.py), so sums are
associative, closed forms exact, and results the same on every machine.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple, Protocol


class StepShape(NamedTuple):
    """The sums that a step's time depends on. A chunk has q new tokens on c cached ones."""

    prefill_tokens: int = 0
    """P: tokens in chunks of more than one token."""
    chunks: int = 0
    """F: number of such chunks."""
    decodes: int = 0
    """D: sequences fed exactly one token."""
    area2: int = 0
    """2A = Σ q·(2c + q) over chunks: twice the attended positions, an integer."""
    reach: int = 0
    """H = Σ (c + q) over chunks."""
    context: int = 0
    """K = Σ c over decodes (without the new token)."""
    table: int = 0
    """B = Σ block-table lengths over the sequences fed."""
    moved: int = 0
    """M: bytes moved between host and device."""
    turned: int = 0
    """Blocks taken in this step, and blocks returned since the one before."""
    named: int = 0
    """Blocks that fill up in this step, and so get an identity; 0 without a prefix cache."""

    @property
    def tokens(self) -> int:
        """N = P + D."""
        return self.prefill_tokens + self.decodes

    @property
    def sequences(self) -> int:
        """S = F + D."""
        return self.chunks + self.decodes


class Row(NamedTuple):
    """One sequence in one step, for an executor that really runs it."""

    request: int
    first: int
    """Position of the first token fed: tokens already in the KV cache."""
    tokens: int
    table: Sequence[int]
    """Physical block ids, logical order; covers first + tokens positions."""


class Done(NamedTuple):
    """What a step came to."""

    duration: int
    """Picoseconds."""
    stopped: Sequence[int] = ()
    """Requests whose new token is an end-of-sequence."""
    host: int = 0
    """Picoseconds of the duration that the host spent."""


class Executor(Protocol):
    """Says how long a step takes: by price (`Predicted`) or by running it."""

    @property
    def ahead(self) -> bool:
        """May price steps in advance, so that equal steps can be leapt over."""
        ...

    def run(self, shape: StepShape, rows: Callable[[], list[Row]]) -> Done: ...

    def forget(self, request: int) -> None:
        """The request left or lost its KV."""


Table = tuple[tuple[int, ...], tuple[int, ...]]
"""Knots (ascending, ≥ 1) and picoseconds (non-decreasing), same length, at least one."""


def interpolate(table: Table, x: int) -> int:
    """Piecewise linear through the knots; constant below the first, last slope beyond the last."""
    knots, values = table
    i = bisect_left(knots, x)
    if i < len(knots) and knots[i] == x:
        return values[i]
    if i == 0:
        return values[0]
    i = min(i, len(knots) - 1)
    if i == 0:
        return values[0]
    x0, x1, y0, y1 = knots[i - 1], knots[i], values[i - 1], values[i]
    return y0 + (y1 - y0) * (x - x0) // (x1 - x0)


MOST_KNOWN = 1 << 14
"""Values of `StepTime.by_counts` that are kept."""


@dataclass(frozen=True, kw_only=True)
class StepTime:
    """The cost form with integer coefficients, all in picoseconds per unit and ≥ 0.

    `pA2` is per 2A, i.e. half of pA. `mixed` is (d0, dD, dK) for steps that also prefill,
    None where mixed steps were not measured. `padded` lists captured graph sizes: decode-only
    steps cost as the next size up; beyond the largest, and for steps with prefill, as they are.
    """

    t0: int = 0
    tS: int = 0
    tB: int = 0
    tM: int = 0
    tT: int = 0
    tN: int = 0
    g: Table = ((1,), (0,))
    h: Table = ((1,), (0,))
    p0: int = 0
    pA2: int = 0
    pP: int = 0
    pF: int = 0
    pH: int = 0
    decode: tuple[int, int, int] = (0, 0, 0)
    mixed: tuple[int, int, int] | None = None
    padded: tuple[int, ...] = ()
    known: dict[tuple[int, int, int], int] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )
    """What `by_counts` has worked out."""
    _g: dict[int, int] = field(default_factory=dict, init=False, repr=False, compare=False)
    _h: dict[int, int] = field(default_factory=dict, init=False, repr=False, compare=False)

    @classmethod
    def constant(cls, step_ps: int) -> StepTime:
        """Every step takes `step_ps`: the fake for tests and theory."""
        return cls(t0=step_ps)

    def pad(self, tokens: int) -> int:
        """The captured size that a decode-only step of `tokens` runs as."""
        i = bisect_left(self.padded, tokens)
        return self.padded[i] if i < len(self.padded) else tokens

    def host(self, shape: StepShape) -> int:
        """Picoseconds of the step that the host spends: all but transfers and the model."""
        _, f, d, _, _, _, table, _, turned, named = shape
        return self.t0 + self.tS * (f + d) + self.tB * table + self.tT * turned + self.tN * named

    def price(self, shape: StepShape) -> int:
        """Picoseconds for one step. An empty shape still costs t0."""
        p, f, d, area2, reach, context, table, moved, turned, named = shape
        key = (p, f, d)
        total = self.known.get(key) or self.by_counts(*key)
        total += self.tB * table + self.tM * moved + self.tT * turned + self.tN * named
        if p:
            total += self.pA2 * area2 + self.pH * reach
        if d:
            total += (self.mixed if p and self.mixed else self.decode)[2] * context
        return total

    def by_counts(self, p: int, f: int, d: int) -> int:
        """The part of a step's time that only P, F and D decide; kept in `known`."""
        n = p + d
        total = self.t0 + self.tS * (f + d)
        if n:
            size, rows = n if p else self.pad(n), f + d
            if size not in self._g:
                self._g[size] = interpolate(self.g, size)
            if rows not in self._h:
                self._h[rows] = interpolate(self.h, rows)
            total += self._g[size] + self._h[rows]
        if p:
            total += self.p0 + self.pP * p + self.pF * f
        if d:
            d0, per_sequence, _ = self.mixed if p and self.mixed else self.decode
            total += d0 + per_sequence * d
        if len(self.known) >= MOST_KNOWN:
            self.known.clear()
        self.known[p, f, d] = total
        return total

    @property
    def costs_host(self) -> bool:
        """Whether any part of a step is spent on the host."""
        return bool(self.t0 or self.tS or self.counts_blocks)

    @property
    def counts_blocks(self) -> bool:
        """Whether a step costs by its blocks, which do not grow evenly over equal steps."""
        return bool(self.tB or self.tT or self.tN)

    def growth(self, prefill_tokens: int, decodes: int, chunk_squares: int) -> int:
        """What the next equal step costs more: D more context; each chunk q further on.

        `chunk_squares` is Σ q² over chunks. Constant over a leap; what blocks cost is not in it.
        """
        per_token = (self.mixed if prefill_tokens and self.mixed else self.decode)[2]
        # 2A of a chunk grows by 2q², H by q: per step of a leap.
        return per_token * decodes + 2 * self.pA2 * chunk_squares + self.pH * prefill_tokens


@dataclass(frozen=True)
class Predicted:
    """The executor that prices steps from a profile."""

    step_time: StepTime
    ahead: bool = True

    @cached_property
    def _costs_host(self) -> bool:
        return self.step_time.costs_host

    def run(self, shape: StepShape, rows: Callable[[], list[Row]]) -> Done:
        prices = self.step_time
        if self._costs_host:
            return Done(prices.price(shape), (), prices.host(shape))
        return Done(prices.price(shape))

    def forget(self, request: int) -> None:
        pass
