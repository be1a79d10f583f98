"""Intervals cover what they claim; cuts are by arrival and say so; overload is called overload."""

from __future__ import annotations

import heapq

import numpy as np
import pytest
from numpy.typing import NDArray
from reports_walk import S, Seen, records_of

from reports.confidence import (
    paired,
    stationarity,
    student,
    warm_up,
    within_run,
    without_ends,
)
from reports.frames import requests_frame
from reports.metrics import summarize

Floats = NDArray[np.float64]


def queue(seed: int, requests: int, load: float, slots: int = 16) -> tuple[Floats, Floats]:
    """Arrivals and departures of Poisson traffic at `slots` servers of one second."""
    random = np.random.default_rng(seed)
    arrival = np.cumsum(random.exponential(1 / (load * slots), requests))
    service = random.exponential(1.0, requests)
    free = [0.0] * slots
    left = np.empty(requests)
    for i in range(requests):
        start = max(arrival[i], heapq.heappop(free))
        left[i] = start + service[i]
        heapq.heappush(free, left[i])
    return arrival, left


def judged(seed: int, requests: int, load: float) -> bool | None:
    arrival, left = queue(seed, requests, load)
    return stationarity((arrival * S).astype(np.int64), (left * S).astype(np.int64)).stationary


def test_five_per_cent_too_much_is_not_stationary() -> None:
    assert sum(judged(seed, 10_000, 1.05) is False for seed in range(10)) == 10


def test_a_sustainable_load_is_stationary() -> None:
    for load in (0.5, 0.8):
        assert sum(judged(seed, 10_000, load) is True for seed in range(10)) == 10


def test_nothing_is_judged_without_a_rate() -> None:
    at_once = np.zeros(50, dtype=np.int64)
    assert stationarity(at_once, np.arange(50)).stationary is None
    assert stationarity(np.arange(5), np.arange(5)).stationary is None


@pytest.mark.parametrize(("requests", "load"), [(60, 0.5), (100, 0.8), (200, 0.9)])
def test_a_run_in_which_the_server_fills_is_too_short_to_tell(requests: int, load: float) -> None:
    """64 slots: a backlog of 32 to 58 builds up, out of so few requests."""
    verdicts = []
    for seed in range(20):
        arrival, left = queue(seed, requests, load, slots=64)
        found = stationarity((arrival * S).astype(np.int64), (left * S).astype(np.int64))
        verdicts.append(found.stationary)
        if found.stationary is None:
            assert found.sentence().startswith("too short to tell: the backlog moves by ")
    assert verdicts.count(None) > 10
    assert verdicts.count(False) <= 4


def test_bursts_are_no_trend() -> None:
    """Twenty at once, ten seconds apart on average; nobody waits, and the backlog jumps about."""
    verdicts = []
    for seed in range(40):
        random = np.random.default_rng(seed)
        pause = random.exponential(10.0, 400)
        arrival = np.cumsum(np.where(random.random(400) < 1 / 20, pause, 0.02))
        left = arrival + random.exponential(1.0, 400)
        found = stationarity((arrival * S).astype(np.int64), (left * S).astype(np.int64))
        verdicts.append(found.stationary)
    assert False not in verdicts
    assert verdicts.count(True) > 30


@pytest.mark.parametrize("requests", [200, 400, 2000])
def test_twice_too_much_is_not_stationary_however_short(requests: int) -> None:
    assert sum(judged(seed, requests, 2.0) is False for seed in range(20)) >= 19


def test_overload_that_a_horizon_cuts_is_not_stationary() -> None:
    """Twice too much, seen until the last arrival: a half has not ended by then."""
    arrival, left = queue(1, 4000, 2.0)
    arrival, left = (arrival * S).astype(np.int64), (left * S).astype(np.int64)
    assert stationarity(arrival, left[left <= arrival[-1]]).stationary is False


def test_student_covers_the_true_mean_as_often_as_it_says() -> None:
    random = np.random.default_rng(1)
    inside = [
        (one := student(random.exponential(2.0, 10))).low <= 2.0 <= one.high for _ in range(400)
    ]
    assert 0.88 <= np.mean(inside) <= 0.99


@pytest.mark.parametrize(("statistic", "truth"), [("mean", 1.0), ("p90", np.log(10))])
def test_batches_cover_although_neighbours_depend(statistic: str, truth: float) -> None:
    """Exponential values that are each repeated in runs of five, as bursts repeat delays."""
    random = np.random.default_rng(2)
    inside = []
    for _ in range(200):
        values = np.repeat(random.exponential(1.0, 800), 5)
        one = within_run(values, statistic)
        assert one is not None
        inside.append(one.low <= truth <= one.high)
    assert 0.88 <= np.mean(inside) <= 0.99


def test_a_p99_of_too_few_requests_has_no_interval() -> None:
    assert within_run(np.arange(499.0), "p99") is None
    assert within_run(np.arange(500.0), "p99") is not None


def test_pairs_see_what_two_intervals_hide() -> None:
    """A gain of 0.1 on every seed, under a spread of 10 between seeds."""
    base = np.random.default_rng(3).normal(100, 10, 10)
    variant = base - 0.1
    gain = paired(base, variant)
    assert gain.excludes_zero
    assert gain.estimate == pytest.approx(-0.1)
    alone = student(variant)
    assert alone.low < base.mean() < alone.high
    with pytest.raises(ValueError, match="10 values against 9"):
        paired(base, variant[:9])


def test_the_warm_up_ends_where_the_ramp_does() -> None:
    noise = np.random.default_rng(4).normal(0, 0.05, 1000)
    ramp = np.concatenate([np.linspace(5, 0, 200), np.zeros(800)]) + noise
    assert 150 <= warm_up(ramp) <= 250
    assert warm_up(np.ones(10)) == 0


def test_cutting_the_fill_and_the_drain_of_a_closed_loop() -> None:
    """Case E8: 64 clients, 640 requests of 1 s at 64 slots: the first 64 find it empty.

    With everything, 640 requests take 10 s plus the ramp; in the middle 64 a second.
    """
    seen, free = [], [(i / 640, i) for i in range(64)]  # clients start within the first 0.1 s
    for i in range(640):
        arrival, client = heapq.heappop(free)
        first = round(arrival * S) + (S if i >= 64 else S // 2)
        seen.append(Seen(round(arrival * S), 1, 1, scheduled=round(arrival * S), tokens=[first],
                         reason="stop", ended=first))  # fmt: skip
        heapq.heappush(free, (first / S, client))
    whole = records_of(seen, [], [], [])
    cut = without_ends(whole, first=64, last=64)
    middle = summarize(cut)
    assert requests_frame(cut)["ttft_s"].eq(1.0).all()
    assert middle["requests"]["arrived"] == 512
    assert middle["ttft_s"]["mean"] == 1.0 > summarize(whole)["ttft_s"]["mean"]
    assert middle["throughput"]["requests_per_s"] == pytest.approx(64, rel=0.15)
    assert any("without the first 64 and the last 64 by arrival" in n for n in middle["notes"])
    with pytest.raises(ValueError, match="leave nothing"):
        without_ends(whole, first=600, last=64)
