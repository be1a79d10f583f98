"""What a trace is like: rate over time, burstiness, lengths, and how much its prompts share.

Percentiles are by nearest rank: values that occurred.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from traces.trace import PS_PER_S, Ints, Trace

Piece = tuple[int, int, int]
"""Stream, start and tokens of a segment."""

HEAVY_TAIL, NARROW_TAIL = 10, 5
"""P99 over mean of the outputs: heavy from the one on, narrow below the other (exponential
lengths have 4.6)."""
PREFIX = 128
"""Tokens at the start of a prompt by which prefixes are compared."""


@dataclass(frozen=True, kw_only=True)
class Lengths:
    """Mean and percentiles of a length in tokens."""

    mean: float
    p50: int
    p95: int
    p99: int
    max: int
    total: int


@dataclass(frozen=True, kw_only=True)
class TraceStatistics:
    """Numbers about a trace; None where it has nothing to measure them on."""

    source: str
    requests: int
    duration_s: float
    """First to last arrival."""
    rate: float | None
    """Requests per second over the duration."""
    rates: tuple[float, ...]
    """Requests per second in equal parts of the duration."""
    part_s: float
    peak_rate: float | None
    cv: float | None
    """Coefficient of variation of the gaps between arrivals: 1 as Poisson, above is burstier."""
    prompt: Lengths | None
    output: Lengths | None
    tail: float | None
    """P99 over mean of the outputs."""
    declared_share: float
    """Share of the requests with a declared maximum."""
    sessions: int
    closed_loop_share: float
    """Share of the requests that are sent only after another has ended."""
    tenants: tuple[str, ...]
    prefix_coverage: float | None
    """Share of the requests under the most common prefix of 128 tokens."""
    prefix_reuse: float | None
    """Share of the prompt tokens that a cache of unlimited size would hold already."""
    advice: tuple[str, ...]
    notes: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self)


def describe(trace: Trace, *, parts: int = 24) -> TraceStatistics:
    """The statistics of a trace and the advice that follows from them."""
    own = trace.arrival[trace.after < 0]
    duration = int(own.max() - own.min()) if len(own) else 0
    counts, part = _counts(own, duration, parts)
    prompt, output = _lengths(trace.prompt), _lengths(trace.output)
    tail = output.p99 / output.mean if output else None
    coverage, reuse = prefix_coverage(trace), prefix_reuse(trace)
    rates = tuple(float(count / part) for count in counts) if part else ()
    return TraceStatistics(
        source=trace.source,
        requests=len(trace),
        duration_s=duration / PS_PER_S,
        rate=len(own) / (duration / PS_PER_S) if duration else None,
        rates=rates,
        part_s=part,
        peak_rate=max(rates, default=None),
        cv=burstiness(trace),
        prompt=prompt,
        output=output,
        tail=tail,
        declared_share=float(np.mean(trace.declared > 0)) if len(trace) else 0.0,
        sessions=len(np.unique(trace.session[trace.session >= 0])),
        closed_loop_share=float(np.mean(trace.after >= 0)) if len(trace) else 0.0,
        tenants=tuple(trace.tenants[code] for code in np.unique(trace.tenant).tolist()),
        prefix_coverage=coverage,
        prefix_reuse=reuse,
        advice=_advice(tail, coverage if len(trace) > 1 else None),
        notes=trace.notes,
    )


def burstiness(trace: Trace) -> float | None:
    """Standard deviation over mean of the gaps between arrivals; None without two gaps."""
    gaps = np.diff(trace.arrival[trace.after < 0]).astype(np.float64)
    if len(gaps) < 2 or not gaps.any():
        return None
    return float(gaps.std() / gaps.mean())


def prefix_coverage(trace: Trace) -> float | None:
    """Share of the requests whose first 128 tokens are the most common ones; None unknown.

    A request with a shorter prompt, or with less identity than that, has a prefix of its own.
    """
    if not len(trace.content_stream):
        return None
    seen: dict[tuple[tuple[int, int, int], ...], int] = {}
    for _, content in _contents(trace):
        # The head as its runs of positions, however they were cut into segments.
        head: list[tuple[int, int, int]] = []
        follows, left = (-1, -1), PREFIX
        for stream, start, tokens in content:
            if (stream, start) != follows:
                head.append((PREFIX - left, stream, start))
            follows = (stream, start + tokens)
            left -= tokens
            if left <= 0:
                seen[tuple(head)] = seen.get(tuple(head), 0) + 1
                break
    return max(seen.values(), default=1) / len(trace)


def prefix_reuse(trace: Trace) -> float | None:
    """Share of all prompt tokens that an earlier prompt began with just so; None unknown.

    What a request generates can be reused too, by those that quote it as far as it is known.
    """
    if not len(trace.content_stream):
        return None
    tree = _PrefixTree()
    reused = 0
    for index, content in _contents(trace):
        reused += tree.add(content)
        if sum(tokens for _, _, tokens in content) == int(trace.prompt[index]):
            tree.add([*content, (-(index + 1), 0, int(trace.output[index]))])
    return reused / int(trace.prompt.sum())


def _contents(trace: Trace) -> Iterator[tuple[int, list[Piece]]]:
    """The segments of each row that has any, as plain numbers."""
    offsets = trace.content_offsets.tolist()
    columns = (trace.content_stream, trace.content_start, trace.content_tokens)
    for index in np.flatnonzero(np.diff(trace.content_offsets)).tolist():
        first, last = offsets[index], offsets[index + 1]
        yield index, list(zip(*(column[first:last].tolist() for column in columns), strict=True))


class _PrefixTree:
    """Every prefix seen so far: runs of tokens, parted where prompts part."""

    def __init__(self) -> None:
        # A node's branches by their first token; a branch is its length and the node behind.
        self._nodes: list[dict[tuple[int, int], tuple[int, int]]] = [{}]

    def add(self, content: list[Piece]) -> int:
        """Add a prompt; answers how many of its first tokens were known."""
        nodes, node, known, fresh = self._nodes, 0, 0, False
        for stream, start, left in content:
            while left:
                key = (stream, start)
                branch = nodes[node].get(key)
                if branch is None:
                    fresh = True
                    nodes.append({})
                    nodes[node][key] = (left, len(nodes) - 1)
                    node, left = len(nodes) - 1, 0
                    continue
                length, behind = branch
                if left < length:
                    # Ends within the branch: part it there.
                    rest = (stream, start + left)
                    nodes.append({rest: (length - left, behind)})
                    behind, length = len(nodes) - 1, left
                    nodes[node][key] = (length, behind)
                known += 0 if fresh else length
                node, start, left = behind, start + length, left - length
        return known


def _counts(own: Ints, duration: int, parts: int) -> tuple[Ints, float]:
    if not duration:
        return np.zeros(0, dtype=np.int64), 0.0
    place = np.minimum((own - own.min()) / duration * parts, parts - 1).astype(np.int64)
    return np.bincount(place, minlength=parts), duration / PS_PER_S / parts


def _lengths(values: Ints) -> Lengths | None:
    if not len(values):
        return None
    p50, p95, p99 = np.percentile(values, (50, 95, 99), method="inverted_cdf").tolist()
    return Lengths(
        mean=float(values.mean()),
        p50=int(p50),
        p95=int(p95),
        p99=int(p99),
        max=int(values.max()),
        total=int(values.sum()),
    )


def _advice(tail: float | None, coverage: float | None) -> tuple[str, ...]:
    advice = []
    if tail is not None and tail >= HEAVY_TAIL:
        advice.append(
            f"P99 of the outputs is {tail:.1f} times their mean, a heavy tail: keep a larger "
            "reserve, rather queue than evict, widen the prefill budget, cap outputs"
        )
    elif tail is not None and tail < NARROW_TAIL:
        advice.append(
            f"P99 of the outputs is {tail:.1f} times their mean, a narrow tail: a thin reserve "
            "is enough"
        )
    if coverage is not None and coverage > 0.5:
        advice.append(
            f"{coverage:.0%} of the requests begin with the same {PREFIX} tokens: switch prefix "
            "sharing on and pin that prefix"
        )
    return tuple(advice)
