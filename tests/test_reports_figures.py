"""Pictures: the axes, the SLA and every run are there, and the same bytes come out again."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from matplotlib.figure import Figure
from reports_walk import walk

from reports.figures import comparison_figures, heat_map, run_figures, style, sweep_figures
from reports.latencies import Latencies
from reports.metrics import summarize
from traces.sla import Sla

SLA = Sla.parse("ttft p99 <= 8 s, itl p99 <= 3 s")


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """Every figure that is made into a PNG, to look into."""
    figures: list[Figure] = []
    save = Figure.savefig

    def keep(figure: Figure, *args: Any, **options: Any) -> None:
        figures.append(figure)
        save(figure, *args, **options)

    monkeypatch.setattr(Figure, "savefig", keep)
    return figures


def run(seed: int, requests: int = 40) -> Latencies:
    return Latencies(walk(seed, requests=requests)[0])


def size(png: bytes) -> tuple[int, int]:
    assert png.startswith(b"\x89PNG")
    return struct.unpack(">II", png[16:24])  # type: ignore[return-value]


def test_the_pictures_of_a_run(drawn: list[Figure]) -> None:
    pictures = run_figures(run(1), SLA)
    assert list(pictures) == ["latency", "timeline", "batch", "slots"]
    assert all(600 < size(png)[0] < 2400 for png in pictures.values())
    for figure in drawn:
        for axes in figure.axes:
            assert axes.get_ylabel() or axes is not figure.axes[0]
        assert figure.axes[-1].get_xlabel()


def test_the_sla_is_drawn_in(drawn: list[Figure]) -> None:
    run_figures(run(1), SLA)
    for axes, text, bound in zip(
        drawn[0].axes, ("SLA p99 ≤ 8 s", "SLA p99 ≤ 3 s"), (8, 3), strict=True
    ):
        assert text in [t.get_text() for t in axes.texts]
        assert [bound, bound] in [list(line.get_xdata()) for line in axes.lines]


def test_a_comparison_draws_every_run(drawn: list[Figure]) -> None:
    names = ("static", "continuous", "chunked", "fast-lane")
    comparison_figures({name: run(i) for i, name in enumerate(names)}, SLA)
    latency, timeline, batch, slots = drawn
    assert [text.get_text() for text in latency.legends[0].texts] == list(names)
    for figure in (timeline, batch):
        titles = [axes.get_title(loc="left") for axes in figure.axes]
        assert [title for title in titles if title] == list(names)
    assert [a.get_title(loc="left").partition(":")[0] for a in slots.axes] == list(names)
    dashes = {str(line.get_linestyle()) + str(line.get_color()) for line in latency.axes[0].lines}
    assert len(dashes) >= len(names)


def test_the_same_records_give_the_same_bytes() -> None:
    assert run_figures(run(2), SLA) == run_figures(run(2), SLA)


def test_a_users_own_matplotlib_settings_change_nothing() -> None:
    import matplotlib as mpl

    plain = run_figures(run(2))
    with mpl.rc_context({"font.size": 30, "axes.grid": False, "lines.linewidth": 9}):
        assert run_figures(run(2)) == plain
    assert style.INK


def test_any_name_can_be_drawn() -> None:
    assert comparison_figures({"a$b$c_{": run(1, 8), "🦙 <b>": run(2, 8), "_x": run(3, 8)}, SLA)


def test_a_heat_map_marks_best_and_invalid(drawn: list[Figure]) -> None:
    values = {(512, 8): 3.0, (512, 16): 1.0, (1024, 8): 2.0}
    png = heat_map("TTFT P99", ("policy.token_budget", (512, 1024)), ("engine.block_size", (8, 16)),
                   values, kept={(512, 16)})  # fmt: skip
    assert png
    axes = drawn[0].axes[0]
    texts = sorted(text.get_text() for text in axes.texts)
    assert texts == ["2.00", "3.00", "invalid", "★ 1.00"]
    assert axes.get_xlabel() == "token budget (tokens per step)"
    assert axes.get_ylabel() == "block size (tokens)"
    assert len(axes.lines) == 4  # the outline of the one feasible cell


def test_a_sweep_has_a_map_per_metric_and_survives_invalid_cells() -> None:
    cells = {
        (budget, block): None if (budget, block) == (1024, 8) else summarize(run(budget + block))
        for budget in (512, 1024)
        for block in (8, 16)
    }
    maps = sweep_figures(
        ("policy.token_budget", (512, 1024)), ("engine.block_size", (8, 16)), cells
    )
    assert {"heat_ttft_p99", "heat_itl_p99", "heat_throughput"} <= set(maps)
    assert "heat_attainment" not in maps
