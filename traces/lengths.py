"""How long prompts and outputs are: length distributions in whole tokens.

Each distribution is its quantile function: one uniform number gives one length, so that the
same request is long or short under every distribution. Lengths are rounded to whole tokens and
cut at `min` and `max` (a server's limit cuts, it does not redraw); `achieved` says what the
mean and the percentiles are after that.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import BeforeValidator, Field, model_validator
from pydantic.dataclasses import dataclass
from scipy.special import ndtri

from traces.settings import STRICT
from traces.trace import Ints

Floats = NDArray[np.float64]
Tokens = Annotated[int, Field(ge=1, le=10**9)]
Mean = Annotated[float, Field(gt=0, allow_inf_nan=False)]

Z99 = 2.3263478740408408
"""The standard normal quantile of 99 %."""


class Distribution:
    """A distribution of lengths."""

    min: int
    max: int | None

    def quantile(self, share: Floats) -> Floats:
        """Lengths before rounding and cutting, for shares in [0, 1)."""
        raise NotImplementedError

    def lengths(self, share: Floats) -> Ints:
        """Whole lengths for uniform numbers in [0, 1)."""
        most = 10**9 if self.max is None else self.max
        return np.rint(np.clip(self.quantile(share), self.min, most)).astype(np.int64)

    def draw(self, rng: np.random.Generator, count: int) -> Ints:
        """`count` independent lengths; exactly `count` numbers are taken from the stream."""
        return self.lengths(rng.random(count))

    @cached_property
    def achieved(self) -> Mapping[str, float]:
        """Mean, P50, P99 and the share cut at `max`, after rounding and cutting."""
        share = (np.arange(100_000) + 0.5) / 100_000
        lengths = self.lengths(share)
        cut = 0.0 if self.max is None else float(np.mean(self.quantile(share) > self.max))
        return {
            "mean": float(lengths.mean()),
            "p50": float(lengths[49_999]),
            "p99": float(lengths[98_999]),
            "cut_share": cut,
        }


class _Limits:
    """Checks that `min` and `max` leave something between them."""

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        least, most = getattr(self, "min", 1), getattr(self, "max", None)
        if most is not None and most < least:
            raise ValueError(f"max {most} is below min {least}")
        return self


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Fixed(Distribution):
    """Always `value` tokens."""

    kind: Literal["fixed"] = "fixed"
    value: Tokens

    @property
    def min(self) -> int:  # type: ignore[override]
        return self.value

    @property
    def max(self) -> int | None:  # type: ignore[override]
        return self.value

    def quantile(self, share: Floats) -> Floats:
        return np.full(len(share), float(self.value))


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Uniform(Distribution, _Limits):
    """Every whole number from `min` to `max`, both included, equally often."""

    kind: Literal["uniform"] = "uniform"
    min: Tokens
    max: Tokens

    def quantile(self, share: Floats) -> Floats:
        return np.floor(self.min + share * (self.max - self.min + 1))


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Exponential(Distribution, _Limits):
    """Exponential with a mean."""

    kind: Literal["exponential"] = "exponential"
    mean: Mean
    min: Tokens = 1
    max: Tokens | None = None

    def quantile(self, share: Floats) -> Floats:
        return -self.mean * np.log1p(-share)


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Pareto(Distribution, _Limits):
    """Pareto: the share above x falls as x^-alpha; heavier tails at smaller `alpha`.

    By its mean; `alpha` must be above 1, else there is none.
    """

    kind: Literal["pareto"] = "pareto"
    mean: Mean
    alpha: Annotated[float, Field(gt=1, allow_inf_nan=False)]
    min: Tokens = 1
    max: Tokens | None = None

    def quantile(self, share: Floats) -> Floats:
        scale = self.mean * (self.alpha - 1) / self.alpha
        result: Floats = scale * (1 - share) ** (-1 / self.alpha)
        return result


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Lognormal(Distribution, _Limits):
    """Lognormal by its mean and P99.

    Two lognormals share a mean and a P99; the one with the smaller sigma is meant (the other
    has nearly all its mass far below the mean). A P99 above 14.97 means does not exist.
    """

    kind: Literal["lognormal"] = "lognormal"
    mean: Mean
    p99: Mean
    min: Tokens = 1
    max: Tokens | None = None

    @model_validator(mode="after")
    def _possible(self) -> Self:
        ratio, most = self.p99 / self.mean, math.exp(Z99**2 / 2)
        if not 1 <= ratio <= most:
            raise ValueError(
                f"no lognormal has mean {self.mean:g} and p99 {self.p99:g} "
                f"(p99 / mean = {ratio:.4g}, expected 1 to {most:.2f})"
            )
        return self

    @property
    def sigma(self) -> float:
        """Of the logarithm: the smaller root of mean and P99."""
        return Z99 - math.sqrt(max(0.0, Z99**2 - 2 * math.log(self.p99 / self.mean)))

    def quantile(self, share: Floats) -> Floats:
        mu = math.log(self.mean) - self.sigma**2 / 2
        with np.errstate(over="ignore"):
            result: Floats = np.exp(mu + self.sigma * ndtri(share))
        return result


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Empirical(Distribution, _Limits):
    """Lengths as they occur: in a list of `values`, or in the `column` of a recorded trace."""

    kind: Literal["empirical"] = "empirical"
    values: tuple[Tokens, ...] = Field(default=(), repr=False)
    file: Path | None = None
    column: Literal["prompt", "output"] | None = None
    min: Tokens = 1
    max: Tokens | None = None

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if bool(self.values) == (self.file is not None):
            raise ValueError("an empirical distribution needs either values or a file")
        if self.file is not None and self.column is None:
            raise ValueError("column: expected prompt or output beside a file")
        return self

    @cached_property
    def _sorted(self) -> Ints:
        if self.file is None:
            return np.sort(np.array(self.values, dtype=np.int64))
        from traces.readers import read_trace  # readers build on everything else here

        trace = read_trace(self.file)
        return np.sort(trace.prompt if self.column == "prompt" else trace.output)

    def quantile(self, share: Floats) -> Floats:
        rank = (share * len(self._sorted)).astype(np.int64)
        return self._sorted[rank].astype(np.float64)


def _shorthand(value: Any) -> Any:
    whole = isinstance(value, int) and not isinstance(value, bool)
    return {"kind": "fixed", "value": value} if whole else value


Lengths = Annotated[
    Annotated[
        Fixed | Uniform | Exponential | Pareto | Lognormal | Empirical, Field(discriminator="kind")
    ],
    BeforeValidator(_shorthand),
]
"""Any distribution of lengths, told apart by `kind`; a bare whole number is a fixed length."""
