"""The page of a run or a comparison: one HTML file that needs nothing else, not even a network.

It answers in the order of a reader's questions: is it good enough, how fast, why, when, who, how
sure, how was it run. All that comes from traces and scenarios is escaped.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import jinja2
import numpy as np
from markupsafe import Markup

from reports import units
from reports.charts import latency_charts, slot_chart, time_charts
from reports.confidence import Interval, within_run
from reports.dialects import LABELS
from reports.findings import diverges, findings, value_at
from reports.latencies import Latencies
from reports.parts import CAUSES, Band, bands, main_wait
from reports.percentiles import STATISTICS
from reports.tables import best_of, compared_rows
from traces.sla import Sla
from traces.trace import PS_PER_S

SLOWEST = 50
"""Rows of the table of the slowest requests."""

LATENCIES = {
    "ttft_s": "TTFT: to the first token",
    "itl_s": "ITL: between tokens",
    "tpot_s": "TPOT: per further token",
    "e2e_s": "E2E: to the last token",
    "queue_s": "queue: to the first step",
}


def run_page(
    run: Latencies, summary: Mapping[str, Any], *, sla: Sla | None = None, command: str = ""
) -> str:
    """The page of one run; `summary` is that of `summarize`, `command` repeats the run."""
    runs = {"": run}
    split = {"TTFT": bands(run, "ttft"), "E2E": bands(run, "e2e")}
    return render(
        "run.html.j2",
        title=_title(summary),
        summary=summary,
        verdict=_verdict(summary),
        figures=_key_figures(summary),
        latencies=_labels(summary),
        split=split,
        why=_why(split["TTFT"]),
        slowest=_slowest(run),
        intervals=_intervals(run),
        settings=_settings(summary),
        command=command,
        data={
            "charts": [*latency_charts(runs, sla), *time_charts(runs)],
            "slots": slot_chart(runs),
        },
    )


def comparison_page(
    runs: Mapping[str, Latencies],
    summaries: Mapping[str, Mapping[str, Any]],
    *,
    sla: Sla | None = None,
    command: str = "",
) -> str:
    """The page of several runs of the same requests, with their `summaries`."""
    groups = [
        (title, [(row, best_of(summaries, row)) for row in rows if _known(summaries, row.path)])
        for title, rows in compared_rows(summaries)
    ]
    return render(
        "comparison.html.j2",
        title=f"{' against '.join(summaries)}" if len(summaries) == 2 else "Policies side by side",
        summaries=summaries,
        findings=findings(summaries),
        diverging=[name for name, summary in summaries.items() if diverges(summary)],
        groups=[(title, rows) for title, rows in groups if rows],
        value_at=value_at,
        split={name: bands(run, "ttft") for name, run in runs.items()},
        settings={name: _settings(summary) for name, summary in summaries.items()},
        command=command,
        data={
            "charts": [*latency_charts(runs, sla), *time_charts(runs)],
            "slots": slot_chart(runs),
        },
    )


@cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("reports", "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "seconds": units.seconds,
        "share": units.share,
        "number": units.number,
    }

    def asset(name: str) -> Markup:
        """A file of ours, as it is: style and script."""
        assert environment.loader is not None
        return Markup(environment.loader.get_source(environment, name)[0])

    environment.globals |= {"asset": asset, "CAUSES": CAUSES, "STATISTICS": STATISTICS}
    return environment


def render(template: str, **content: Any) -> str:
    """A page from a file of `templates`, with our style, script and filters."""
    return _environment().get_template(template).render(**content)


def _title(summary: Mapping[str, Any]) -> str:
    name = value_at(summary, ("scenario", "policy", "kind")) or summary.get("policy") or "Run"
    profile = value_at(summary, ("profile", "name"))
    return f"{name} on {profile}" if profile else str(name)


def _verdict(summary: Mapping[str, Any]) -> dict[str, str]:
    """One line, and whether it is good, bad or neither."""
    sla = summary.get("sla")
    if diverges(summary):
        return {"kind": "bad", "text": "Not sustainable: the queue grows without end at this rate"}
    if not sla:
        return {"kind": "plain", "text": "No service level was asked for"}
    broken = [term for term, met in sla["met"].items() if not met]
    kept = units.share(sla["attainment"])
    if not broken:
        return {"kind": "good", "text": f"Keeps the service level: {kept} of requests meet it all"}
    said = "; ".join(f"{term} is {_reached(sla['values'][term])}" for term in broken)
    return {"kind": "bad", "text": f"Breaks the service level: {said}. {kept} of requests meet it"}


def _reached(value: float | None) -> str:
    return "never reached (requests left unserved)" if value is None else units.seconds(value)


def _labels(summary: Mapping[str, Any]) -> dict[str, str]:
    """The latencies by name: ours explained, another tool's as that tool calls them."""
    if summary["metrics"] == "batchlab":
        return LATENCIES
    return {**LABELS[summary["metrics"]], "queue_s": LATENCIES["queue_s"]}


