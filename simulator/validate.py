"""Simulated against executed: the same requests by price and by really running every step.

The machine changes its speed from minute to minute, so steps of the measuring grid and runs take
turns: a few dozen steps of the grid, a run of one load, the next few dozen, a run of the next
load, and so on, several times around. Without a profile the grid's steps make one, which is then
of the same minutes as the runs; with one they say by how much the machine differs today from the
day of the profile. On a CPU every duration is one of the machine at its usual pace
(`calibration.steady`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import median

import pandas as pd

from calibration.executor import Measured
from calibration.fit import fit_steps, fitted_profile
from calibration.hardware import find_model
from calibration.measure import Bench, Measurement, Visit, default_limits, header_of, plan
from calibration.profile import Profile
from calibration.raw import RawRow, kind_of
from calibration.runner import check_settings
from calibration.steady import Pace, Steady
from calibration.step_time import Predicted, StepShape
from policies.chunked import Chunked
from reports.fidelity import BARS, Line, compare
from reports.latencies import Latencies
from reports.percentiles import Distribution
from reports.validation import Shown, StepError
from simulator.engine import Engine
from simulator.exercise import LOADS, Exercise, Load, Setting, choose
from simulator.run import simulate
from traces.trace import PS_PER_S, Trace

METRICS = ("ttft", "itl", "e2e", "queue")
JUDGED = dict.fromkeys(("ttft", "itl", "e2e"), BARS)
CHECKED = 0.2
"""Share of the grid that is timed to see how the machine differs from a profile's."""

Log = list[tuple[StepShape, int, int]]


@dataclass(frozen=True)
class Executed:
    """One load: what was simulated, and every run that was really executed."""

    setting: Setting
    simulated: Latencies
    before: Latencies | None
    """By the profile as it was given."""
    runs: list[Latencies]
    logs: list[Log]

    @property
    def about(self) -> str:
        """In words."""
        trace, engine = self.setting.trace, self.setting.engine
        counts = [int(run.column("preemptions").sum()) for run in self.runs]
        return (
            f"{len(trace)} requests at {self.setting.rate:.2f}/s ({self.setting.load.share:.0%} of "
            f"a saturated run), {engine.blocks} blocks of {engine.block_size}, executed "
            f"{len(self.runs)} times; preemptions: "
            f"{int(self.simulated.column('preemptions').sum())} simulated, "
            f"{', '.join(map(str, counts))} executed"
        )

    def lines(self) -> list[Line]:
        """Every latency against the median of the runs."""
        real = [_distributions(run) for run in self.runs]
        name = self.setting.load.name
        lines = compare(name, _distributions(self.simulated), real, JUDGED)
        if self.before is None:
            return lines
        others = compare(name, _distributions(self.before), real, {})
        return [
            replace(line, before=other.simulated) for line, other in zip(lines, others, strict=True)
        ]


@dataclass(frozen=True)
class Validated:
    """What came of a validation."""

    profile: Profile
    """What was simulated with."""
    speed: float | None
    """Time of the grid's steps over the price of the profile that was given; that one times this
    is `profile`. None where none was given: `profile` is fitted to the grid's steps."""
    loads: list[Executed]
    pace: tuple[float, float] | None
    """P10 and P90 of what durations were divided by."""

    def shown(self) -> list[Shown]:
        """For table and page."""
        price = self.profile.step_time().price
        return [
            Shown(
                name=load.setting.load.name,
                about=load.about,
                lines=load.lines(),
                simulated=_distributions(load.simulated),
                real={f"executed {i}": _distributions(run) for i, run in enumerate(load.runs, 1)},
                steps=step_errors(load.setting.load.name, load.logs, price),
            )
            for load in self.loads
        ]

    def notes(self) -> list[str]:
        """How it was measured, in sentences."""
        if self.speed is None:
            said = [f"profile {self.profile.name}: fitted to steps timed between the runs"]
        else:
            said = [
                f"profile {self.profile.name}: steps timed between the runs took {self.speed:.3f} "
                "of its price, which is scaled by that; unfitted: as it is"
            ]
        if self.pace:
            low, high = self.pace
            said.append(
                "durations: CPU time of one thread over the pace of the machine, which went from "
                f"{low:.2f} to {high:.2f} (P10, P90; a small fixed step timed all along)"
            )
        return said


