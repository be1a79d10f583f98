"""Service levels: bounds on latency at a percentile, such as "ttft p99 <= 0.8 s"."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from itertools import pairwise
from typing import Any

METRICS = ("ttft", "itl", "tpot", "e2e", "queue")
STATISTICS = ("mean", "p50", "p90", "p95", "p99", "max")
UNITS = {"s": Decimal(1), "ms": Decimal("0.001")}

_TERM = re.compile(r"(\w+)\s+(\w+)\s*(?:<=|≤|<)\s*(\S.*)", re.IGNORECASE)
_BOUND = re.compile(r"([-+]?[\d.]+(?:e[-+]?\d+)?|nan|inf)\s*([a-zµ]*)", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class Term:
    """One bound: the statistic of the metric is at most `bound_s` seconds."""

    metric: str
    statistic: str
    bound_s: float

    def __post_init__(self) -> None:
        if self.metric not in METRICS:
            raise ValueError(f"sla: metric {self.metric!r}, expected {', '.join(METRICS)}")
        if self.statistic not in STATISTICS:
            raise ValueError(f"sla: statistic {self.statistic!r}, expected {', '.join(STATISTICS)}")
        if not (self.bound_s > 0 and math.isfinite(self.bound_s)):
            raise ValueError(f"sla: bound {self.bound_s} s, expected a time above 0")

    @classmethod
    def parse(cls, text: str) -> Term:
        """From "ttft p99 <= 0.8 s" or "itl p99<=100ms"; the unit must be there."""
        form = 'expected the form "ttft p99 <= 0.8 s"'
        if not (match := _TERM.fullmatch(text.strip())):
            raise ValueError(f"sla: {text!r}, {form}")
        metric, statistic, bound = match.groups()
        try:
            return cls(
                metric=metric.lower(), statistic=statistic.lower(), bound_s=_seconds(bound.strip())
            )
        except ValueError as error:
            raise ValueError(f"{error} (in {text!r})") from None

    def __str__(self) -> str:
        if self.bound_s < 1:
            return f"{self.metric} {self.statistic} <= {self.bound_s * 1e3:.12g} ms"
        return f"{self.metric} {self.statistic} <= {self.bound_s:.12g} s"


@dataclass(frozen=True)
class Sla:
    """Terms that all must hold, in the order given; false where there are none.

    Two bounds on one metric and statistic are refused, and so is a bound that another makes
    idle (P50 above P99): one of the two is not what was meant.
    """

    terms: tuple[Term, ...] = ()

    def __post_init__(self) -> None:
        seen: dict[tuple[str, str], Term] = {}
        for term in self.terms:
            other = seen.setdefault((term.metric, term.statistic), term)
            if other is not term:
                raise ValueError(f"sla: {str(other)!r} and {str(term)!r} contradict each other")
        for metric in METRICS:
            ladder = [seen[metric, s] for s in STATISTICS[1:] if (metric, s) in seen]
            for lower, higher in pairwise(ladder):
                if lower.bound_s > higher.bound_s:
                    raise ValueError(
                        f"sla: {str(lower)!r} and {str(higher)!r} contradict each other: "
                        f"the {lower.statistic} is never above the {higher.statistic}"
                    )

    @classmethod
    def parse(cls, texts: str | Iterable[str]) -> Sla:
        """From texts such as "ttft p99 <= 0.8 s"; one text may hold several, split at , or ;."""
        given = [texts] if isinstance(texts, str) else list(texts)
        parts = [part for text in given for part in re.split(r"[,;]", text)]
        return cls(tuple(Term.parse(part) for part in parts if part.strip()))

    @classmethod
    def from_table(cls, table: Mapping[str, Any]) -> Sla:
        """From the form that scenarios use: `{"ttft": {"p99": 0.8}}`, numbers in seconds.

        A bound may also be a text with its unit ("800 ms").
        """
        terms = []
        for metric, bounds in table.items():
            if not isinstance(bounds, Mapping):
                raise ValueError(
                    f"sla.{metric}: {bounds!r}, expected a table such as {{p99 = 0.8}}"
                )
            for statistic, bound in bounds.items():
                if isinstance(bound, str):
                    seconds = _seconds(bound)
                elif isinstance(bound, (int, float)) and not isinstance(bound, bool):
                    seconds = float(bound)
                else:
                    raise ValueError(f"sla.{metric}.{statistic}: {bound!r}, expected seconds")
                terms.append(Term(metric=metric, statistic=statistic, bound_s=seconds))
        return cls(tuple(terms))

    def to_table(self) -> dict[str, dict[str, float]]:
        """The form that `from_table` reads."""
        table: dict[str, dict[str, float]] = {}
        for term in self.terms:
            table.setdefault(term.metric, {})[term.statistic] = term.bound_s
        return table

    def __iter__(self) -> Iterator[Term]:
        return iter(self.terms)

    def __len__(self) -> int:
        return len(self.terms)

    def __str__(self) -> str:
        return ", ".join(map(str, self.terms))


def _seconds(text: str) -> float:
    if not (match := _BOUND.fullmatch(text.strip())):
        raise ValueError(f"sla: bound {text!r}, expected a number with a unit (s or ms)")
    number, unit = match.groups()
    if unit.lower() not in UNITS:
        said = f"unit {unit!r}" if unit else "no unit"
        raise ValueError(f"sla: bound {text!r} has {said}, expected s or ms")
    try:
        # Through decimals, so that 100 ms is the same float as 0.1 s.
        return float(Decimal(number) * UNITS[unit.lower()])
    except InvalidOperation:
        raise ValueError(f"sla: bound {text!r}, expected a number with a unit") from None
