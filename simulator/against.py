"""Recorded runs of real engines against the simulator: same requests, same settings, a profile.

At most one number is fitted, and what comes without it stands beside:

- *host overhead*, where the profile has none: seconds added to every step, such that the mean TPOT
  of the first third of the requests is the recorded one; judged on the others;
- *machine speed*, where the run's steps are logged: their total over the profile's price of the
  very same steps scales the profile. It says nothing about any latency.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from calibration.errors import errors_by_class, predicted_seconds
from calibration.profile import Cost, Profile
from calibration.step_time import Predicted
from calibration.steplog import read_step_log
from policies.chunked import Chunked
from reports.agreement import Cause, Floats, Part, causes, over_time, saturated
from reports.fidelity import STATISTICS, Line, compare
from reports.latencies import Latencies
from reports.percentiles import Distribution
from reports.validation import StepError
from simulator.engine import Engine
from simulator.recorded import Recorded
from simulator.run import simulate
from traces.trace import PS_PER_S, Ints

FITTED_ON = 1 / 3
"""Share of the requests, the first to arrive, that a host overhead is fitted on."""
METRICS = ("ttft", "itl", "tpot", "e2e", "queue")
LARGEST_HOST_S = 0.1
HALVINGS = 16

GPU_BARS = {"ttft": 0.10, "tpot": 0.05, "e2e": 0.05}
CPU_BARS = {"itl": 0.08, "e2e": 0.08}
"""What an error may be. On the CPUs of the recorded runs the machine was shared."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Replayed:
    """A recorded run and what the simulator makes of it."""

    recorded: Recorded
    simulated: Latencies
    before: Latencies
    """Without the number that was fitted."""
    fitted: str
    """What was fitted, in words."""
    judged: slice
    """Rows that were not fitted on."""
    engine: Engine
    policy: Chunked
    lines: list[Line]
    steps: list[StepError]
    """Of the logged steps, by class, at the fitted speed; empty where none are logged."""

    @property
    def about(self) -> str:
        """In words."""
        engine = self.engine
        return (
            f"{len(self.recorded.trace)} requests; {engine.kv_tokens:,} tokens of KV in blocks of "
            f"{engine.block_size}, {engine.max_running} seats, budget {self.policy.token_budget}, "
            f"gate {'on' if engine.gate else 'off'}, prefix cache "
            f"{'on' if engine.prefix_cache else 'off'}; "
            f"{int(self.simulated.column('preemptions').sum())} preemptions simulated; "
            f"fitted: {self.fitted}; {self._throughput()}"
        )

    def _throughput(self) -> str:
        """Requests per second of both, and whether the load was more than the engine could do."""
        arrival, real = _seconds(self.simulated.column("arrival")), self.recorded.e2e
        ours = _seconds(self.simulated.e2e)
        count = len(self.recorded.trace)
        span = [float((arrival + ends).max() - arrival.min()) for ends in (real, ours)]
        said = (
            f"{count / span[0]:.3g} requests/s recorded, {count / span[1]:.3g} simulated "
            f"({span[0] / span[1] - 1:+.1%})"
        )
        if saturated(arrival, real):
            said += (
                "; the recorded run was saturated: its latencies grew as long as requests came, so "
                "that small relative errors say little"
            )
        return said

    def parts(self) -> list[Part]:
        """The error over time, of the requests that are judged."""
        ours, real = self._columns()
        return over_time(_seconds(self.simulated.column("arrival"))[self.judged], ours, real)

    def causes(self) -> list[Cause]:
        """Mean E2E of the requests that are judged, split."""
        return causes(*self._columns())

    def _columns(self) -> tuple[dict[str, Floats], dict[str, Floats]]:
        run, rows = self.simulated, self.judged
        ours = {name: _seconds(run.of(name))[rows] for name in ("ttft", "e2e", "queue")}
        real = {"ttft": self.recorded.ttft[rows], "e2e": self.recorded.e2e[rows]}
        if self.recorded.queue is not None:
            real["queue"] = self.recorded.queue[rows]
        return ours, real


def replay(recorded: Recorded, profile: Profile, **overrides: Any) -> Replayed:
    """Simulate the recorded requests. `overrides` are fields of `Engine` (`gate`, `kv_tokens`, …).

    Raises ValueError where the settings cannot work.
    """
    engine, policy = _engine(recorded, profile, overrides), _policy(recorded)

    def run(cost: Cost) -> Latencies:
        executor = Predicted(cost.step_time())
        return Latencies(simulate(recorded.trace, policy, engine, executor))

    before = run(profile.cost)
    judged = slice(None)
    steps: list[StepError] = []
    if recorded.step_log is not None:
        speed = machine_speed(recorded, profile)
        simulated = run(profile.cost.scaled(speed))
        steps = _step_errors(recorded, profile, speed)
        fitted = f"machine speed: the run's steps took {speed:.3f} of the profile's price"
    elif profile.parts.host == "missing":
        rows = slice(0, round(FITTED_ON * len(recorded.trace)))
        wanted = _mean_tpot(recorded.distributions(rows))
        host = _host_overhead(
            lambda cost: _mean_tpot(distributions(run(cost), rows)), profile.cost, wanted
        )
        simulated = run(_with_host(profile.cost, host))
        judged = slice(rows.stop, None)
        fitted = (
            f"host overhead: {host * 1e3:.2f} ms a step, on the first {rows.stop} requests; "
            f"judged on the other {len(recorded.trace) - rows.stop}"
        )
    else:
        simulated, fitted = before, "nothing"
    bars = CPU_BARS if profile.device == "cpu" else GPU_BARS
    return Replayed(
        recorded=recorded,
        simulated=simulated,
        before=before,
        fitted=fitted,
        judged=judged,
        engine=engine,
        policy=policy,
        lines=_lines(recorded, simulated, before, judged, bars),
        steps=steps,
    )


