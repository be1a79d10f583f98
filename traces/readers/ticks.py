"""Arrivals that were recorded in coarse ticks: recognised, and spread out on request."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from traces.seeds import stream
from traces.trace import PS_PER_S, Trace


def tick_ps(trace: Trace) -> int:
    """The tick in which arrivals are stamped: the shortest usual gap between two stamps."""
    gaps = np.diff(np.unique(trace.arrival[trace.after < 0]))
    if not len(gaps):
        return 0
    # Not the very shortest: clocks jitter.
    return int(np.percentile(gaps, 5, method="inverted_cdf"))


def shared_share(trace: Trace) -> float:
    """Share of the arrivals that have their stamp in common with another."""
    arrival = trace.arrival[trace.after < 0]
    if not len(arrival):
        return 0.0
    counts = np.unique(arrival, return_counts=True)[1]
    return float(counts[counts > 1].sum() / len(arrival))


def tick_note(trace: Trace) -> str | None:
    """A warning where most arrivals share their stamp, and there are several stamps."""
    share, tick = shared_share(trace), tick_ps(trace)
    if share <= 0.5 or not tick:
        return None
    return (
        f"{share:.0%} of the arrivals share their time stamp with another (ticks of about "
        f"{tick / PS_PER_S:.3g} s): such bursts come from the recording; --spread-ticks spreads "
        "them"
    )


def spread(trace: Trace, seed: int) -> tuple[Trace, str]:
    """Spread the arrivals of each stamp evenly, at random, over the tick that follows it."""
    tick = tick_ps(trace)
    own = trace.after < 0
    if not tick:
        return trace, "no ticks to spread: all arrivals have one time stamp"
    shift = np.floor(stream(seed, "spread-ticks").random(int(own.sum())) * tick)
    arrival = trace.arrival.copy()
    # Sorted, so that rows keep their order.
    arrival[own] = np.sort(arrival[own] + shift.astype(np.int64))
    note = f"arrivals spread at random over ticks of {tick / PS_PER_S:.4g} s (seed {seed})"
    return replace(trace, arrival=arrival), note
