"""The planning question, on the clock: which settings, at which rate, within which bounds.

4 policies × 3 block sizes × 4 token budgets, the highest rate of each under two P99 bounds with
95 % intervals, Llama-3.1-8B on H100; then the same question with a third bound, answered from the
store. Prints a table, and as its last line one JSON object.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from joblib.externals.loky import get_reusable_executor

from simulator.planner import Plan, Question, named, plan
from simulator.pool import Local
from simulator.runs import Runs
from simulator.scenario import Scenario
from simulator.store import Store
from simulator.study import Objective
from traces.sla import Sla

BASE = {
    "trace": {
        "rate": 10.0,
        "prompt": {"kind": "lognormal", "mean": 400, "p99": 1600, "max": 2000},
        "output": {"kind": "lognormal", "mean": 150, "p99": 600, "max": 1000},
        "declared": 1000,
    },
    "engine": {"profile": "h100-sxm_llama3.1-8b_bf16"},
}
GRID = {
    "policy.kind": ["static", "continuous", "chunked", "fast-lane"],
    "policy.token_budget": [2048, 4096, 8192, 16384],
    "engine.block_size": [8, 16, 32],
}
TWO = "ttft p99 <= 800 ms, itl p99 <= 100 ms"
THREE = TWO + ", e2e p99 <= 30 s"


def cpu_s() -> float:
    """CPU seconds of this process and of its workers, which it ends."""
    get_reusable_executor().shutdown(wait=True)
    own = resource.getrusage(resource.RUSAGE_SELF)
    workers = resource.getrusage(resource.RUSAGE_CHILDREN)
    return own.ru_utime + own.ru_stime + workers.ru_utime + workers.ru_stime


def ask(terms: str, store: Store, workers: int) -> tuple[Plan, float]:
    """The plan, and how long it took on the clock."""
    began = time.monotonic()
    objective = Objective(sla=Sla.parse(terms))
    question = Question(base=Scenario.of(BASE), objective=objective, grid=GRID)
    found = plan(question, Runs(store=store, pool=Local(workers=workers)))
    return found, time.monotonic() - began


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("-j", "--workers", type=int, default=2)
    workers = options.parse_args().workers
    with tempfile.TemporaryDirectory() as folder:
        store = Store(Path(folder) / "plan.sqlite")
        found, took = ask(TWO, store, workers)
        spent = cpu_s()
        again, took_again = ask(THREE, store, workers)
        store.close()
    print(f"{'setting':<52} {'requests/s (95 %)':>20} {'plan':>6}  breaks first")
    for one in found.settings:
        edge = one.edge
        if edge is None or edge.rate is None:
            print(f"{named(one.values):<52} {one.error or 'no rate meets it'}")
            continue
        span = f"{edge.rate.low:.2f} – {edge.rate.high:.2f}"
        broken = "nothing below μ" if one.breaks is None else one.breaks.term
        same = ", as block size 8" if one.same_as else ""
        print(f"{named(one.values):<52} {span:>20} {edge.recommended:>6.2f}  {broken}{same}")
    known = [one for one in found.settings if one.edge and one.edge.rate]
    result: dict[str, Any] = {
        "settings": len(found.settings),
        "with_interval": len(known),
        "widest_half_width_share": max(one.edge.precise for one in known if one.edge),
        "runs": found.runs_made,
        "wall_s": took,
        "cpu_s": spent,
        "third_term_wall_s": took_again,
        "third_term_runs": again.runs_made,
        "workers": workers,
    }
    print(f"{took:.1f} s on the clock; a third bound: {took_again:.1f} s", file=sys.stderr)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
