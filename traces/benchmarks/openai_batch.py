"""The output file of an OpenAI batch: one answer a line, lengths only.

`created` is a whole second at which the answer was made, no arrival.
"""

from __future__ import annotations

from typing import Any

from traces.benchmarks.benchmark import Benchmark, Outcome
from traces.benchmarks.documents import Fields


def is_openai_batch(document: Any) -> bool:
    return isinstance(document, dict) and "custom_id" in document and "response" in document


def read_openai_batch(rows: list[Any], source: str) -> Benchmark:
    outcomes = []
    models = []
    for number, document in enumerate(rows, 1):
        row = Fields(document, f"{source} line {number}")
        body = "response.body"
        status = row.count("response.status_code")
        failed = ""
        if row.get("error"):
            failed = row.text("error.code", "error.message", "error")[:80]
        elif status is not None and status != 200:
            failed = f"status {status}"
        elif row.get(body) is None:
            failed = "no response"
        models.append(row.text(f"{body}.model"))
        outcomes.append(
            Outcome(
                label=row.text("custom_id"),
                prompt=row.count(f"{body}.usage.prompt_tokens", f"{body}.usage.input_tokens"),
                output=row.count(f"{body}.usage.completion_tokens", f"{body}.usage.output_tokens"),
                error=failed,
            )
        )
    return Benchmark(
        source=source,
        tool="openai-batch",
        outcomes=tuple(outcomes),
        model=next(filter(None, models), ""),
    )
