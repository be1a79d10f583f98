"""Simulated against real: how far every latency is off, beside what real runs differ by.

  real       the statistic of the real run; of several, the median over them
  off        simulated − real [s]
  error      simulated / real − 1
  noise      (largest − smallest) / median over the repeats of the real run
A line with a bar is *within* iff |error| ≤ max(bar, noise). A noise above `TOO_NOISY` hides what
the line is about: *not measured*, however small the error.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from reports.percentiles import Distribution
from traces.trace import PS_PER_S

STATISTICS = ("mean", "p50", "p90", "p99")
BARS = {"mean": 0.05, "p50": 0.05, "p90": 0.10, "p99": 0.10}
"""What an error may be, by statistic, where repeats of the real run agree better than that."""
STEP_BAR = 0.01
"""What the step times of a run may be off in sum."""
TOO_NOISY = 0.08

WITHIN, BEYOND, NOT_MEASURED, NOT_JUDGED = "within", "beyond", "not measured", "–"


def judged(error: float, noise: float | None, bar: float) -> str:
    """The verdict on an error; `noise` None: not repeated."""
    if noise is not None and noise > TOO_NOISY:
        return NOT_MEASURED
    return WITHIN if abs(error) <= max(bar, noise or 0.0) else BEYOND


@dataclass(frozen=True, kw_only=True)
class Line:
    """One statistic of one latency."""

    load: str
    metric: str
    statistic: str
    real: float
    """Seconds."""
    simulated: float
    noise: float | None = None
    """None where the run was not repeated."""
    bar: float | None = None
    """None: shown, not judged."""
    before: float | None = None
    """Simulated before anything was fitted to the run; None where nothing was."""

    @property
    def off(self) -> float:
        return self.simulated - self.real

    @property
    def error(self) -> float | None:
        """None where the real one is 0."""
        return self.simulated / self.real - 1 if self.real else None

    @property
    def error_before(self) -> float | None:
        if self.before is None or not self.real:
            return None
        return self.before / self.real - 1

    @property
    def verdict(self) -> str:
        if self.bar is None or self.error is None:
            return NOT_JUDGED
        return judged(self.error, self.noise, self.bar)

    def row(self) -> dict[str, Any]:
        """The line as plain values."""
        return {
            "load": self.load,
            "metric": self.metric,
            "statistic": self.statistic,
            "real_s": self.real,
            "simulated_s": self.simulated,
            "off_s": self.off,
            "error": self.error,
            "error_before": self.error_before,
            "noise": self.noise,
            "bar": self.bar,
            "verdict": self.verdict,
        }


def compare(
    load: str,
    simulated: Mapping[str, Distribution],
    real: Sequence[Mapping[str, Distribution]],
    bars: Mapping[str, Mapping[str, float]],
) -> list[Line]:
    """A line per latency of both and statistic. `real`: the same requests, run once or more.

    Distributions are of picoseconds; `bars` by latency and statistic.
    """
    lines = []
    for metric, ours in simulated.items():
        for statistic in STATISTICS:
            seen = [run[metric].statistic(statistic) for run in real if metric in run]
            known = [value for value in seen if value is not None]
            expected = ours.statistic(statistic)
            if not known or expected is None:
                continue
            middle = median(known)
            noise = (max(known) - min(known)) / middle if len(known) > 1 and middle else None
            lines.append(
                Line(
                    load=load,
                    metric=metric,
                    statistic=statistic,
                    real=middle / PS_PER_S,
                    simulated=expected / PS_PER_S,
                    noise=noise,
                    bar=bars.get(metric, {}).get(statistic),
                )
            )
    return lines
