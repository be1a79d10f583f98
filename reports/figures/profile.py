"""The curves of a cost profile: time a token over the size of a step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from matplotlib.ticker import FuncFormatter, NullFormatter

from reports.figures.style import DASHES, SERIES, drawing, png, round_time


class Point(Protocol):
    """A step: its size, its tokens, its seconds, and whether it lies within what was measured."""

    @property
    def x(self) -> int: ...
    @property
    def tokens(self) -> int: ...
    @property
    def seconds(self) -> float: ...
    @property
    def inside(self) -> bool: ...


class Curve(Protocol):
    """Steps of one kind, `decode` or `prefill`, over their size."""

    @property
    def kind(self) -> str: ...
    @property
    def label(self) -> str: ...
    @property
    def points(self) -> Sequence[Point]: ...


AXES = {"decode": "sequences decoding", "prefill": "tokens in the chunk"}


def profile_figure(curves: Sequence[Curve], title: str) -> bytes:
    """A panel a kind, both axes logarithmic; hollow points lie beyond what was measured."""
    with drawing(10, 4.2) as figure:
        figure.suptitle(title, fontweight="bold", x=0.01, ha="left")
        for axes, (kind, size) in zip(figure.subplots(1, 2), AXES.items(), strict=True):
            for number, curve in enumerate(curve for curve in curves if curve.kind == kind):
                x = [point.x for point in curve.points]
                y = [point.seconds / point.tokens for point in curve.points]
                colour = SERIES[number]
                axes.plot(x, y, color=colour, linestyle=DASHES[number], label=curve.label)
                for inside in True, False:
                    at = [i for i, point in enumerate(curve.points) if point.inside is inside]
                    axes.plot(
                        [x[i] for i in at],
                        [y[i] for i in at],
                        "o",
                        color=colour,
                        markerfacecolor=colour if inside else "white",
                        markersize=5,
                    )
            axes.set_title(f"{kind}: time a token")
            axes.set_xlabel(size)
            axes.set_xscale("log", base=2)
            axes.set_yscale("log")
            axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
            axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: round_time(value)))
            axes.yaxis.set_minor_formatter(NullFormatter())
            axes.legend()
        return png(figure)
