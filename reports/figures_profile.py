"""The curves of a cost profile: seconds a token over the size of a step."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from matplotlib.figure import Figure


class Point(Protocol):
    """A step: its size, its tokens, its seconds, and whether it was within the measured grid."""

    @property
    def x(self) -> int: ...
    @property
    def tokens(self) -> int: ...
    @property
    def seconds(self) -> float: ...
    @property
    def inside(self) -> bool: ...


class Curve(Protocol):
    """Steps of one kind (decode or prefill) over their size."""

    @property
    def kind(self) -> str: ...
    @property
    def label(self) -> str: ...
    @property
    def points(self) -> Sequence[Point]: ...


AXES = {"decode": "sequences decoding", "prefill": "tokens in the chunk"}


def profile_curves(curves: Sequence[Curve], title: str, path: Path) -> None:
    """Draw one panel a kind, logarithmic on both axes; hollow points lie outside the grid."""
    figure = Figure(figsize=(10, 4.2), layout="constrained")
    figure.suptitle(title)
    for axes, kind in zip(figure.subplots(1, 2), AXES, strict=True):
        for number, curve in enumerate(curve for curve in curves if curve.kind == kind):
            x = [point.x for point in curve.points]
            y = [point.seconds / point.tokens * 1e3 for point in curve.points]
            colour = f"C{number}"
            axes.plot(x, y, color=colour, label=curve.label, linewidth=1.8)
            for point, high in zip(curve.points, y, strict=True):
                face = colour if point.inside else "white"
                axes.plot(point.x, high, "o", color=colour, markerfacecolor=face, markersize=5)
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.set_xlabel(AXES[kind])
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.grid(alpha=0.25, which="both", linewidth=0.5)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False)
    figure.axes[0].set_ylabel("milliseconds a token")
    figure.savefig(path, dpi=150)
