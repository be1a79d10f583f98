"""The page of a trace: how requests come, how long they are, what they share."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from reports.page import render
from reports.units import digits, number, seconds, share
from traces.statistics import Lengths, TraceStatistics, describe
from traces.trace import PS_PER_S, Trace

PARTS = 120
_POINTS = 240
Chart = dict[str, Any]


def trace_page(trace: Trace, *, command: str = "") -> str:
    """One file that needs nothing else; all that comes from the trace is escaped."""
    about = describe(trace, parts=PARTS)
    charts = [
        _rate_chart(about),
        _gap_chart(trace, about),
        _length_chart("prompt", "Prompt lengths", trace.prompt, about.prompt),
        _length_chart("output", "Output lengths", trace.output, about.output),
    ]
    return render(
        "trace.html.j2",
        title=about.source or "Trace",
        about=about,
        figures=_figures(about),
        lengths={"prompt": about.prompt, "output": about.output},
        command=command,
        data={"charts": [one for one in charts if one], "slots": {"end": 0, "bands": []}},
    )


def _figures(about: TraceStatistics) -> list[tuple[str, str, str]]:
    """Label, value, and what stands below it."""
    found = [("requests", f"{about.requests:,}", f"over {seconds(about.duration_s)}")]
    if about.rate is not None and about.peak_rate is not None:
        peak = f"{digits(about.peak_rate)}/s in the busiest {seconds(about.part_s)}"
        found.append(("requests/s", digits(about.rate), peak))
    if about.cv is not None:
        kind = "burstier than Poisson" if about.cv > 1.1 else "about as Poisson"
        kind = "more even than Poisson" if about.cv < 0.9 else kind
        found.append(("burstiness", digits(about.cv), f"CV of the gaps; {kind}"))
    for name, of in (("prompt", about.prompt), ("output", about.output)):
        if of is not None:
            found.append((f"{name} P99", number(of.p99), f"mean {digits(of.mean)} tokens"))
    if about.tail is not None:
        found.append(("output tail", digits(about.tail), "P99 over the mean"))
    if about.prefix_coverage is not None and about.prefix_reuse is not None:
        found += [
            ("same first 128 tokens", share(about.prefix_coverage), "of the requests"),
            ("reusable prompt", share(about.prefix_reuse), "in a cache without end"),
        ]
    if about.sessions:
        found.append(("sessions", f"{about.sessions:,}", "conversations"))
    return found


def _rate_chart(about: TraceStatistics) -> Chart | None:
    if not about.rates:
        return None
    middles = [(at + 0.5) * about.part_s for at in range(len(about.rates))]
    return {
        "id": "rate",
        "title": "Rate over time",
        "hint": f"requests that arrive, in parts of {seconds(about.part_s)}",
        "alt": f"Requests/s over time: mean {digits(about.rate or 0)}, "
        f"up to {digits(about.peak_rate or 0)}.",
        "x": middles,
        "xkind": "time",
        "xlabel": "time since the first arrival (s)",
        "ykind": "number",
        "ylabel": "requests/s",
        "series": [
            {"label": "arrivals", "values": list(about.rates), "colour": 0, "fill": True},
            {"label": "mean", "values": [about.rate] * len(middles), "colour": 7, "dash": 1},
        ],
    }


def _gap_chart(trace: Trace, about: TraceStatistics) -> Chart | None:
    """Gaps between arrivals beside those of a Poisson process of the same rate."""
    gaps = np.sort(np.diff(np.sort(trace.arrival[trace.after < 0])) / PS_PER_S)
    if len(gaps) < 10 or not about.rate or gaps[-1] <= 0:
        return None
    nines = np.linspace(0.05, min(np.log10(len(gaps)), 4.0), _POINTS)
    shares = 1 - 10.0**-nines
    ranks = np.ceil(shares * len(gaps)).astype(np.int64).clip(1, len(gaps))
    ours = gaps[ranks - 1]
    poisson = -np.log1p(-shares) / about.rate
    return {
        "id": "gaps",
        "title": "Gaps between arrivals",
        "hint": "above the dashed line at the right: bursts and lulls",
        "alt": f"Gaps between arrivals by percentile: median {seconds(float(np.median(gaps)))}, "
        f"longest {seconds(float(gaps[-1]))}.",
        "x": [float(f"{n:.4f}") for n in nines],
        "xkind": "nines",
        "xlabel": "percentile",
        "ykind": "seconds",
        "ylabel": "gap (log scale)",
        "series": [
            {"label": "this trace", "values": _positive(ours), "colour": 0},
            {"label": "Poisson", "values": _positive(poisson), "colour": 7, "dash": 1},
        ],
    }


def _length_chart(id: str, title: str, values: NDArray[Any], of: Lengths | None) -> Chart | None:
    """A histogram with P95 and P99 marked."""
    if of is None:
        return None
    low = max(int(values.min()), 1)
    edges = np.geomspace(low, max(of.max, low + 1) + 1, 61)
    edges = np.unique(np.floor(edges))
    counts = np.histogram(values, edges)[0] / len(values)
    places = np.unique(np.concatenate([edges, [of.p95, of.p99]]))
    at = (np.searchsorted(edges, places, side="right") - 1).clip(0, len(counts) - 1)
    heights = [float(f"{value:.6g}") for value in counts[at].tolist()]
    series: list[Chart] = [
        {"label": "share", "values": heights, "colour": 0, "fill": True, "steps": True}
    ]
    for name, mark, colour in (("P95", of.p95, 1), ("P99", of.p99, 4)):
        height = [
            value if place == mark else None for place, value in zip(places, heights, strict=True)
        ]
        series.append({"label": name, "values": height, "colour": colour, "points": 12})
    return {
        "id": f"{id}-lengths",
        "title": title,
        "hint": f"P95 {of.p95:,}, P99 {of.p99:,}, longest {of.max:,} tokens",
        "alt": f"{title}: mean {digits(of.mean)}, P50 {of.p50:,}, P95 {of.p95:,}, P99 {of.p99:,}.",
        "x": places.tolist(),
        "xkind": "log",
        "xlabel": "tokens (log scale)",
        "ykind": "part",
        "ylabel": "share of requests",
        "series": series,
    }


def _positive(values: NDArray[Any]) -> list[float | None]:
    """A log scale has no place for 0."""
    return [float(f"{v:.6g}") if v > 0 else None for v in values.tolist()]
