"""Cases C1-C5, C10: static against continuous batching, and what chunks are for."""

from __future__ import annotations

import random
from functools import cache

import pytest
import serving
from serving import Run, Serve, ask

from calibration.step_time import StepTime
from policies import Chunked, Continuous, Static
from reports.metrics import summarize
from traces.trace import PS_PER_S

MS = PS_PER_S // 1000


def test_a_static_batch_holds_its_slots(serve: Serve) -> None:
    """C1: outputs 20, 50, 200, 800 at 10 ms a token: busy 10.7 s of 4 × 8 s. A fifth waits for
    the longest."""
    asks = [ask(10, output) for output in (20, 50, 200, 800, 20)]
    run = serve(
        *asks[:4], policy=Static(batch=4), max_running=4, step_time=StepTime.constant(10 * MS)
    )
    assert run.finished == [0.2, 0.5, 2.0, 8.0]
    batch = summarize(run.records)["batch"]
    assert batch["slot_utilisation"] == pytest.approx(10.7 / 32)
    fifth = serve(*asks, policy=Static(batch=4), step_time=StepTime.constant(10 * MS))
    assert fifth.scheduled == [0, 0, 0, 0, 8.0]


def test_a_batch_is_first_in_first_out(serve: Serve) -> None:
    """C1: batches of two, in order of arrival; each ends with its longest."""
    run = serve(*(ask(4, output) for output in (3, 1, 2, 5, 1)), policy=Static(batch=2))
    assert run.scheduled == [0, 0, 3, 3, 8]


def test_an_incomplete_batch_starts_when_nothing_is_to_come(serve: Serve) -> None:
    """C1: two of three are there at 0, and nobody else will be."""
    run = serve(ask(4, 2), ask(4, 2), policy=Static(batch=3, timeout=100))
    assert run.scheduled == [0, 0]


def test_an_incomplete_batch_starts_at_the_timeout(serve: Serve) -> None:
    """C1: the third comes too late: at second 5 the first has waited long enough."""
    run = serve(ask(4, 2), ask(4, 2, at=1), ask(4, 2, at=30), policy=Static(batch=3, timeout=5))
    assert run.scheduled == [5, 5, 30]
    assert run.column("wait_batch")[0] == 5 * PS_PER_S


def test_a_batch_that_is_full_starts_at_once(serve: Serve) -> None:
    """C1: the second one fills it."""
    run = serve(ask(4, 2), ask(4, 2, at=2), ask(4, 2, at=3), policy=Static(batch=2, timeout=60))
    assert run.scheduled == [2, 2, 4]


@cache
def teaching_program(policy: Static | Chunked) -> Run:
    """C2: 60 requests, exponential gaps of mean 1.8 s, whole seconds of work from 3 to 12, three
    slots, cut into tokens of 1 ms. The order of the draws is the program's."""
    draws = random.Random(42)
    asks, at = [], 0.0
    for _ in range(60):
        at += draws.expovariate(1 / 1.8)
        asks.append(ask(1, 1000 * draws.randint(3, 12), at=round(at, 2)))
    return serving.run(
        *asks, policy=policy, max_running=3, step_time=StepTime.constant(MS), watch=False
    )


@pytest.mark.parametrize(
    ("policy", "makespan", "wait", "rate"),
    [
        (Static(batch=3, timeout=1e6), 196.73, 47.728, 0.30499),
        (Chunked(), 155.73, 27.2117, 0.38528),
    ],
    ids=["static", "continuous"],
)
def test_a_known_teaching_program(
    policy: Static | Chunked, makespan: float, wait: float, rate: float
) -> None:
    """C2: its results, within 0.1 s."""
    run = teaching_program(policy)
    assert run.makespan == pytest.approx(makespan, abs=0.1)
    assert sum(run.queued) / 60 == pytest.approx(wait, abs=0.1)
    throughput = summarize(run.records)["throughput"]["requests_per_s"]
    assert throughput == pytest.approx(rate, rel=0.1 / makespan)


PRICED = StepTime(t0=10 * MS, pP=MS // 10)
"""10 ms a step, and 0.1 ms a prefill token."""


@pytest.mark.parametrize("budget", [512, 2048, 8192])
def test_chunks_make_many_short_gaps_of_one_long_one(serve: Serve, budget: int) -> None:
    """C3: one of (4094, 8192) decodes when (65535, 1) arrives: the prefill takes
    ceil(65535 / (budget - 1)) steps beside it, each a gap of 10 ms + 0.1 ms a token."""
    run = serve(
        ask(4094, 1000), ask(65_535, 1, at=3),
        policy=Chunked(token_budget=budget), step_time=PRICED, watch=False,
    )  # fmt: skip
    steps = run.records.steps
    mixed = steps[(steps["decodes"] == 1) & (steps["chunks"] == 1)]
    assert len(mixed) == -(-65_535 // (budget - 1))
    assert mixed["duration"].max() == 10 * MS + (budget - 1) * MS // 10
    whole = serve(
        ask(4094, 300), ask(65_535, 1, at=3),
        policy=Continuous(token_budget=65_535), step_time=PRICED, watch=False,
    )  # fmt: skip
    longest = summarize(whole.records)["itl_s"]["max"]
    assert longest == pytest.approx(2 * 0.010 + 6.5535)


def test_a_long_prefill_threshold_lets_the_short_ones_through(serve: Serve) -> None:
    """C4: (128000, 10) at 0, fifty (100, 50) at 0.1, budget 2048. Without a threshold the
    prefill of 63 steps comes first. With 512 the short ones are in at once, and the long one
    takes about 250 steps."""
    asks = [ask(128_000, 10), *[ask(100, 50, at=0.1)] * 50]
    greedy, fair = (
        serve(
            *asks, watch=False, step_time=PRICED,
            policy=Chunked(token_budget=2048, long_prefill=threshold),
        )
        for threshold in (0, 512)
    )  # fmt: skip
    assert min(greedy.ttft[1:]) > 0.95 * greedy.ttft[0]
    assert max(fair.ttft[1:]) < 0.2 * min(greedy.ttft[1:])
    assert fair.ttft[0] > greedy.ttft[0]


def test_prefill_first_shows_in_pooled_gaps_and_hides_in_means(serve: Serve) -> None:
    """C5: a steady stream of (4000, 10), one every 450 ms, and 10 + 400 ms a prefill: four decode
    steps fit between two prefills. A quarter of the gaps and more are a whole prefill longer; the
    mean of each request is far below."""
    run = serve(
        *(ask(4000, 10, at=0.45 * number) for number in range(100)),
        policy=Continuous(), step_time=PRICED, watch=False,
    )  # fmt: skip
    summary = summarize(run.records)
    assert summary["itl_s"]["p99"] >= 0.41
    assert summary["tpot_s"]["max"] < 0.41 / 2


def test_equal_and_even_work_leaves_nothing_to_gain(serve: Serve) -> None:
    """C10: four of equal length arrive together every 30 s: static is as good as continuous."""
    asks = [ask(100, 20, at=30.0 * group) for group in range(10) for _ in range(4)]
    static = serve(*asks, policy=Static(batch=4), max_running=4)
    continuous = serve(*asks, policy=Continuous(), max_running=4)
    assert static.finished == continuous.finished
