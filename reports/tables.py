"""Summaries on the terminal, and as JSON and CSV.

Tables fit 80 columns. Colour and bold come from rich, which leaves them out where the output is
no terminal or NO_COLOR is set; nothing is said by colour alone.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from reports.dialects import LABELS
from reports.findings import diverges, findings
from reports.findings import value_at as value_at
from reports.percentiles import STATISTICS, shown
from reports.timelines import Timeline
from reports.units import NONE, number, seconds, share

Summary = Mapping[str, Any]
COLUMNS_AT_ONCE = 4
"""Runs side by side, fewer where their names are long; more go into a further table."""
WIDTH = 80
_BARS = " ▁▂▃▄▅▆▇█"


class Row(NamedTuple):
    """One line of a comparison: where its value is, how it reads, and which is better."""

    label: str
    path: tuple[str, ...]
    form: Callable[[float | None], str]
    better: Callable[[Sequence[float]], float] | None = None


COMPARED: tuple[tuple[str, tuple[Row, ...]], ...] = (
    (
        "latency",
        (
            Row("TTFT P50", ("ttft_s", "p50"), seconds, min),
            Row("TTFT P99", ("ttft_s", "p99"), seconds, min),
            Row("ITL P50", ("itl_s", "p50"), seconds, min),
            Row("ITL P99", ("itl_s", "p99"), seconds, min),
            Row("ITL P99.9", ("itl_s", "p999"), seconds, min),
            Row("ITL max", ("itl_s", "max"), seconds, min),
            Row("E2E P50", ("e2e_s", "p50"), seconds, min),
            Row("E2E P99", ("e2e_s", "p99"), seconds, min),
            Row("mean wait", ("queue_s", "mean"), seconds, min),
        ),
    ),
    (
        "rate",
        (
            Row("requests/s", ("throughput", "requests_per_s"), number, max),
            Row("output tokens/s", ("throughput", "output_tokens_per_s"), number, max),
            Row("duration", ("duration_s",), seconds, min),
        ),
    ),
    (
        "engine",
        (
            Row("slots used", ("batch", "slot_utilisation"), share),
            Row("running, mean", ("batch", "mean_running"), number),
            Row("step, mean", ("steps", "mean_s"), seconds),
            Row("KV used, mean", ("kv", "mean_used_share"), share),
            Row("KV waste", ("kv", "waste_share"), share, min),
            Row("preemptions", ("preemptions", "count"), number, min),
            Row("recomputed", ("preemptions", "recompute_share"), share, min),
        ),
    ),
)


def run_table(summary: Summary, time: Timeline | None = None) -> RenderableType:
    """One run: latencies, key figures, SLA, spark lines of `time` where given, notes."""
    latencies = Table(
        box=box.SIMPLE_HEAD, pad_edge=False, title=_title(summary), title_justify="left"
    )
    latencies.add_column("", no_wrap=True)
    for name in STATISTICS:
        latencies.add_column(shown(name), justify="right", no_wrap=True)
    for key, label in {**LABELS[summary["metrics"]], "queue_s": "queue"}.items():
        latencies.add_row(label, *(seconds(summary[key][name]) for name in STATISTICS))
    parts: list[RenderableType] = [latencies, _facts(summary)]
    if summary.get("sla"):
        parts.append(_sla(summary["sla"]))
    if summary.get("classes"):
        parts.append(_classes(summary["classes"]))
    if time is not None:
        parts.append(spark_lines(time))
    if summary.get("notes"):
        parts.append(_sentences(summary["notes"]))
    return Group(*_spaced(parts))


def comparison_table(summaries: Mapping[str, Summary]) -> RenderableType:
    """Runs side by side. The best value of a line is marked *; diverging runs never win."""
    names = list(summaries)
    parts = []
    while names:
        for count in range(min(COLUMNS_AT_ONCE, len(names)), 0, -1):
            table = _side_by_side(summaries, names[:count])
            if _width(table) <= WIDTH:
                break
        parts.append(table)
        names = names[count:]
    legend = Text("* best of its line · ! diverges", style="dim")
    return Group(*parts, legend, Text(""), _sentences(findings(summaries)))


def best_of(summaries: Mapping[str, Summary], row: Row) -> set[str]:
    """The runs with the best value of a line; none where all are alike or nothing is better."""
    if row.better is None:
        return set()
    known = {
        name: value
        for name, summary in summaries.items()
        if not diverges(summary) and (value := value_at(summary, row.path)) is not None
    }
    if len(known) < 2 or len({row.form(value) for value in known.values()}) < 2:
        return set()
    best = row.form(row.better(list(known.values())))
    return {name for name, value in known.items() if row.form(value) == best}


def compared_rows(summaries: Mapping[str, Summary]) -> list[tuple[str, tuple[Row, ...]]]:
    """The lines of a comparison, in groups: latencies per lane and the SLA where there are any."""
    groups = list(COMPARED)
    lanes = {lane for s in summaries.values() for lane in value_at(s, ("classes", "lane")) or {}}
    if len(lanes) > 1:
        rows = []
        for lane in sorted(lanes):
            for label, key in (("TTFT P99", "ttft_s"), ("E2E P99", "e2e_s")):
                path = ("classes", "lane", lane, key, "p99")
                rows.append(Row(f"{label}, {lane or 'others'}", path, seconds, min))
        groups.insert(1, ("by lane", tuple(rows)))
    if any(summary.get("sla") for summary in summaries.values()):
        rows = [
            Row("SLA kept by", ("sla", "attainment"), share, max),
            Row("goodput, requests/s", ("sla", "goodput_per_s"), number, max),
        ]
        groups.append(("service level", tuple(rows)))
    return groups


def sparkline(values: ArrayLike, width: int = 48) -> str:
    """Values as one line of bars, scaled from 0 to their maximum."""
    array = np.asarray(values, dtype=float)
    if not len(array):
        return ""
    cuts = np.linspace(0, len(array), min(width, len(array)) + 1).astype(int)[:-1]
    means = np.add.reduceat(array, cuts) / np.diff(np.append(cuts, len(array)))
    top = means.max()
    if top <= 0:
        return _BARS[1] * len(means)
    # Something, however little, never looks like nothing.
    levels = np.where(means > 0, np.ceil(means / top * (len(_BARS) - 1)), 0).astype(int)
    return "".join(_BARS[level] for level in levels)


def spark_lines(time: Timeline) -> RenderableType:
    """Arrivals, running, waiting, KV and preemptions over the run, one line each."""
    lines = [
        ("arrivals/s", time.arrivals, number),
        ("running", time.running, number),
        ("waiting", time.waiting, number),
        ("KV used", time.used_share, share),
        ("preemptions", time.preempted if time.preempted.any() else None, number),
    ]
    grid = Table.grid(padding=(0, 1))
    grid.add_column(no_wrap=True)
    grid.add_column(no_wrap=True)
    grid.add_column(no_wrap=True)
    for label, values, form in lines:
        if values is not None:
            grid.add_row(label, Text(sparkline(values), "cyan"), f"max {form(float(values.max()))}")
    span = f"0 s{seconds(float(time.edges[-1])):>45}"
    grid.add_row("", Text(span, style="dim"), "")
    return grid


def to_json(content: Any) -> str:
    """Deterministic JSON; NaN and infinity are refused."""
    return json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def to_csv(summaries: Mapping[str, Summary]) -> str:
    """One line a run, one column a figure, named by its dotted path; lists and texts left out."""
    flat = {name: dict(_flatten(summary)) for name, summary in summaries.items()}
    columns = list(dict.fromkeys(key for values in flat.values() for key in values))
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["run", *columns])
    for name, values in flat.items():
        writer.writerow([name, *("" if (v := values.get(c)) is None else v for c in columns)])
    return out.getvalue()


def _flatten(value: Any, path: str = "") -> list[tuple[str, Any]]:
    if isinstance(value, Mapping):
        inner = [(f"{path}.{key}" if path else str(key), each) for key, each in value.items()]
        return [pair for key, each in inner if key != "scenario" for pair in _flatten(each, key)]
    return [] if isinstance(value, list) else [(path, value)]


def _title(summary: Summary) -> str:
    counts = summary["requests"]
    name = value_at(summary, ("scenario", "policy", "kind")) or summary.get("policy") or "run"
    profile = value_at(summary, ("profile", "name"))
    on = f" on {profile}" if profile else ""
    as_others = "" if summary["metrics"] == "batchlab" else f", as {summary['metrics']} defines it"
    spent = seconds(summary["duration_s"])
    return f"{name}{on}: {counts['arrived']:,} requests in {spent}{as_others}"


def _facts(summary: Summary) -> RenderableType:
    get = summary.__getitem__
    counts, rate, lost = get("requests"), get("throughput"), get("preemptions")
    kv, batch, steps = get("kv"), get("batch"), get("steps")
    lines = [
        (
            "requests",
            f"{counts['finished']:,} finished, {counts['rejected']:,} rejected, "
            f"{counts['unfinished']:,} unfinished",
        ),
        (
            "throughput",
            f"{number(rate['requests_per_s'])} requests/s, "
            f"{number(rate['output_tokens_per_s'])} output tokens/s, "
            f"{number(rate['prompt_tokens_per_s'])} prompt tokens/s",
        ),
        (
            "batch",
            f"{number(batch['mean_running'])} running on average, "
            f"{share(batch['slot_utilisation'])} of slots used, "
            f"{number(batch['mean_tokens'])} tokens a step",
        ),
        (
            "steps",
            f"{steps['count']:,} of {seconds(steps['mean_s'])}, busy "
            f"{share(steps['busy_share'])} of the time, host {share(steps['host_share'])}",
        ),
        (
            "KV pool",
            f"{number(kv['blocks'])} blocks, used {share(kv['mean_used_share'])} on average, "
            f"peak {share(kv['peak_used_share'])}, waste {share(kv['waste_share'])}",
        ),
        (
            "preemptions",
            f"{lost['count']:,} in {share(lost['requests_share'])} of requests, "
            f"{share(lost['recompute_share'])} of tokens recomputed",
        ),
    ]
    if summary["prefix"]["queried_tokens"]:
        hit = f"{share(summary['prefix']['hit_share'])} of prompt tokens found"
        lines.append(("prefix cache", hit))
    return _grid(lines)


def _sentences(sentences: Sequence[str]) -> RenderableType:
    grid = Table.grid(padding=(0, 1))
    for sentence in sentences:
        grid.add_row(Text("·"), Text(sentence))
    return grid


def _grid(lines: Sequence[tuple[str, RenderableType]]) -> Table:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(no_wrap=True)
    grid.add_column()
    for label, text in lines:
        grid.add_row(label, text)
    return grid


def _sla(sla: Summary) -> RenderableType:
    lines: list[tuple[str, RenderableType]] = [
        (
            "SLA",
            f"kept by {share(sla['attainment'])} of requests, "
            f"goodput {number(sla['goodput_per_s'])} requests/s",
        )
    ]
    for term, met in sla["met"].items():
        value = sla["values"][term]
        said = Text("met   " if met else "BROKEN", style="green" if met else "bold red")
        reached = seconds(value) if value is not None else "never (unserved requests)"
        lines.append(("", Text.assemble(said, f"  {term}: {reached}")))
    return _grid(lines)


def _classes(classes: Mapping[str, Mapping[str, Summary]]) -> RenderableType:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    heads = ("class", "requests", "TTFT P50", "TTFT P99", "ITL P99", "E2E P99", "SLA kept")
    for head in heads:
        table.add_column(head, justify="left" if head == "class" else "right", no_wrap=True)
    for name, members in classes.items():
        for key, one in members.items():
            label = Text(f"{name} {key or NONE}")
            label.truncate(20, overflow="ellipsis")  # in columns: some signs take two
            table.add_row(
                label,
                number(one["requests"]["arrived"]),
                seconds(one["ttft_s"]["p50"]),
                seconds(one["ttft_s"]["p99"]),
                seconds(one["itl_s"]["p99"]),
                seconds(one["e2e_s"]["p99"]),
                share(value_at(one, ("sla", "attainment"))),
            )
    return table


def _side_by_side(summaries: Mapping[str, Summary], names: Sequence[str]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("", no_wrap=True)
    for name in names:
        mark = " !" if diverges(summaries[name]) else ""
        lines = f"{name}{mark}".split(":")  # its settings one a line: they tell runs apart
        head = Text("\n".join(line[:20] for line in lines))
        table.add_column(head, justify="right", no_wrap=True, vertical="top")
    for _, rows in compared_rows(summaries):
        for row in rows:
            values = {name: value_at(summaries[name], row.path) for name in names}
            if all(value is None for value in values.values()):
                continue
            best = best_of(summaries, row)
            cells = [_cell(row.form(values[name]), name in best, summaries[name]) for name in names]
            table.add_row(row.label, *cells, end_section=row is rows[-1])
    states = [_state(summaries[name]) for name in names]
    table.add_row("finished", *(_finished(summaries[name]) for name in names))
    table.add_row("stationary", *states)
    return table


def _width(table: Table) -> int:
    """Columns that it takes uncut."""
    return Console(width=1000).measure(table).maximum


def _cell(text: str, best: bool, summary: Summary) -> Text:
    style = "bold green" if best else "dim" if diverges(summary) else ""
    return Text(f"{text} *" if best else f"{text}  ", style=style)


def _state(summary: Summary) -> Text:
    said = {True: "yes", False: "NO", None: NONE}[summary.get("stationary")]
    return Text(f"{said}  ", style="bold red" if said == "NO" else "")


def _finished(summary: Summary) -> str:
    counts = summary["requests"]
    return f"{share(counts['finished'] / counts['arrived']) if counts['arrived'] else NONE}  "


def _spaced(parts: Sequence[RenderableType]) -> list[RenderableType]:
    # A table with a head ends in an empty line of its own.
    return [
        each
        for part in parts
        for each in ((part,) if isinstance(part, Table) and part.box else (part, Text("")))
    ]
