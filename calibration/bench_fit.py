"""A profile from benchmark files alone: a shipped one with its scale and host overhead corrected.

A load generator measures requests, not steps. So the same requests are simulated, and three
numbers are sought for which they come out as measured: a *scale* of all step times, a *host*
overhead added to each step, and a *front* end's delay added to each first token (HTTP, network,
tokenizer), which is no part of a step and so not of the profile. What the runs cannot tell apart
is not fitted: then the scale stays 1, and that is said.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from calibration.profile import Cost, Profile

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]

STEPS = (0.2, 0.05)
"""By how much a number is changed to see what it does, coarse first: the simulation is no smooth
function, for a request may fall into another batch."""
MOST = 12
"""Simulations of all runs at each of them, beside those for derivatives."""
UNSURE = 0.05
"""A scale that is less certain than this is not fitted."""
LARGEST_SCALE = 5.0


class Columns(NamedTuple):
    """One value a request, seconds; NaN where there is none."""

    ttft: Floats
    tpot: Floats
    e2e: Floats

    def of(self, rows: Mask) -> Columns:
        return Columns(*(column[rows] for column in self))


@dataclass(frozen=True, kw_only=True)
class Run:
    """A measured run, and how to simulate its requests at a cost."""

    name: str
    measured: Columns
    simulate: Callable[[Cost], Columns]
    """Rows as in `measured`."""


@dataclass(frozen=True)
class Corrected:
    """The numbers found, each with its standard error (NaN where it was not sought)."""

    scale: float
    host_s: float
    front_s: float
    unsure: tuple[float, float, float]
    """Standard errors: of the scale as a share, of host and front in seconds."""
    notes: tuple[str, ...] = ()

    def cost(self, base: Cost) -> Cost:
        scaled = base.scaled(self.scale)
        return scaled.model_copy(update={"t0": scaled.t0 + self.host_s})

    def predict(self, run: Run, base: Cost) -> Columns:
        """What the run's requests would see."""
        found = run.simulate(self.cost(base))
        return Columns(found.ttft + self.front_s, found.tpot, found.e2e + self.front_s)


@dataclass(frozen=True)
class Judged:
    """Relative errors of means on requests that were not fitted on."""

    name: str
    ttft: float
    tpot: float
    e2e: float


@dataclass(frozen=True)
class BenchFit:
    """A correction fitted on everything, and how ones fitted on a part did on the rest."""

    corrected: Corrected
    held_out: tuple[Judged, ...]
    before: tuple[Judged, ...]
    """The same requests with the base profile as it is."""
    how: str
    """What was held out."""


def fit_bench(
    runs: Sequence[Run], base: Cost, on_progress: Callable[[float], None] = lambda share: None
) -> BenchFit:
    """Fit all runs; judge by leaving out one run in turn, or the second half of the only one.

    Raises ValueError where there is nothing to fit.
    """
    for run in runs:
        if not np.isfinite(run.measured.ttft).any() or not np.isfinite(run.measured.tpot).any():
            raise ValueError(f"{run.name}: no TTFT or no TPOT is measured, expected both")
    everything = [np.ones(len(run.measured.ttft), dtype=bool) for run in runs]
    parts = _parts(runs, everything)
    judged: list[Judged] = []
    before: list[Judged] = []
    plain = Corrected(1.0, 0.0, 0.0, (np.nan,) * 3)
    for number, (fitted_on, rest) in enumerate(parts):
        found = correct(runs, fitted_on, base)
        for run, rows in zip(runs, rest, strict=True):
            if rows.any():
                judged.append(_judge(run, found, base, rows))
                before.append(_judge(run, plain, base, rows))
        on_progress((number + 1) / (len(parts) + 1))
    corrected = correct(runs, everything, base)
    on_progress(1.0)
    how = (
        "each run in turn, fitted on the others"
        if len(runs) > 1
        else "the second half of the requests, fitted on the first"
    )
    return BenchFit(corrected, tuple(judged), tuple(before), how)


