"""Records as tables for people: seconds instead of picoseconds, one CSV each.

The same records give the same bytes. Seconds are rounded to the nanosecond.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from reports.gaps import column
from reports.latencies import Latencies
from traces.records import STEP_COLUMNS, Records
from traces.trace import PS_PER_S

_PS_PER_NS = 1000
_MOMENTS = ("arrival", "first_scheduled", "first_token", "last_token", "finished")
_COUNTS = (
    "prompt", "output", "produced", "declared", "priority", "session", "preemptions",
    "computed", "recomputed", "hit", "resumed_hit", "blocks_peak", "retries",
)  # fmt: skip
_STEP_TIMES = ("start", "duration", "host", "interference")


def latencies(records: Records | Latencies) -> pd.DataFrame:
    """Per request, in seconds: queue_s, prefill_s, ttft_s, tpot_s, itl_max_s, e2e_s.

    NaN where a request has none. Definitions: `reports.metrics`.
    """
    run = records if isinstance(records, Latencies) else Latencies(records)
    values = {
        "queue_s": run.queue,
        "prefill_s": run.prefill,
        "ttft_s": run.ttft,
        "tpot_s": run.tpot,
        "itl_max_s": run.longest_gap,
        "e2e_s": run.e2e,
    }
    return pd.DataFrame({name: in_seconds(value) for name, value in values.items()})


def requests_frame(records: Records | Latencies) -> pd.DataFrame:
    """requests.csv: what each request asked for, when it got it, and what it waited for."""
    run = records if isinstance(records, Latencies) else Latencies(records)
    rows = run.records.requests
    named = {name: rows[name] for name in ("request", "replica", "tenant", "lane", "reason")}
    moments = {f"{name}_s": in_seconds(run.column(name)) for name in _MOMENTS}
    clocks = {f"wait_{name}_s": in_seconds(each) for name, each in run.clocks.waits().items()}
    # `prefill_s` of the latencies is all of TTFT behind the queue: with what stalls there were.
    names = {"prefill": "own_prefill_s", "decode": "own_decode_s"}
    for name, each in run.clocks.of_requests.items():
        clocks[names.get(name, f"{name}_s")] = in_seconds(each)
    counts = {name: rows[name] for name in _COUNTS}
    return pd.DataFrame({**named, **moments, **latencies(run), **counts, **clocks})


def steps_frame(records: Records | Latencies) -> pd.DataFrame:
    """steps.csv: one row a step."""
    steps = (records.records if isinstance(records, Latencies) else records).steps
    return pd.DataFrame(
        {
            f"{name}_s" if name in _STEP_TIMES else name: in_seconds(column(steps, name))
            if name in _STEP_TIMES
            else steps[name]
            for name in STEP_COLUMNS
        }
    )


def in_seconds(picoseconds: NDArray[Any]) -> NDArray[np.float64]:
    """Seconds rounded to the nanosecond; NaN for -1."""
    # Whole nanoseconds over 1e9 is the float nearest to the decimal, so it prints short.
    nanoseconds = np.rint(picoseconds / _PS_PER_NS)
    return np.where(picoseconds < 0, np.nan, nanoseconds / (PS_PER_S // _PS_PER_NS))
