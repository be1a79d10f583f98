"""What a sweep shows of each cell, and which cells are good enough."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from reports.findings import value_at
from reports.tables import Row
from reports.units import number, seconds, share

SWEPT: dict[str, Row] = {
    "ttft_p99": Row("TTFT P99", ("ttft_s", "p99"), seconds, min),
    "itl_p99": Row("ITL P99", ("itl_s", "p99"), seconds, min),
    "e2e_p99": Row("E2E P99", ("e2e_s", "p99"), seconds, min),
    "throughput": Row("output tokens/s", ("throughput", "output_tokens_per_s"), number, max),
    "preemptions": Row("preemptions per request", ("preemptions", "per_request"), number, min),
    "recompute": Row("recomputed tokens", ("preemptions", "recompute_share"), share, min),
    "kv_waste": Row("KV waste", ("kv", "waste_share"), share, min),
    "attainment": Row("requests that keep the SLA", ("sla", "attainment"), share, max),
}
"""The metrics of a sweep, by the name of their picture."""


def feasible(summary: Mapping[str, Any]) -> bool:
    """The cell keeps every term of the SLA, at a rate that it can go on with."""
    met = value_at(summary, ("sla", "met"))
    return bool(met) and all(met.values()) and summary.get("stationary") is not False


def named(key: str) -> str:
    """A setting as an axis label: engine.block_size → block size (tokens)."""
    units = {"block_size": "tokens", "token_budget": "tokens per step", "kv_tokens": "tokens",
             "rate": "requests/s", "max_running": "sequences"}  # fmt: skip
    name = key.rpartition(".")[2]
    unit = f" ({units[name]})" if name in units else ""
    return name.replace("_", " ") + unit
