"""The data of a page's charts: plain lists, drawn by templates/charts.js with uPlot."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from reports.latencies import Latencies
from reports.percentiles import Distribution
from reports.slots import slots, window
from reports.timelines import Timeline, timeline
from reports.units import seconds
from traces.sla import Sla, Term
from traces.trace import PS_PER_S

Chart = dict[str, Any]
STRETCHES = 240
SLOT_ROWS = 24
_POINTS = 240


def latency_charts(runs: Mapping[str, Latencies], sla: Sla | None) -> list[Chart]:
    """TTFT and ITL by percentile: one line a run, the SLA as a level."""
    titles = {"ttft": "Time to first token (TTFT)", "itl": "Gap between tokens (ITL)"}
    return [
        percentile_chart(
            metric,
            title,
            metric.upper(),
            {name: run.distribution(metric) for name, run in runs.items()},
            tuple(term for term in sla or () if term.metric == metric),
        )
        for metric, title in titles.items()
    ]


def time_charts(runs: Mapping[str, Latencies]) -> list[Chart]:
    """What went on over time; zooming one zooms all."""
    end = max((run.wall for run in runs.values()), default=0) / PS_PER_S
    lines = {name: timeline(run, STRETCHES, end_s=end) for name, run in runs.items()}
    coarse = {name: timeline(run, 60, end_s=end) for name, run in runs.items()}
    ends = {name: run.wall / PS_PER_S for name, run in runs.items()}
    single = list(runs) == [""]
    found = _one_run(lines[""], coarse[""]) if single else _several(lines, coarse, ends)
    if single and (requests := request_chart(runs[""])):
        found.append(requests | {"span": [0, _short(end)]})
    return [chart for chart in found if chart["series"]]


def request_chart(run: Latencies, most: int = 2500) -> Chart | None:
    """TTFT and E2E of requests by arrival: a sample of `most`, with the slowest in it."""
    rows = np.flatnonzero(run.ttft >= 0)
    if not len(rows):
        return None
    rows = rows[np.argsort(run.column("arrival")[rows], kind="stable")]
    count, shown = len(rows), rows
    if count > most:
        even = rows[np.linspace(0, count - 1, most).astype(np.int64)]
        slow = rows[np.argsort(run.ttft[rows], kind="stable")[-most // 25 :]]
        shown = np.union1d(even, slow)
        shown = shown[np.argsort(run.column("arrival")[shown], kind="stable")]

    def values(metric: str) -> list[float | None]:
        known = run.of(metric)[shown].tolist()
        return [_short(value / PS_PER_S) if value >= 0 else None for value in known]

    said = "every request"
    if count > most:
        said = f"{len(shown):,} of {count:,} requests: each {count // most:,}th, and the slowest"
    return {
        "id": "requests",
        "title": "Latency of each request",
        "hint": said,
        "alt": f"TTFT and E2E by arrival, {said}. Figures elsewhere are of all requests.",
        "x": [_short(at / PS_PER_S) for at in run.column("arrival")[shown].tolist()],
        "xkind": "time",
        "xlabel": "time of arrival since the start (s)",
        "ykind": "seconds",
        "ylabel": "latency (log scale)",
        "series": [
            {"label": "TTFT", "values": values("ttft"), "colour": 1, "points": 4},
            {"label": "E2E", "values": values("e2e"), "colour": 0, "points": 4},
        ],
    }


def slot_chart(runs: Mapping[str, Latencies], requests: int = 64) -> Chart:
    """Bars per slot and run, up to the time by which one run has ended so many requests."""
    end = min((window(run, requests) for run in runs.values()), default=0.0)
    laid = {name: slots(run, end) for name, run in runs.items()}
    rows = min(max((one.used for one in laid.values()), default=0), SLOT_ROWS)
    return {
        "end": _short(end),
        "bands": [
            {
                "name": name,
                "rows": min(one.count, rows),
                "slots": one.count,
                "used": one.utilisation(rows),
                "bars": [
                    [piece.slot, piece.kind, _short(piece.start), _short(min(piece.end, end)),
                     piece.request]
                    for piece in one.pieces
                    if piece.slot < rows and piece.start < end
                ],
                "crosses": [
                    [slot, _short(at)] for slot, at in one.preempted if slot < rows and at <= end
                ],
            }
            for name, one in laid.items()
        ],
    }  # fmt: skip


def percentile_chart(
    id: str, title: str, ylabel: str, known: Mapping[str, Distribution], sla: Iterable[Term] = ()
) -> Chart:
    """Distributions of picoseconds over each other, by percentile; bounds of `sla` as levels."""
    count = max((one.count for one in known.values()), default=0)
    # Nines from 0 to as many as there are samples for, four at most.
    nines = np.linspace(0, min(max(np.log10(max(count, 2)), 1.0), 4.0), _POINTS)
    shares = (1 - 10.0**-nines) * 100
    series: list[Chart] = [
        {"label": name or ylabel, "values": _by_percentile(one, shares), "colour": at,
         "dash": at if len(known) > 1 else 0}
        for at, (name, one) in enumerate(known.items())
        if one.count
    ]  # fmt: skip
    for term in sla:
        level = [_short(term.bound_s)] * _POINTS
        series.append({"label": f"SLA {term.statistic}", "values": level, "level": True})
    said = [
        f"{name + ': ' if name else ''}median {seconds(_s(one, 50))}, P99 {seconds(_s(one, 99))}"
        for name, one in known.items()
    ]
    return {
        "id": id,
        "title": title,
        "alt": f"{title} by percentile. {'; '.join(said)}.",
        "x": [float(f"{n:.4f}") for n in nines],
        "xkind": "nines",
        "xlabel": "percentile",
        "ykind": "seconds",
        "ylabel": f"{ylabel} (log scale)",
        "series": series,
    }


def _by_percentile(known: Distribution, shares: Iterable[float]) -> list[float | None]:
    ranks = np.ceil(np.round(np.fromiter(shares, float) / 100 * known.count, 9)).astype(np.int64)
    at = np.searchsorted(known.ranks, ranks.clip(1, known.count))
    return [_short(value / PS_PER_S) for value in known.values[at].tolist()]


def _one_run(line: Timeline, coarse: Timeline) -> list[Chart]:
    pool = [] if line.used_share is None else [_series("used", line.used_share, 2, fill=True)]
    return [
        _chart("rates", "Requests arrived and finished", "requests/s", coarse,
               [_series("arrived", coarse.arrivals, 7, dash=1),
                _series("finished", coarse.finishes, 2)]),
        _chart("population", "Running and waiting", "sequences", line,
               [_series("running", line.running, 0),
                _series("waiting", line.waiting, 1, fill=True)]),
        _chart("pool", "KV pool in use", "share of blocks", line, pool, kind="share"),
        _chart("batch", "Tokens in a step", "tokens per step", line,
               [_series("prefill", line.prefill_tokens + line.decodes, 1, fill=True,
                        shown=line.prefill_tokens),
                _series("decode", line.decodes, 0, fill=True)]),
        _chart("preemptions", "Preemptions", "preemptions/s", coarse,
               [_series("preemptions", coarse.preempted / np.diff(coarse.edges), 4, fill=True)]
               if line.preempted.any() else []),
    ]  # fmt: skip


def _several(
    lines: Mapping[str, Timeline], coarse: Mapping[str, Timeline], ends: Mapping[str, float]
) -> list[Chart]:
    first, first_coarse = next(iter(lines.values())), next(iter(coarse.values()))

    def of(source: Mapping[str, Timeline], value: Any) -> list[Chart]:
        series = []
        for at, (name, line) in enumerate(source.items()):
            drawn = _series(name, value(line), at, dash=at)
            over = int(np.searchsorted(line.edges[:-1], ends[name]))
            drawn["values"][over:] = [None] * (len(drawn["values"]) - over)  # this run has ended
            series.append(drawn)
        return series

    pooled = all(line.used_share is not None for line in lines.values())
    evicted = any(line.preempted.any() for line in lines.values())
    return [
        _chart("rates", "Requests finished", "requests/s", first_coarse,
               of(coarse, lambda line: line.finishes)),
        _chart("running", "Running", "sequences", first, of(lines, lambda line: line.running)),
        _chart("waiting", "Waiting", "sequences", first, of(lines, lambda line: line.waiting)),
        _chart("pool", "KV pool in use", "share of blocks", first,
               of(lines, lambda line: line.used_share) if pooled else [], kind="share"),
        _chart("preemptions", "Preemptions", "preemptions/s", first_coarse,
               of(coarse, lambda line: line.preempted / np.diff(line.edges)) if evicted else []),
    ]  # fmt: skip


def _chart(
    id: str, title: str, ylabel: str, line: Timeline, series: list[Chart], kind: str = "number"
) -> Chart:
    peaks = [
        f"{one['label']} up to {max((v for v in one['values'] if v is not None), default=0):.3g}"
        for one in series
    ]
    return {
        "id": id,
        "title": title,
        "alt": f"{title} over time ({ylabel}): {', '.join(peaks)}.",
        "x": [_short(at) for at in line.middle.tolist()],
        "span": [0, _short(float(line.edges[-1]))],
        "xkind": "time",
        "xlabel": "time since the start (s)",
        "ykind": kind,
        "ylabel": ylabel,
        "series": series,
    }


def _series(
    label: str, values: Any, colour: int, *, dash: int = 0, fill: bool = False, shown: Any = None
) -> Chart:
    """`shown`: what hovering says, where it is not the height (stacked areas)."""
    drawn = [_short(value) for value in values.tolist()]
    said = {} if shown is None else {"shown": [_short(value) for value in shown.tolist()]}
    return {"label": label, "values": drawn, "colour": colour, "dash": dash, "fill": fill, **said}


def _s(known: Distribution, share: float) -> float | None:
    value = known.percentile(share)
    return None if value is None else value / PS_PER_S


def _short(value: float) -> float:
    """Six digits are more than a screen shows; the page stays small."""
    return float(f"{value:.6g}")
