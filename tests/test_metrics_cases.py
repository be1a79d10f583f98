"""Cases E6, E7, E9 from end to end: the metrics of runs that can be worked out."""

from __future__ import annotations

import numpy as np
import pytest
from serving import Serve, ask

from calibration.step_time import Predicted, StepTime
from policies import Chunked
from reports.frames import requests_frame
from reports.metrics import summarize
from simulator.engine import Engine
from simulator.run import simulate
from traces.sla import Sla
from traces.trace import PS_PER_S, Trace


def test_the_tenth_in_line_waits_for_nine_services(serve: Serve) -> None:
    """E6: one seat, ten of (100, 100) at 0: 100 s each. TTFT = queue + prefill."""
    run = serve(*[ask(100, 100)] * 10, max_running=1)
    assert run.ttft == [100 * number + 1 for number in range(10)]
    assert run.queued == [100 * number for number in range(10)]
    summary = summarize(run.records)
    assert summary["ttft_s"]["max"] == 901
    assert summary["queue_s"]["max"] == 900
    frame = requests_frame(run.records)
    assert (frame["ttft_s"] - frame["queue_s"]).eq(1).all()


def test_a_horizon_leaves_requests_unfinished_and_the_sla_knows(serve: Serve) -> None:
    """E7: one seat, 6 s a service, a request every 5 s: 120 % load. In 60 s twelve come and ten
    are served; one that can never fit is turned away."""
    asks = [ask(5, 6, at=5.0 * number) for number in range(12)]
    asks.insert(1, ask(500, 6))
    run = serve(*asks, max_running=1, horizon=60, kv_tokens=160)
    summary = summarize(run.records, Sla.parse("e2e p99 <= 30 s"))
    counts = [summary["requests"][name] for name in ("finished", "rejected", "unfinished")]
    assert summary["requests"]["arrived"] == 13
    assert counts == [10, 1, 2]
    assert summary["sla"]["attainment"] == pytest.approx(10 / 13)
    assert summary["sla"]["met"] == {"e2e p99 <= 30 s": False}
    assert summary["throughput"]["requests_per_s"] == pytest.approx(10 / 60)
    assert any("unfinished" in note for note in summary["notes"])


def bursty(cv: float, load: float, seed: int = 1) -> tuple[float, float]:
    """Mean TTFT in services, and requests per second, at one seat of 1 s."""
    random = np.random.default_rng(seed)
    shape = 1 / cv**2
    gaps = random.gamma(shape, 1 / (load * shape), 8000)
    records = simulate(
        Trace.of(arrival=(np.cumsum(gaps) * PS_PER_S).astype(np.int64), prompt=1, output=1),
        Chunked(),
        Engine(kv_tokens=1600, max_running=1),
        Predicted(StepTime.constant(PS_PER_S)),
    )
    summary = summarize(records)
    return summary["ttft_s"]["mean"], summary["throughput"]["requests_per_s"]


def test_bursts_cost_more_the_higher_the_load() -> None:
    """E9: CV 3 against CV 1: the ratio of TTFT grows with the load, the throughput is the same."""
    ratios = []
    for load in (0.2, 0.5, 0.8):
        smooth, rate = bursty(1.0, load)
        burst, bursty_rate = bursty(3.0, load)
        ratios.append(burst / smooth)
        assert bursty_rate == pytest.approx(rate, rel=0.06)
    assert ratios == sorted(ratios)
    assert ratios[-1] > 1.5 * ratios[0]
