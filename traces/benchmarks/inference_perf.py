"""inference-perf's `per_request_lifecycle_metrics.json`: a list of requests.

Its times count from the client's start (`perf_counter`); a schedule, where one is written, may be
a date instead: two clocks in one row, of which only the first is used.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from traces.benchmarks.benchmark import Benchmark, Outcome, in_order
from traces.benchmarks.documents import Fields, checked, one_clock, same_clock


def is_inference_perf(document: Any) -> bool:
    return (
        isinstance(document, list)
        and bool(document)
        and all(isinstance(row, dict) and "start_time" in row and "info" in row for row in document)
    )


def read_inference_perf(document: Any, source: str) -> Benchmark:
    rows = [Fields(row, f"{source} [{i}]") for i, row in enumerate(document)]
    outcomes = [_outcome(row) for row in rows]
    one_clock([one.sent_s for one in outcomes], source)
    ordered, notes = in_order(outcomes)
    foreign = sum(
        row.get("scheduled_time") is not None and one.scheduled_s is None
        for row, one in zip(rows, outcomes, strict=True)
    )
    if foreign:
        notes.append(
            f"scheduled_time is on another clock than start_time in {foreign} rows: unused"
        )
    ends = [one.sent_s + (one.e2e_s or 0.0) for one in ordered if one.sent_s is not None]
    return Benchmark(
        source=source,
        tool="inference-perf",
        outcomes=ordered,
        duration_s=max(ends) - (ordered[0].sent_s or 0.0) if ends else None,
        notes=tuple(notes),
    )


def _outcome(row: Fields) -> Outcome:
    sent = row.number("start_time")
    end = row.number("end_time")
    times = row.get(
        "info.response_metrics.output_token_times",
        "info.output_token_times",
        "info.response_metrics.chunk_times",
    )
    came: list[float] = []
    for at, value in enumerate(times or []):
        moment = checked(value, f"{row.where}: output_token_times[{at}]")
        if moment is None or (came and moment < came[-1]):
            raise ValueError(
                f"{row.where}: output_token_times[{at}] {value}, expected a time not before the "
                "one in front of it"
            )
        came.append(moment)
    error = row.get("error")
    failed = ""
    if error:
        about = error if isinstance(error, dict) else {"error_msg": str(error)}
        failed = str(about.get("error_type") or about.get("error_msg") or "failed")[:80]
    elif not came and row.get("info.response_metrics") is None:
        failed = "no response"
    last = came[-1] if came else end
    return Outcome(
        sent_s=sent,
        scheduled_s=same_clock(row.number("scheduled_time"), sent),
        prompt=row.count("info.input_tokens", "info.request_metrics.text.input_tokens"),
        output=row.count(
            "info.output_tokens", "info.response_metrics.output_tokens",
            "info.response_metrics.server_usage.completion_tokens",
        ) or (len(came) if came else None),
        ttft_s=came[0] - sent if came and sent is not None and not failed else None,
        e2e_s=last - sent if last is not None and sent is not None and not failed else None,
        gaps_s=() if failed else tuple(b - a for a, b in pairwise(came)),
        error=failed,
    )  # fmt: skip
