"""The speed benchmarks run, and what is quoted of them is what they wrote down."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks import machine
from benchmarks.machine import FIELDS, HISTORY, remember, timeout_us

ROOT = Path(__file__).parents[1]


def last_line(*command: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, *command], cwd=ROOT, capture_output=True, text=True, check=True
    )
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def history() -> list[dict[str, str]]:
    with HISTORY.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def latest(benchmark: str, case: str, requests: int) -> dict[str, str]:
    wanted = (benchmark, case, str(requests))
    return [row for row in history() if (row["benchmark"], row["case"], row["requests"]) == wanted][
        -1
    ]


def test_speed_compares_three_engines() -> None:
    once = ("--rounds", "1", "--slow-rounds", "1")
    found = last_line("benchmarks/speed.py", "--only", "W1", "--share", "0.01", *once)
    [figures] = found["workloads"]
    assert figures["requests"] == 200
    assert figures["times_naive"] == pytest.approx(figures["naive_s"] / figures["leap_s"])
    assert figures["times_naive_goal"] == 4


def test_scale_grows_with_requests() -> None:
    found = last_line("benchmarks/scale.py", "--sizes", "200,600")
    small, large = found["sizes"]
    assert 0 < small["output_tokens"] < large["output_tokens"]
    assert found["slope"] == pytest.approx(large["us_per_request"] / small["us_per_request"])


def test_figures_are_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "HISTORY", tmp_path / "history.csv")
    for seconds in (1.23456, 2.0):
        remember("speed", "abc", timeout_us(), [{"case": "W1", "requests": 7, "cpu_s": seconds}])
    lines = (tmp_path / "history.csv").read_text(encoding="utf-8").splitlines()
    first, second = csv.DictReader(lines)
    assert tuple(first) == FIELDS
    assert (first["cpu_s"], second["cpu_s"]) == ("1.235", "2.0")
    assert float(first["timeout_us"]) > 0


def test_the_history_is_whole() -> None:
    for row in history():
        assert tuple(row) == FIELDS
        assert float(row["cpu_s"]) > 0
        assert not row["commit"].endswith("+"), "measured on files that no commit has"


def test_the_readme_quotes_the_latest_figures() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    hour, million = latest("speed", "azure", 19_366), latest("scale", "W1", 1_000_000)
    page = (ROOT / "docs/performance.md").read_text(encoding="utf-8")
    for figure in (
        f"{float(hour['cpu_s']):.2f} s",
        f"{float(hour['times_real_time']):,.0f} times",
        f"{float(million['cpu_s']):.0f} s",
        f"{float(million['peak_mib']):.0f} MiB",
        hour["commit"],
    ):
        assert figure in " ".join(readme.split()), figure
    for case in ("W1", "W2", "W3", "W4", "W5", "W6", "W7", "W8"):
        row = [row for row in history() if row["case"] == case and row["benchmark"] == "speed"][-1]
        assert f"{float(row['times_naive']):.1f}" in page, case
