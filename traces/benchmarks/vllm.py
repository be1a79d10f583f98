"""`vllm bench serve` and SGLang's `bench_serving`: one object a run, one list a column.

Without `--save-detailed` (vLLM) or `--output-details` (SGLang) only totals are there. Both append
run after run to one file. SGLang writes no times of sending, older vLLM neither; a failed request
has 0 tokens and an error. vLLM's `start_times` count from the client's start.
"""

from __future__ import annotations

import math
from typing import Any

from traces.benchmarks.benchmark import Benchmark, Outcome, in_order
from traces.benchmarks.documents import Fields, checked, counted, gaps, one_clock


def is_vllm(document: Any) -> bool:
    return (
        isinstance(document, dict)
        and "total_input_tokens" in document
        and "num_prompts" in document
    )


def is_sglang(document: Any) -> bool:
    return (
        isinstance(document, dict)
        and "total_input_tokens" in document
        and ("dataset_name" in document or "total_output_tokens_retokenized" in document)
    )


def read_vllm(document: Any, source: str) -> Benchmark:
    return _read(document, source, "vllm", "--save-detailed")


def read_sglang(document: Any, source: str) -> Benchmark:
    return _read(document, source, "sglang", "--output-details")


def _read(document: Any, source: str, tool: str, option: str) -> Benchmark:
    run = Fields(document, source)
    prompts = run.column("input_lens")
    if not prompts:
        # vLLM keeps `latencies` even then, but not whose they are.
        raise ValueError(
            f"{source}: totals only, expected the requests too (input_lens, output_lens, ttfts, "
            f"itls): run the benchmark with {option}"
        )
    rows = len(prompts)
    outputs = run.column("output_lens", rows)
    ttfts, itls = run.column("ttfts", rows), run.column("itls", rows)
    sent, ends = run.column("start_times", rows), run.column("latencies", rows)
    errors = run.column("errors", rows)
    outcomes = []
    for row in range(rows):

        def at(column: list[Any], row: int = row) -> Any:
            return column[row] if column else None

        where = f"{source}: request {row}"
        output = None if at(outputs) is None else counted(at(outputs), f"{where}: output_lens")
        error = str(at(errors) or "").strip().splitlines()
        failed = error[-1][:80] if error else "no token came" if output == 0 else ""
        ttft = None if failed else _seconds(at(ttfts), f"{where}: ttfts")
        outcomes.append(
            Outcome(
                label=str(row),
                sent_s=_seconds(at(sent), f"{where}: start_times"),
                prompt=counted(prompts[row], f"{where}: input_lens"),
                output=output,
                ttft_s=ttft,
                e2e_s=None if failed else _seconds(at(ends), f"{where}: latencies"),
                gaps_s=() if failed else gaps(at(itls), f"{where}: itls"),
                error=failed,
            )
        )
    one_clock([one.sent_s for one in outcomes], source)
    ordered, notes = in_order(outcomes)
    return Benchmark(
        source=source,
        tool=tool,
        outcomes=ordered,
        model=run.text("model_id"),
        rate=_rate(run),
        concurrency=run.count("max_concurrency"),
        duration_s=run.number("duration"),
        notes=tuple(notes),
    )


def _seconds(value: Any, where: str) -> float | None:
    return None if value is None else checked(value, where)


def _rate(run: Fields) -> float | None:
    """A number, Infinity, or the word "inf"."""
    value = run.get("request_rate")
    try:
        rate = float(value)
    except (TypeError, ValueError):
        return None
    return rate if rate > 0 and not math.isnan(rate) else None
