"""The requests of a benchmark file in the simulator: what was measured, and what comes out."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from calibration.bench_fit import Columns, Floats, Run
from calibration.profile import Cost, load_profile
from calibration.step_time import Predicted
from reports.latencies import Latencies
from simulator.run import simulate
from simulator.scenario import Scenario, refuse_impossible
from traces.benchmarks import Benchmark
from traces.trace import PS_PER_S


def run_of(benchmark: Benchmark, scenario: Scenario, *, prompt: int | None = None) -> Run:
    """A run to fit to, on the engine, policy and profile of `scenario`.

    Raises ValueError where its load is not known.
    """
    trace = benchmark.trace(prompt=prompt)
    if prompt is None:
        rows = benchmark.requests()
    else:
        rows = tuple(one for one in benchmark.done if (one.output or 0) > 0)
    engine = scenario.engine_limits(load_profile(scenario.profile_name))
    policy = scenario.policy.build()
    refuse_impossible(policy, engine, trace)

    def simulated(cost: Cost) -> Columns:
        executor = Predicted(scenario.host.added_to(cost.step_time()))
        run = Latencies(
            simulate(trace, policy, engine, executor, door=scenario.door, fleet=scenario.fleet)
        )
        columns = (run.ttft, run.tpot, run.e2e)
        return Columns(*(_seconds(column / PS_PER_S) for column in columns))

    return Run(
        name=benchmark.source.rpartition("/")[2],
        measured=Columns(
            _known([one.ttft_s for one in rows]),
            _known([one.tpot_s for one in rows]),
            _known([one.ended_s for one in rows]),
        ),
        simulate=simulated,
    )


def _seconds(values: Floats) -> Floats:
    return np.where(values < 0, np.nan, values)


def _known(values: Sequence[float | None]) -> Floats:
    return np.array([np.nan if value is None else value for value in values])