def correct(runs: Sequence[Run], rows: Sequence[Mask], base: Cost) -> Corrected:
    """The numbers for which the chosen requests of the runs come out as measured."""
    chosen = [(run, some) for run, some in zip(runs, rows, strict=True) if some.any()]
    units = _units(chosen)

    def residuals(x: Floats, free: Mask) -> Floats:
        full = np.array([0.0, 0.0, 0.0])
        full[free] = x
        guess = _corrected(full, units)
        return np.concatenate(
            [
                _residuals(guess.predict(run, base).of(some), run.measured.of(some))
                for run, some in chosen
            ]
        )

    def fit(free: Mask) -> tuple[Floats, Floats]:
        """The free numbers, in units, and their standard errors."""

        low = np.array([-np.log(LARGEST_SCALE), 0.0, 0.0])[free]
        high = np.array([np.log(LARGEST_SCALE), np.inf, np.inf])[free]
        x = np.array([0.0, 0.05, 0.05])[free]
        for step in STEPS:

            def slopes(x: Floats, free: Mask, step: float = step) -> Floats:
                sides = [
                    (np.minimum(x + step * unit, high), np.maximum(x - step * unit, low))
                    for unit in np.eye(len(x))
                ]
                return np.column_stack(
                    [
                        (residuals(up, free) - residuals(down, free)) / (up - down).sum()
                        for up, down in sides
                    ]
                )

            found = least_squares(
                residuals, x, slopes, (low, high), args=(free,), max_nfev=MOST, loss="soft_l1",
                f_scale=0.1, xtol=1e-4, ftol=1e-4,
            )  # fmt: skip
            x = found.x
        spread = (found.fun**2).sum() / max(1, len(found.fun) - len(found.x))
        _, sizes, directions = np.linalg.svd(found.jac, full_matrices=False)
        # A direction that changes nothing is unknown, not known to be 0.
        spans = directions / np.maximum(sizes, 1e-9)[:, None]
        # One part in a thousand is noise that any measurement has.
        errors = np.sqrt((spans**2).sum(axis=0) * max(spread, 1e-6))
        # No better than the search, which does not look closer than its last step.
        errors = np.hypot(errors, STEPS[-1] / 4)
        return found.x, errors

    free = np.array([True, True, True])
    notes = []
    x, errors = fit(free)
    if errors[0] > UNSURE:
        free = np.array([False, True, True])
        notes.append(
            f"scale and host overhead cannot be told apart in these runs (the scale only to "
            f"{errors[0]:.0%}): the scale is left at 1; runs at other batch sizes would tell"
        )
        x, errors = fit(free)
    full, unsure = np.zeros(3), np.full(3, np.nan)
    full[free], unsure[free] = x, errors
    found = _corrected(full, units)
    return Corrected(
        found.scale,
        found.host_s,
        found.front_s,
        (float(unsure[0]), float(unsure[1] * units[0]), float(unsure[2] * units[1])),
        tuple(notes),
    )


def bench_profile(base: Profile, fit: BenchFit, name: str, sources: Sequence[str]) -> Profile:
    """The base profile, corrected; it says what of it was not measured."""
    found = fit.corrected
    judged = ", ".join(
        f"{one.name}: TTFT {one.ttft:+.1%}, TPOT {one.tpot:+.1%}, E2E {one.e2e:+.1%}"
        for one in fit.held_out
    )
    sought = "scale and host overhead" if np.isfinite(found.unsure[0]) else "host overhead"
    note = (
        f"{base.name} with {sought} fitted to benchmark files: all step times × {found.scale:.4f}, "
        f"{found.host_s * 1e3:.3f} ms more a step. Held out ({fit.how}), error of means: {judged}. "
        f"A front end's {found.front_s * 1e3:.2f} ms before each first token are not in it. "
        "Benchmarks do not show steps: prefill, decode, context and mixed steps keep the shares "
        "that the base gives them; the errors below are the base's."
    )
    return base.model_copy(
        update={
            "name": name,
            "source": f"{', '.join(sources)}; base: {base.source}",
            "note": " ".join(filter(None, [note, *found.notes])),
            "parts": base.parts.model_copy(update={"host": "modelled"}),
            "missing": tuple(what for what in base.missing if what != "host overhead"),
            "cost": found.cost(base.cost),
        }
    )


def _parts(runs: Sequence[Run], everything: Sequence[Mask]) -> list[tuple[list[Mask], list[Mask]]]:
    """(fitted on, judged on) by run."""
    if len(runs) == 1:
        rows = len(everything[0])
        first = np.arange(rows) < rows // 2
        return [([first], [~first])] if rows >= 2 else []
    nothing = [np.zeros(len(some), dtype=bool) for some in everything]
    parts = []
    for out in range(len(runs)):
        fitted = [nothing[at] if at == out else some for at, some in enumerate(everything)]
        judged = [everything[at] if at == out else some for at, some in enumerate(nothing)]
        parts.append((fitted, judged))
    return parts


def _units(chosen: Sequence[tuple[Run, Mask]]) -> tuple[float, float]:
    """What host and front are counted in: a usual gap, and a usual first token."""
    gaps = [float(np.nanmedian(run.measured.tpot[some])) for run, some in chosen]
    firsts = [float(np.nanmedian(run.measured.ttft[some])) for run, some in chosen]
    return float(np.median(gaps)), float(np.median(firsts))


def _corrected(x: Floats, units: tuple[float, float]) -> Corrected:
    return Corrected(
        float(np.exp(x[0])), float(x[1] * units[0]), float(x[2] * units[1]), (np.nan,) * 3
    )


def _residuals(got: Columns, wanted: Columns) -> Floats:
    """Of each request: logarithms of simulated over measured, TTFT and TPOT; 0 where unknown.

    Request by request, not by quantiles: a request that falls into another batch then moves one
    residual of many, not the quantile.
    """
    found = []
    for ours, theirs in ((got.ttft, wanted.ttft), (got.tpot, wanted.tpot)):
        known = np.isfinite(ours) & np.isfinite(theirs) & (ours > 0) & (theirs > 0)
        ratio = np.where(known, ours, 1.0) / np.where(known, theirs, 1.0)
        found.append(np.log(ratio) / np.sqrt(max(1, known.sum())))
    return np.concatenate(found)


def _judge(run: Run, found: Corrected, base: Cost, rows: Mask) -> Judged:
    real, simulated = run.measured.of(rows), found.predict(run, base).of(rows)

    def off(name: str) -> float:
        ours, theirs = getattr(simulated, name), getattr(real, name)
        both = np.isfinite(ours) & np.isfinite(theirs)
        return float(ours[both].mean() / theirs[both].mean() - 1) if both.any() else float("nan")

    return Judged(run.name, off("ttft"), off("tpot"), off("e2e"))
