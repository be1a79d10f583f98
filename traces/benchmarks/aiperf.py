"""aiperf's `profile_export.jsonl`, one request a line, and genai-perf's `profile_export.json`.

aiperf writes lines in the order requests end. A line has dates in nanoseconds (`request_start_ns`,
`credit_issued_ns`: the schedule) and durations in milliseconds. genai-perf keeps when each chunk
came and the text, but no token counts: an output's length is its chunks unless the stream says.
"""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

from traces.benchmarks.benchmark import Benchmark, Outcome, in_order
from traces.benchmarks.documents import Fields, counted, gaps, same_clock

SERVER = "metrics.usage_prompt_tokens.value"
TOOL = "metrics.input_sequence_length.value"
"""A prompt's length as the server counted it, and as the tool's tokenizer did."""
NS = 1e-9
MS = 1e-3


def is_aiperf(document: Any) -> bool:
    return isinstance(document, dict) and "metadata" in document and "metrics" in document


def is_aiperf_summary(document: Any) -> bool:
    return isinstance(document, dict) and (
        "aiperf_version" in document or "time_to_first_token" in document
    )


def is_genai_perf(document: Any) -> bool:
    return isinstance(document, dict) and isinstance(document.get("experiments"), list)


def read_aiperf(rows: list[Any], source: str) -> Benchmark:
    outcomes, skipped, recounted = [], 0, 0
    first = None
    for number, document in enumerate(rows, 1):
        row = Fields(document, f"{source} line {number}")
        if row.get("metadata.benchmark_phase") == "warmup":
            skipped += 1
            continue
        start = row.get("metadata.request_start_ns")
        if start is not None:
            # Whole nanoseconds since 1970 are more than a float holds: from the first one on.
            start = counted(start, f"{row.where}: request_start_ns")
            first = start if first is None else first
        theirs, ours = row.get(SERVER), row.get(TOOL)
        recounted += theirs is not None and ours is not None and theirs != ours
        outcomes.append(_aiperf(row, start, first or 0))
    ordered, notes = in_order(outcomes)
    if recounted:
        notes.append(
            f"{recounted} prompts have another length by the server's count than by the tool's "
            "tokenizer: the server's is taken"
        )
    if skipped:
        notes.append(f"{skipped} requests of the warm-up are left out")
    ends = [o.sent_s + (o.ended_s or 0) for o in ordered if o.sent_s is not None]
    begins = [o.sent_s for o in ordered if o.sent_s is not None]
    return Benchmark(
        source=source,
        tool="aiperf",
        outcomes=ordered,
        duration_s=max(ends) - min(begins) if begins else None,
        notes=tuple(notes),
    )


def _aiperf(row: Fields, start: int | None, first: int) -> Outcome:
    sent = None if start is None else (start - first) * NS
    issued = row.get("metadata.credit_issued_ns")
    same = start is not None and same_clock((issued or 0) * NS, start * NS) is not None
    scheduled = (issued - first) * NS if issued is not None and same else None
    error = row.get("error")
    if row.get("metadata.was_cancelled"):
        error = error or {"message": "cancelled"}
    failed = ""
    if error:
        about = error if isinstance(error, dict) else {"message": str(error)}
        parts = [about.get("code"), about.get("type") or about.get("message") or "failed"]
        failed = " ".join(str(part) for part in parts if part)[:80]
    # The server's own count, where it is there, is what it computed; the other is a tokenizer's.
    return Outcome(
        label=row.text("metadata.x_request_id"),
        sent_s=sent,
        scheduled_s=scheduled,
        prompt=row.count(SERVER, TOOL, "metrics.error_isl.value"),
        output=row.count(
            "metrics.usage_completion_tokens.value", "metrics.output_sequence_length.value"
        ),
        ttft_s=None if failed else row.number("metrics.time_to_first_token.value", scale=MS),
        e2e_s=None if failed else row.number("metrics.request_latency.value", scale=MS),
        gaps_s=()
        if failed
        else gaps(
            row.get("metrics.inter_chunk_latency.value"), f"{row.where}: inter_chunk_latency", MS
        ),
        error=failed,
    )


def read_genai_perf(document: Any, source: str) -> list[Benchmark]:
    experiments = document["experiments"]
    if not experiments:
        raise ValueError(f"{source}: experiments is empty, expected at least one run")
    several = len(experiments) > 1
    return [
        _experiment(Fields(one, f"{source} experiments[{i}]" if several else source))
        for i, one in enumerate(experiments)
    ]


def _experiment(run: Fields) -> Benchmark:
    rows = [
        Fields(row, f"{run.where}: requests[{i}]") for i, row in enumerate(run.column("requests"))
    ]
    begin = min((row.count("timestamp") or 0 for row in rows), default=0)
    ordered, notes = in_order([_genai_perf(row, begin) for row in rows])
    counted_by_chunk = [one for one in ordered if one.output is not None and one.prompt is None]
    if counted_by_chunk:
        notes.append(
            f"{len(counted_by_chunk)} requests carry no token counts: each chunk is taken for one "
            "token, and prompt lengths are unknown"
        )
    value = run.get("experiment.value")
    mode = run.text("experiment.mode")
    return Benchmark(
        source=run.where,
        tool="genai-perf",
        outcomes=ordered,
        rate=float(value) if mode == "request_rate" and value else None,
        concurrency=int(value) if mode == "concurrency" and value else None,
        notes=tuple(notes),
    )


def _genai_perf(row: Fields, begin: int) -> Outcome:
    sent = row.count("timestamp")
    came = [
        counted(t, f"{row.where}: response_timestamps") for t in row.column("response_timestamps")
    ]
    if sent is not None and any(b < a for a, b in pairwise([sent, *came])):
        raise ValueError(
            f"{row.where}: response_timestamps fall, expected them to rise from timestamp"
        )
    usage: dict[str, Any] = {}
    for response in row.column("response_outputs")[-2:]:
        usage = _usage(response) or usage
    tokens = usage.get("completion_tokens", len(came) if came else None)
    prompt = usage.get("prompt_tokens")
    return Outcome(
        sent_s=None if sent is None else (sent - begin) * NS,
        prompt=None if prompt is None else counted(prompt, f"{row.where}: prompt_tokens"),
        output=None if tokens is None else counted(tokens, f"{row.where}: completion_tokens"),
        ttft_s=(came[0] - sent) * NS if came and sent is not None else None,
        e2e_s=(came[-1] - sent) * NS if came and sent is not None else None,
        gaps_s=tuple((b - a) * NS for a, b in pairwise(came)),
        error="" if came else "no response",
    )


def _usage(response: Any) -> dict[str, Any]:
    """The usage that a streamed chunk carries, if it does."""
    text = response.get("response") if isinstance(response, dict) else None
    for line in str(text or "").splitlines():
        try:
            chunk = json.loads(line.removeprefix("data:").strip())
        except json.JSONDecodeError:
            continue
        if isinstance(chunk, dict) and isinstance(chunk.get("usage"), dict):
            return dict(chunk["usage"])
    return {}
