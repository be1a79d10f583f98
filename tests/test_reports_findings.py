"""What a comparison says in words is what its figures say."""

from __future__ import annotations

from typing import Any

from reports.findings import findings


def summary(kind: str, e2e_p99: float, *, sound: bool = True, **more: Any) -> dict[str, Any]:
    return {
        "stationary": sound,
        "scenario": {"policy": {"kind": kind}},
        "e2e_s": {"p99": e2e_p99},
        "ttft_s": {"p99": e2e_p99 / 10},
        "batch": {"slot_utilisation": 0.334},
        **more,
    }


def test_static_is_called_as_good_where_it_is() -> None:
    """Case C10: constant arrivals and equal lengths leave batching nothing to gain."""
    said = " ".join(findings({"static": summary("static", 1.05), "chunked": summary("chunked", 1)}))
    assert "static is about as good as chunked here (P99 E2E 1.05 s against 1.00 s)" in said


def test_static_is_measured_where_it_is_slower() -> None:
    said = " ".join(findings({"static": summary("static", 8), "chunked": summary("chunked", 2)}))
    assert "static takes 4.00 times as long as chunked at P99 E2E" in said
    assert "33.4 % of its slot time works" in said


def test_a_diverging_run_is_named_first_and_wins_nothing() -> None:
    runs = {
        "static": summary("static", 0.5, sound=False),
        "continuous": summary("continuous", 3),
        "chunked": summary("chunked", 2),
    }
    first, best, *others = findings(runs)
    assert first.startswith("Not sustainable at this rate: static (")
    assert best.startswith("chunked has the shortest P99 time to first token")
    assert not others


def test_the_price_of_a_lane_is_printed_even_where_it_is_nil() -> None:
    """Case C6: what the fast lane gains, and what the slow one pays."""

    def lanes(fast: float, slow: float) -> dict[str, Any]:
        each = {"fast": {"ttft_s": {"p99": fast}}, "slow": {"ttft_s": {"p99": slow}}}
        return {"classes": {"lane": each}}

    runs = {
        "chunked": summary("chunked", 2, **lanes(4.0, 5.0)),
        "fast-lane": summary("fast-lane", 2, **lanes(1.0, 5.0)),
    }
    assert findings(runs)[-1] == (
        "P99 TTFT by lane, from chunked to fast-lane: fast 4.00 s to 1.00 s (-75%); "
        "slow 5.00 s to 5.00 s (+0%)."
    )


def test_nothing_is_said_of_nothing() -> None:
    assert findings({}) == []
    assert findings({"one": {"stationary": None}}) == []
