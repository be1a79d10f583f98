"""What is kept of a run answers as the run itself would."""

from __future__ import annotations

import numpy as np
import pytest

from reports.attainment import attainment, requests_meeting
from reports.evidence import Evidence, same_in_blocks, steady
from reports.latencies import Latencies
from simulator.scenario import Scenario
from traces.sla import METRICS, STATISTICS, Sla, Term

TERMS = [
    Term(metric=metric, statistic=statistic, bound_s=1.0)
    for metric in METRICS
    for statistic in STATISTICS
]


@pytest.fixture(scope="module")
def scenario() -> Scenario:
    """Two tenants, a pool that is short, a horizon that cuts some off."""
    table = {
        "rate": 14.0,
        "requests": 300,
        "prompt": {"kind": "lognormal", "mean": 500, "p99": 2500, "max": 3000},
        "output": {"kind": "lognormal", "mean": 120, "p99": 500, "max": 600},
        "declared": 600,
        "classes": [{"name": "a", "weight": 1.0}, {"name": "b", "weight": 1.0}],
    }
    engine = {"kv_tokens": 20_000, "max_model_len": 4096}
    return Scenario.of({"trace": table, "engine": engine, "horizon": 21.0})


@pytest.fixture(scope="module")
def run(scenario: Scenario) -> Latencies:
    return Latencies(scenario.run())


@pytest.fixture(scope="module")
def evidence(run: Latencies) -> Evidence:
    return Evidence.from_bytes(Evidence.of(run.records, stretches=5).to_bytes())


@pytest.mark.parametrize("term", TERMS, ids=str)
def test_every_term_is_what_the_run_says(run: Latencies, evidence: Evidence, term: Term) -> None:
    kept = np.isin(np.arange(len(run.records.requests)), steady(run)[0])
    value = attainment(run, Sla((term,)), kept)["values"][str(term)]
    found = evidence.values(term)
    if value is None:
        assert not np.isfinite(found)
    else:
        assert found == pytest.approx(value, rel=0.0011)


@pytest.mark.parametrize(
    "text",
    [
        "ttft p99 <= 1 s",
        "itl p99 <= 50 ms, e2e max <= 8 s",
        "itl max <= 60 ms",
        "tpot p50 <= 20 ms",
        "itl mean <= 20 ms",
    ],
)
def test_the_same_requests_meet_a_level(run: Latencies, evidence: Evidence, text: str) -> None:
    sla = Sla.parse(text)
    assert (evidence.meeting(sla) == requests_meeting(run, sla)[steady(run)[0]]).all()


def test_classes_and_stretches_are_parts(evidence: Evidence) -> None:
    term = Term(metric="e2e", statistic="mean", bound_s=1.0)
    assert set(evidence.classes["tenant"]) == {"a", "b"}
    sla = Sla.parse("itl p99 <= 50 ms")
    assert len(evidence.margins(sla, by="tenant")) == 2
    assert len({evidence.values(term, f"without={at}/5") for at in range(5)}) > 0
    assert evidence.margins(sla, without="2/5")


def test_a_margin_is_0_at_the_bound(evidence: Evidence) -> None:
    value = evidence.values(Term(metric="itl", statistic="p99", bound_s=1.0))
    (margin,) = evidence.margins(
        Sla((Term(metric="itl", statistic="p99", bound_s=value),))
    ).values()
    assert -1e-5 < margin <= 0


def test_another_block_size_is_the_same_only_where_it_is_certain(scenario: Scenario) -> None:
    """What is called the same is the same, to the byte of every latency."""
    roomy = scenario.with_values({"engine.kv_tokens": 200_000, "engine.max_model_len": 4096})
    first = Evidence.of(roomy.run())
    for size in (8, 32, 64):
        other = Evidence.of(roomy.with_values({"engine.block_size": size}).run())
        assert same_in_blocks(
            first.facts["room"], block_size=size, blocks=200_000 // size, reserve=0.0
        )
        assert np.array_equal(first.requests, other.requests, equal_nan=True)
    tight = Evidence.of(scenario.run())
    assert not same_in_blocks(tight.facts["room"], block_size=8, blocks=2500, reserve=0.0)


def test_damaged_bytes_are_said() -> None:
    with pytest.raises(ValueError, match="damaged"):
        Evidence.from_bytes(b"nothing")
