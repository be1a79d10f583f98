"""guidellm's `benchmarks.json`: a list of runs, each with successful, errored and cut requests.

A request has two clocks: when it was scheduled (`targeted_start`) and when it was sent
(`request_start_time`), from which its latencies count. Gaps between tokens are not kept, only
their mean.
"""

from __future__ import annotations

import re
from typing import Any

from traces.benchmarks.benchmark import Benchmark, Outcome, in_order
from traces.benchmarks.documents import Fields, one_clock, same_clock

STATES = ("successful", "errored", "incomplete")
STATUS = re.compile(r"'(\d{3} [\w ]+)' for url")
"""How httpx words an error status."""


def is_guidellm(document: Any) -> bool:
    runs = document.get("benchmarks") if isinstance(document, dict) else None
    return isinstance(runs, list) and all(isinstance(r, dict) and "requests" in r for r in runs)


def read_guidellm(document: Any, source: str) -> list[Benchmark]:
    runs = document["benchmarks"]
    if not runs:
        raise ValueError(f"{source}: benchmarks is empty, expected at least one run")
    several = len(runs) > 1
    return [
        _run(Fields(run, f"{source} benchmarks[{i}]" if several else source))
        for i, run in enumerate(runs)
    ]


def _run(run: Fields) -> Benchmark:
    groups = Fields(run.get("requests"), f"{run.where}: requests")
    outcomes = []
    for state in STATES:
        for i, row in enumerate(groups.column(state)):
            outcomes.append(_outcome(Fields(row, f"{run.where}: {state}[{i}]"), state))
    if not outcomes:
        raise ValueError(f"{run.where}: no requests in it: they were left out of the file")
    one_clock([one.sent_s for one in outcomes], run.where)
    ordered, notes = in_order(outcomes)
    rates = run.get("config.strategy.rate", "args.strategy.rate")
    streams = run.get(
        "config.strategy.streams", "args.strategy.streams", "config.strategy.concurrency"
    )
    return Benchmark(
        source=run.where,
        tool="guidellm",
        outcomes=ordered,
        model=_model(run),
        rate=float(rates) if isinstance(rates, int | float) and rates > 0 else None,
        concurrency=streams if isinstance(streams, int) and streams > 0 else None,
        duration_s=run.number("duration"),
        notes=tuple(notes),
    )


def _outcome(row: Fields, state: str) -> Outcome:
    sent = row.number("request_start_time", "start_time", "info.timings.request_start")
    end = row.number("request_end_time", "end_time", "info.timings.request_end")
    latency = row.number("request_latency")
    last = row.number("info.timings.last_token_iteration", "last_token_time")
    if latency is None and sent is not None and end is not None:
        latency = end - sent
    if sent is not None and last is not None and last >= sent:
        latency = last - sent  # to the last token, as we define E2E, not to the stream's close
    failed = "" if state == "successful" else _reason(row, state)
    return Outcome(
        label=row.text("request_id"),
        sent_s=sent,
        scheduled_s=same_clock(row.number("info.timings.targeted_start"), sent),
        prompt=row.count("prompt_tokens"),
        output=row.count("output_tokens"),
        ttft_s=None if failed else row.number("time_to_first_token_ms", scale=1e-3),
        e2e_s=None if failed else latency,
        error=failed,
    )


def _reason(row: Fields, state: str) -> str:
    said = row.text("info.error", "error").strip().splitlines()
    if not said:
        return "cut off at the end" if state == "incomplete" else "failed"
    status = STATUS.search(said[0])
    return status[1] if status else said[0][:80]


def _model(run: Fields) -> str:
    return run.text("config.backend.model", "benchmarker.backend.model", "worker.backend_model")
