"""Pages hold on their own, say what the summary says, and trust no name."""

from __future__ import annotations

import json
import re
import time
from dataclasses import replace
from html.parser import HTMLParser
from itertools import pairwise
from typing import Any

import pytest
from reports_walk import S, walk

from reports.charts import latency_charts, slot_chart, time_charts
from reports.latencies import Latencies
from reports.metrics import compare, summarize
from reports.page import comparison_page, run_page
from reports.parts import bands
from simulator.scenario import Scenario
from traces.records import Records
from traces.sla import Sla

SLA = Sla.parse("ttft p99 <= 8 s, itl p99 <= 3 s")
NASTY = ("<script>alert(1)</script>", "\"'><img src=x onerror=alert(2)>", "Ünï 🦙 {{ 7*7 }} </td>")


class Tags(HTMLParser):
    """Every tag with its attributes, and the text outside of scripts."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.open: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        while self.open and self.open.pop() != tag:
            pass

    def handle_data(self, data: str) -> None:
        if not {"script", "style"} & set(self.open):
            self.text += data


def one_page(records: Records, **about: Any) -> str:
    run = Latencies(replace(records, about=records.about | about))
    return run_page(run, summarize(run, SLA), sla=SLA, command="batchlab simulate <x> & 'y'")


def data_of(page: str) -> Any:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.S)
    assert found
    return json.loads(found[1])


def test_names_from_traces_and_scenarios_are_only_ever_text() -> None:
    records, _ = walk(4, requests=30)
    tenants = [NASTY[i % len(NASTY)] for i in range(30)]
    nasty = replace(records, requests=records.requests.assign(tenant=tenants, lane=tenants))
    scenario = {"policy": {"kind": NASTY[0]}, NASTY[1]: NASTY[2]}
    page = one_page(nasty, scenario=scenario, profile=NASTY[1], notes=[NASTY[0]])
    both = {NASTY[0]: Latencies(nasty), NASTY[1]: Latencies(nasty)}
    compared = comparison_page(both, compare(both), command=NASTY[0])
    for each in (page, compared):
        tags = Tags(each)
        # The data, uPlot, and ours.
        assert len([t for t, _ in tags.tags if t == "script"]) == 6
        assert not [t for t, _ in tags.tags if t == "img"]
        assert not [a for _, attrs in tags.tags for a in attrs if a.startswith("on")]
        for name in NASTY:
            assert name in tags.text or name in [v for _, a in tags.tags for v in a.values()]
        data_of(each)


def test_a_page_needs_nothing_but_itself() -> None:
    records, _ = walk(4, requests=30)
    tags = Tags(one_page(records)).tags
    assert not [a for _, a in tags for key in ("src", "srcset") if key in a]
    links = [a["href"] for _, a in tags if a.get("href")]
    assert all(link.startswith("#") for link in links)
    ids = {a.get("id") for _, a in tags}
    assert {link[1:] for link in links} <= ids
    assert any("default-src 'none'" in (a.get("content") or "") for _, a in tags)


def test_the_verdict_and_the_figures_are_those_of_the_summary() -> None:
    records, _ = walk(4, requests=30)
    summary = summarize(records, SLA)
    text = Tags(one_page(records)).text
    assert not summary["sla"]["met"]["ttft p99 <= 8 s"]
    assert "Breaks the service level" in text or "Not sustainable" in text
    for note in summary["notes"]:
        assert note in text
    assert f"{summary['requests']['finished']:,}" in text


def test_every_table_and_chart_says_what_it_is() -> None:
    records, _ = walk(4, requests=30)
    page = one_page(records)
    assert page.count("<caption>") >= 3
    charts = data_of(page)["charts"]
    assert {"ttft", "itl", "rates", "population", "pool", "batch"} <= {c["id"] for c in charts}
    for chart in charts:
        assert f'id="chart-{chart["id"]}"' in page
        assert chart["alt"].endswith(".")
        assert all(len(one["values"]) == len(chart["x"]) for one in chart["series"])


def test_a_comparison_has_a_line_and_a_band_for_every_run() -> None:
    runs = {name: Latencies(walk(i, requests=40)[0]) for i, name in enumerate("abc")}
    latency, slots = latency_charts(runs, SLA), slot_chart(runs)
    for chart in latency:
        assert [one["label"] for one in chart["series"]] == ["a", "b", "c", "SLA p99"]
    assert [band["name"] for band in slots["bands"]] == list(runs)
    assert all(len(chart["series"]) == 3 for chart in time_charts(runs))


@pytest.mark.parametrize("seed", range(6))
def test_slots_are_never_held_twice(seed: int) -> None:
    run = Latencies(walk(seed, requests=40, replicas=1)[0])
    held: dict[int, list[tuple[float, float]]] = {}
    for slot, _, start, end, _ in slot_chart({"": run})["bands"][0]["bars"]:
        held.setdefault(slot, []).append((start, end))
    for spans in held.values():
        spans.sort()
        assert all(a[1] <= b[0] + 1e-4 for a, b in pairwise(spans))


@pytest.mark.parametrize("metric", ["ttft", "e2e"])
def test_parts_add_up_to_the_mean_of_their_band(metric: str) -> None:
    run = Latencies(walk(9, requests=60)[0])
    values = sorted(v for v in run.of(metric).tolist() if v >= 0)
    slowest = bands(run, metric)[-1]
    assert slowest.total == pytest.approx(sum(values[-slowest.count :]) / slowest.count / S)


def test_a_run_in_which_nothing_happened_still_has_a_page() -> None:
    records, _ = walk(4, requests=6)
    rows = records.requests.assign(
        reason="", first_scheduled=-1, first_token=-1, last_token=-1, finished=-1, produced=0
    )
    empty = replace(
        records, requests=rows, steps=records.steps[:0], spells=records.spells[:0],
        stalls=records.stalls[:0],
    )  # fmt: skip
    assert "never reached" in Tags(one_page(empty)).text


def test_a_run_of_20000_requests_has_a_small_page_soon() -> None:
    scenario = Scenario.loads("[trace]\npreset = 'chat'\nrate = 12.0\nrequests = 20000")
    run = Latencies(scenario.run())
    summary = summarize(run, SLA)
    began = time.process_time()
    page = run_page(run, summary, sla=SLA)
    assert time.process_time() - began < 5
    assert len(page.encode()) < 3_000_000
    assert "of 20,000 requests: each 8th, and the slowest" in Tags(page).text
