"""What the checks after every run cost: their share of the CPU time of `simulate`.

    python benchmarks/checks.py [--requests 20000] [--rounds 3]

W1 is the base case, W3 decode heavy. The least share of `rounds` counts. The last line is one
JSON object with the same figures.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from time import process_time
from typing import Any
from unittest.mock import patch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.workloads import WORKLOADS, Workload
from calibration.step_time import Predicted
from simulator.checks import check
from simulator.run import simulate

GOAL = 0.05
"""Share of a run."""


def measure(workload: Workload, requests: int) -> tuple[float, float]:
    """CPU seconds of a run, and of these the checks'."""
    spent = 0.0

    def timed(*args: Any, **kwargs: Any) -> None:
        nonlocal spent
        began = process_time()
        check(*args, **kwargs)
        spent += process_time() - began

    trace = workload.trace(requests)
    with patch("simulator.run.check", timed):
        began = process_time()
        simulate(trace, workload.policy, workload.engine, Predicted(workload.step_time))
        return process_time() - began, spent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    shares = {}
    print(f"{'workload':<10}{'run s':>8}{'checks s':>10}{'share':>8}")
    for workload in WORKLOADS:
        if workload.name not in ("W1", "W3"):
            continue
        runs = [measure(workload, options.requests) for _ in range(options.rounds)]
        run, checks = min(runs, key=lambda run: run[1] / run[0])
        shares[workload.name] = checks / run
        print(f"{workload.name:<10}{run:>8.2f}{checks:>10.3f}{checks / run:>8.1%}")
    print(json.dumps({"checks_share": shares, "goal": GOAL}))


if __name__ == "__main__":
    main()
