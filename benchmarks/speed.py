"""How fast a run is: leaping and stepping against the naive loop, in CPU time, interleaved.

    python benchmarks/speed.py [--only W1,W3,azure] [--rounds 5] [--slow-rounds 2] [--share 1]
                               [--remember]

Each figure is the least of several rounds of `process_time`, metrics included; the rounds of
the three engines take turns, so that a busy machine slows all alike. A bare SimPy timeout, timed
between the rounds, says how fast the machine is (`benchmarks/machine.py`); *scaled* figures are
those of the machine on which the goals were set. The last line is one JSON object with the same
figures; `--remember` appends them to `benchmarks/history.csv`.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from time import process_time
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import naive
from benchmarks.machine import GOALS_US, checked_out, remember, timeout_us
from benchmarks.workloads import WORKLOADS
from calibration.profile import load_profile
from calibration.step_time import Predicted, StepTime
from policies.base import Policy
from policies.chunked import Chunked
from reports.latencies import Latencies
from reports.metrics import summarize
from simulator.engine import Engine
from simulator.run import simulate
from traces.readers import read_trace
from traces.records import Records
from traces.trace import PS_PER_S, Trace

AZURE = (
    Path(__file__).resolve().parents[2] / "shared/data/traces/azure/AzureLLMInferenceTrace_conv.csv"
)
PROFILE = "h100-sxm_llama3.1-8b_bf16"

GOALS = {
    "W1": 4.0, "W2": 5.5, "W3": 11.0, "W4": 4.0, "W5": 4.0, "W6": 7.0, "W8": 14.0,
}  # fmt: skip
"""How many times faster than the naive loop a run shall be."""
LEAP_GOALS = {"W4": 3.0, "W8": 5.0}
"""How many times faster leaping shall be than stepping."""
RATE_GOALS = {"W1": 75_000.0}
"""Requests per CPU second, where the goals were set."""
REAL_TIME_GOALS = {"azure": 4_000.0}
"""Simulated ÷ CPU seconds."""


@dataclass(frozen=True)
class Job:
    """One trace on one engine."""

    name: str
    about: str
    trace: Trace
    policy: Policy
    engine: Engine
    step_time: StepTime

    def fast(self, leap: bool) -> Records:
        return simulate(self.trace, self.policy, self.engine, Predicted(self.step_time), leap=leap)


def jobs(names: list[str], share: float) -> Iterable[Job]:
    for w in WORKLOADS:
        if w.name in names:
            trace = w.trace(int(w.requests * share))
            yield Job(w.name, w.about, trace, w.policy, w.engine, w.step_time)
    if "azure" in names and not AZURE.exists():
        print(f"azure left out: {AZURE} is not there", file=sys.stderr)
    elif "azure" in names:
        profile = load_profile(PROFILE)
        engine = Engine(kv_tokens=profile.pool_tokens)
        about = f"one recorded hour of chat on {PROFILE}"
        yield Job("azure", about, read_trace(AZURE), Chunked(), engine, profile.step_time())


def seconds(work: Callable[[], Any]) -> tuple[float, Any]:
    """CPU seconds of `work`, and what it came to."""
    gc.collect()
    began = process_time()
    result = work()
    return process_time() - began, result


def measured(job: Job, rounds: int, slow_rounds: int) -> dict[str, Any]:
    """The figures of one job; the three engines take turns."""
    times: dict[str, list[float]] = {"naive": [], "step": [], "leap": []}
    slowness: list[float] = []
    works: dict[str, Callable[[], Any]] = {
        "naive": lambda: naive.run(job.trace, job.policy, job.engine, job.step_time),
        "step": lambda: summarized(job, False),
        "leap": lambda: summarized(job, True),
    }
    last: dict[str, Any] = {}
    for number in range(max(rounds, slow_rounds)):
        slowness.append(timeout_us())
        for name, work in works.items():
            if number < (rounds if name == "leap" else slow_rounds):
                last.pop(name, None)
                spent, last[name] = seconds(work)
                times[name].append(spent)
    slowness.append(timeout_us())
    run = last["leap"]
    for column in ("finished", "first_token", "preemptions"):
        if not (run.requests[column] == last["naive"].requests[column]).all():
            raise SystemExit(f"{job.name}: {column} differs from the naive loop: not comparable")
    best = {name: min(spent) for name, spent in times.items()}
    requests, steps = len(job.trace), len(run.steps)
    lasted = int((run.steps.start + run.steps.duration).max()) / PS_PER_S
    return {
        "workload": job.name,
        "about": job.about,
        "requests": requests,
        "steps_per_request": steps / requests,
        "naive_s": best["naive"],
        "step_s": best["step"],
        "leap_s": best["leap"],
        "times_naive": best["naive"] / best["leap"],
        "times_naive_goal": GOALS.get(job.name),
        "times_stepping": best["step"] / best["leap"],
        "times_stepping_goal": LEAP_GOALS.get(job.name),
        "timeout_us": min(slowness),
        "requests_per_s": requests / best["leap"],
        "requests_per_s_scaled": requests / best["leap"] * min(slowness) / GOALS_US,
        "requests_per_s_goal": RATE_GOALS.get(job.name),
        "steps_per_s": steps / best["leap"],
        "output_tokens_per_s": int(run.requests.produced.sum()) / best["leap"],
        "times_real_time": lasted / best["leap"],
        "times_real_time_goal": REAL_TIME_GOALS.get(job.name),
        "preemptions": int(run.requests.preemptions.sum()),
    }


def summarized(job: Job, leap: bool) -> Records:
    """A run and its metrics."""
    records = job.fast(leap)
    summarize(Latencies(records))
    return records


COLUMNS = (
    ("workload", "", "{}"), ("naive_s", "naive s", "{:.2f}"), ("step_s", "step s", "{:.3f}"),
    ("leap_s", "leap s", "{:.3f}"), ("times_naive", "x naive", "{:.1f}"),
    ("times_naive_goal", "goal", "{:.1f}"), ("times_stepping", "x step", "{:.1f}"),
    ("times_stepping_goal", "goal", "{:.0f}"), ("requests_per_s", "req/s", "{:,.0f}"),
    ("requests_per_s_scaled", "scaled", "{:,.0f}"), ("requests_per_s_goal", "goal", "{:,.0f}"),
    ("times_real_time", "x real time", "{:,.0f}"), ("times_real_time_goal", "goal", "{:,.0f}"),
    ("steps_per_request", "steps/req", "{:.1f}"), ("preemptions", "preempted", "{:,}"),
    ("timeout_us", "timeout us", "{:.2f}"),
)  # fmt: skip


def line(cells: Iterable[str]) -> str:
    return "  ".join(cell.rjust(11) for cell in cells)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    names = [*(w.name for w in WORKLOADS), "azure"]
    parser.add_argument("--only", default=",".join(names), help="workloads, comma-separated")
    parser.add_argument("--rounds", type=int, default=5, help="of the fast engine")
    parser.add_argument("--slow-rounds", type=int, default=2, help="of the two others")
    parser.add_argument("--share", type=float, default=1.0, help="of each workload's requests")
    parser.add_argument("--remember", action="store_true", help="append to history.csv")
    options = parser.parse_args()
    commit = checked_out()  # now: it may be another one when this is over
    chosen = options.only.split(",")
    if unknown := sorted(set(chosen) - set(names)):
        parser.error(f"--only {unknown[0]}: expected some of {','.join(names)}")
    print(line(title for _, title, _ in COLUMNS))
    figures = []
    for job in jobs(chosen, options.share):
        result = measured(job, options.rounds, options.slow_rounds)
        figures.append(result)
        cells = [
            "" if result[key] is None else shape.format(result[key]) for key, _, shape in COLUMNS
        ]
        print(line(cells), flush=True)
    print(json.dumps({"benchmark": "speed", "clock": "process_time", "workloads": figures}))
    if options.remember:
        for figure in figures:
            row = {"case": figure["workload"], "cpu_s": figure["leap_s"]}
            kept = (
                "requests",
                "times_naive",
                "times_stepping",
                "requests_per_s",
                "times_real_time",
            )
            remember(
                "speed", commit, figure["timeout_us"], [row | {key: figure[key] for key in kept}]
            )


if __name__ == "__main__":
    main()
