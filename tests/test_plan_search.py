"""The search, against servers whose answer is known in closed form; no simulator in it."""

from __future__ import annotations

import math

import numpy as np
import pytest
from planning import KNOWN, answer, edge_of, lindley, md1_rate

from reports.confidence import Interval
from simulator.search import CAP, Effort, Probe, find_edge, find_edge_once, with_spread

MEAN = np.mean


def smooth(edge: float, slope: float = 5.0) -> object:
    """A margin without noise that crosses 0 at `edge`."""
    return lambda probe: slope * math.log(probe.rate / edge)


def test_a_smooth_curve_is_found_to_the_digit() -> None:
    found = edge_of(smooth(0.6))
    assert found.verdict == "edge"
    assert found.rate is not None
    assert found.rate.estimate == pytest.approx(0.6, rel=0.001)
    assert found.recommended == pytest.approx(0.6, rel=0.01)


def test_intervals_cover_the_closed_form_in_88_to_99_of_100_worlds() -> None:
    """M/D/1, mean wait; each world has seeds of its own."""
    true = 0.7
    bound = true / (2 * (1 - true))
    assert md1_rate(1.0, bound) == pytest.approx(true)
    found = [edge_of(lindley(world, bound, MEAN)) for world in range(100)]
    covered = sum(one.rate.low <= true <= one.rate.high for one in found if one.rate)
    assert 88 <= covered <= 99


@pytest.mark.parametrize("constant", [True, False], ids=["M/D/1", "M/M/1"])
def test_the_recommended_rate_keeps_the_level_and_little_more_breaks_it(constant: bool) -> None:
    true = 0.7
    bound = true / (1 - true) / (2 if constant else 1)
    for world in range(5):
        margin = lindley(world, bound, MEAN, constant=constant)
        found = edge_of(margin)
        fresh = lindley(world + 1000, bound, MEAN, constant=constant)
        rate, requests = found.recommended, found.requests
        kept = sum(fresh(Probe(rate, seed, requests)) <= 0 for seed in range(10))
        broken = sum(fresh(Probe(1.15 * rate, seed, requests)) > 0 for seed in range(10))
        assert kept >= 8  # 9 with the planner's own confirmation
        assert broken >= 5


def test_a_level_that_is_missed_at_light_load_too_is_found_above() -> None:
    """A batch that waits to fill: kept between 0.35 and 0.75 of the service rate only."""

    def margin(probe: Probe) -> float:
        return max(5 * math.log(probe.rate / 0.75), 5 * math.log(0.35 / probe.rate))

    found = edge_of(margin)
    assert found.rate is not None
    assert found.rate.estimate == pytest.approx(0.75, rel=0.01)
    assert found.missed_below == pytest.approx(0.3)


def test_no_rate() -> None:
    found = edge_of(lambda probe: 0.5)
    assert (found.verdict, found.rate, found.recommended) == ("none", None, 0.0)


def test_every_rate_that_can_last() -> None:
    found = edge_of(lambda probe: -0.5)
    assert found.verdict == "all"
    assert found.recommended < 1.0


@pytest.mark.parametrize("low", [1.0, 0.9, 0.5])
def test_nothing_is_asked_for_at_or_above_the_service_rate(low: float) -> None:
    service = Interval(estimate=1.0, low=low, high=1.1, samples=4)
    found, asked = answer(find_edge(service, Effort()), lambda probe: -0.5)
    assert max(probe.rate for probe in asked) <= CAP * low
    assert found.recommended <= CAP * low


def test_noise_that_is_wide_makes_runs_longer() -> None:
    calm = edge_of(lindley(1, 1.17, MEAN), Effort(long=6000))
    noisy = edge_of(lindley(1, 1.17, MEAN), Effort(long=400))
    assert calm.requests == 6000
    assert noisy.requests > 400


def test_the_same_search_asks_the_same_and_finds_the_same() -> None:
    margin = lindley(3, 1.17, MEAN)
    first = answer(find_edge(KNOWN, Effort()), margin)
    assert answer(find_edge(KNOWN, Effort()), margin) == first


def test_a_guess_saves_the_ladder() -> None:
    first = edge_of(smooth(0.6))
    second, asked = answer(find_edge(KNOWN, Effort(), guess=first), smooth(0.62))
    assert second.rate is not None
    assert second.rate.estimate == pytest.approx(0.62, rel=0.01)
    assert second.ladder == ()
    assert all(0.5 < probe.rate < 0.75 for probe in asked)


def test_a_recording_has_one_path_and_its_interval_from_its_stretches() -> None:
    edge, asked = answer(find_edge_once(KNOWN, Effort()), smooth(0.6))
    assert {probe.seed for probe in asked} == {0}
    spread = with_spread(edge, 0.1, 10)
    assert spread.rate is not None
    assert spread.rate.low < 0.6 < spread.rate.high
    assert spread.recommended == pytest.approx(spread.rate.low)


@pytest.mark.parametrize("wrong", [{"precision": 0.0}, {"precision": 1.0}, {"runs": 2}])
def test_an_effort_that_cannot_be_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=r"expected a share|three at least"):
        Effort(**wrong)
