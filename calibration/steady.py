"""Step times on a machine that others use: how fast is it just now?

CPU time of one thread does not count what others compute, but it grows with what they do to caches
and memory: on a busy machine a step takes 5 to 20 % longer in one minute than in the next. That
holds for steps of all kinds alike, so a small fixed step, timed again and again in between, tells
how much. `Pace` times it; `Steady` is the measured executor with every duration divided by it.
Nothing is hidden: `Pace.log` keeps every value.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import fmean, median

from calibration.executor import Measured
from calibration.runner import Chunk, Runner
from calibration.sampling import Draw, Sampling
from calibration.step_time import Done, Row, StepShape

EVERY = 3
"""Steps of a run from one timing of the fixed step to the next."""
WINDOW = 12
"""Timings that the pace is the mean of."""
DECODES, CONTEXT, CHUNK = 4, 100, 24
"""The fixed step: decodes, which wait for memory, beside a small prefill, which computes. Busy
neighbours slow the former more than the latter."""


class Pace:
    """How long the fixed step takes just now, over what it takes in the middle."""

    def __init__(self, runner: Runner) -> None:
        """Takes the last blocks of the runner's cache for itself: `blocks` of them."""
        size, last = runner.cache.block_size, runner.cache.blocks
        each = -(-(CONTEXT + 1) // size)
        self.blocks = (DECODES + 1) * each
        if self.blocks >= last:
            raise ValueError(f"a cache of {last} blocks, expected more than {self.blocks}")
        self.log: list[float] = []
        """Picoseconds of every timing."""
        self._runner = runner
        tables = [range(last - (i + 1) * each, last - i * each) for i in range(DECODES + 1)]
        rows = [(1, CONTEXT)] * DECODES + [(CHUNK, 0)]
        self._step: Sequence[Chunk] = [
            Chunk([1] * new, cached, table, Draw(Sampling()))
            for (new, cached), table in zip(rows, tables, strict=True)
        ]
        self._recent: deque[float] = deque(maxlen=WINDOW)
        self._middle = 1.0

    def settle(self, timings: int = 5 * WINDOW) -> None:
        """Time the fixed step so often; from now on the median of that is 1."""
        for _ in range(timings):
            self.again()
        self._middle = median(self.log)

    def again(self) -> None:
        """Time the fixed step."""
        took = self._runner.step(self._step).duration
        self.log.append(took)
        self._recent.append(took)

    @property
    def now(self) -> float:
        """Above 1 where the machine is slower than in the middle."""
        return fmean(self._recent) / self._middle

    def span(self) -> tuple[float, float]:
        """P10 and P90 of the pace over all that was timed."""
        ranked = sorted(
            fmean(self.log[i : i + WINDOW]) / self._middle
            for i in range(0, len(self.log) - WINDOW + 1, WINDOW)
        )
        return ranked[len(ranked) // 10], ranked[len(ranked) * 9 // 10]


@dataclass(frozen=True)
class Steady:
    """Runs steps for real; their durations are those of the machine in the middle."""

    measured: Measured
    pace: Pace
    log: list[tuple[StepShape, int, int]] = field(default_factory=list)
    """Every step run: shape, picoseconds, and of these the host's; divided by the pace."""
    ahead: bool = False

    def run(self, shape: StepShape, rows: Callable[[], list[Row]]) -> Done:
        done = self.measured.run(shape, rows)
        if not done.duration:
            return done
        if len(self.log) % EVERY == 0:
            self.pace.again()
        now = self.pace.now
        _, took, host = self.measured.log[-1]
        self.log.append((shape, round(took / now), round(host / now)))
        return Done(round(took / now), done.stopped)

    def forget(self, request: int) -> None:
        self.measured.forget(request)
