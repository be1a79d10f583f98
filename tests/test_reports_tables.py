"""Tables fit 80 columns, mark what is best, and say nothing by colour alone."""

from __future__ import annotations

import csv
import io
import json

import pytest
from reports_walk import walk
from rich.cells import cell_len
from rich.console import Console, RenderableType

from reports.latencies import Latencies
from reports.metrics import summarize
from reports.tables import (
    Row,
    best_of,
    comparison_table,
    run_table,
    sparkline,
    to_csv,
    to_json,
)
from reports.timelines import timeline
from reports.units import NONE, seconds, share
from traces.sla import Sla


def plain(shown: RenderableType) -> str:
    out = io.StringIO()
    Console(file=out, width=80).print(shown)
    return out.getvalue()


@pytest.mark.parametrize("seed", range(5))
def test_a_run_fits_eighty_columns(seed: int) -> None:
    run = Latencies(walk(seed, requests=60)[0])
    summary = summarize(run, Sla.parse("ttft p99 <= 8 s, itl p99 <= 100 ms"))
    text = plain(run_table(summary, timeline(run)))
    assert max(map(len, text.splitlines())) <= 80
    assert "…" not in text
    assert "\x1b" not in text
    for word in ("TTFT", "ITL", "BROKEN", "requests/s", "preemptions", "arrivals/s"):
        assert word in text


def test_a_comparison_fits_eighty_columns_and_splits_many_runs() -> None:
    runs = {f"policy-{i}": summarize(walk(i, requests=40)[0]) for i in range(6)}
    text = plain(comparison_table(runs))
    assert max(map(len, text.splitlines())) <= 80
    assert "…" not in text
    assert all(name in text for name in runs)
    assert text.count("TTFT P99 ") == 2


def test_long_names_take_a_further_table_and_keep_their_marks() -> None:
    names = "static:batch=8:timeout=0.5", "continuous", "chunked:token_budget=512", "fast-lane"
    runs = {name: summarize(walk(i, requests=40)[0]) for i, name in enumerate(names)}
    for summary in runs.values():
        summary["stationary"] = False
    text = plain(comparison_table(runs))
    assert max(map(len, text.splitlines())) <= 80
    assert "…" not in text
    for last in ("timeout=0.5 !", "continuous !", "token_budget=512 !", "fast-lane !"):
        assert last in text


def test_names_of_tenants_never_cut_the_figures_beside_them() -> None:
    run = Latencies(walk(1, requests=60)[0])
    summary = summarize(run)
    summary["classes"] = {
        "tenant": {"<script>" * 9: summary, "日本語のとても長い名前です": summary}
    }
    text = plain(run_table(summary))
    assert max(map(cell_len, text.splitlines())) <= 80
    assert text.count("…") == 2  # the two names
    assert "SLA kept" in text


def test_the_best_is_marked_and_a_diverging_run_never_wins() -> None:
    row = Row("TTFT", ("ttft_s", "p99"), seconds, min)
    runs = {
        "a": {"ttft_s": {"p99": 2.0}, "stationary": True},
        "b": {"ttft_s": {"p99": 3.0}, "stationary": True},
        "c": {"ttft_s": {"p99": 1.0}, "stationary": False},
    }
    assert best_of(runs, row) == {"a"}
    alike = {"a": runs["a"], "b": runs["a"]}
    assert best_of(alike, row) == set()


def test_json_and_csv_carry_the_same_figures() -> None:
    summaries = {"one": summarize(walk(2)[0]), "two": summarize(walk(3)[0])}
    rows = list(csv.DictReader(io.StringIO(to_csv(summaries))))
    read = json.loads(to_json(summaries))
    for row in rows:
        assert float(row["ttft_s.p99"]) == read[row["run"]]["ttft_s"]["p99"]
        assert int(row["requests.arrived"]) == read[row["run"]]["requests"]["arrived"]


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, NONE), (0, "0 s"), (4.3e-4, "430 µs"), (0.0125, "12.5 ms"), (0.9999, "1.00 s"),
     (1.234, "1.23 s"), (99.99, "100 s"), (3600, "3,600 s")],
)  # fmt: skip
def test_seconds_read_well(value: float | None, text: str) -> None:
    assert seconds(value) == text


def test_almost_all_is_not_all_and_almost_nothing_is_not_nothing() -> None:
    assert [share(v) for v in (0, 1e-5, 0.334, 0.99999, 1)] == [
        "0.0 %", "<0.1 %", "33.4 %", "99.9 %", "100.0 %"
    ]  # fmt: skip


def test_a_spark_line_scales_to_its_maximum() -> None:
    assert sparkline([0, 1, 2, 4, 8]) == " ▁▂▄█"
    assert len(sparkline(list(range(1000)), 48)) == 48
    assert sparkline([]) == ""


def test_a_time_line_keeps_the_sums_of_the_step_log() -> None:
    """Averages times stretches are the time integral, however the stretches fall."""
    records, _ = walk(7, requests=60)
    run, steps = Latencies(records), records.steps
    integral = (steps["running"] * steps["duration"]).sum() / 1e12
    for stretches in (1, 7, 240):
        time = timeline(run, stretches, end_s=run.step_end / 1e12)
        width = time.edges[1] - time.edges[0]
        assert time.running.sum() * width == pytest.approx(integral)
        assert time.preempted.sum() == steps["preempted"].sum()
