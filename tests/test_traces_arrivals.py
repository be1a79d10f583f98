"""Arrival processes against theory, and rates that are none."""

from __future__ import annotations

import math

import numpy as np
import pytest

from traces.arrivals import Arrivals, Constant, Diurnal, Gamma, OnOff, Poisson, Process, Ramp
from traces.seeds import stream
from traces.settings import load
from traces.trace import PS_PER_S

PROCESSES = [
    Poisson(),
    Gamma(cv=3),
    Gamma(cv=0.5),
    Constant(),
    OnOff(on_s=10, off_s=20),
    OnOff(on_s=5, off_s=5, low=0.2),
    Diurnal(period_s=100, peak_at_s=50),
    Ramp(before_s=10, up_s=10, hold_s=10, down_s=10),
]


def times(process: Process, rate: float, seed: int = 0, **until: float) -> np.ndarray:
    return process.times(rate, stream(seed, "arrivals"), **until)  # type: ignore[arg-type]


def test_f7_poisson_counts_have_the_mean_and_variance_of_theory() -> None:
    # Counts in 10 s at 5/s are Poisson(50); 2,000 of them over 20 seeds.
    counts = np.concatenate(
        [
            np.histogram(
                times(Poisson(), 5, seed, duration_s=1000) / PS_PER_S, bins=100, range=(0, 1000)
            )[0]
            for seed in range(20)
        ]
    )
    error = math.sqrt(50 / len(counts))
    assert counts.mean() == pytest.approx(50, abs=4 * error)
    assert counts.var() == pytest.approx(50, abs=4 * 50 * math.sqrt(2 / len(counts)))


def test_f7_poisson_gaps_are_unclipped() -> None:
    gaps = np.diff(times(Poisson(), 1, count=200_000)) / PS_PER_S
    # One gap in e^8 is above eight means.
    assert np.mean(gaps > 8) == pytest.approx(math.exp(-8), rel=0.35)
    assert gaps.mean() == pytest.approx(1, rel=0.01)


@pytest.mark.parametrize("cv", [0.5, 1.0, 3.0])
def test_gamma_gaps_have_the_mean_and_the_cv_asked_for(cv: float) -> None:
    gaps = np.diff(times(Gamma(cv=cv), 4, count=200_000)) / PS_PER_S
    assert gaps.mean() == pytest.approx(0.25, rel=0.03)
    assert gaps.std() / gaps.mean() == pytest.approx(cv, rel=0.03)


def test_constant_arrivals_are_evenly_spaced_from_0() -> None:
    assert times(Constant(), 4, count=5).tolist() == [k * PS_PER_S // 4 for k in range(5)]
    assert len(times(Constant(), 4, duration_s=2.0)) == 8
    assert len(times(Constant(), 4, duration_s=2.0, count=3)) == 3


def test_on_off_sends_only_while_on_and_keeps_the_mean() -> None:
    seconds = times(OnOff(on_s=10, off_s=20), 6, count=50_000) / PS_PER_S
    assert (seconds % 30 <= 10 + 1e-9).all()
    assert len(seconds) / seconds[-1] == pytest.approx(6, rel=0.03)


def test_a_ramp_rises_holds_and_returns() -> None:
    ramp = Ramp(before_s=100, up_s=100, hold_s=100, down_s=100, peak=3)
    seconds = np.concatenate(
        [times(ramp, 10, seed, duration_s=500) / PS_PER_S for seed in range(20)]
    )
    counts, _ = np.histogram(seconds, bins=5, range=(0, 500))
    expected = np.array([1, 2, 3, 2, 1]) * 10 * 100 * 20
    assert counts == pytest.approx(expected, rel=0.03)


def test_a_day_peaks_when_it_should_and_keeps_its_mean() -> None:
    day = Diurnal(peak=1.8, peak_at_s=6 * 3600)
    hours = times(day, 1, duration_s=86_400) / PS_PER_S / 3600
    counts, _ = np.histogram(hours, bins=24, range=(0, 24))
    assert len(hours) == pytest.approx(86_400, rel=0.02)
    assert counts[5:7].mean() == pytest.approx(1.8 * 3600, rel=0.05)
    assert counts[17:19].mean() == pytest.approx(0.2 * 3600, rel=0.15)


@pytest.mark.parametrize("process", PROCESSES, ids=lambda p: p.kind)
def test_every_process_is_ascending_repeatable_and_extends_itself(process: Process) -> None:
    long, short = times(process, 7, count=3000), times(process, 7, count=1000)
    assert (np.diff(long) >= 0).all()
    assert long[0] >= 0
    assert long[:1000].tolist() == short.tolist()
    within = times(process, 7, duration_s=100.0)
    assert within.tolist() == long[long < 100 * PS_PER_S].tolist()


@pytest.mark.parametrize("process", PROCESSES, ids=lambda p: p.kind)
def test_f7_rate_inf_sends_all_at_0_and_no_rate_is_refused(process: Process) -> None:
    assert times(process, math.inf, count=3).tolist() == [0, 0, 0]
    for rate in (0.0, -1.0, math.nan):
        with pytest.raises(ValueError, match=r"rate: .* above 0"):
            times(process, rate, count=3)
    with pytest.raises(ValueError, match="inf needs a number of requests"):
        times(process, math.inf, duration_s=3.0)


def test_a_schedule_beyond_what_a_trace_may_span_is_refused() -> None:
    with pytest.raises(ValueError, match="104 days"):
        times(Poisson(), 1e-6, count=1000)


def test_a_kind_may_stand_alone_and_a_wrong_one_names_the_nearest() -> None:
    assert load(Arrivals, "poisson") == Poisson()
    with pytest.raises(ValueError, match="kind 'poison' is unknown; did you mean 'poisson'"):
        load(Arrivals, "poison")
    with pytest.raises(ValueError, match=r"arrivals\.cv: -1, expected greater than 0"):
        load(Arrivals, {"kind": "gamma", "cv": -1}, "arrivals")