class Validation:
    """Runs `exercise` at each load, `repeats` times around."""

    def __init__(
        self,
        exercise: Exercise,
        measurement: Measurement,
        profile: Profile | None = None,
        loads: Sequence[Load] = LOADS,
    ) -> None:
        """Raises ValueError as `Runner.create` does."""
        self.exercise, self.measurement, self.loads = exercise, measurement, loads
        self.given = profile
        model = find_model(measurement.model)
        dtype = check_settings(
            device=measurement.device,
            dtype=measurement.dtype,
            clock=measurement.clock,
            threads=measurement.threads,
        )
        limits = measurement.limits or default_limits(measurement, model)
        self.header = header_of(measurement, model, dtype, limits)
        self.visits = list(plan(measurement, limits))
        self.bench = Bench(measurement, limits, self.visits)
        size = measurement.block_sizes[0]
        self.runner = self.bench.runners[size]
        self.pace = Pace(self.runner) if measurement.device == "cpu" else None
        room = (self.runner.cache.blocks - (self.pace.blocks if self.pace else 0)) * size
        pool = min(room, self.header.pool_tokens, exercise.pool)
        self.engine = Engine(
            kv_tokens=pool, block_size=size, max_running=exercise.seats, max_model_len=pool
        )
        self.policy = Chunked(token_budget=exercise.token_budget)
        self.rows: list[RawRow] = []

    def run(
        self,
        progress: Callable[[float], None] = lambda share: None,
        late: Callable[[], bool] = lambda: False,
    ) -> Validated:
        """Take turns until done; where `late`, every load gets one run all the same."""
        turns = self.exercise.repeats * len(self.loads)
        self.bench.warm_up(self.visits)
        if self.pace:
            self.pace.settle()
        first, slices = self._slices(turns)
        self._time(first)
        predicted = Predicted((self.given or self._fitted()).step_time())
        settings = [
            choose(load, self.exercise, self.engine, self.policy, predicted) for load in self.loads
        ]
        # The first steps of many shapes compile, allocate and find their algorithms.
        self._execute(self.exercise.trace(math.inf), self.engine)
        executed: list[list[tuple[Latencies, Log]]] = [[] for _ in self.loads]
        for turn, some in enumerate(slices):
            progress(turn / turns)
            at = turn % len(self.loads)
            if late() and executed[at]:
                continue
            self._time(some)
            executed[at].append(self._execute(settings[at].trace, settings[at].engine))
        speed = self._speed(self.given) if self.given else None
        profile = _scaled(self.given, speed) if self.given and speed else self._fitted()
        return Validated(
            profile=profile,
            speed=speed,
            loads=[
                Executed(
                    setting,
                    self._simulate(setting, profile),
                    self._simulate(setting, self.given) if self.given else None,
                    [run for run, _ in runs],
                    [log for _, log in runs],
                )
                for setting, runs in zip(settings, executed, strict=True)
            ],
            pace=self.pace.span() if self.pace else None,
        )

    def _slices(self, turns: int) -> tuple[list[Visit], list[list[Visit]]]:
        """What is timed before the first run, and before each."""
        if self.given:
            first, rest = [], self.visits[: max(turns, int(CHECKED * len(self.visits)))]
        else:
            one_pass = len(self.visits) // self.measurement.passes
            first, rest = self.visits[:one_pass], self.visits[one_pass:]
        cuts = [round(i * len(rest) / turns) for i in range(turns + 1)]
        return first, [rest[a:b] for a, b in pairwise(cuts)]

    def _time(self, visits: Sequence[Visit]) -> None:
        for visit in visits:
            rows = self.bench.rows(visit)
            if self.pace:
                self.pace.again()
                rows = [row._replace(seconds=row.seconds / self.pace.now) for row in rows]
            self.rows += rows

    def _fitted(self) -> Profile:
        fitted = fit_steps(self._frame(), captured=self.header.captured)
        return fitted_profile(self.header, fitted, f"{self.header.device}_measured-here")

    def _frame(self) -> pd.DataFrame:
        return pd.DataFrame(self.rows, columns=list(RawRow._fields))

    def _speed(self, profile: Profile) -> float:
        """Time that the grid's steps took, over the profile's price of them."""
        price = profile.step_time().price
        priced = sum(price(StepShape(*row[1:8])) for row in self.rows if row.kind != "host")
        return sum(row.seconds for row in self.rows) * PS_PER_S / priced

    def _simulate(self, setting: Setting, profile: Profile) -> Latencies:
        predicted = Predicted(profile.step_time())
        return Latencies(simulate(setting.trace, self.policy, setting.engine, predicted))

    def _execute(self, trace: Trace, engine: Engine) -> tuple[Latencies, Log]:
        measured = Measured.on(self.runner, trace.requests())
        executor = Steady(measured, self.pace) if self.pace else measured
        return Latencies(simulate(trace, self.policy, engine, executor)), executor.log


def step_errors(
    load: str, logs: Sequence[Log], price: Callable[[StepShape], int]
) -> list[StepError]:
    """By class of step, and of all: priced against what `logs` of the same requests took."""
    runs = [
        pd.DataFrame(
            [(kind_of(shape), price(shape), took) for shape, took, _ in log],
            columns=["kind", "priced", "took"],
        )
        for log in logs
    ]
    found = []
    for kind in ("decode", "prefill", "mixed", "all"):
        pairs = [(run if kind == "all" else run[run["kind"] == kind], run) for run in runs]
        pairs = [(some, run) for some, run in pairs if len(some)]
        if not pairs:
            continue
        slow = [float(some["took"].sum() / some["priced"].sum()) for some, _ in pairs]
        found.append(
            StepError(
                load=load,
                kind=kind,
                steps=round(median(len(some) for some, _ in pairs)),
                bias=1 / median(slow) - 1,
                residual=median(
                    float((some["priced"] / some["took"] - 1).abs().mean()) for some, _ in pairs
                ),
                noise=max(slow) / min(slow) - 1 if len(slow) > 1 else None,
                share=median(float(s["took"].sum() / run["took"].sum()) for s, run in pairs),
            )
        )
    return found


def _scaled(profile: Profile, factor: float) -> Profile:
    return profile.model_copy(update={"cost": profile.cost.scaled(factor)})


def _distributions(run: Latencies) -> dict[str, Distribution]:
    return {metric: run.distribution(metric) for metric in METRICS}
