"""What a benchmark ran on, and where its figures are kept.

Absolute goals were set on a machine on which a bare SimPy timeout took 0.41 µs of CPU time
(`shared/prototypes.md`). Shared machines are slower, and not always equally slow: the same timeout,
timed between the rounds, says by how much, and `scaled` figures are those of that machine.
"""

from __future__ import annotations

import csv
import platform
import subprocess
from collections.abc import Generator, Iterable
from datetime import UTC, datetime
from pathlib import Path
from time import process_time
from typing import Any

import simpy

HISTORY = Path(__file__).with_name("history.csv")
GOALS_US = 0.41
"""Microseconds of CPU time that a bare SimPy timeout took where the goals were set."""
TIMEOUTS = 50_000
FIELDS = (
    "date", "commit", "cpu", "python", "timeout_us", "benchmark", "case", "requests", "cpu_s",
    "times_naive", "times_stepping", "requests_per_s", "times_real_time", "peak_mib",
)  # fmt: skip
"""Columns of history.csv. `timeout_us` is the yardstick; seconds and rates are as measured."""


def timeout_us() -> float:
    """Microseconds of CPU time of one bare SimPy timeout, now."""
    env = simpy.Environment()

    def ticking() -> Generator[simpy.Event, Any, None]:
        for _ in range(TIMEOUTS):
            yield env.timeout(1)

    env.process(ticking())
    began = process_time()
    env.run()
    return (process_time() - began) / TIMEOUTS * 1e6


def cpu() -> str:
    """The name of the processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), "")


def checked_out() -> str:
    """The commit that is checked out; with a + where files differ from it."""
    folder = Path(__file__).parent

    def git(*what: str) -> str:
        done = subprocess.run(
            ["git", *what], cwd=folder, capture_output=True, text=True, check=False
        )
        return done.stdout.strip()

    changed = git("status", "--porcelain", "--untracked-files=no", "--", "..", ":!history.csv")
    return git("rev-parse", "--short", "HEAD") + ("+" if changed else "")


def remember(benchmark: str, commit: str, timeout: float, rows: Iterable[dict[str, Any]]) -> None:
    """Append `rows` (of the last fields of `FIELDS`), measured at `commit`, to history.csv."""
    known = {
        "date": datetime.now(UTC).date().isoformat(),
        "commit": commit,
        "cpu": cpu(),
        "python": platform.python_version(),
        "timeout_us": round(timeout, 3),
        "benchmark": benchmark,
    }
    new = not HISTORY.exists()
    with HISTORY.open("a", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, FIELDS, lineterminator="\n")
        if new:
            writer.writeheader()
        for row in rows:
            shown = {
                key: float(f"{value:.4g}") if isinstance(value, float) else value
                for key, value in row.items()
            }
            writer.writerow(known | shown)
