"""How a run grows: CPU time and peak memory of 10 k, 100 k and 1 M requests of W1.

    python benchmarks/scale.py [--sizes 10000,100000,1000000] [--rounds 1] [--remember]

Every size runs in a process of its own, metrics included, and the least time of `rounds` counts;
a small run goes before, for what a process pays once (importing libraries). "Memory" is the peak
of the whole process, interpreter and libraries included. The last line is one JSON object with
the same figures; `--remember` appends them to `benchmarks/history.csv`.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
from pathlib import Path
from time import process_time
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.machine import GOALS_US, checked_out, remember, timeout_us
from benchmarks.workloads import WORKLOADS, Workload
from calibration.step_time import Predicted
from reports.latencies import Latencies
from reports.metrics import summarize
from simulator.run import simulate
from traces.records import Records
from traces.trace import Trace

GOALS = {"cpu_s_1m": 40.0, "peak_mib": 1024.0, "flat": 0.2}
"""Seconds for 1 M requests; peak memory; spread of the time per request over the sizes."""


def one(requests: int) -> dict[str, Any]:
    """Simulate and summarise in this process."""
    workload = WORKLOADS[0]
    summarize(Latencies(_run(workload, workload.trace(500))))
    trace = workload.trace(requests)
    before = timeout_us()
    began = process_time()
    records = _run(workload, trace)
    simulated = process_time()
    summary = summarize(Latencies(records))
    done = process_time()
    timeout = min(before, timeout_us())
    # Linux counts in KiB, macOS in bytes.
    unit = 1 if sys.platform == "darwin" else 1024
    return {
        "requests": requests,
        "timeout_us": timeout,
        "cpu_s": done - began,
        "simulate_s": simulated - began,
        "metrics_s": done - simulated,
        "us_per_request": (done - began) / requests * 1e6,
        "scaled_us": (done - began) / requests * 1e6 * GOALS_US / timeout,
        "steps": len(records.steps),
        "output_tokens": int(records.requests.produced.sum()),
        "itl_p99_s": summary["itl_s"]["p99"],
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**20,
    }


def _run(workload: Workload, trace: Trace) -> Records:
    return simulate(trace, workload.policy, workload.engine, Predicted(workload.step_time))


def apart(requests: int, rounds: int) -> dict[str, Any]:
    """The best of several fresh processes."""
    results = []
    for _ in range(rounds):
        command = [sys.executable, __file__, "--one", str(requests)]
        out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        results.append(json.loads(out))
    return min(results, key=lambda result: float(result["cpu_s"]))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sizes", default="10000,100000,1000000", help="requests")
    parser.add_argument("--rounds", type=int, default=1, help="processes a size; the least counts")
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--remember", action="store_true", help="append to history.csv")
    options = parser.parse_args()
    commit = checked_out()  # now: it may be another one when this is over
    if options.one:
        print(json.dumps(one(options.one)))
        return
    titles = (
        "requests", "CPU s", "simulate s", "metrics s", "us/request", "scaled us", "steps",
        "peak MiB", "timeout us",
    )  # fmt: skip
    keys = (
        "requests", "cpu_s", "simulate_s", "metrics_s", "us_per_request", "scaled_us", "steps",
        "peak_mib", "timeout_us",
    )  # fmt: skip
    print("".join(title.rjust(14) for title in titles))
    sizes = []
    for requests in map(int, options.sizes.split(",")):
        result = apart(requests, options.rounds)
        sizes.append(result)
        print(
            "".join(
                (
                    f"{result[key]:,.2f}" if isinstance(result[key], float) else f"{result[key]:,}"
                ).rjust(14)
                for key in keys
            ),
            flush=True,
        )
    times = [size["us_per_request"] for size in sizes]
    # From 10 k up: below, what every run costs once counts for more than the requests.
    slope = times[-1] / times[0]
    print(f"time per request, largest against smallest: {slope:.2f}")
    if options.remember:
        for size in sizes:
            row = {key: size[key] for key in ("requests", "cpu_s", "peak_mib")}
            row |= {"case": "W1", "requests_per_s": size["requests"] / size["cpu_s"]}
            remember("scale", commit, size["timeout_us"], [row])
    print(json.dumps({"benchmark": "scale", "sizes": sizes, "slope": slope, "goals": GOALS}))


if __name__ == "__main__":
    main()
