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
from reports.advice import HEADS, advice_lines, advice_rows
from reports.charts import latency_charts, slot_chart, time_charts
from reports.confidence import Interval, run_intervals, warm_up
from reports.dialects import LABELS
from reports.findings import diverges, findings, value_at
from reports.latencies import Latencies
from reports.pairs import paired
from reports.parts import CAUSES, METRICS, bands, said
from reports.percentiles import STATISTICS, Distribution, shown
from reports.slowest import KINDS, slowest
from reports.tables import best_of, compared_rows
from reports.tradeoffs import curve_charts, pareto_charts
from traces.sla import Sla
from traces.trace import PS_PER_S

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
    split = {metric.upper(): bands(run, metric) for metric in METRICS}
    intervals = run_intervals(run)
    return render(
        "run.html.j2",
        title=_title(summary),
        summary=summary,
        verdict=_verdict(summary),
        figures=_key_figures(summary, intervals),
        latencies=_labels(summary),
        split=split,
        why=[text for name, split_ in split.items() if (text := said(name, split_))],
        slowest=slowest(run),
        remedies=run.about.get("remedies"),
        intervals=intervals,
        warm_up=_warm_up(run),
        fit=_fit_errors(run.about.get("profile_errors") or {}),
        settings=settings_of(summary.get("scenario") or {}),
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
    """The page of several runs, with their `summaries`; of the same requests if they are alike."""
    groups = [
        (title, [(row, best_of(summaries, row)) for row in rows if _known(summaries, row.path)])
        for title, rows in compared_rows(summaries)
    ]
    pairs = paired(runs)
    tradeoffs = [*curve_charts(summaries), *pareto_charts(summaries)]
    return render(
        "comparison.html.j2",
        title=f"{' against '.join(summaries)}" if len(summaries) == 2 else "Policies side by side",
        summaries=summaries,
        same=len({pair.run for pair in pairs}) == len(runs) - 1,
        findings=findings(summaries),
        diverging=[name for name, summary in summaries.items() if diverges(summary)],
        groups=[(title, rows) for title, rows in groups if rows],
        value_at=value_at,
        pairs=pairs,
        tradeoffs=[chart["id"] for chart in tradeoffs],
        split={name: bands(run, "ttft") for name, run in runs.items()},
        settings={
            name: settings_of(summary.get("scenario") or {}) for name, summary in summaries.items()
        },
        command=command,
        data={
            "charts": [*latency_charts(runs, sla), *time_charts(runs), *tradeoffs],
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
        "change": units.change,
        "statistic": shown,
        "advice_lines": advice_lines,
        "advice_rows": advice_rows,
    }

    def asset(name: str) -> Markup:
        """A file of ours, as it is: style and script."""
        assert environment.loader is not None
        return Markup(environment.loader.get_source(environment, name)[0])

    environment.globals |= {"asset": asset, "CAUSES": CAUSES, "STATISTICS": STATISTICS}
    environment.globals |= {"STRIP": KINDS, "ADVICE": HEADS}
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


def _key_figures(
    summary: Mapping[str, Any], intervals: Mapping[str, Interval]
) -> list[tuple[str, str, str]]:
    """Label, value, and what stands below it."""
    ttft, itl, e2e = summary["ttft_s"], summary["itl_s"], summary["e2e_s"]
    rate, kv, batch = summary["throughput"], summary["kv"], summary["batch"]
    lost, counts = summary["preemptions"], summary["requests"]
    seconds, share, number = units.seconds, units.share, units.number

    def sure(label: str) -> str:
        one = intervals.get(label)
        if one is None or summary["metrics"] != "batchlab":
            return ""
        return f"{seconds(max(one.low, 0.0))} to {seconds(one.high)} (95 %); "

    return [
        ("TTFT P99", seconds(ttft["p99"]), f"{sure('TTFT P99')}median {seconds(ttft['p50'])}"),
        (
            "ITL P99",
            seconds(itl["p99"]),
            f"{sure('ITL P99')}P99.9 {seconds(itl['p999'])}, longest {seconds(itl['max'])}",
        ),
        ("E2E P99", seconds(e2e["p99"]), f"{sure('E2E P99')}median {seconds(e2e['p50'])}"),
        ("finished", f"{counts['finished']:,}", f"of {counts['arrived']:,} requests"),
        ("requests/s", number(rate["requests_per_s"]), f"over {seconds(summary['duration_s'])}"),
        ("output tokens/s", number(rate["output_tokens_per_s"]), "all replicas"),
        ("running", number(batch["mean_running"]), f"{share(batch['slot_utilisation'])} of slots"),
        ("KV pool used", share(kv["mean_used_share"]), f"peak {share(kv['peak_used_share'])}"),
        ("preemptions", number(lost["count"]), f"{share(lost['recompute_share'])} recomputed"),
    ]


def _warm_up(run: Latencies) -> str:
    """What of the run's beginning does not look like the rest, in a sentence."""
    order = np.argsort(run.column("arrival"), kind="stable")
    values = run.e2e[order]
    values = values[values >= 0]
    cut = warm_up(values)
    if not cut:
        return "Nothing of its beginning stands out (MSER-5 on E2E): no warm-up to cut."
    rest = Distribution(values[cut:]).percentile(99)
    assert rest is not None
    return (
        f"Its first {cut:,} of {len(values):,} requests differ from the rest (MSER-5 on E2E). "
        f"Without them P99 E2E is {units.seconds(rest / PS_PER_S)}; the figures above have them in."
    )


def _fit_errors(errors: Mapping[str, Any]) -> str:
    """How far the profile is from what was measured, in a sentence; "" where it does not say."""
    held_out = errors.get("held_out_random")
    classes = held_out or errors.get("fit") or {}
    told = [
        f"{kind} {units.share(one['mape'])}" for kind, one in classes.items() if one and one["mape"]
    ]
    if not told:
        return ""
    where = "on data held out" if held_out else "on the data it was fitted to"
    return f"The profile's step times are off by, on average and {where}: {', '.join(told)}."


def settings_of(scenario: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Every setting of a scenario, by its dotted key."""

    def flat(value: Any, path: str) -> list[tuple[str, Any]]:
        if isinstance(value, Mapping):
            inner = value.items()
            return [pair for key, each in inner for pair in flat(each, f"{path}.{key}".strip("."))]
        return [(path, value)]

    return flat(scenario, "")


def _known(summaries: Mapping[str, Mapping[str, Any]], path: tuple[str, ...]) -> bool:
    return any(value_at(summary, path) is not None for summary in summaries.values())
