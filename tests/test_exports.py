"""A run in other tools' forms, and what trade-offs and pairs say."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from reports_walk import S, Seen, records_of, walk

from reports.frames import requests_frame
from reports.latencies import Latencies
from reports.metrics import summarize
from reports.pairs import paired
from reports.perfetto import perfetto
from reports.tool_results import tool_result
from reports.tradeoffs import curve_charts, front, knee, pareto_charts
from simulator.cli import run

MS = S // 1000


def events_of(text: str) -> list[dict[str, Any]]:
    return json.loads(text)["traceEvents"]  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def measured() -> Latencies:
    return Latencies(walk(3, requests=40)[0])


def test_perfetto_has_every_step_request_and_counter(measured: Latencies) -> None:
    events = events_of(perfetto(measured))
    steps = [e for e in events if e.get("cat") == "step"]
    assert len(steps) == len(measured.records.steps)
    begun = [e["id"] for e in events if e["ph"] == "b" and e["name"].startswith("request ")]
    assert sorted(begun) == np.flatnonzero(measured.arrived).tolist()
    assert {e["name"] for e in events if e["ph"] == "C"} == {
        "running", "waiting", "free blocks", "tokens in the step",
    }  # fmt: skip
    named = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert named == {0: "requests", 1: "replica 0", 2: "replica 1"}


def test_perfetto_closes_what_it_opens_and_never_overlaps(measured: Latencies) -> None:
    events = events_of(perfetto(measured))
    open_: dict[int, list[str]] = {}
    for event in events:
        if event["ph"] == "b":
            open_.setdefault(event["id"], []).append(event["name"])
        elif event["ph"] == "e":
            assert open_[event["id"]].pop() == event["name"]
    assert not any(open_.values())
    tracks: dict[tuple[int, int], list[tuple[float, float]]] = {}
    for event in events:
        if event["ph"] == "X":
            tracks.setdefault((event["pid"], event["tid"]), []).append((event["ts"], event["dur"]))
    for spans in tracks.values():
        spans.sort()
        for (start, lasts), (then, _) in pairwise(spans):
            assert start + lasts <= then + 1e-3


def test_perfetto_can_be_cut(measured: Latencies) -> None:
    part = events_of(perfetto(measured, start_s=5, end_s=9))
    steps = [e for e in part if e.get("cat") == "step"]
    assert steps
    assert all(e["ts"] + e["dur"] >= 5e6 and e["ts"] <= 9e6 for e in steps)


def one_request() -> Latencies:
    """Case E4: TTFT 1 s, 11 tokens, gaps of 50 ms."""
    times = [S + i * 50 * MS for i in range(11)]
    seen = [Seen(0, 1, 11, scheduled=0, tokens=times, reason="stop", ended=times[-1])]
    stalls = [(0, 0, end, 50 * MS, 0, 0) for end in times[1:]]
    return Latencies(records_of(seen, [], [], stalls))


@pytest.mark.parametrize(
    ("metrics", "path", "value"),
    [
        ("vllm", ("mean_tpot_ms",), 50.0),
        ("vllm", ("p99_itl_ms",), 50.0),
        ("vllm", ("median_ttft_ms",), 1000.0),
        ("vllm", ("total_output_tokens",), 11),
        ("aiperf", ("inter_token_latency", "avg"), 50.0),
        ("aiperf", ("request_latency", "p99"), 1500.0),
        ("guidellm", ("time_per_output_token_ms", "successful", "mean"), 1500 / 11),
        ("guidellm", ("inter_token_latency_ms", "successful", "median"), 50.0),
        ("guidellm", ("request_latency", "successful", "mean"), 1.5),
    ],
)
def test_figures_under_the_names_of_other_tools(
    metrics: str, path: tuple[str, ...], value: float
) -> None:
    run = one_request()
    found: Any = tool_result(run, summarize(run, metrics=metrics))
    for key in path:
        found = found[key]
    assert found == pytest.approx(value)


def test_our_own_form_has_no_result_file() -> None:
    run = one_request()
    with pytest.raises(ValueError, match="expected vllm, aiperf or guidellm"):
        tool_result(run, summarize(run))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("export") / "out"
    assert run(["simulate", "--preset", "chat", "--limit", "30", "-o", str(out)]) in (0, 1)
    return out


def test_the_command_writes_each_form(folder: Path, tmp_path: Path) -> None:
    said = requests_of(folder / "requests.csv")
    for form in ("perfetto", "csv", "parquet", "bench"):
        assert run(["export", str(folder), "--to", form, "-o", str(tmp_path)]) == 0
    assert events_of((tmp_path / "trace.perfetto.json").read_text())
    assert json.loads((tmp_path / "vllm.json").read_text())["completed"] == 30
    pd.testing.assert_frame_equal(requests_of(tmp_path / "requests.csv"), said)
    assert len(pd.read_parquet(tmp_path / "requests.parquet")) == 30


def requests_of(path: Path) -> pd.DataFrame:
    return pd.read_csv(path)


def test_what_cannot_be_exported_is_said(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["export", str(folder), "--to", "bench", "--metrics", "batchlab"]) == 2
    assert "expected vllm, aiperf or guidellm" in capsys.readouterr().err
    assert run(["export", str(folder.parent)]) == 2
    assert "no run in it" in capsys.readouterr().err


def test_the_clocks_of_requests_csv_add_up(measured: Latencies) -> None:
    frame = requests_frame(measured)
    parts = ("own_prefill_s", "own_decode_s", "others_s", "still_s", "stalled_s", "recompute_s")
    total = frame.filter(like="wait_").sum(axis=1) + frame[list(parts)].sum(axis=1)
    done = frame["e2e_s"].notna()
    assert total[done].to_numpy() == pytest.approx(frame["e2e_s"][done].to_numpy(), abs=1e-7)


# Throughput or latency


def test_the_front_is_what_nothing_beats() -> None:
    #          beaten by 2   front    front     beaten by 1
    points = [(10.0, 5.0), (12.0, 3.0), (15.0, 4.0), (11.0, 3.0)]
    assert front(points) == [1, 2]
    assert front([(1.0, 1.0)]) == [0]


def test_the_knee_is_where_latency_takes_over() -> None:
    assert knee([(1, 1.0), (2, 1.1), (3, 1.2), (4, 1.5), (4.2, 9.0)]) == 3
    assert knee([(1, 1.0), (2, 1.05), (3, 1.1)]) is None, "flat"
    assert knee([(1, 1.0), (2, 9.0)]) is None, "two points are no curve"


def summary_at(rate: float, ttft: float, kind: str = "chunked") -> dict[str, Any]:
    return {
        "scenario": {"policy": {"kind": kind}, "trace": {"rate": rate}},
        "throughput": {"requests_per_s": rate, "output_tokens_per_s": rate * 200},
        "ttft_s": {"p99": ttft},
        "itl_s": {"p99": 0.02},
    }


def test_runs_that_differ_in_rate_alone_are_a_curve() -> None:
    runs = {f"rate {r}": summary_at(r, t) for r, t in ((2, 0.1), (4, 0.2), (6, 4.0))}
    runs["other"] = summary_at(4, 1.0, "static")
    ttft, itl = curve_charts(runs)
    labels = [one["label"] for one in ttft["series"]]
    assert labels == ["chunked", "knee"]
    assert ttft["series"][1]["values"] == [None, 0.2, None]
    assert [one["label"] for one in itl["series"]] == ["chunked"]


def test_a_run_that_diverges_is_on_no_front() -> None:
    runs = {"a": summary_at(2, 0.1), "b": summary_at(4, 0.2), "c": summary_at(9, 0.05)}
    runs["c"]["stationary"] = False
    ttft, _ = pareto_charts(runs)
    assert [one["label"] for one in ttft["series"]] == ["Pareto front", "a", "b"]


# Request by request


def test_pairs_subtract_request_from_request() -> None:
    records, _ = walk(6, requests=200, replicas=1)
    later = records.requests.copy()
    for name in ("first_scheduled", "first_token", "last_token", "finished"):
        later[name] = np.where(later[name] >= 0, later[name] + 2 * S, -1)
    both = {"base": Latencies(records), "later": Latencies(replace(records, requests=later))}
    for pair in paired(both):
        assert (pair.mean, pair.median, pair.sooner) == (pytest.approx(2.0), 2.0, 0.0)
        assert pair.verdict in ("later", "too few to tell")


def test_runs_of_other_requests_are_no_pairs(measured: Latencies) -> None:
    assert not paired({"a": measured, "b": Latencies(walk(4, requests=40)[0])})
