"""Which requests kept the service level, exactly (definitions: top of `reports.metrics`)."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from reports.latencies import Latencies
from reports.percentiles import Distribution, nearest_rank
from traces.sla import Sla, Term
from traces.trace import PS_PER_S, to_ps

Bools = NDArray[np.bool_]


def attainment(run: Latencies, sla: Sla, chosen: Bools | None = None) -> dict[str, Any]:
    """The `sla` part of a summary, over all requests that arrived or the `chosen` of them."""
    asked = run.arrived if chosen is None else chosen
    every = asked & requests_meeting(run, sla)
    values = {str(term): run_value(run, term, asked) for term in sla}
    met = int(every.sum())
    return {
        "attainment": met / int(asked.sum()) if asked.any() else None,
        "goodput_per_s": met / (run.span / PS_PER_S) if run.span else None,
        "met": {
            str(term): (value := values[str(term)]) is not None and value <= term.bound_s
            for term in sla
        },
        "values": values,
    }


def requests_meeting(run: Latencies, sla: Sla) -> Bools:
    """The requests that finished and met every term."""
    met = run.finished.copy()
    for term in sla:
        met &= _meeting(run, term)
    return met


def _meeting(run: Latencies, term: Term) -> Bools:
    bound = to_ps(term.bound_s)
    if term.metric != "itl":
        # -1 stands for "has none": a one-token request meets any TPOT.
        return np.asarray(run.of(term.metric) <= bound)
    if term.statistic == "mean":
        return np.asarray(run.tpot <= bound)
    count = run.gaps.count()
    allowed = np.zeros(run.gaps.rows, dtype=np.int64)
    if term.statistic != "max":
        share = float(term.statistic[1:])
        # The percentile at rank r is within the bound iff at most n - r gaps are over it.
        sizes, inverse = np.unique(count, return_inverse=True)
        allowed = np.array([n - nearest_rank(share, int(n)) if n else 0 for n in sizes])[inverse]
    return np.asarray(run.gaps.over(bound) <= allowed)


def run_value(run: Latencies, term: Term, asked: Bools) -> float | None:
    """The statistic of the run in seconds, the unserved counted as infinitely late.

    None where that makes it infinite, or nobody has the metric.
    """
    if term.metric == "itl":
        known = run.distribution("itl", asked if not asked.all() else None)
    else:
        values = run.of(term.metric)[asked].astype(np.float64)
        missing = values < 0
        if term.metric == "tpot":  # finished with one token: none, and none expected
            missing &= ~run.finished[asked]
        values = np.where(missing, np.inf, values)
        known = Distribution(values[values >= 0])
    value = known.statistic(term.statistic)
    return value / PS_PER_S if value is not None and np.isfinite(value) else None
