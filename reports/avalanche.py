"""Trouble that feeds on itself: is it there, when did it begin, does it end?

**Avalanche** (thrash): evictions make work, work makes evictions. The run is cut into `WINDOWS`
stretches of equal time. A stretch is in an avalanche where somebody waits, somebody is evicted
in one of fifty steps at least, and throughput falls below `FALL` of its best: of the best stretch
so far in output tokens per second, or, since a run may thrash from its very beginning, of what
the same steps would have come to had no token been computed again. It begins with the first of
`LASTS` such stretches in a row, and is over with the first of `LASTS` in a row that are not.

**Recovery** from a load that rises, holds and returns: the backlog is back at what it was before
the rise.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from reports.gaps import column
from reports.latencies import Latencies
from traces.trace import PS_PER_S

WINDOWS = 60
LEAST = 0.02
"""Evictions a step, at least."""
FALL = 0.6
LASTS = 3


@dataclass(frozen=True, kw_only=True)
class Avalanche:
    """One, in seconds since time 0."""

    began_s: float
    ended_s: float | None
    """None: not before the run did."""
    throughput: float
    """In it, as a share of the best: the lower of the two measures."""
    evictions_per_step: float
    gap_p99_s: float
    """P99 ITL in it."""

    def sentence(self) -> str:
        end = "and does not end" if self.ended_s is None else f"and ends at {self.ended_s:,.0f} s"
        return (
            f"avalanche: it begins at {self.began_s:,.0f} s {end}; throughput falls to "
            f"{self.throughput:.0%} of its best, with {self.evictions_per_step:.2g} evictions a "
            f"step and a P99 ITL of {self.gap_p99_s:.3g} s"
        )


def avalanche(run: Latencies) -> Avalanche | None:
    """The first one of a run; None where there is none."""
    steps = run.records.steps
    preempted = column(steps, "preempted")
    if not preempted.sum() or len(steps) < WINDOWS:
        return None
    start, duration = column(steps, "start"), column(steps, "duration")
    edges = np.linspace(0, int((start + duration).max()), WINDOWS + 1)
    window = np.clip(np.searchsorted(edges, start, "right") - 1, 0, WINDOWS - 1)

    def sums(values: NDArray[np.int64]) -> NDArray[np.float64]:
        total = np.bincount(window, values.astype(np.float64), minlength=WINDOWS)
        return total.astype(np.float64)

    width_s = float(edges[1]) / PS_PER_S
    count = np.maximum(np.bincount(window, minlength=WINDOWS), 1)
    # A token is produced by every decode; finished prompts make one more, too few to matter.
    rate = sums(column(steps, "decodes")) / width_s
    evictions = sums(preempted) / count
    waiting = sums(column(steps, "waiting")) > 0
    gaps = _gap_p99(run, edges)
    fallen = rate / np.maximum.accumulate(np.maximum(rate, 1e-9))
    share = np.minimum(
        fallen, _useful(run, edges, sums(column(steps, "prefill_tokens")), rate * width_s)
    )
    bad = (evictions > LEAST) & waiting & (share < FALL)
    begins = _first_run(bad)
    if begins is None:
        return None
    ends = _first_run(~bad[begins:])
    stop = WINDOWS if ends is None else begins + ends
    during = slice(begins, stop)
    return Avalanche(
        began_s=float(edges[begins]) / PS_PER_S,
        ended_s=None if ends is None else float(edges[stop]) / PS_PER_S,
        throughput=float(share[during].mean()),
        evictions_per_step=float(evictions[during].mean()),
        gap_p99_s=float(gaps[during].max()),
    )


def recovered_s(run: Latencies, *, rises_s: float, returns_s: float) -> float | None:
    """When the backlog is back at its mean before `rises_s`, after `returns_s`; None = never."""
    arrival = np.sort(run.column("arrival")[run.arrived])
    ended = run.column("finished")[run.arrived]
    ended = np.sort(ended[ended >= 0])
    moments = np.union1d(arrival, ended)
    backlog = np.searchsorted(arrival, moments, "right") - np.searchsorted(ended, moments, "right")
    calm = moments < rises_s * PS_PER_S
    if not calm.any():
        return None
    usual = float(backlog[calm].mean()) + 2 * float(backlog[calm].std())
    after = (moments >= returns_s * PS_PER_S) & (backlog <= usual)
    return float(moments[after][0]) / PS_PER_S if after.any() else None


def _useful(
    run: Latencies,
    edges: NDArray[np.float64],
    prefilled: NDArray[np.float64],
    decoded: NDArray[np.float64],
) -> NDArray[np.float64]:
    """Share of the tokens fed in each window that were fed for the first time.

    A prompt counts where its first token appears; windows are smoothed over their neighbours, as
    a prompt may be read in one and end in the next.
    """
    moment, prompt = run.column("first_token"), run.column("prompt")
    began = moment >= 0
    window = np.clip(np.searchsorted(edges, moment[began], "left") - 1, 0, WINDOWS - 1)
    first = np.bincount(window, prompt[began].astype(np.float64), minlength=WINDOWS)
    smooth = np.ones(5)
    fed = np.convolve(prefilled + decoded, smooth, "same")
    new = np.convolve(np.minimum(first, prefilled) + decoded, smooth, "same")
    return np.minimum(new / np.maximum(fed, 1.0), 1.0)


def _gap_p99(run: Latencies, edges: NDArray[np.float64]) -> NDArray[np.float64]:
    """P99 of the gaps that end in each window, in seconds; 0 where there is none."""
    gaps, steps = run.gaps, run.records.steps
    ticking = column(steps, "tick") >= 0
    ends = (column(steps, "start") + column(steps, "duration"))[ticking]
    began = np.bincount(gaps.first, minlength=len(ends) + 1)
    over = np.bincount(gaps.last + 1, minlength=len(ends) + 1)
    weights = np.concatenate([np.cumsum((began - over)[: len(ends)]), np.ones(len(gaps.stall))])
    values = np.concatenate([gaps.gap, gaps.stall])
    at = np.concatenate([ends, column(run.records.stalls, "end")])
    window = np.clip(np.searchsorted(edges, at, "left") - 1, 0, WINDOWS - 1)
    order = np.lexsort((values, window))
    found = np.zeros(WINDOWS)
    for one in range(WINDOWS):
        mine = order[np.searchsorted(window[order], one) : np.searchsorted(window[order], one + 1)]
        total = np.cumsum(weights[mine])
        if len(total) and total[-1]:
            found[one] = values[mine][np.searchsorted(total, 0.99 * total[-1])] / PS_PER_S
    return found


def _first_run(flags: NDArray[np.bool_]) -> int | None:
    """Where the first `LASTS` true ones in a row begin."""
    for at in range(len(flags) - LASTS + 1):
        if flags[at : at + LASTS].all():
            return at
    return None
