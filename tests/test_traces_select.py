"""Windows, rates and declared maxima: pure functions that keep every reference right."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from traces.select import roots, scale_rate, select, window, with_declared
from traces.synthesize import Workload, synthesize
from traces.trace import PS_PER_S, Segment, Trace

TEN = Trace.of(np.arange(10) * PS_PER_S, np.arange(1, 11), 5)


def talks(loop: str = "closed", requests: int = 60) -> Trace:
    table = {
        "rate": 2.0,
        "requests": requests,
        "prompt": 10,
        "output": 4,
        "sessions": {"turns": 3, "loop": loop},
    }
    return synthesize(Workload.from_table(table), 0)


def test_a_window_starts_at_time_0_and_says_what_it_kept() -> None:
    part = window(TEN, start_s=2.5, duration_s=3)
    assert part.prompt.tolist() == [4, 5, 6]
    assert part.arrival.tolist() == [PS_PER_S // 2, 3 * PS_PER_S // 2, 5 * PS_PER_S // 2]
    assert part.notes == ("3 of 10 requests kept: from 2.5 s on, for 3 s",)


def test_the_end_of_a_window_is_left_out_and_its_start_is_in_it() -> None:
    assert window(TEN, start_s=2, duration_s=2).prompt.tolist() == [3, 4]


def test_a_limit_keeps_the_first() -> None:
    assert window(TEN, start_s=1, limit=2).prompt.tolist() == [2, 3]


def test_a_window_around_everything_is_the_trace_itself() -> None:
    assert window(TEN) is TEN
    assert window(TEN, duration_s=100, limit=100) is TEN


def test_an_empty_window_is_refused_with_where_the_trace_ends() -> None:
    with pytest.raises(
        ValueError, match=r"from 20 s on; the last of the trace arrives at 9\.000 s"
    ):
        window(TEN, start_s=20)


@pytest.mark.parametrize(
    "wrong",
    [{"start_s": -1}, {"start_s": math.nan}, {"duration_s": 0}, {"duration_s": -1}, {"limit": 0}],
)
def test_wrong_windows_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="expected"):
        window(TEN, **wrong)  # type: ignore[arg-type]


def test_a_window_keeps_conversations_whole_in_a_closed_loop() -> None:
    trace = talks()
    part = window(trace, start_s=5)
    assert (np.bincount(part.session)[np.unique(part.session)] == 3).all()
    assert part.arrival[part.after < 0].min() < 5 * PS_PER_S
    for row in part.requests():
        if row.after >= 0:
            assert part.content(row.after) == row.content[:-2]
            assert row.content[-2].stream == -row.after - 1


def test_what_a_dropped_turn_said_stays_one_thing_that_nobody_generates() -> None:
    trace = talks("open")
    part = window(trace, start_s=20)
    heads = [row.content for row in part.requests() if len(row.content) == 5]
    answers = {segment.stream for row in heads for segment in row if segment.start == 0}
    users = set(trace.content_stream[trace.content_stream >= 0].tolist())
    ghosts = {stream for stream in answers if stream >= 0 and stream not in users}
    assert ghosts
    assert min(ghosts) > max(users)


def test_select_refuses_to_part_a_row_from_the_one_it_follows() -> None:
    with pytest.raises(ValueError, match="kept while the row that it follows is not"):
        select(talks(), np.array([1]))


def test_roots_are_found_through_several_turns() -> None:
    assert roots(talks(requests=6)).tolist() == [0, 0, 0, 3, 3, 3]


@given(st.permutations(range(6)))
def test_reordering_rows_renames_what_they_generated(order: list[int]) -> None:
    content = [(), (Segment(-1, 0, 3),), (Segment(-2, 0, 3),), (), (Segment(7, 0, 2),), ()]
    trace = Trace.of(0, np.arange(1, 7), 3, content=content, labels=tuple("abcdef"))
    moved = select(trace, np.array(order))
    assert "".join(moved.labels) == "".join("abcdef"[row] for row in order)
    at = {row: place for place, row in enumerate(order)}
    assert moved.content(at[1]) == (Segment(-at[0] - 1, 0, 3),)
    assert moved.content(at[2]) == (Segment(-at[1] - 1, 0, 3),)
    assert moved.content(at[4]) == (Segment(7, 0, 2),)


def test_twice_the_rate_is_half_the_times_to_the_picosecond() -> None:
    trace = Trace.of([0, 3, 9_000_000_000_000_000_003], 1, 1)
    assert scale_rate(trace, 2).arrival.tolist() == [0, 2, 4_500_000_000_000_000_002]
    assert scale_rate(trace, 0.5 * 2) is trace
    assert scale_rate(TEN, 0.25).arrival.tolist() == (TEN.arrival * 4).tolist()
    assert scale_rate(TEN, 3).arrival[9] == 3 * PS_PER_S


def test_the_rate_does_not_touch_what_clients_think() -> None:
    trace = talks()
    faster = scale_rate(trace, 2)
    later = trace.after >= 0
    assert faster.arrival[later].tolist() == trace.arrival[later].tolist()


@pytest.mark.parametrize("factor", [0, -1, math.nan, math.inf, 1e-9])
def test_factors_that_are_none_are_refused(factor: float) -> None:
    long = Trace.of([0, 10**18], 1, 1)
    with pytest.raises(ValueError, match="scale-rate"):
        scale_rate(long, factor)


def test_a_declared_maximum_is_given_to_those_without_one() -> None:
    trace = Trace.of(0, 1, [5, 6], [0, 9])
    assert with_declared(trace, 100).declared.tolist() == [100, 9]
    assert with_declared(trace, "exact").declared.tolist() == [5, 9]
    with pytest.raises(ValueError, match="declared: 0"):
        with_declared(trace, 0)
