"""When requests arrive: arrival processes at a mean rate.

Every process draws its gaps unclipped from one stream and adds them up on an absolute schedule
in whole picoseconds, so that counts have the mean and variance that theory gives them. More
requests of the same process and seed continue the same schedule.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BeforeValidator, Field
from pydantic.dataclasses import dataclass

from traces.settings import STRICT
from traces.trace import PS_PER_S, Ints

Floats = NDArray[np.float64]
Share = Annotated[float, Field(ge=0, le=1)]
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Cv = Annotated[float, Field(gt=0, allow_inf_nan=False)]

MAX_S = 9_000_000.0
"""An int64 of picoseconds ends after 107 days; schedules stay below this many seconds."""


SLOWEST, FASTEST = 1e-12, 1e12
"""Requests per second: at the fastest rate one a picosecond, which no clock of ours can divide."""
UNIT = 10**9
"""Gaps at rate 1 are whole multiples of a billionth, so that nine billion of them can add up."""


class Process:
    """An arrival process; `rate` (requests per second) is given when it is asked for times."""

    def gaps(self, rng: np.random.Generator, count: int) -> Floats:
        """The next `count` gaps at rate 1."""
        raise NotImplementedError

    def schedule(self, units: Ints, rate: float) -> Ints:
        """Picoseconds at which the process has seen `units` expected arrivals (in 1e-9)."""
        return _ps(units / (rate * UNIT))

    def times(
        self,
        rate: float,
        rng: np.random.Generator,
        *,
        count: int | None = None,
        duration_s: float | None = None,
    ) -> Ints:
        """Arrival times in picoseconds, ascending: `count` of them, or those in `duration_s`.

        With both, whichever ends first. `rate` = inf sends all at time 0.
        """
        check_rate(rate)
        if math.isinf(rate):
            if count is None:
                raise ValueError("rate: inf needs a number of requests, a duration has no end")
            return np.zeros(count, dtype=np.int64)
        horizon = MAX_S if duration_s is None else min(duration_s, MAX_S)
        if count is not None:
            times = self.schedule(self._units(rng, count), rate)
            if duration_s is None and count and times[-1] >= MAX_S * PS_PER_S:
                raise ValueError(
                    f"rate: {count} requests at {rate} per second take longer than the "
                    f"{MAX_S / 86400:.0f} days that a trace may span"
                )
            return times[times < horizon * PS_PER_S]
        parts: list[Ints] = []
        ahead = int(rate * horizon) + 100
        so_far = 0
        while True:
            units = so_far + self._units(rng, ahead)
            parts.append(self.schedule(units, rate))
            so_far = int(units[-1])
            if parts[-1][-1] >= horizon * PS_PER_S:
                times = np.concatenate(parts)
                return times[times < horizon * PS_PER_S]

    def _units(self, rng: np.random.Generator, count: int) -> Ints:
        # Rounded before the sum, not after it: the sum is then exact, and the last bit of a
        # float, on which machines may disagree, cannot add up.
        gaps = np.rint(self.gaps(rng, count) * UNIT).astype(np.int64)
        units: Ints = np.cumsum(gaps)
        return units


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Poisson(Process):
    """Independent arrivals: exponential gaps."""

    kind: Literal["poisson"] = "poisson"

    def gaps(self, rng: np.random.Generator, count: int) -> Floats:
        return rng.standard_exponential(count)


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Gamma(Process):
    """Gamma gaps with a coefficient of variation: above 1 burstier than Poisson, below calmer.

    `cv` = 3 is what load tools call a burstiness of 1/9 (shape = 1/cv²).
    """

    kind: Literal["gamma"] = "gamma"
    cv: Cv

    def gaps(self, rng: np.random.Generator, count: int) -> Floats:
        return _gaps(rng, count, self.cv)


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Constant(Process):
    """One arrival every 1/rate seconds, the first at 0."""

    kind: Literal["constant"] = "constant"

    def times(
        self,
        rate: float,
        rng: np.random.Generator,
        *,
        count: int | None = None,
        duration_s: float | None = None,
    ) -> Ints:
        # Times are the ones of gaps 1, 1, …, one gap earlier.
        check_rate(rate)
        if math.isinf(rate):
            return super().times(rate, rng, count=count, duration_s=duration_s)
        most = math.ceil(rate * (MAX_S if duration_s is None else duration_s))
        steps = np.arange(most if count is None else min(count, most), dtype=np.float64)
        return np.rint(steps * (PS_PER_S / rate)).astype(np.int64)


class Varying(Process):
    """Arrivals whose rate follows a curve: unit-rate gaps, stretched by the curve's integral.

    `cv` is that of the gaps before stretching; 1 is a Poisson process with a varying rate.
    """

    cv: Cv

    def curve(self) -> tuple[Floats, Floats, bool]:
        """Knots in seconds, the rate at each over `rate`, and whether the curve repeats.

        Linear between knots; two knots at one time are a jump. The last value holds on where
        the curve does not repeat.
        """
        raise NotImplementedError

    def gaps(self, rng: np.random.Generator, count: int) -> Floats:
        return _gaps(rng, count, self.cv)

    def schedule(self, units: Ints, rate: float) -> Ints:
        knots, height, repeats = self.curve()
        inverse = _integral_inverse(knots, height * rate)
        area = units / UNIT
        whole = float(np.sum(np.diff(knots) * (height[1:] + height[:-1]) / 2)) * rate
        if repeats:
            turns = np.floor(area / whole)
            seconds = turns * knots[-1] + inverse(area - turns * whole)
        else:
            beyond = np.maximum(area - whole, 0)
            seconds = inverse(area) + beyond / (height[-1] * rate)
        return _ps(seconds)


@dataclass(frozen=True, kw_only=True, config=STRICT)
class OnOff(Varying):
    """Bursts: `on_s` seconds at a high rate, `off_s` seconds at a low one, and again.

    `rate` is the mean over both; while off the rate is `low` times that while on.
    """

    kind: Literal["on-off"] = "on-off"
    on_s: Seconds
    off_s: Seconds
    low: Share = 0.0
    cv: Cv = 1.0

    def curve(self) -> tuple[Floats, Floats, bool]:
        cycle = self.on_s + self.off_s
        on = cycle / (self.on_s + self.low * self.off_s)
        off = on * self.low
        return np.array([0, self.on_s, self.on_s, cycle]), np.array([on, on, off, off]), True


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Diurnal(Varying):
    """A daily wave: `rate` is its mean, the peak is `peak` times that, at `peak_at_s`."""

    kind: Literal["diurnal"] = "diurnal"
    peak: Annotated[float, Field(ge=1, le=2)] = 1.6
    peak_at_s: Annotated[float, Field(ge=0)] = 14 * 3600.0
    period_s: Seconds = 86_400.0
    cv: Cv = 1.0

    def curve(self) -> tuple[Floats, Floats, bool]:
        # A sine drawn with 96 chords (a quarter of an hour each, in a day): its integral is exact.
        knots = np.linspace(0, self.period_s, 97)
        wave = np.cos(2 * np.pi * (knots - self.peak_at_s) / self.period_s)
        return knots, 1 + (self.peak - 1) * wave, True


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Ramp(Varying):
    """From `rate` up to `peak` times it, hold, and return: does the system recover?"""

    kind: Literal["ramp"] = "ramp"
    peak: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 3.0
    before_s: Seconds = 60.0
    up_s: Seconds = 60.0
    hold_s: Seconds = 60.0
    down_s: Seconds = 60.0
    cv: Cv = 1.0

    def curve(self) -> tuple[Floats, Floats, bool]:
        knots = np.cumsum([0, self.before_s, self.up_s, self.hold_s, self.down_s])
        return knots, np.array([1, 1, self.peak, self.peak, 1.0]), False


def _shorthand(value: Any) -> Any:
    return {"kind": value} if isinstance(value, str) else value


Arrivals = Annotated[
    Annotated[Poisson | Gamma | Constant | OnOff | Diurnal | Ramp, Field(discriminator="kind")],
    BeforeValidator(_shorthand),
]
"""Any arrival process, told apart by `kind`; a bare text is a kind without settings."""


def check_rate(rate: float) -> None:
    """Raises ValueError unless `rate` can be drawn (inf can: all at once)."""
    if not (SLOWEST <= rate <= FASTEST or rate == math.inf):
        raise ValueError(
            f"rate: {rate:g}, expected requests per second above 0 ({SLOWEST:g} to {FASTEST:g}, "
            "or inf for all at once)"
        )


def _ps(seconds: Floats) -> Ints:
    whole: Ints = np.rint(np.minimum(seconds, MAX_S) * PS_PER_S).astype(np.int64)
    return whole


def _gaps(rng: np.random.Generator, count: int, cv: float) -> Floats:
    if cv == 1:
        return rng.standard_exponential(count)
    shape = 1 / cv**2
    return rng.standard_gamma(shape, count) / shape


def _integral_inverse(knots: Floats, rates: Floats) -> Callable[[Any], Floats]:
    """The time at which a piecewise linear rate has integrated to a given area."""
    width = np.diff(knots)
    area = np.concatenate([[0.0], np.cumsum(width * (rates[1:] + rates[:-1]) / 2)])

    def inverse(wanted: Floats) -> Floats:
        wanted = np.minimum(wanted, area[-1])
        # From the right: pieces without area (jumps, silence) are passed over.
        piece = np.clip(np.searchsorted(area, wanted, side="right") - 1, 0, len(width) - 1)
        left = wanted - area[piece]
        start = rates[piece]
        with np.errstate(divide="ignore", invalid="ignore"):
            slope = np.where(width[piece] > 0, (rates[piece + 1] - start) / width[piece], 0.0)
            root = np.sqrt(np.maximum(start**2 + 2 * slope * left, 0))
            step = np.where(left > 0, 2 * left / (start + root), 0.0)
        seconds: Floats = knots[piece] + np.minimum(step, width[piece])
        return seconds

    return inverse