def _key_figures(summary: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Label, value, and what stands below it."""
    ttft, itl, e2e = summary["ttft_s"], summary["itl_s"], summary["e2e_s"]
    rate, kv, batch = summary["throughput"], summary["kv"], summary["batch"]
    lost, counts = summary["preemptions"], summary["requests"]
    seconds, share, number = units.seconds, units.share, units.number
    return [
        ("TTFT P99", seconds(ttft["p99"]), f"median {seconds(ttft['p50'])}"),
        ("ITL P99", seconds(itl["p99"]), f"longest {seconds(itl['max'])}"),
        ("E2E P99", seconds(e2e["p99"]), f"median {seconds(e2e['p50'])}"),
        ("finished", f"{counts['finished']:,}", f"of {counts['arrived']:,} requests"),
        ("requests/s", number(rate["requests_per_s"]), f"over {seconds(summary['duration_s'])}"),
        ("output tokens/s", number(rate["output_tokens_per_s"]), "all replicas"),
        ("running", number(batch["mean_running"]), f"{share(batch['slot_utilisation'])} of slots"),
        ("KV pool used", share(kv["mean_used_share"]), f"peak {share(kv['peak_used_share'])}"),
        ("preemptions", number(lost["count"]), f"{share(lost['recompute_share'])} recomputed"),
    ]


def _why(split: list[Band]) -> str:
    """What the slowest requests waited for, in a sentence."""
    if not split or not split[-1].total:
        return ""
    tail = split[-1]
    cause = tail.largest()
    part = units.share(tail.parts[cause] / tail.total)
    return f"For the slowest 1 %, {part} of TTFT is “{CAUSES[cause]}”."


def _intervals(run: Latencies) -> list[tuple[str, Interval]]:
    """What chance alone may do to this run's figures, where there are enough requests to tell."""
    order = np.argsort(run.column("arrival"), kind="stable")
    found = []
    for metric in ("ttft", "e2e"):
        values = run.of(metric)[order]
        values = values[values >= 0] / PS_PER_S
        for statistic in ("mean", "p90", "p99"):
            if (interval := within_run(values, statistic)) is not None:
                found.append((f"{metric.upper()} {statistic.replace('p', 'P')}", interval))
    return found


def _slowest(run: Latencies) -> list[dict[str, Any]]:
    """The requests with the longest E2E; first those that never finished, by arrival."""
    order = np.lexsort((run.column("arrival"), -run.e2e, ~run.unfinished))
    rows = order[run.arrived[order]][:SLOWEST]
    table = run.records.requests.iloc[rows]
    waits = main_wait(run, rows)

    def times(values: Any) -> list[float | None]:
        return [None if value < 0 else value / PS_PER_S for value in values[rows].tolist()]

    columns = {
        "arrival": times(run.column("arrival")),
        "queue": times(run.queue),
        "prefill": times(run.prefill),
        "ttft": times(run.ttft),
        "gap": times(run.longest_gap),
        "stalled": times(run.column("stalled")),
        "e2e": times(run.e2e),
    }
    texts = {name: table[name].astype(str).tolist() for name in ("tenant", "lane", "reason")}
    counts = {
        name: table[name].tolist() for name in ("request", "prompt", "produced", "preemptions")
    }
    every = columns | texts | counts | {"wait": waits}
    return [dict(zip(every, values, strict=True)) for values in zip(*every.values(), strict=True)]


def _settings(summary: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Every setting of the scenario, by its dotted key."""

    def flat(value: Any, path: str) -> list[tuple[str, Any]]:
        if isinstance(value, Mapping):
            inner = value.items()
            return [pair for key, each in inner for pair in flat(each, f"{path}.{key}".strip("."))]
        return [(path, value)]

    return flat(summary.get("scenario") or {}, "")


def _known(summaries: Mapping[str, Mapping[str, Any]], path: tuple[str, ...]) -> bool:
    return any(value_at(summary, path) is not None for summary in summaries.values())
