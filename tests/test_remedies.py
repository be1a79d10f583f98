"""Trouble is recognised, its cures are tried in order, and what they did is said."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from reports.advice import advice_lines
from reports.avalanche import avalanche, recovered_s
from reports.evidence import Evidence
from reports.latencies import Latencies
from simulator.cli import run as batchlab
from simulator.pool import Local
from simulator.remedies import Advice, remedies, state_of
from simulator.runs import Runs
from simulator.scenario import Scenario


def tight(requests: int = 200, **more: Any) -> Scenario:
    """Contexts that grow into a pool too small for them: evictions feed on evictions."""
    return Scenario.of(
        {
            "trace": {
                "rate": 4.0,
                "requests": requests,
                "prompt": {"kind": "uniform", "min": 2000, "max": 6000},
                "output": {"kind": "uniform", "min": 500, "max": 2000},
                "declared": 2000,
            },
            "engine": {"kv_tokens": 60_000, "max_model_len": 16_384, "gate": False, **more},
        }
    )


def advise(scenario: Scenario) -> Advice | None:
    runs = Runs(pool=Local(workers=1))
    (seen,) = runs.of([scenario])
    assert isinstance(seen, Evidence)
    return remedies(scenario, seen, runs)


def test_no_trouble_no_advice() -> None:
    assert advise(tight().with_values({"trace.rate": 0.2, "trace.requests": 30})) is None


def test_the_mildest_cure_that_works_is_the_advice() -> None:
    advice = advise(tight())
    assert advice is not None
    assert advice.before.preemptions > 0.05
    assert [one.name for one in advice.tried][:1] == ["reserve 15% of the pool"]
    assert advice.best is not None
    assert advice.best.cured
    assert advice.best.after is not None
    assert advice.best.after.preemptions <= 0.05
    # What is advised is what was measured.
    (again,) = Runs(pool=Local(workers=1)).of([tight().with_values(advice.best.changes)])
    assert isinstance(again, Evidence)
    assert state_of(again) == advice.best.after


def test_other_causes_are_ruled_out_first() -> None:
    advice = advise(tight(requests=60))
    assert advice is not None
    assert [one.split(":")[0] for one in advice.ruled_out] == ["block size 16", "prefix sharing"]


def test_prefixes_that_are_not_shared_are_tried_first() -> None:
    shared = tight(requests=80).with_values({"trace.shared": [{"tokens": 3000}]})
    advice = advise(shared)
    assert advice is not None
    assert advice.tried[0].changes == {"engine.prefix_cache": True}


def test_one_that_holds_the_pool_is_curbed_before_the_door_is() -> None:
    """Beside small ones, one request comes to hold three quarters of the pool."""
    scenario = Scenario.of(
        {
            "trace": {
                "rate": 40.0,
                "requests": 300,
                "prompt": {"kind": "fixed", "value": 64},
                "output": {"kind": "empirical", "values": [*[200] * 120, 6000]},
                "declared": 6000,
            },
            "engine": {"kv_tokens": 8_000, "max_model_len": 8000, "reserve": 0.25},
        }
    )
    advice = advise(scenario)
    assert advice is not None
    keys = [next(iter(one.changes)) for one in advice.tried]
    assert keys == ["engine.output_cap", "policy.demote", "door.max_in_flight"]
    assert advice.best is advice.tried[-1]


def test_advice_reads_as_before_and_after() -> None:
    advice = advise(tight(requests=60))
    assert advice is not None
    lines = advice_lines(asdict(advice))
    assert lines[0].startswith("Trouble: ")
    assert any("→" in line for line in lines)
    assert lines[-1].startswith(("Do: --set ", "The least bad", "None of them"))


class TestAvalanche:
    def test_one_is_named_with_the_time_it_began(self) -> None:
        found = avalanche(Latencies(tight().run()))
        assert found is not None
        assert found.throughput < 0.6
        assert found.evictions_per_step > 0.02
        assert found.began_s >= 0
        assert "avalanche: it begins at" in found.sentence()

    def test_a_run_without_evictions_has_none(self) -> None:
        calm = tight(kv_tokens=2_000_000)
        assert avalanche(Latencies(calm.run())) is None

    def test_a_few_evictions_are_none(self) -> None:
        gated = tight(gate=True)
        run = Latencies(gated.run())
        assert run.column("preemptions").sum() > 0
        assert avalanche(run) is None


def test_a_load_that_rises_and_returns_shows_when_the_system_recovers() -> None:
    ramp = {"kind": "ramp", "peak": 8.0, "before_s": 40, "up_s": 5, "hold_s": 30, "down_s": 5}
    scenario = Scenario.of(
        {
            "trace": {
                "arrivals": ramp,
                "rate": 6.0,
                "duration_s": 240.0,
                "prompt": {"kind": "fixed", "value": 1000},
                "output": {"kind": "fixed", "value": 50},
                "declared": 50,
            }
        }
    )
    back = recovered_s(Latencies(scenario.run()), rises_s=40.0, returns_s=80.0)
    assert back is not None
    assert 80.0 < back < 240.0


def test_simulate_says_what_cures(capsys: Any, tmp_path: Any) -> None:
    path = tmp_path / "tight.toml"
    path.write_text(tight(requests=60).dump())
    assert batchlab(["simulate", str(path)]) == 0
    assert "· Trouble: " in capsys.readouterr().out
    assert batchlab(["simulate", str(path), "--no-cures"]) == 0
    assert "Trouble" not in capsys.readouterr().out
