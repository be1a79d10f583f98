"""The benchmark formats that are known, each told by the keys of its documents alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from traces.benchmarks import aiperf, guidellm, inference_perf, openai_batch, vllm
from traces.benchmarks.benchmark import Benchmark, oddities
from traces.benchmarks.documents import documents
from traces.readers.table import cut


@dataclass(frozen=True, kw_only=True)
class Format:
    """How a tool's result file is known, and who reads it."""

    name: str
    about: str
    known: Callable[[Any], bool]
    """Whether a document is of this format."""
    of: Literal["run", "runs", "request"]
    """What one document is: a run, a list of runs, or one request of the file's only run."""
    read: Callable[[Any, str], Any]
    """A document (or all of them, where each is a request) and its name to `Benchmark`s."""


FORMATS = (
    Format(
        name="guidellm",
        about="guidellm benchmark: benchmarks.json",
        known=guidellm.is_guidellm,
        of="runs",
        read=guidellm.read_guidellm,
    ),
    Format(
        name="aiperf",
        about="aiperf profile: profile_export.jsonl",
        known=aiperf.is_aiperf,
        of="request",
        read=aiperf.read_aiperf,
    ),
    Format(
        name="genai-perf",
        about="genai-perf, perf_analyzer: profile_export.json",
        known=aiperf.is_genai_perf,
        of="runs",
        read=aiperf.read_genai_perf,
    ),
    Format(
        name="inference-perf",
        about="inference-perf: per_request_lifecycle_metrics.json",
        known=inference_perf.is_inference_perf,
        of="run",
        read=inference_perf.read_inference_perf,
    ),
    Format(
        name="openai-batch",
        about="output of an OpenAI batch: lengths only",
        known=openai_batch.is_openai_batch,
        of="request",
        read=openai_batch.read_openai_batch,
    ),
    Format(
        name="sglang",
        about="SGLang bench_serving with --output-details",
        known=vllm.is_sglang,
        of="run",
        read=vllm.read_sglang,
    ),
    Format(
        name="vllm",
        about="vllm bench serve with --save-detailed",
        known=vllm.is_vllm,
        of="run",
        read=vllm.read_vllm,
    ),
)


def read_benchmarks(path: Path | str) -> list[Benchmark]:
    """Every run in a result file. Runs without requests are left out beside others that have
    them, with a note. Raises ValueError of one line where there is none to read."""
    path = Path(path)
    if path.suffix == ".csv" or path.suffixes[-2:] == [".csv", ".gz"]:
        raise ValueError(
            f"{path}: CSV, expected JSON: tables of statistics have no requests; aiperf's are in "
            "profile_export.jsonl (a trace as CSV: batchlab trace convert)"
        )
    found = documents(path)
    form = _format(path, found[0])
    for number, document in enumerate(found, 1):
        if not form.known(document):
            raise ValueError(
                f"{path}: document {number} of {len(found)} is not of the format {form.name}, as "
                "those before it are"
            )
    if form.of == "request":
        return [_noted(form.read(found, str(path)))]
    runs: list[Benchmark] = []
    empty: list[str] = []
    for number, document in enumerate(found, 1):
        source = f"{path} document {number}" if len(found) > 1 else str(path)
        try:
            read = form.read(document, source)
        except ValueError as error:
            if "totals only" not in str(error) or len(found) == 1:
                raise
            empty.append(str(error))
            continue
        runs += read if form.of == "runs" else [read]
    if not runs:
        raise ValueError(empty[0])
    left = tuple(f"left out: {text.partition(', expected')[0]}" for text in empty)
    return [_noted(replace(run, notes=run.notes + left)) for run in runs]


def is_benchmark(path: Path | str) -> bool:
    """Whether a file's first document is of a format that is known here, or a summary of one."""
    try:
        first = documents(Path(path))[0]
    except (ValueError, IsADirectoryError):
        return False
    return any(form.known(first) for form in FORMATS) or aiperf.is_aiperf_summary(first)


def _format(path: Path, document: Any) -> Format:
    for form in FORMATS:
        if form.known(document):
            return form
    if aiperf.is_aiperf_summary(document):
        raise ValueError(
            f"{path}: statistics only (aiperf, genai-perf), expected the requests: they are in "
            "profile_export.jsonl beside it"
        )
    keys = ", ".join(list(document)[:8]) if isinstance(document, dict) else type(document).__name__
    names = ", ".join(form.name for form in FORMATS)
    raise ValueError(f"{path}: unknown format ({cut(keys)}), expected one of {names}")


def _noted(run: Benchmark) -> Benchmark:
    lacks = run.missing()
    said = [f"not recorded: {', '.join(lacks)}"] if lacks else []
    return replace(run, notes=(*run.notes, *oddities(run.outcomes), *said))
