"""The pages in a real browser: they load in silence, answer to hands, and keep nobody out."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from reports_walk import S, walk

from reports.latencies import Latencies
from reports.metrics import compare, summarize
from reports.page import comparison_page, run_page
from reports.sweep_page import SweptCell, sweep_page
from reports.trace_page import trace_page
from traces.sla import Sla
from traces.trace import Trace

CHROMIUM = shutil.which("chromium")
FLAGS = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
)  # fmt: skip
SLA = Sla.parse("ttft p99 <= 8 s, itl p99 <= 2 s")
NASTY = (
    "<script>alert(1)</script>",
    "\"quotes\" & 'more' 🦙",
    "</script><img src=x onerror=alert(2)>",
)
PAGES = ("run", "comparison", "sweep", "trace")
ADVICE = {
    "before": {"preemptions": 0.4, "recomputed": 0.2, "ttft_p99": 3.0, "itl_p99": 0.1,
               "output_tokens_per_s": 900.0, "avalanche": ""},
    "tried": [
        {"name": "reserve 15% of the pool", "changes": {"engine.reserve": 0.15}, "error": "",
         "cured": True, "after": {"preemptions": 0.0, "recomputed": 0.0, "ttft_p99": 2.0,
         "itl_p99": 0.05, "output_tokens_per_s": 950.0, "avalanche": ""}},
    ],
    "ruled_out": [NASTY[0]],
}  # fmt: skip
ADVICE["best"] = ADVICE["tried"][0]  # type: ignore[index]

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs chromium")


def made(name: str) -> str:
    if name == "trace":
        at = [i * S // 4 for i in range(200)]
        tenants = {"tenant": [i % 3 for i in range(200)], "tenants": NASTY}
        lengths = [i % 40 + 1 for i in range(200)]
        return trace_page(Trace.of(at, lengths, lengths, source=NASTY[1], **tenants))
    records, _ = walk(4, requests=120)
    names = [NASTY[i % len(NASTY)] for i in range(120)]
    records = replace(
        records,
        requests=records.requests.assign(tenant=names),
        about=records.about | {"remedies": ADVICE, "scenario": {"policy": {"kind": NASTY[0]}}},
    )
    run = Latencies(records)
    if name == "run":
        return run_page(run, summarize(run, SLA), sla=SLA, command=NASTY[1])
    if name == "comparison":
        runs = {"static": run, NASTY[0]: Latencies(walk(5, requests=120)[0])}
        return comparison_page(runs, compare(runs, SLA), sla=SLA)
    axes = {"engine.block_size": [16, 32], "policy.kind": ["chunked", NASTY[0]], "seed": [1, 2]}
    cells = [
        SweptCell(
            values={"engine.block_size": block, "policy.kind": kind, "seed": seed},
            summary=summarize(walk(seed + block, requests=30)[0], SLA) if block < 32 or seed < 2
            else None,
            error="" if seed < 2 else NASTY[2],
        )
        for block in (16, 32) for kind in ("chunked", NASTY[0]) for seed in (1, 2)
    ]  # fmt: skip
    return sweep_page(axes, cells, scenario={"sla": NASTY[0]})


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    paths = {name: folder / f"{name}.html" for name in PAGES}
    for name, path in paths.items():
        path.write_text(made(name))
    return paths


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright")
    with playwright.sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
        yield opened
        opened.close()


@pytest.fixture
def show(browser: Any, files: dict[str, Path]) -> Iterator[Any]:
    """Opens a page; at the end nothing was complained about, and nothing was fetched."""
    trouble: list[str] = []
    opened = []

    def shown(name: str, *, width: int = 1200, dark: bool = False) -> Any:
        scheme = "dark" if dark else "light"
        context = browser.new_context(
            viewport={"width": width, "height": 800}, color_scheme=scheme, reduced_motion="reduce"
        )
        page = context.new_page()
        opened.append(context)
        page.on("console", lambda message: trouble.append(message.text))
        page.on("pageerror", lambda error: trouble.append(str(error)))
        page.on("dialog", lambda dialog: (trouble.append("a dialog"), dialog.dismiss()))
        uri = files[name].as_uri()
        page.on("request", lambda request: request.url != uri and trouble.append(request.url))
        page.goto(uri)
        return page

    yield shown
    for context in opened:
        context.close()
    assert not trouble


@pytest.mark.parametrize("name", PAGES)
@pytest.mark.parametrize(("width", "dark"), [(1200, False), (1200, True), (380, False)])
def test_a_page_is_drawn_whole(show: Any, name: str, width: int, dark: bool) -> None:
    page = show(name, width=width, dark=dark)
    charts = page.evaluate("batchlab.data.charts.length")
    assert page.locator(".uplot canvas").count() == charts
    wide, there = page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
    assert wide <= there
    ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (ground == "rgb(18, 22, 28)") is dark
    # Names are there as text, whatever is in them.
    assert page.locator("script:not([type])").count() in (5, 6)
    assert page.locator("img").count() == 0


@pytest.mark.parametrize("name", PAGES)
@pytest.mark.parametrize("dark", [False, True])
def test_no_serious_barrier(show: Any, name: str, dark: bool) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="needs axe")
    found = axe.Axe().run(show(name, dark=dark)).response["violations"]
    serious = [
        (one["id"], one["nodes"][0]["html"], one["nodes"][0]["failureSummary"])
        for one in found
        if one["impact"] in ("serious", "critical")
    ]
    assert not serious


def test_a_table_sorts_both_ways(show: Any) -> None:
    page = show("run")
    head = page.locator("#who thead th", has_text="TTFT")

    def values() -> list[float]:
        at = head.evaluate("th => th.cellIndex")
        cells = page.locator(f"#who tbody tr > :nth-child({at + 1})")
        shown = cells.evaluate_all("cells => cells.map(cell => cell.dataset.v)")
        return [float(value) for value in shown if value]

    for order in ("descending", "ascending"):
        head.locator("button").click()
        assert head.get_attribute("aria-sort") == order
        assert values() == sorted(values(), reverse=order == "descending")


def test_the_slot_timeline_plays_steps_and_counts(show: Any) -> None:
    page = show("comparison")
    clock, counts = page.locator(".clock"), page.locator(".slots .count")
    end = clock.inner_text()
    page.locator(".play").click()
    page.wait_for_timeout(300)
    assert page.locator(".play").inner_text().endswith("Pause")
    page.locator(".play").click()
    stopped = clock.inner_text()
    assert stopped != end
    page.wait_for_timeout(100)
    assert clock.inner_text() == stopped
    page.locator(".on").click()
    assert clock.inner_text() != stopped
    assert "of slot time works" in counts.first.text_content()
    assert "slots" in page.locator("#slots-now li").first.inner_text()


def test_hovering_says_values_and_zooming_one_zooms_all(show: Any) -> None:
    page = show("run")
    plot = page.locator("#chart-population .u-over")
    plot.scroll_into_view_if_needed()
    box = plot.bounding_box()
    middle = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + box["width"] * 0.4, middle)
    said = page.locator("#chart-population .u-value").all_inner_texts()
    assert any(any(ch.isdigit() for ch in text) for text in said)
    legend = page.locator("#chart-pool .u-value").first
    assert any(ch.isdigit() for ch in legend.inner_text()), "the others follow the cursor"

    def spans() -> list[float]:
        return page.evaluate("batchlab.plots.map(u => u.scales.x.max - u.scales.x.min)")

    timed = page.evaluate("batchlab.data.charts.map(c => c.xkind === 'time')")
    before = spans()
    page.mouse.move(box["x"] + box["width"] * 0.3, middle)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.6, middle, steps=4)
    page.mouse.up()
    after = spans()
    zoomed = {round(now, 6) for now, follows in zip(after, timed, strict=True) if follows}
    assert len(zoomed) == 1
    for was, now, follows in zip(before, after, timed, strict=True):
        assert (now < was * 0.5) is follows


def test_a_legend_hides_its_line_by_keyboard(show: Any) -> None:
    page = show("run")
    name = page.locator("#chart-population .u-series th").nth(1)
    name.focus()
    page.keyboard.press("Enter")
    assert name.get_attribute("aria-pressed") == "false"


def test_heat_maps_turn_over_any_two_axes(show: Any) -> None:
    page = show("sweep")
    first = page.locator("#heat-maps table").first
    assert first.locator("tbody tr").count() == 2
    assert first.locator("thead th").all_inner_texts() == ["16", "32"]
    page.locator("#picks select").first.select_option(label="seed")
    first = page.locator("#heat-maps table").first
    assert first.locator("thead th").all_inner_texts() == ["1", "2"]
    assert page.locator("#heat-maps td", has_text="★").count() > 0


def test_every_request_in_the_table_has_its_strip(show: Any) -> None:
    page = show("run")
    strips = page.locator("#who tbody .strip")
    assert strips.count() == page.locator("#who tbody tr").count()
    assert "prefill" in (strips.first.get_attribute("aria-label") or "")
