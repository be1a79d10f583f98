"""Simulated against executed: the same requests by price and by really running every step.

The machine changes its speed from minute to minute, so steps of the measuring grid and runs take
turns: a few dozen steps of the grid, a run of one load, the next few dozen, a run of the next
load, and so on, several times around. Without a profile the grid's steps make one, which is then
of the same minutes as the runs; with one they say by how much the machine differs today from the
day of the profile.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from statistics import median
from typing import NamedTuple

import pandas as pd

from calibration.executor import Measured
from calibration.fit import fit_steps, fitted_profile
from calibration.grid import Limits
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
from simulator.run import simulate
from traces.lengths import Lognormal
from traces.synthesize import Workload, synthesize
from traces.trace import PS_PER_S, Trace

METRICS = ("ttft", "itl", "e2e", "queue")
JUDGED = dict.fromkeys(("ttft", "itl", "e2e"), BARS)
STEP_BAR = 0.01
"""What the step times of a run may be off in sum."""
CHECKED = 0.1
"""Share of the grid that is timed to see how the machine differs from a profile's."""

Log = list[tuple[StepShape, int, int]]


@dataclass(frozen=True, kw_only=True)
class Exercise:
    """The requests; their rate follows from what the device can do."""

    requests: int = 240
    prompt: Lognormal = field(default_factory=lambda: Lognormal(mean=120, p99=480, max=900))
    output: Lognormal = field(default_factory=lambda: Lognormal(mean=32, p99=128, max=256))
    token_budget: int = 256
    seats: int = 32
    repeats: int = 3
    seed: int = 0

    def limits(self) -> Limits:
        """The grid that spans it: steps beyond would be measured for nothing."""
        longest = (self.prompt.max or 0) + (self.output.max or 0)
        held = int(2.5 * self.seats * (self.prompt.mean + self.output.mean))
        return Limits(
            sequences=self.seats,
            tokens=self.token_budget,
            context=max(longest, self.token_budget) + 1,
            held=max(held, 2 * longest),
        )


@dataclass(frozen=True, kw_only=True)
class Load:
    """How hard a run is, measured in what a saturated run and the knee need."""

    name: str
    share: float
    """Of the request rate of a saturated run."""
    pool_share: float = 1.0
    """Of the most KV that the load needs; below 1 there are preemptions."""


LOADS = (
    Load(name="light", share=0.4),
    Load(name="knee", share=0.8),
    Load(name="preemption", share=0.8, pool_share=0.5),
)


def loads_of(names: Sequence[str]) -> tuple[Load, ...]:
    """The loads of these names. Raises ValueError where there is none."""
    known = {load.name: load for load in LOADS}
    for name in names:
        if name not in known:
            raise ValueError(f"load {name!r}, expected one of {', '.join(known)}")
    return tuple(known[name] for name in names)


class Setting(NamedTuple):
    """A load made concrete."""

    load: Load
    trace: Trace
    engine: Engine
    rate: float
    """Requests per second."""


class Timed(NamedTuple):
    """Steps of the grid that were timed at one turn."""

    shapes: list[StepShape]
    picoseconds: list[int]


@dataclass(frozen=True)
class Executed:
    """One load: what was simulated, and every run that was really executed."""

    setting: Setting
    simulated: Latencies
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
        return compare(
            self.setting.load.name,
            _distributions(self.simulated),
            [_distributions(run) for run in self.runs],
            JUDGED,
        )


