"""A run's figures under the names that other tools' result files use, as those tools define them.

vllm       the JSON of `vllm bench serve --save-result`: flat, milliseconds
aiperf     `profile_export_aiperf.json`: an object a metric, with its unit
guidellm   the metrics of a benchmark in its report: distributions of successful requests
The definitions are those of `reports.dialects`; what a simulation cannot know is left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from reports.latencies import Latencies

Summary = Mapping[str, Any]


def tool_result(run: Latencies, summary: Summary) -> dict[str, Any]:
    """In the form of `summary["metrics"]`. Raises ValueError for our own, which has none."""
    made = {"vllm": _vllm, "aiperf": _aiperf, "guidellm": _guidellm}.get(summary["metrics"])
    if made is None:
        raise ValueError("metrics: 'batchlab', expected vllm, aiperf or guidellm")
    return made(run, summary)


def _tokens(run: Latencies) -> tuple[int, int]:
    """Prompt and output tokens of the requests that finished."""
    done = run.finished
    return int(run.column("prompt")[done].sum()), int(run.column("produced")[done].sum())


def _ms(value: float | None) -> float | None:
    return None if value is None else value * 1e3


def _vllm(run: Latencies, summary: Summary) -> dict[str, Any]:
    prompt, output = _tokens(run)
    rate, seconds = summary["throughput"], summary["duration_s"]
    found: dict[str, Any] = {
        "duration": seconds,
        "completed": summary["requests"]["finished"],
        "failed": summary["requests"]["arrived"] - summary["requests"]["finished"],
        "total_input_tokens": prompt,
        "total_output_tokens": output,
        "request_throughput": rate["requests_per_s"],
        "request_goodput": summary["sla"]["goodput_per_s"] if summary["sla"] else None,
        "output_throughput": output / seconds if seconds else None,
        "total_token_throughput": (prompt + output) / seconds if seconds else None,
    }
    names = {"ttft_s": "ttft", "tpot_s": "tpot", "itl_s": "itl", "e2e_s": "e2el"}
    for key, name in names.items():
        for statistic, said in (
            ("mean", "mean"), ("p50", "median"), ("p90", "p90"), ("p95", "p95"), ("p99", "p99"),
            ("p999", "p99.9"),
        ):  # fmt: skip
            found[f"{said}_{name}_ms"] = _ms(summary[key][statistic])
    return found


def _aiperf(run: Latencies, summary: Summary) -> dict[str, Any]:
    prompt, output = _tokens(run)
    seconds = summary["duration_s"]
    names = {
        "ttft_s": "time_to_first_token",
        "itl_s": "inter_token_latency",
        "e2e_s": "request_latency",
    }
    found: dict[str, Any] = {
        "request_count": {"unit": "requests", "avg": summary["requests"]["finished"]},
        "request_throughput": {
            "unit": "requests/sec",
            "avg": summary["throughput"]["requests_per_s"],
        },
        "output_token_throughput": {
            "unit": "tokens/sec",
            "avg": output / seconds if seconds else None,
        },
        "total_isl": {"unit": "tokens", "avg": prompt},
        "total_osl": {"unit": "tokens", "avg": output},
        "benchmark_duration": {"unit": "sec", "avg": seconds},
    }
    for key, name in names.items():
        statistics = {"mean": "avg", "p50": "p50", "p90": "p90", "p95": "p95", "p99": "p99"}
        values = {said: _ms(summary[key][one]) for one, said in statistics.items()}
        found[name] = {"unit": "ms", **values, "max": _ms(summary[key]["max"])}
    return found


def _guidellm(run: Latencies, summary: Summary) -> dict[str, Any]:
    def distribution(key: str, scale: float) -> dict[str, Any]:
        def scaled(name: str) -> float | None:
            value = summary[key][name]
            return None if value is None else value * scale

        shares = ("p50", "p90", "p95", "p99", "p999")
        return {
            "successful": {
                "mean": scaled("mean"),
                "median": scaled("p50"),
                "max": scaled("max"),
                "count": summary["requests"]["finished"],
                "percentiles": {name: scaled(name) for name in shares},
            }
        }

    rate = summary["throughput"]
    return {
        "requests_per_second": {"successful": {"mean": rate["requests_per_s"]}},
        "output_tokens_per_second": {"successful": {"mean": rate["output_tokens_per_s"]}},
        "request_latency": distribution("e2e_s", 1.0),
        "time_to_first_token_ms": distribution("ttft_s", 1e3),
        "inter_token_latency_ms": distribution("itl_s", 1e3),
        "time_per_output_token_ms": distribution("tpot_s", 1e3),
    }
