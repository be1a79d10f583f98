"""Servers whose highest rate is known: constant steps, so that queueing theory has the answer."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from calibration.profile import Cost, load_profile, save_profile
from reports.confidence import Interval
from simulator.scenario import Scenario
from simulator.search import Ask, Edge, Effort, Probe, find_edge

STEP_S = 0.1
QUICK = Effort(runs=5, short=200, long=500, longest=1500)
KNOWN = Interval(estimate=1.0, low=1.0, high=1.0, samples=3)


def constant_profile(folder: Path, step_s: float = STEP_S) -> str:
    """A profile file on which every step takes `step_s`, whatever is in it."""
    shipped = load_profile("h100-sxm_llama3.1-8b_bf16")
    path = folder / "constant.json"
    save_profile(shipped.model_copy(update={"cost": Cost(t0=step_s), "name": "constant"}), path)
    return str(path)


def server(folder: Path, *, seats: int = 1, output: Any = 10, **trace: Any) -> Scenario:
    """`seats` slots that take `output` steps of 100 ms a request; prompts are one token."""
    fixed = {"kind": "fixed", "value": output} if isinstance(output, int) else output
    return Scenario.of(
        {
            "trace": {
                "rate": 0.5,
                "prompt": {"kind": "fixed", "value": 1},
                "output": fixed,
                **trace,
            },
            "engine": {
                "profile": constant_profile(folder),
                "max_running": seats,
                "kv_tokens": 200_000,
                "max_model_len": 8192,
            },
        }
    )


def md1_rate(service_s: float, wait_s: float) -> float:
    """The rate at which the mean wait of M/D/1 is `wait_s`."""
    # W = ρ·s / (2(1 - ρ))
    rho = 2 * wait_s / (service_s + 2 * wait_s)
    return rho / service_s


def mmc_rate(service_s: float, servers: int, wait_s: float) -> float:
    """The rate at which the mean wait of M/M/c is `wait_s` (Erlang C)."""
    low, high = 0.0, servers / service_s
    for _ in range(60):
        rate = (low + high) / 2
        low, high = (rate, high) if _mmc_wait(rate, service_s, servers) < wait_s else (low, rate)
    return low


def _mmc_wait(rate: float, service_s: float, servers: int) -> float:
    load = rate * service_s
    last = load**servers / math.factorial(servers) * servers / (servers - load)
    chance = last / (sum(load**k / math.factorial(k) for k in range(servers)) + last)
    return chance * service_s / (servers - load)


def waits(rate: float, services: np.ndarray, gaps: np.ndarray) -> np.ndarray:
    """Waiting times of one first-come-first-served server (Lindley)."""
    drift = np.concatenate([[0.0], np.cumsum(services[:-1] - gaps[1:] / rate)])
    return drift - np.minimum.accumulate(drift)


def lindley(
    world: int, bound: float, statistic: Callable[[np.ndarray], float], *, constant: bool = True
) -> Callable[[Probe], float]:
    """Margins of a single server of rate 1, without a simulator."""

    def margin(probe: Probe) -> float:
        n = probe.requests
        gaps = np.random.default_rng([world, probe.seed]).standard_exponential(n)
        work = np.random.default_rng([world, probe.seed, 1]).standard_exponential(n)
        services = np.ones(n) if constant else work
        waited = waits(probe.rate, services, gaps)[n // 10 :]
        return math.log(max(statistic(waited), 1e-12) / bound)

    return margin


def answer(ask: Ask, margin: Callable[[Probe], float]) -> tuple[Edge, list[Probe]]:
    """Drive a search to its end; the probes that it asked for beside it."""
    asked: list[Probe] = []
    try:
        probes = next(ask)
        while True:
            asked += probes
            probes = ask.send([margin(probe) for probe in probes])
    except StopIteration as end:
        return end.value, asked


def edge_of(margin: Callable[[Probe], float], effort: Effort | None = None) -> Edge:
    return answer(find_edge(KNOWN, effort or Effort()), margin)[0]
