"""One look for every picture: light, plain, and safe for the colour-blind (Okabe-Ito)."""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from reports.units import seconds

BLUE, ORANGE, GREEN, RED = "#0072B2", "#E69F00", "#009E73", "#D55E00"
PURPLE, SKY, BROWN, GREY = "#CC79A7", "#56B4E9", "#7F5B00", "#6B7280"
SERIES = (BLUE, ORANGE, GREEN, PURPLE, RED, SKY, BROWN, GREY)
DASHES: tuple[Any, ...] = ("-", (0, (5, 1.5)), (0, (1, 1)), (0, (5, 1, 1, 1)), "--", "-.", ":", "-")
INK, FAINT, GROUND = "#1F2937", "#9CA3AF", "#EEF1F5"

_LOOK: Any = {
    "font.family": "DejaVu Sans",
    "font.size": 9.5,
    "text.color": INK,
    "axes.edgecolor": FAINT,
    "axes.labelcolor": INK,
    "axes.titlesize": 10.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#E5E7EB",
    "grid.linewidth": 0.7,
    "xtick.color": INK,
    "ytick.color": INK,
    "legend.frameon": False,
    "lines.linewidth": 1.8,
    "hatch.linewidth": 0.6,
    "figure.facecolor": "white",
    "savefig.facecolor": "white",
    "text.parse_math": False,  # a name such as a$b$c is text
}


@contextmanager
def drawing(width: float, height: float) -> Iterator[Figure]:
    """A figure of so many inches in our look, whatever the user's own settings are."""
    with mpl.rc_context(), warnings.catch_warnings():
        # Names come from anywhere; a box for a letter that the font lacks will do.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        mpl.rcdefaults()
        mpl.rcParams.update(_LOOK)
        figure = Figure(figsize=(width, height), layout="constrained")
        FigureCanvasAgg(figure)
        yield figure


def png(figure: Figure) -> bytes:
    """The picture as bytes; no date or version in it. Call it within `drawing`."""
    out = io.BytesIO()
    figure.savefig(out, format="png", dpi=144, metadata={"Software": None})
    return out.getvalue()


def name_time_axis(axes: Axes) -> None:
    axes.set_xlabel("time since the start (s)")
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))


def latency_ticks(axes: Axes) -> None:
    """A logarithmic time axis with labels such as 10 ms and 1 s."""
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: round_time(value)))
    axes.xaxis.set_minor_formatter(FuncFormatter(lambda *_: ""))


def round_time(value: float) -> str:
    """20 ms, 1 s: a bound or tick without idle zeros."""
    number, _, unit = seconds(value).partition(" ")
    if "." in number:
        number = number.rstrip("0").rstrip(".")
    return f"{number} {unit}"
