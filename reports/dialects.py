"""Latencies as other tools define them, for comparing like with like (case E4).

batchlab   TPOT per request after the first token; ITL pooled over gaps; nearest rank.
vllm       `vllm bench serve`: the same, but percentiles interpolate between ranks, and only
           requests that finished count.
aiperf     "inter token latency" is (E2E - TTFT)/(n - 1) per request, one value a request, so a
           single long gap is averaged away; percentiles interpolate.
guidellm   "time per output token" is E2E / n: it includes the first token. "Inter token latency"
           is (E2E - TTFT)/(n - 1) per request. Both weigh a request by its tokens (n and n - 1).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from reports.latencies import Latencies
from reports.percentiles import Distribution
from traces.trace import PS_PER_S

METRICS = ("batchlab", "vllm", "aiperf", "guidellm")

LABELS = {
    "batchlab": {"ttft_s": "TTFT", "itl_s": "ITL", "tpot_s": "TPOT", "e2e_s": "E2E"},
    "vllm": {"ttft_s": "TTFT", "itl_s": "ITL", "tpot_s": "TPOT", "e2e_s": "E2EL"},
    "aiperf": {
        "ttft_s": "time to first token",
        "itl_s": "ITL, of a request",
        "tpot_s": "TPOT (= ITL)",
        "e2e_s": "request latency",
    },
    "guidellm": {
        "ttft_s": "TTFT",
        "itl_s": "ITL, of a request",
        "tpot_s": "TPOT, with first",
        "e2e_s": "request latency",
    },
}
"""What each tool calls them, in as many letters as a table has room for."""

Bools = NDArray[np.bool_]


def latency_summaries(
    run: Latencies, metrics: str = "batchlab", chosen: Bools | None = None
) -> dict[str, dict[str, float | None]]:
    """`ttft_s`, `itl_s`, `tpot_s`, `e2e_s`, `queue_s`: the statistics of each, in seconds."""
    kept = chosen
    if metrics != "batchlab":
        kept = run.finished if chosen is None else chosen & run.finished
    found = {
        f"{name}_s": run.distribution(name, kept)
        for name in ("ttft", "itl", "tpot", "e2e", "queue")
    }
    if metrics in ("aiperf", "guidellm"):
        found |= _per_request(run, run.finished if kept is None else kept, metrics)
    linear = metrics in ("vllm", "aiperf")
    return {name: each.summary(unit=PS_PER_S, linear=linear) for name, each in found.items()}


def _per_request(run: Latencies, kept: Bools, metrics: str) -> dict[str, Distribution]:
    tokens = run.column("produced")
    several = kept & (run.tpot >= 0)
    tpot: NDArray[Any] = run.tpot[several]
    if metrics == "aiperf":
        return {"itl_s": Distribution(tpot), "tpot_s": Distribution(tpot)}
    some = kept & (run.e2e >= 0) & (tokens > 0)
    return {
        "itl_s": Distribution(tpot, tokens[several] - 1),
        "tpot_s": Distribution(run.e2e[some] / tokens[some], tokens[some]),
    }
