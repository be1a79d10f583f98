"""Percentiles by nearest rank: the one rule of every report.

The p-th percentile of n values is the value at rank ceil(p·n/100) in ascending order: always a
value that occurred, and an exact answer to "does p % of the load stay within this bound".
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

STATISTICS = ("mean", "p50", "p90", "p95", "p99", "p999", "max")
"""The statistics that a summary states of every latency; p999 is P99.9."""

Numbers = NDArray[Any]


def shown(statistic: str) -> str:
    """A statistic as people write it: mean, P50, P99.9, max."""
    return f"P{_percent(statistic):g}" if statistic[0] == "p" else statistic


def _percent(statistic: str) -> float:
    """p50 → 50.0, p999 → 99.9."""
    return float(f"{statistic[1:3]}.{statistic[3:].lstrip('.')}")


def nearest_rank(share: float | Fraction, count: int) -> int:
    """The rank (1 … count) of the percentile `share`, in percent, of `count` values."""
    return max(1, -int(-_exact(share) * count // 100))


def _exact(share: float | Fraction) -> Fraction:
    # 99.9 as a float is a little more than 99.9, which would shift ranks at round counts.
    return share if isinstance(share, Fraction) else Fraction(repr(float(share)))


def percentile(values: Numbers, share: float) -> float | None:
    """The nearest-rank percentile of unsorted `values`; None of none."""
    if not len(values):
        return None
    rank = nearest_rank(share, len(values))
    return float(np.partition(values, rank - 1)[rank - 1])


def _sorted_together(values: Numbers, weights: Numbers, bits: int) -> tuple[Numbers, Numbers]:
    """Values in order, and their ranks: value and weight (of so many bits) share a number."""
    both = values << bits
    both |= weights
    if not weights.all():
        both = both[weights > 0]
    both.sort()
    ranks = both & ((1 << bits) - 1)
    np.cumsum(ranks, out=ranks)
    both >>= bits
    return both, ranks


class Distribution:
    """Values with whole-number weights, sorted: percentiles, mean and CDF of a weighted sample."""

    def __init__(self, values: Numbers, weights: Numbers | None = None) -> None:
        """`values` in any order; no weights means one each. Weights of 0 drop out."""
        self.values: Numbers
        """Ascending."""
        self.ranks: Numbers
        """The last rank that each value holds."""
        if weights is None:
            self.values, self.ranks = np.sort(values), np.arange(1, len(values) + 1)
            return
        # Millions of steps come here: no more copies than need be.
        bits = int(weights.max(initial=0)).bit_length()
        limit = 1 << (63 - bits)
        if len(values) and values.dtype == np.int64 and 0 <= values.min() <= values.max() < limit:
            self.values, self.ranks = _sorted_together(values, weights, bits)
            return
        order = np.argsort(values)
        order = order[weights[order] > 0]
        self.values, self.ranks = values[order], np.cumsum(weights[order])

    @property
    def count(self) -> int:
        """The sum of the weights."""
        return int(self.ranks[-1]) if len(self.ranks) else 0

    def at(self, rank: int) -> float:
        """The value at `rank`, counted from 1."""
        return float(self.values[np.searchsorted(self.ranks, rank)])

    def percentile(self, share: float, *, linear: bool = False) -> float | None:
        """By nearest rank, or interpolated between ranks as other tools do; None of none."""
        if not self.count:
            return None
        if not linear:
            return self.at(nearest_rank(share, self.count))
        below, part = divmod(_exact(share) / 100 * (self.count - 1), 1)
        low, high = self.at(int(below) + 1), self.at(min(int(below) + 2, self.count))
        return low + (high - low) * float(part)

    def mean(self) -> float | None:
        if not self.count:
            return None
        weights = self.ranks.astype(np.float64)
        np.subtract(self.ranks[1:], self.ranks[:-1], out=weights[1:], casting="unsafe")
        weights *= self.values
        return float(np.sum(weights) / self.count)

    def statistic(self, name: str, *, linear: bool = False) -> float | None:
        """`mean`, `max`, or `p` and the digits of a percentile."""
        if name == "mean":
            return self.mean()
        if name == "max":
            return float(self.values[-1]) if self.count else None
        return self.percentile(_percent(name), linear=linear)

    def summary(self, *, unit: float = 1.0, linear: bool = False) -> dict[str, float | None]:
        """Every one of `STATISTICS`, divided by `unit`."""
        found = {name: self.statistic(name, linear=linear) for name in STATISTICS}
        return {name: None if value is None else value / unit for name, value in found.items()}
