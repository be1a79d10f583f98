"""Every metric from the columns equals the one from plain lists of token times."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from fractions import Fraction
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reports_walk import S, Seen, records_of, walk

from reports.attainment import requests_meeting
from reports.latencies import Latencies
from reports.metrics import compare, summarize
from reports.percentiles import Distribution, nearest_rank
from traces.sla import Sla

seeds = st.integers(min_value=0, max_value=10**6)


def rank_value(values: list[float], share: str) -> float | None:
    """The definition itself: the value at rank ceil(p·n/100)."""
    if not values:
        return None
    return sorted(values)[math.ceil(Fraction(share) * len(values) / 100) - 1]


def stated(values: list[float]) -> dict[str, float | None]:
    if not values:
        return dict.fromkeys(("mean", "p50", "p90", "p95", "p99", "p999", "max"))
    shares = {"p50": "50", "p90": "90", "p95": "95", "p99": "99", "p999": "99.9"}
    percentiles = {name: rank_value(values, share) / S for name, share in shares.items()}
    return {"mean": sum(values) / len(values) / S, **percentiles, "max": max(values) / S}


def by_hand(seen: list[Seen]) -> dict[str, list[float]]:
    done = [one for one in seen if one.reason == "stop"]
    return {
        "ttft_s": [one.tokens[0] - one.arrival for one in seen if one.tokens],
        "queue_s": [one.scheduled - one.arrival for one in seen if one.scheduled >= 0],
        "itl_s": [gap for one in seen for gap in one.gaps],
        "tpot_s": [sum(one.gaps) / len(one.gaps) for one in done if one.gaps],
        "e2e_s": [one.tokens[-1] - one.arrival for one in done],
    }


def same(found: dict[str, float | None], expected: dict[str, float | None]) -> bool:
    return {k: v if v is None else pytest.approx(v) for k, v in expected.items()} == found


@given(seeds)
@settings(deadline=None, max_examples=150)
def test_latencies_equal_those_of_the_token_times(seed: int) -> None:
    records, seen = walk(seed)
    summary = summarize(records)
    for name, values in by_hand(seen).items():
        assert same(summary[name], stated(values)), name
    for lane in {one.lane for one in seen}:
        part = summarize(records, by="lane")["classes"]["lane"][lane]
        for name, values in by_hand([one for one in seen if one.lane == lane]).items():
            assert same(part[name], stated(values)), (lane, name)


@given(seeds)
@settings(deadline=None, max_examples=100)
def test_gaps_of_each_request_equal_its_own(seed: int) -> None:
    records, seen = walk(seed)
    gaps = Latencies(records).gaps
    assert gaps.count().tolist() == [len(one.gaps) for one in seen]
    assert gaps.longest().tolist() == [max(one.gaps, default=-1) for one in seen]
    for bound in (S // 3, S, 2 * S, 7 * S):
        assert gaps.over(bound).tolist() == [sum(g > bound for g in one.gaps) for one in seen]


@given(seeds, st.sampled_from(["mean", "p50", "p90", "p99", "max"]))
@settings(deadline=None, max_examples=100)
def test_a_request_meets_an_itl_term_iff_its_own_gaps_do(seed: int, statistic: str) -> None:
    records, seen = walk(seed)
    sla = Sla.parse(f"itl {statistic} <= 1 s, ttft p99 <= 6 s, tpot p50 <= 1.2 s")
    run = Latencies(records)

    def own(one: Seen) -> float:
        if statistic == "mean":
            return sum(one.gaps) / len(one.gaps)
        return max(one.gaps) if statistic == "max" else rank_value(one.gaps, statistic[1:])

    expected = [
        one.reason == "stop"
        and one.tokens[0] - one.arrival <= 6 * S
        and (not one.gaps or (own(one) <= S and sum(one.gaps) / len(one.gaps) <= 1.2 * S))
        for one in seen
    ]
    assert requests_meeting(run, sla).tolist() == expected
    part = summarize(records, sla)["sla"]
    assert part["attainment"] == pytest.approx(sum(expected) / len(seen))


@given(seeds)
@settings(deadline=None, max_examples=50)
def test_requests_are_arrived_finished_rejected_or_unfinished(seed: int) -> None:
    counts = summarize(walk(seed)[0])["requests"]
    assert counts["arrived"] == counts["finished"] + counts["rejected"] + counts["unfinished"]


@given(seeds)
@settings(deadline=None, max_examples=30)
def test_the_summary_is_plain_json_and_the_same_every_time(seed: int) -> None:
    sla = Sla.parse("ttft p99 <= 3 s")
    first, again = (json.dumps(summarize(walk(seed)[0], sla), allow_nan=False) for _ in range(2))
    assert first == again


@given(
    st.lists(st.integers(0, 50), min_size=1, max_size=60),
    st.integers(1, 100),
    st.sampled_from((1, 10**12, 1 << 57)),  # the last leaves no room for weights beside values
    st.randoms(use_true_random=False),
)
def test_a_weighted_distribution_is_the_repeated_values(
    values: list[int], share: int, unit: int, random: Random
) -> None:
    array = np.array(values) * unit
    kinds, counts = np.unique(array, return_counts=True)
    never = (np.arange(5) + 60) * (unit // 2)  # weights of 0 drop out
    shuffled = random.sample(range(len(kinds) + 5), len(kinds) + 5)
    kinds, counts = np.concatenate([kinds, never]), np.concatenate([counts, np.zeros(5, int)])
    weighted, plain = Distribution(kinds[shuffled], counts[shuffled]), Distribution(array)
    assert weighted.count == len(values)
    assert weighted.statistic("max") == array.max()
    inverted = np.percentile(array, share, method="inverted_cdf")
    assert weighted.percentile(share) == plain.percentile(share) == inverted
    interpolated = np.percentile(array, share)
    assert weighted.percentile(share, linear=True) == pytest.approx(interpolated)
    assert weighted.mean() == pytest.approx(array.astype(float).mean())


def test_ranks_are_exact_at_round_counts() -> None:
    assert nearest_rank(99.9, 1000) == 999
    assert nearest_rank(99, 100) == 99
    assert nearest_rank(99, 99) == 99
    assert nearest_rank(95, 20) == 19


def alone(gaps: list[int], *, arrival: int = 0, ttft: int = S) -> Seen:
    """One finished request with these gaps."""
    times = np.cumsum([arrival + ttft, *gaps]).tolist()
    return Seen(arrival, 1, len(times), scheduled=arrival, tokens=times, reason="stop",
                ended=times[-1])  # fmt: skip


def stalled(seen: list[Seen], **about: object) -> object:
    """Records of requests that all gaps of are stalls: no ticks at all."""
    stalls = [
        (i, 0, end, gap, 0, 0) for i, one in enumerate(seen) for end, gap in
        zip(one.tokens[1:], one.gaps, strict=True)
    ]  # fmt: skip
    return records_of(seen, [], [], stalls, **about)


def test_pooled_itl_hides_what_the_maximum_shows() -> None:
    """Case E3: 98 requests with 100 gaps of 10 ms, two with 99 of 10 ms and one of 5 s."""
    ms = S // 1000
    seen = [alone([10 * ms] * 100) for _ in range(98)]
    seen += [alone([10 * ms] * 99 + [5 * S]) for _ in range(2)]
    summary = summarize(stalled(seen))
    assert summary["itl_s"]["p99"] == 0.010
    assert summary["itl_s"]["max"] == 5.0
    assert summary["tpot_s"]["p99"] == pytest.approx(0.0599)


def test_tools_differ_in_what_they_call_tpot() -> None:
    """Case E4: TTFT 1 s, 11 tokens, gaps of 50 ms."""
    records = stalled([alone([S // 20] * 10)])
    tpot = {tool: summarize(records, metrics=tool)["tpot_s"]["mean"]
            for tool in ("batchlab", "vllm", "aiperf", "guidellm")}  # fmt: skip
    assert tpot == {
        "batchlab": pytest.approx(0.05),
        "vllm": pytest.approx(0.05),
        "aiperf": pytest.approx(0.05),
        "guidellm": pytest.approx(1.5 / 11),
    }


def test_a_rate_of_infinity_is_still_json() -> None:
    about = {"scenario": {"trace": {"rate": math.inf}, "policy": {"kind": "chunked"}}}
    summary = summarize(stalled([alone([S])], **about))
    assert json.loads(json.dumps(summary, allow_nan=False))["scenario"]["trace"]["rate"] == "inf"


def test_one_token_has_no_gap_and_no_tpot() -> None:
    """Case E5, what is left of it after reading: outputs 1, 1, 2."""
    summary = summarize(stalled([alone([]), alone([]), alone([S])]))
    assert summary["itl_s"]["mean"] == summary["tpot_s"]["max"] == 1.0
    assert summarize(stalled([alone([])]))["itl_s"]["p99"] is None


def test_the_unserved_fail_the_sla_and_are_printed() -> None:
    """Case E7: the survivors of an overloaded hour look fine; the SLA is not kept."""
    seen = [alone([], ttft=S) for _ in range(9)]
    seen.append(Seen(arrival=0, prompt=1, output=5))
    summary = summarize(stalled(seen, horizon_s=60.0), Sla.parse("ttft p95 <= 2 s"))
    assert summary["ttft_s"]["p95"] == 1.0
    assert summary["requests"]["unfinished"] == 1
    assert summary["sla"]["attainment"] == 0.9
    assert summary["sla"]["met"] == {"ttft p95 <= 2 s": False}
    assert summary["throughput"]["requests_per_s"] == 9 / 60
    assert any("1 of 10 requests unfinished" in note for note in summary["notes"])


def test_a_static_batch_holds_its_slots() -> None:
    """Case C1: outputs 20, 50, 200, 800 at 10 ms a token keep four slots a third busy."""
    ms, seen, steps, spells = S // 1000, [], [], []
    outputs = (20, 50, 200, 800)
    for i, output in enumerate(outputs):
        seen.append(alone([10 * ms] * (output - 1), ttft=10 * ms))
        spells.append((i, 0, 1, output - 1))
    for tick in range(800):
        running = sum(output > tick for output in outputs)
        steps.append({"start": tick * 10 * ms, "duration": 10 * ms, "running": running,
                      "decodes": running, "tick": tick})  # fmt: skip
    static = {"policy": {"kind": "static", "batch": 4}}
    summary = summarize(records_of(seen, steps, spells, [], max_running=256, scenario=static))
    assert summary["batch"]["slot_utilisation"] == pytest.approx(10.7 / 32)
    assert summary["itl_s"] == dict.fromkeys(summary["itl_s"], pytest.approx(0.01))


def test_a_p99_of_few_samples_is_called_a_maximum() -> None:
    few, enough = (summarize(stalled([alone([S])] * n))["notes"] for n in (99, 100))
    assert any("maximum" in note for note in few)
    assert not any("maximum" in note for note in enough)


def test_a_growing_backlog_is_not_stationary() -> None:
    """One server of 1 s, a request every 0.9 s: the queue grows without end; at 1.1 s it rests."""
    for gap, expected in ((0.9, False), (1.1, True)):
        seen, free = [], 0
        for i in range(400):
            arrival = round(i * gap * S)
            free = max(free, arrival) + S
            seen.append(alone([], arrival=arrival, ttft=free - arrival))
        summary = summarize(stalled(seen))
        assert summary["stationary"] is expected
    at_once = summarize(stalled([alone([])] * 200))
    assert at_once["stationary"] is None


def test_times_past_two_to_the_sixty_three_in_sum_do_not_wrap() -> None:
    """A million steps of an hour each with 256 running: the products pass 2⁶³."""
    hour = 3600 * S
    steps = [{"start": i * hour, "duration": hour, "running": 256, "tick": -1} for i in range(9)]
    records = records_of([alone([9 * hour], ttft=S)], steps, [], [(0, 0, 9 * hour, 9 * hour, 0, 0)])
    assert summarize(records)["batch"]["mean_running"] == pytest.approx(256, rel=1e-3)


def test_columns_that_do_not_belong_together_are_refused() -> None:
    records, _ = walk(3)
    shifted = records.steps.assign(tick=records.steps["tick"] + (records.steps["tick"] >= 0))
    with pytest.raises(ValueError, match="ticks of a replica are not numbered"):
        summarize(replace(records, steps=shifted))
    with pytest.raises(ValueError, match="metrics: 'vlm', expected one of"):
        summarize(records, metrics="vlm")


def test_a_comparison_splits_every_run_by_the_lanes_of_one() -> None:
    """What the fast lane costs the others shows only against a run without lanes."""
    with_lanes, seen = walk(11, requests=30)
    without = replace(with_lanes, requests=with_lanes.requests.assign(lane=""))
    both = compare({"chunked": without, "fast-lane": with_lanes})
    assert both["chunked"]["classes"]["lane"] == both["fast-lane"]["classes"]["lane"]
    fast = [one for one in seen if one.lane == "fast"]
    assert both["chunked"]["classes"]["lane"]["fast"]["requests"]["arrived"] == len(fast)
