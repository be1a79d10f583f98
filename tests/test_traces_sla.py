"""Terms of a service level: read from text and tables, printed back, contradictions refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from traces.sla import METRICS, STATISTICS, Sla, Term


@pytest.mark.parametrize(
    ("text", "metric", "statistic", "bound_s"),
    [
        ("ttft p99 <= 0.8 s", "ttft", "p99", 0.8),
        ("itl p99<=100ms", "itl", "p99", 0.1),
        ("  E2E Mean ≤ 12s ", "e2e", "mean", 12.0),
        ("queue max < 1e3 ms", "queue", "max", 1.0),
        ("tpot p50 <= .05 s", "tpot", "p50", 0.05),
    ],
)
def test_a_term_is_read_from_text(text: str, metric: str, statistic: str, bound_s: float) -> None:
    assert Term.parse(text) == Term(metric=metric, statistic=statistic, bound_s=bound_s)


def test_several_terms_from_one_text_or_many() -> None:
    assert Sla.parse("ttft p99 <= 800ms, itl p99 <= 0.1 s") == Sla.parse(
        ["ttft p99 <= 0.8 s", "itl p99 <= 100 ms"]
    )


def test_the_form_that_scenarios_use_round_trips() -> None:
    table = {"ttft": {"p99": 0.8}, "itl": {"p99": 0.1, "mean": 0.05}}
    assert Sla.from_table(table).to_table() == table
    assert Sla.from_table({"ttft": {"p99": "800 ms"}}).to_table() == {"ttft": {"p99": 0.8}}


@given(st.sampled_from(METRICS), st.sampled_from(STATISTICS), st.floats(1e-4, 1e6))
def test_what_is_printed_reads_back(metric: str, statistic: str, bound_s: float) -> None:
    term = Term(metric=metric, statistic=statistic, bound_s=float(f"{bound_s:.6g}"))
    again = Term.parse(str(term))
    assert again.bound_s == pytest.approx(term.bound_s, rel=1e-11)
    assert (again.metric, again.statistic) == (metric, statistic)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("ttft p99 0.8 s", 'expected the form "ttft p99 <= 0.8 s"'),
        ("ttft p99 >= 0.8 s", "expected the form"),
        ("tfft p99 <= 0.8 s", "metric 'tfft', expected ttft, itl"),
        ("ttft p98 <= 0.8 s", "statistic 'p98', expected mean, p50"),
        ("ttft p99 <= 0.8", "no unit, expected s or ms"),
        ("ttft p99 <= 0.8 min", "unit 'min', expected s or ms"),
        ("ttft p99 <= 0 s", "expected a time above 0"),
        ("ttft p99 <= -1 s", "expected a time above 0"),
        ("ttft p99 <= nan s", "expected a time above 0"),
        ("ttft p99 <= soon", "expected a number with a unit"),
    ],
)
def test_wrong_terms_are_refused_in_words(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said.replace("(", r"\(")):
        Term.parse(text)


@pytest.mark.parametrize(
    "texts",
    [
        ["ttft p99 <= 0.8 s", "ttft p99 <= 0.5 s"],
        ["ttft p50 <= 0.8 s", "ttft p99 <= 0.5 s"],
        ["itl p99 <= 2 s", "itl max <= 1 s"],
    ],
)
def test_terms_that_contradict_each_other_are_refused_with_both(texts: list[str]) -> None:
    with pytest.raises(ValueError, match="contradict each other"):
        Sla.parse(texts)


@pytest.mark.parametrize("table", [{"ttft": 0.8}, {"ttft": {"p99": True}}, {"ttft": {"p99": []}}])
def test_wrong_tables_are_refused(table: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"sla\.ttft"):
        Sla.from_table(table)


def test_no_terms_are_false() -> None:
    assert not Sla()
    assert len(Sla.parse("ttft p99 <= 1 s")) == 1
