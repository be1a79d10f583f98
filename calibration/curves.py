"""A profile's curves as plain numbers: what a prefill and a decode token cost."""

from __future__ import annotations

from typing import NamedTuple

from calibration.profile import Profile
from calibration.raw import shape_of
from calibration.step_time import StepShape

BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
CONTEXTS = (512, 4096)
CHUNKS = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)
PRIORS = (0, 8192)


class Point(NamedTuple):
    """One step of a curve."""

    x: int
    """Sequences decoding, or tokens of the one chunk."""
    tokens: int
    seconds: float
    inside: bool
    """Within the measured ranges."""


class Curve(NamedTuple):
    """Steps of one kind over their size."""

    kind: str
    """decode or prefill"""
    label: str
    points: tuple[Point, ...]


def curves_of(profile: Profile) -> list[Curve]:
    """Decode steps over the batch at two contexts, prefill chunks over their size at two priors.

    Sizes that the model's longest sequence does not allow are left out.
    """
    longest = profile.max_model_len
    decode = [
        _curve(profile, "decode", f"decode, {c:,} cached", [(n, [(1, c)] * n) for n in BATCHES])
        for c in CONTEXTS
        if c < longest
    ]
    prefill = [
        _curve(
            profile,
            "prefill",
            f"prefill, {c:,} cached",
            [(q, [(q, c)]) for q in CHUNKS if q + c <= longest],
        )
        for c in PRIORS
        if c + CHUNKS[0] <= longest
    ]
    return decode + prefill


def _curve(
    profile: Profile, kind: str, label: str, steps: list[tuple[int, list[tuple[int, int]]]]
) -> Curve:
    step_time, grid = profile.step_time(), profile.grid()
    block_size = profile.measured.block_size[0] if profile.measured.block_size else 16

    def point(x: int, shape: StepShape) -> Point:
        return Point(x, shape.tokens, step_time.price(shape) / 1e12, not grid.outside(shape))

    return Curve(kind, label, tuple(point(x, shape_of(fed, block_size)) for x, fed in steps))
