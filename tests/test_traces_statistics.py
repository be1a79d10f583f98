"""What a trace is like, on traces whose answers can be counted by hand."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from traces.statistics import burstiness, describe, prefix_coverage, prefix_reuse
from traces.trace import PS_PER_S, Segment, Trace


def with_content(*rows: tuple[Segment, ...], prompt: int | None = None, output: int = 1) -> Trace:
    sizes = [prompt or sum(part.tokens for part in row) for row in rows]
    return Trace.of(0, sizes, output, content=list(rows))


def test_percentiles_are_values_that_occurred() -> None:
    about = describe(Trace.of(0, np.arange(1, 101), [1] * 98 + [50, 90]))
    assert about.prompt is not None
    assert (about.prompt.p50, about.prompt.p95, about.prompt.p99) == (50, 95, 99)
    assert about.output is not None
    assert (about.output.p99, about.output.max, about.output.total) == (50, 90, 238)
    assert about.tail == pytest.approx(50 / 2.38)


def test_rate_over_time_adds_up_to_the_requests() -> None:
    about = describe(Trace.of(np.array([0, 1, 2, 3, 20, 40]) * PS_PER_S, 1, 1), parts=4)
    assert about.duration_s == 40
    assert about.rate == pytest.approx(6 / 40)
    assert [rate * about.part_s for rate in about.rates] == pytest.approx([4, 0, 1, 1])
    assert about.peak_rate == pytest.approx(0.4)


def test_burstiness_of_even_and_of_paired_arrivals() -> None:
    assert burstiness(Trace.of(np.arange(5) * PS_PER_S, 1, 1)) == 0
    # Gaps 0, 2, 0, 2, 0: mean 0.8, standard deviation sqrt(0.96).
    pairs = Trace.of(np.array([0, 0, 2, 2, 4, 4]) * PS_PER_S, 1, 1)
    assert burstiness(pairs) == pytest.approx(np.sqrt(0.96) / 0.8)
    assert burstiness(Trace.of([0, 1], 1, 1)) is None
    assert burstiness(Trace.of([0, 0, 0], 1, 1)) is None


def test_a_closed_loop_is_measured_by_what_is_sent_on_its_own() -> None:
    about = describe(Trace.of([0, 10**12, 2 * 10**12], 1, 1, after=[-1, 0, -1], session=[0, 0, 1]))
    assert about.closed_loop_share == pytest.approx(1 / 3)
    assert about.duration_s == 2
    assert about.sessions == 2


@pytest.mark.parametrize(
    ("outputs", "said"),
    [([1] * 98 + [100, 100], "a heavy tail: keep a larger reserve, rather queue than evict"),
     ([100] * 98 + [120, 120], "a narrow tail: a thin reserve is enough")],
)  # fmt: skip
def test_the_tail_of_the_outputs_gives_its_advice(outputs: list[int], said: str) -> None:
    (advice,) = describe(Trace.of(0, 1, outputs)).advice
    assert said in advice


def test_d7_coverage_is_the_share_under_the_most_common_first_128_tokens() -> None:
    shared = (Segment(0, 0, 200),)
    cut = (Segment(0, 0, 100), Segment(0, 100, 28), Segment(3, 0, 50))
    short = (Segment(0, 0, 127),)
    other = (Segment(1, 0, 300),)
    trace = with_content(shared, shared, other, short)
    assert prefix_coverage(trace) == 0.5
    assert not any("pin" in line for line in describe(trace).advice)
    more = with_content(shared, shared, shared, other, short)
    assert prefix_coverage(more) == 0.6
    assert any("60% of the requests begin with the same 128" in a for a in describe(more).advice)
    # However the same tokens are cut into segments.
    assert prefix_coverage(with_content(shared, cut)) == 1.0
    early = (Segment(0, 0, 50), Segment(1, 50, 90))
    late = (Segment(0, 0, 60), Segment(1, 60, 90))
    assert prefix_coverage(with_content(early, late)) == 0.5


def test_without_identity_nothing_is_known_of_prefixes() -> None:
    about = describe(Trace.of([0, 1], 5, 5))
    assert about.prefix_coverage is None
    assert about.prefix_reuse is None


def test_reuse_counts_the_longest_beginning_seen_before() -> None:
    first = (Segment(0, 0, 100),)
    longer = (Segment(0, 0, 150),)
    elsewhere = (Segment(5, 0, 10), Segment(0, 0, 100))
    half = (Segment(0, 0, 50), Segment(9, 0, 50))
    assert prefix_reuse(with_content(first, longer)) == pytest.approx(100 / 250)
    assert prefix_reuse(with_content(longer, first)) == pytest.approx(100 / 250)
    assert prefix_reuse(with_content(first, elsewhere)) == 0
    assert prefix_reuse(with_content(first, half, half)) == pytest.approx((50 + 100) / 300)


def test_reuse_knows_what_was_generated() -> None:
    turn = (Segment(0, 0, 100),)
    follow = (*turn, Segment(-1, 0, 20), Segment(0, 100, 30))
    assert prefix_reuse(with_content(turn, follow, output=20)) == pytest.approx(120 / 250)


runs = st.lists(
    st.builds(Segment, st.integers(0, 2), st.integers(0, 3), st.integers(1, 4)),
    min_size=1,
    max_size=4,
)


@given(st.lists(runs, min_size=1, max_size=8))
def test_reuse_is_what_comparing_token_by_token_finds(rows: list[list[Segment]]) -> None:
    def tokens(row: list[Segment]) -> list[tuple[int, int]]:
        return [(s.stream, s.start + k) for s in row for k in range(s.tokens)]

    seen: set[tuple[tuple[int, int], ...]] = set()
    reused = total = 0
    for row in map(tokens, rows):
        known = 0
        while known < len(row) and tuple(row[: known + 1]) in seen:
            known += 1
        reused, total = reused + known, total + len(row)
        seen |= {tuple(row[: k + 1]) for k in range(len(row))}
    assert prefix_reuse(with_content(*map(tuple, rows))) == pytest.approx(reused / total)


def test_statistics_are_plain_values() -> None:
    assert json.loads(json.dumps(describe(Trace.of([0, 1], 5, 5)).as_dict()))["requests"] == 2


def test_an_empty_trace_has_nothing_to_say() -> None:
    about = describe(Trace.of([], [], []))
    assert (about.requests, about.rate, about.prompt, about.tail) == (0, None, None, None)
