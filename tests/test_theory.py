"""Case E10: closed forms of queueing theory, and flow laws that hold in every run.

A server of c seats is the queue M/·/c: a request of n tokens holds its seat for n steps. What the
grid of steps adds is taken off or small. Tolerances are about two standard errors of the mean.
"""

from __future__ import annotations

from math import factorial

import numpy as np
import pytest
from numpy.typing import NDArray

from calibration.step_time import Predicted, StepTime
from policies import Chunked, Continuous, FastLane, Policy
from simulator.engine import Engine
from simulator.run import simulate
from traces.records import Records
from traces.trace import PS_PER_S, Trace

MS = PS_PER_S // 1000


def waits(load: float, seats: int, tokens: NDArray[np.int64], seed: int = 1) -> NDArray[np.float64]:
    """Of Poisson arrivals at `load` × the capacity of `seats`, in services."""
    service = float(tokens.mean()) * MS
    random = np.random.default_rng(seed)
    gaps = random.exponential(service / (load * seats), len(tokens))
    requests = simulate(
        Trace.of(arrival=np.cumsum(gaps).astype(np.int64), prompt=1, output=tokens),
        Chunked(),
        Engine(kv_tokens=1 << 24, max_running=seats),
        Predicted(StepTime.constant(MS)),
    ).requests
    waited = requests["first_scheduled"] - requests["arrival"]
    if seats > 1:
        # Who finds a seat still waits for the end of the step in progress: that is the grid's.
        waited = waited.where(waited != requests["wait_boundary"], 0)
    return waited.to_numpy() / service


def constant(n: int) -> NDArray[np.int64]:
    return np.ones(n, dtype=np.int64)


def exponential(n: int) -> NDArray[np.int64]:
    """In steps: their geometric likeness, of mean 20."""
    return np.random.default_rng(99).geometric(1 / 20, n)


def erlang_c(servers: int, load: float) -> float:
    """Probability that an arrival waits in M/M/c."""
    offered = servers * load
    waits = offered**servers / factorial(servers) / (1 - load)
    return waits / (sum(offered**k / factorial(k) for k in range(servers)) + waits)


@pytest.mark.parametrize("load", [0.3, 0.6, 0.8])
def test_constant_service_waits_as_m_d_1(load: float) -> None:
    """ρ / (2μ (1 − ρ))."""
    mean = waits(load, 1, constant(60_000)).mean()
    assert mean == pytest.approx(load / (2 * (1 - load)), rel=0.05)


@pytest.mark.parametrize("load", [0.5, 0.8])
def test_exponential_service_waits_as_m_m_1(load: float) -> None:
    """ρ / (μ (1 − ρ)): twice as long."""
    mean = waits(load, 1, exponential(40_000)).mean()
    assert mean == pytest.approx(load / (1 - load), rel=0.1)


@pytest.mark.parametrize(("seats", "load"), [(2, 0.7), (8, 0.8)])
def test_many_seats_wait_as_m_m_c(seats: int, load: float) -> None:
    """Erlang's C / (c μ (1 − ρ))."""
    mean = waits(load, seats, exponential(40_000)).mean()
    expected = erlang_c(seats, load) / (seats * (1 - load))
    assert mean == pytest.approx(expected, rel=0.1)


def test_who_arrives_finds_a_seat_as_often_as_erlang_says() -> None:
    """PASTA: the share of arrivals that wait is the share of time in which all seats are taken."""
    waited = (waits(0.8, 4, exponential(20_000)) > 0).mean()
    assert waited == pytest.approx(erlang_c(4, 0.8), rel=0.05)


POLICIES = [
    Chunked(token_budget=512),
    Chunked(token_budget=512, victim="most-blocks", reentry="tail"),
    Continuous(),
    FastLane(token_budget=512, fast_prompt=100),
]


def pressed(policy: Policy) -> Records:
    """A load with evictions."""
    random = np.random.default_rng(5)
    return simulate(
        Trace.of(
            arrival=np.cumsum(random.exponential(0.1 * PS_PER_S, 400)).astype(np.int64),
            prompt=random.integers(10, 500, 400),
            output=random.integers(1, 200, 400),
        ),
        policy,
        Engine(kv_tokens=1600, max_running=32),
        Predicted(StepTime(t0=10 * MS, pP=MS // 100, decode=(0, MS // 10, 100))),
    )


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: type(policy).__name__)
def test_littles_law(policy: Policy) -> None:
    """Mean number in the system = rate × mean time in it, both counted in their own way: by
    steps here, by requests there."""
    records = pressed(policy)
    steps, requests = records.steps, records.requests
    assert requests["preemptions"].sum() > 0
    end = int((steps["start"] + steps["duration"]).max())
    in_step = ((steps["running"] + steps["waiting"]) * steps["duration"]).sum()
    stay = (requests["finished"] - requests["arrival"]).sum()
    # Arrivals in mid-step are not among those that the step counted as waiting.
    starts = steps["start"].to_numpy()
    ends = starts + steps["duration"].to_numpy()
    at = requests["arrival"].to_numpy()
    step = np.searchsorted(ends, at, side="left")
    unseen = np.where(starts[step] < at, ends[step] - at, 0).sum()
    assert in_step + unseen == stay
    rate, mean_stay = len(requests) / end, stay / len(requests)
    assert (in_step + unseen) / end == pytest.approx(rate * mean_stay)


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: type(policy).__name__)
def test_who_runs_is_who_ran_and_came_and_did_not_go(policy: Policy) -> None:
    """N(t + 1) = N(t) − finished(t) + admitted(t + 1) − preempted(t + 1), at every step."""
    steps = pressed(policy).steps
    running, finished = steps["running"].to_numpy(), steps["finished"].to_numpy()
    came = (steps["admitted"] - steps["preempted"]).to_numpy()
    assert running[0] == came[0]
    assert (running[1:] == running[:-1] - finished[:-1] + came[1:]).all()
    assert running[-1] == finished[-1]
