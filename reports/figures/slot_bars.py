"""The slot timeline: rows are slots, bars are requests; what is empty is wasted."""

from __future__ import annotations

from collections.abc import Mapping

from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from reports.figures.style import (
    BLUE,
    FAINT,
    GROUND,
    INK,
    ORANGE,
    PURPLE,
    RED,
    drawing,
    name_time_axis,
    png,
)
from reports.latencies import Latencies
from reports.slots import Slots, slots, window
from reports.units import share

ROWS_SHOWN = 24
KINDS = {
    "prefill": (ORANGE, "", "prefill: reads the prompt"),
    "decode": (BLUE, "", "decode: writes tokens"),
    "recompute": (PURPLE, "....", "recompute after a preemption"),
    "held": ("white", "////", "finished, slot still held"),
}
"""Colour, hatch and meaning of each kind of piece."""


def slot_figure(runs: Mapping[str, Latencies], requests: int = 64) -> bytes:
    """A band of slots per run, one under the other, on one time axis.

    It ends when the first `requests` of one of the runs have ended.
    """
    end = min((window(run, requests) for run in runs.values()), default=0.0)
    laid = {name: slots(run, end) for name, run in runs.items()}
    rows = min(max((one.used for one in laid.values()), default=1) or 1, ROWS_SHOWN)
    heights = [min(one.count, rows) for one in laid.values()]
    row_height = 0.13 if rows > 8 else 0.2
    with drawing(9.6, 1.0 + sum(h * row_height + 0.55 for h in heights)) as figure:
        bands = figure.subplots(
            len(laid), 1, sharex=True, squeeze=False, gridspec_kw={"height_ratios": heights}
        )[:, 0]
        for axes, height, (name, one) in zip(bands, heights, laid.items(), strict=True):
            _band(axes, one, height, end)
            _name(axes, name, one, height)
        name_time_axis(bands[-1])
        _legend(figure, laid)
        return png(figure)


def _band(axes: Axes, one: Slots, rows: int, end: float) -> None:
    axes.grid(False)
    empty = [_bar(slot, 0, end) for slot in range(rows)]
    axes.add_collection(PolyCollection(empty, facecolor=GROUND, linewidth=0))
    for kind, (colour, hatch, _) in KINDS.items():
        bars = [
            _bar(piece.slot, piece.start, min(piece.end, end))
            for piece in one.pieces
            if piece.kind == kind and piece.slot < rows
        ]
        held = kind == "held"
        axes.add_collection(
            PolyCollection(
                bars,
                facecolor=colour,
                edgecolor=FAINT if held else "white",
                hatch=hatch,
                linewidth=0.0 if held else 0.5,
            )
        )
    for slot, moment in one.preempted:
        if slot < rows and moment <= end:
            axes.plot(moment, slot + 0.5, marker="X", color=RED, markersize=6, zorder=5,
                      markeredgecolor="white", markeredgewidth=0.6)  # fmt: skip
    axes.set_xlim(0, end or 1)
    axes.set_ylim(rows, 0)
    axes.set_yticks([0.5, rows - 0.5] if rows > 1 else [0.5], ["1", str(rows)][: min(rows, 2)])
    axes.set_ylabel("slot")
    axes.tick_params(axis="y", length=0)
    axes.spines[["left", "bottom"]].set_visible(False)


def _bar(slot: int, start: float, end: float) -> list[tuple[float, float]]:
    low, high = slot + 0.08, slot + 0.92
    return [(start, low), (start, high), (end, high), (end, low)]


def _name(axes: Axes, name: str, one: Slots, rows: int) -> None:
    said = f"{share(one.utilisation(rows))} of this slot time works"
    if one.count > rows:
        said += f" (the first {rows} of {one.count} slots)"
    axes.set_title(f"{name}: {said}" if name else said.capitalize(), color=INK)


def _legend(figure: Figure, laid: Mapping[str, Slots]) -> None:
    kinds = {piece.kind for one in laid.values() for piece in one.pieces}
    handles: list[Patch | Line2D] = [
        Patch(facecolor=colour, hatch=hatch, edgecolor=FAINT, label=text)
        for kind, (colour, hatch, text) in KINDS.items()
        if kind in kinds
    ]
    if any(one.preempted for one in laid.values()):
        cross = Line2D([], [], marker="X", color=RED, linestyle="", label="preempted")
        handles.append(cross)
    handles.append(Patch(facecolor=GROUND, edgecolor=FAINT, label="empty"))
    figure.legend(handles=handles, loc="outside lower center", ncols=3, fontsize=8.5)
