"""`batchlab trace import-bench`: the result file of a load generator becomes a trace."""

from __future__ import annotations

import csv
import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from simulator.cli.options import FormatOption
from simulator.cli.printing import Format, note, show, show_rows

if TYPE_CHECKING:
    from traces.benchmarks import Benchmark

COLUMNS = ("sent_s", "prompt", "output", "ttft_s", "e2e_s", "tpot_s", "error", "label", "itl_s")


def import_bench(
    file: Annotated[
        Path, typer.Argument(help="Of vLLM, SGLang, guidellm, aiperf, genai-perf, …; see below.")
    ],
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="The trace to write: .csv or .jsonl."),
    ] = None,
    measured: Annotated[
        Path | None,
        typer.Option("--measured", help="A CSV for what each request measured.", metavar="FILE"),
    ] = None,
    run: Annotated[
        int | None, typer.Option("--run", min=1, help="Which run, where the file has several.")
    ] = None,
    rate: Annotated[
        float | None,
        typer.Option(
            "--rate", help="Where arrivals are not recorded: Poisson at so many per second, or inf."
        ),
    ] = None,
    prompt: Annotated[
        int | None,
        typer.Option("--prompt", min=1, help="Where prompt lengths are not recorded: this many."),
    ] = None,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Of assumed arrivals.")] = 0,
    format: FormatOption = Format.table,
) -> None:
    """Read the result file of a benchmark: print what it measured, write its load as a trace.

    Formats, told by their keys: vllm bench serve (--save-detailed), SGLang bench_serving
    (--output-details), guidellm (benchmarks.json), aiperf and genai-perf (profile_export),
    inference-perf (per_request_lifecycle_metrics.json), OpenAI batch output.
    """
    from traces.benchmarks import read_benchmarks
    from traces.write import write_trace

    runs = read_benchmarks(file)
    if run is not None and run > len(runs):
        raise ValueError(f"--run {run}: {file} has {len(runs)} runs with requests")
    chosen = runs if run is None else [runs[run - 1]]
    if len(chosen) > 1 and (output or measured):
        raise ValueError(f"{file} has {len(runs)} runs, expected --run: which of them to write")
    if format is Format.json:
        from reports.tables import to_json

        sys.stdout.write(to_json({"runs": [_facts(one) for one in chosen]}))
    elif format is Format.csv:
        show_rows([row for one in chosen for row in _rows(one, several=len(chosen) > 1)], format)
    else:
        for one in chosen:
            _show(one)
    if output is not None:
        trace = chosen[0].trace(rate=rate, prompt=prompt, seed=seed)
        left_out = write_trace(trace, output)
        for text in (*trace.notes, *left_out):
            note(f"note: {text}")
        note(f"{len(trace):,} requests written to {output}")
    else:
        for text in dict.fromkeys(text for one in chosen for text in one.notes):
            note(f"note: {text}")
    if measured is not None:
        _write_measured(chosen[0], measured)
        note(f"{len(chosen[0].outcomes):,} requests, as measured, written to {measured}")


def _distributions(run: Benchmark) -> dict[str, list[float]]:
    done = run.done
    named: dict[str, list[float | None] | list[float]] = {
        "ttft_s": [one.ttft_s for one in done],
        "itl_s": [gap for one in done for gap in one.gaps_s],
        "tpot_s": [one.tpot_s for one in done],
        "e2e_s": [one.ended_s for one in done],
    }
    return {name: [v for v in values if v is not None] for name, values in named.items()}


def _facts(run: Benchmark) -> dict[str, Any]:
    import numpy as np

    from reports.percentiles import Distribution

    outputs = sum(one.output or 0 for one in run.done)
    wall = run.duration_s
    return {
        "source": run.source,
        "tool": run.tool,
        "model": run.model,
        "requests": len(run.outcomes),
        "failed": run.failed,
        "asked": {
            "rate": "inf" if run.rate == math.inf else run.rate,
            "concurrency": run.concurrency,
        },
        "duration_s": wall,
        "throughput": {
            "requests_per_s": len(run.done) / wall if wall else None,
            "output_tokens_per_s": outputs / wall if wall else None,
        },
        "missing": run.missing(),
        **{
            name: Distribution(np.array(values)).summary() if values else None
            for name, values in _distributions(run).items()
        },
        "notes": list(run.notes),
    }


def _rows(run: Benchmark, *, several: bool) -> list[dict[str, Any]]:
    facts = _facts(run)
    named = {"run": run.source} if several else {}
    rows = []
    for metric in ("ttft_s", "itl_s", "tpot_s", "e2e_s"):
        values = facts[metric] or {}
        statistics = {name: values.get(name) for name in ("mean", "p50", "p90", "p99", "max")}
        rows.append({**named, "metric": metric, **statistics})
    return rows


def _show(run: Benchmark) -> None:
    from rich.text import Text

    facts = _facts(run)
    asked = [f"{run.rate:g}/s" if run.rate else "", f"{run.concurrency} at once"]
    what = ", ".join(text for text in asked if text and not text.startswith("None"))
    name = f"{run.source} ({run.tool}{', ' + run.model if run.model else ''})"
    show(Text(name, style="bold"), whole=True)
    wall = f", {run.duration_s:,.1f} s" if run.duration_s else ""
    show(
        Text(
            f"{len(run.outcomes):,} requests, {run.failed:,} failed{wall}"
            + (f"; asked for {what}" if what else "")
        )
    )
    names = {"ttft_s": "TTFT", "itl_s": "ITL", "tpot_s": "TPOT", "e2e_s": "E2E"}
    rows = []
    for row in _rows(run, several=False):
        if facts[row["metric"]] is None:
            continue
        cells = {k: f"{v * 1e3:,.2f}" for k, v in row.items() if isinstance(v, float)}
        rows.append({"ms": names[row["metric"]], **cells})
    if rows:
        show_rows(rows, Format.table)


def _write_measured(run: Benchmark, path: Path) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        for one in run.outcomes:
            values = [
                one.sent_s,
                one.prompt,
                one.output,
                one.ttft_s,
                one.ended_s,
                one.tpot_s,
                one.error,
                one.label,
                " ".join(f"{gap:.9g}" for gap in one.gaps_s),
            ]
            writer.writerow(["" if value is None else value for value in values])