def with_noise(replays: Iterable[Replayed]) -> list[Replayed]:
    """Recorded runs of the very same requests are repeats: what they differ by is their noise."""
    replays = list(replays)
    found = []
    for one in replays:
        same = [other for other in replays if _same_requests(one.recorded, other.recorded)]
        if len(same) < 2:
            found.append(one)
            continue
        runs = [other.recorded.distributions(one.judged) for other in same]
        real = compare("", runs[0], runs, {})
        noise = {(line.metric, line.statistic): line.noise for line in real}
        lines = [replace(line, noise=noise[line.metric, line.statistic]) for line in one.lines]
        found.append(replace(one, lines=lines))
    return found


def _seconds(picoseconds: Ints) -> Floats:
    return np.asarray(picoseconds / PS_PER_S)


def machine_speed(recorded: Recorded, profile: Profile) -> float:
    """Total time of the run's logged steps over the profile's price of the same steps."""
    if recorded.step_log is None:
        raise ValueError(f"{recorded.name}: no steps are logged, expected a step log")
    rows = read_step_log(recorded.step_log).rows
    priced = predicted_seconds(profile.step_time(), rows)
    return float(rows["seconds"].sum() / priced.sum())


def _step_errors(recorded: Recorded, profile: Profile, speed: float) -> list[StepError]:
    assert recorded.step_log is not None
    rows = read_step_log(recorded.step_log).rows
    priced = predicted_seconds(profile.step_time(), rows) * speed
    by_class = errors_by_class(rows, priced)
    found = []
    for kind, one in by_class:
        if one is not None:
            took = rows.loc[rows["kind"] == kind, "seconds"].sum()
            found.append(
                StepError(
                    load=recorded.name,
                    kind=kind,
                    steps=one.points or 0,
                    bias=one.bias or 0.0,
                    residual=one.mape,
                    noise=None,
                    share=float(took / rows["seconds"].sum()),
                )
            )
    return found


def distributions(run: Latencies, rows: slice = slice(None)) -> dict[str, Distribution]:
    """Simulated latencies of some requests, as `Recorded.distributions` has them."""
    chosen = np.zeros(len(run.arrived), dtype=bool)
    chosen[rows] = True
    return {metric: run.distribution(metric, chosen) for metric in METRICS}


def _lines(
    recorded: Recorded,
    simulated: Latencies,
    before: Latencies,
    judged: slice,
    bars: Mapping[str, float],
) -> list[Line]:
    real = recorded.distributions(judged)
    by_statistic = {metric: dict.fromkeys(STATISTICS, bar) for metric, bar in bars.items()}

    def compared(run: Latencies) -> list[Line]:
        ours = distributions(run, judged)
        return compare(recorded.name, {m: ours[m] for m in real}, [real], by_statistic)

    return [
        replace(line, before=other.simulated)
        for line, other in zip(compared(simulated), compared(before), strict=True)
    ]


def _engine(recorded: Recorded, profile: Profile, overrides: Mapping[str, Any]) -> Engine:
    known = recorded.settings
    facts: dict[str, Any] = {
        "kv_tokens": known.kv_tokens or profile.pool_tokens,
        "max_model_len": known.max_model_len or profile.max_model_len,
        "block_size": known.block_size,
        "max_running": known.max_running,
        "gate": known.gate,
        "prefix_cache": known.prefix_cache,
        **overrides,
    }
    return Engine(**{name: value for name, value in facts.items() if value is not None})


def _policy(recorded: Recorded) -> Chunked:
    known = recorded.settings
    given: dict[str, Any] = {"token_budget": known.token_budget, "long_prefill": known.long_prefill}
    return Chunked(**{name: value for name, value in given.items() if value is not None})


def _with_host(cost: Cost, host: float) -> Cost:
    return cost.model_copy(update={"t0": cost.t0 + host})


def _host_overhead(tpot: Callable[[Cost], float], cost: Cost, wanted: float) -> float:
    """Seconds a step that make `tpot` the wanted; 0 where it is more without any."""
    low, high = 0.0, LARGEST_HOST_S
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        if tpot(_with_host(cost, middle)) < wanted:
            low = middle
        else:
            high = middle
    return low


def _mean_tpot(known: Mapping[str, Distribution]) -> float:
    return known["tpot"].mean() or 0.0


def _same_requests(one: Recorded, other: Recorded) -> bool:
    return all(
        np.array_equal(getattr(one.trace, name), getattr(other.trace, name))
        for name in ("prompt", "output")
    )