@dataclass(frozen=True)
class Validated:
    """What came of a validation."""

    profile: Profile
    """The one given, or fitted in between the runs."""
    loads: list[Executed]
    grid: list[Timed]
    """The steps of the grid, turn by turn."""
    given: bool
    """Whether the profile was, or else fitted here."""

    pace: tuple[float, float] | None
    """How fast the machine was, P10 and P90 of what durations were divided by."""

    def lines(self) -> list[Line]:
        return [line for load in self.loads for line in load.lines()]

    def shown(self) -> list[Shown]:
        """For table and page."""
        errors = self.step_errors()
        return [
            Shown(
                name=load.setting.load.name,
                about=load.about,
                lines=load.lines(),
                simulated=_distributions(load.simulated),
                real={f"executed {i}": _distributions(run) for i, run in enumerate(load.runs, 1)},
                steps=[error for error in errors if error.load == load.setting.load.name],
            )
            for load in self.loads
        ]

    def notes(self) -> list[str]:
        """How it was measured, in sentences."""
        said = [
            f"profile {self.profile.name}: steps of the grid, timed between the runs, took "
            f"{self.drift():.3f} of its price" + ("" if self.given else " (it is fitted to them)")
        ]
        if self.pace:
            low, high = self.pace
            said.append(
                "durations are CPU time of one thread over the pace of the machine, which went "
                f"from {low:.2f} to {high:.2f} (P10, P90; a small fixed step timed in between)"
            )
        return said

    def drift(self) -> float:
        """Time that the grid's steps took in sum, over their price."""
        priced = self.profile.step_time().price
        took = sum(sum(turn.picoseconds) for turn in self.grid)
        return took / sum(priced(shape) for turn in self.grid for shape in turn.shapes)

    def speeds(self) -> list[float]:
        """The same turn by turn."""
        priced = self.profile.step_time().price
        return [sum(t.picoseconds) / sum(map(priced, t.shapes)) for t in self.grid if t.shapes]

    def step_errors(self) -> list[StepError]:
        """By load and class of step, and of all steps of a load."""
        price = self.profile.step_time().price
        return [
            found
            for load in self.loads
            for found in _step_errors(load.setting.load.name, load.logs, price)
        ]


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
        wanted = int(2 * exercise.seats * (exercise.prompt.mean + exercise.output.mean))
        # Every seat twice the mean: the pool does not bind until a load makes it smaller.
        kept = self.pace.blocks if self.pace else 0
        pool = min((self.runner.cache.blocks - kept) * size, self.header.pool_tokens, wanted)
        self.engine = Engine(
            kv_tokens=pool, block_size=size, max_running=exercise.seats, max_model_len=pool
        )
        self.policy = Chunked(token_budget=exercise.token_budget)
        self.rows: list[RawRow] = []
        self.grid: list[Timed] = []

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
        profile = self.given or self._fitted()
        settings = [self._setting(load, profile) for load in self.loads]
        # The first steps of many shapes compile, allocate and find their algorithms.
        self._execute(self._trace(math.inf), self.engine)
        executed: list[list[tuple[Latencies, Log]]] = [[] for _ in self.loads]
        for turn, some in enumerate(slices):
            progress(turn / turns)
            at = turn % len(self.loads)
            if late() and executed[at]:
                continue
            self._time(some)
            executed[at].append(self._execute(settings[at].trace, settings[at].engine))
        profile = self.given or self._fitted()
        predicted = Predicted(profile.step_time())
        return Validated(
            profile=profile,
            loads=[
                Executed(
                    setting,
                    Latencies(simulate(setting.trace, self.policy, setting.engine, predicted)),
                    [run for run, _ in runs],
                    [log for _, log in runs],
                )
                for setting, runs in zip(settings, executed, strict=True)
            ],
            grid=self.grid,
            given=self.given is not None,
            pace=self.pace.span() if self.pace else None,
        )

    def _slices(self, turns: int) -> tuple[list[Visit], list[list[Visit]]]:
        """What is timed before the first run, and before each."""
        visits = self.visits
        if self.given:
            visits = visits[: max(turns, int(CHECKED * len(visits)))]
            first = 0
        else:
            first = len(visits) // self.measurement.passes
        rest = visits[first:]
        cuts = [round(i * len(rest) / turns) for i in range(turns + 1)]
        return visits[:first], [rest[a:b] for a, b in pairwise(cuts)]

    def _time(self, visits: Sequence[Visit]) -> None:
        shapes, took = [], []
        for visit in visits:
            device, host = self.bench.rows(visit)
            if self.pace:
                self.pace.again()
                now = self.pace.now
                device = device._replace(seconds=device.seconds / now)
                host = host._replace(seconds=host.seconds / now)
            self.rows += device, host
            shapes.append(StepShape(*device[1:8]))
            took.append(round((device.seconds + host.seconds) * PS_PER_S))
        if shapes:
            self.grid.append(Timed(shapes, took))

    def _fitted(self) -> Profile:
        frame = pd.DataFrame(self.rows, columns=list(RawRow._fields))
        fitted = fit_steps(frame, captured=self.header.captured)
        return fitted_profile(self.header, fitted, f"{self.header.device}_measured-here")

    def _setting(self, load: Load, profile: Profile) -> Setting:
        predicted = Predicted(profile.step_time())
        saturated = Latencies(simulate(self._trace(math.inf), self.policy, self.engine, predicted))
        rate = load.share * self.exercise.requests * PS_PER_S / saturated.wall
        trace = self._trace(rate)
        if load.pool_share == 1.0:
            return Setting(load, trace, self.engine, rate)
        steps = simulate(trace, self.policy, self.engine, predicted).steps
        peak = self.engine.blocks - int(steps["free_blocks"].min())
        largest = int((trace.prompt + trace.output).max())
        size = self.engine.block_size
        pool = max(int(load.pool_share * peak * size), largest + size)
        smaller = replace(self.engine, kv_tokens=pool, max_model_len=pool, gate=False)
        return Setting(load, trace, smaller, rate)

    def _trace(self, rate: float) -> Trace:
        e = self.exercise
        load = Workload(rate=rate, requests=e.requests, prompt=e.prompt, output=e.output)
        return synthesize(load, seed=e.seed)

    def _execute(self, trace: Trace, engine: Engine) -> tuple[Latencies, Log]:
        measured = Measured.on(self.runner, trace.requests())
        executor = Steady(measured, self.pace) if self.pace else measured
        return Latencies(simulate(trace, self.policy, engine, executor)), executor.log


def _distributions(run: Latencies) -> dict[str, Distribution]:
    return {metric: run.distribution(metric) for metric in METRICS}


def _step_errors(
    load: str, logs: Sequence[Log], price: Callable[[StepShape], int]
) -> list[StepError]:
    steps = [
        pd.DataFrame(
            [(kind_of(shape), price(shape), took) for shape, took, _ in log],
            columns=["kind", "priced", "took"],
        )
        for log in logs
    ]
    found = []
    for kind in ("decode", "prefill", "mixed", "all"):
        some = [f if kind == "all" else f[f["kind"] == kind] for f in steps]
        pairs = [(one, every) for one, every in zip(some, steps, strict=True) if len(one)]
        if not pairs:
            continue
        over = [float(one["took"].sum() / one["priced"].sum()) for one, _ in pairs]
        found.append(
            StepError(
                load=load,
                kind=kind,
                steps=round(median(len(one) for one, _ in pairs)),
                bias=median(1 / x - 1 for x in over),
                residual=median(
                    float((one["priced"] / one["took"] - 1).abs().mean()) for one, _ in pairs
                ),
                noise=max(over) - min(over),
                share=median(
                    float(one["took"].sum() / every["took"].sum()) for one, every in pairs
                ),
            )
        )
    return found
