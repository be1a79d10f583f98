"""Every request's time splits exactly into its causes; a walk over its tokens finds the same."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from itertools import pairwise

import numpy as np
from hypothesis import HealthCheck, given, settings
from test_same_as_naive import Case, cases, examples, run_fast

from benchmarks import naive
from calibration.step_time import Predicted, StepTime
from policies import Chunked, Continuous
from reports.clocks import GAP_PARTS
from reports.latencies import Latencies
from reports.parts import bands
from simulator.engine import Engine
from simulator.run import simulate
from traces.records import WAITS, Records
from traces.trace import PS_PER_S, Trace

MS = PS_PER_S // 1000


def clocks(records: Records, request: int) -> dict[str, int]:
    """What is not 0 of one request's clocks, in milliseconds."""
    found = Latencies(records).clocks.of_requests
    parts = {name: int(values[request]) // MS for name, values in found.items()}
    return {name: value for name, value in parts.items() if value}


def served(trace: Trace, policy: Chunked | Continuous, kv_tokens: int = 10_000) -> Records:
    """Each step takes 10 ms, and 1 ms for each prefill token in it."""
    engine = Engine(kv_tokens=kv_tokens, block_size=1, max_running=8)
    step_time = StepTime(t0=10 * MS, pP=MS)
    return simulate(trace, policy, engine, Predicted(step_time))


def test_prefill_beside_a_decode_is_counted_as_that_of_others() -> None:
    """Request 0 decodes alone for 9 steps but one, into which request 1 brings 30 ms of prefill."""
    trace = Trace.of(arrival=[0, 45 * MS], prompt=[5, 30], output=[10, 1], declared=10)
    records = served(trace, Chunked(token_budget=64))
    assert clocks(records, 0) == {"prefill": 15, "decode": 90, "others": 30}
    assert clocks(records, 1) == {"prefill": 40}


def test_a_prefill_step_that_does_not_decode_makes_others_stand_still() -> None:
    trace = Trace.of(arrival=[0, 45 * MS], prompt=[5, 30], output=[10, 1], declared=10)
    records = served(trace, Continuous(token_budget=64))
    assert clocks(records, 0) == {"prefill": 15, "decode": 90, "still": 40}


def test_a_preemption_costs_the_time_in_the_queue_and_the_recompute() -> None:
    """Both need 24 slots in the end, 30 are there: request 1 gives way and comes back."""
    trace = Trace.of(arrival=[0, 0], prompt=[10, 10], output=[15, 15], declared=15)
    records = served(trace, Chunked(token_budget=64), kv_tokens=30)
    assert records.requests["preemptions"].tolist() == [0, 1]
    # 20 tokens of prefill, 5 steps together, 9 without 1; it comes back with 16 tokens to
    # compute, and decodes 8 more.
    assert clocks(records, 0) == {"prefill": 30, "decode": 140}
    lost = clocks(records, 1)
    assert lost == {"prefill": 30, "decode": 130, "stalled": 90, "recompute": 26}
    assert sum(lost.values()) == int(Latencies(records).e2e[1]) // MS


def parts_of(records: Records) -> dict[str, list[int]]:
    clocks = Latencies(records).clocks
    every = clocks.waits() | clocks.of_requests
    return {name: values.tolist() for name, values in every.items()}


def walked(truth: naive.NaiveRun) -> list[Counter[str]]:
    """The parts of each request's time behind its first token, token by token."""
    steps = {row.start + row.duration: row for row in truth.steps.itertuples(index=False)}
    lost: dict[int, list[int]] = {}
    for at, request in truth.preemptions:
        lost.setdefault(request, []).append(at)
    found = []
    for row in truth.requests.itertuples(index=False):
        parts: Counter[str] = Counter(dict.fromkeys(GAP_PARTS, 0))
        times, moments = truth.token_times[row.request], lost.get(row.request, [])
        away = 0
        for last, token in pairwise(times):
            step = steps[token]
            at = next((moment for moment in moments if last <= moment < token), None)
            if at is not None:
                parts["still"] += at - last
                away += token - at
                continue
            parts["decode"] += step.duration - step.interference
            parts["others"] += step.interference
            parts["still"] += token - last - step.duration
        if row.reason in ("stop", "length"):
            parts["stalled"] = row.stalled
            parts["recompute"] = away - (row.stalled - row.stalled_first)
        found.append(parts)
    return found


@examples(80)
@given(cases())
def test_the_parts_add_up_and_are_those_of_a_walk(case: Case) -> None:
    records = run_fast(case, leap=True)
    run, parts = Latencies(records), parts_of(records)
    assert parts == parts_of(run_fast(case, leap=False))
    done = np.flatnonzero(run.finished).tolist()
    for row in done:
        assert all(values[row] >= 0 for values in parts.values())
        assert sum(values[row] for values in parts.values()) == int(run.e2e[row])
        before = int(run.column("stalled_first")[row])
        to_first = sum(parts[name][row] for name in (*WAITS, "prefill")) + before
        assert to_first == int(run.ttft[row])
    truth = naive.run(case.trace, case.policy, case.engine, case.step_time, case.horizon)
    walk = walked(truth)
    for row in done:
        assert {name: parts[name][row] for name in GAP_PARTS} == dict(walk[row])


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(cases())
def test_bands_add_up_to_the_mean_of_their_ranks(case: Case) -> None:
    run = Latencies(run_fast(case, leap=True))
    for metric in ("ttft", "itl", "e2e"):
        known = run.distribution(metric)
        found = bands(run, metric)
        assert bool(found) == bool(known.count)
        for band in found:
            assert abs(band.total * PS_PER_S - mean_of_ranks(known, band.ranks)) < 2
            assert all(part >= 0 for part in band.parts.values())


def mean_of_ranks(known, ranks):  # type: ignore[no-untyped-def]
    """The mean of the values at ranks first … last, counted from 1."""
    first, last = ranks
    values = [
        int(known.values[bisect_right(known.ranks.tolist(), rank - 1)])
        for rank in range(first, last + 1)
    ]
    return sum(values) / len(values)
