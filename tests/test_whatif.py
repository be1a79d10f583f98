"""What if: the same requests, paired differences, and what is more than chance."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from reports.whatifs import whatif_table
from simulator.cli import run as batchlab
from simulator.pool import Local
from simulator.runs import Runs
from simulator.scenario import Scenario
from simulator.whatif import Difference, WhatIf, changed, what_if


@pytest.fixture
def base() -> Scenario:
    return Scenario.of(
        {
            "trace": {
                "rate": 8.0,
                "requests": 150,
                "prompt": {"kind": "lognormal", "mean": 800, "p99": 3000, "max": 4000},
                "output": {"kind": "uniform", "min": 10, "max": 80},
                "declared": 80,
            }
        }
    )


def ask(base: Scenario, *variants: str) -> WhatIf:
    return what_if(base, variants, Runs(pool=Local(workers=1)), seeds=4)


def of(answer: WhatIf, variant: int = 0) -> dict[str, Difference]:
    return {one.measure: one for one in answer.variants[variant].differences}


class TestVariants:
    def test_a_setting(self, base: Scenario) -> None:
        assert changed(base, "engine.block_size=32").engine.block_size == 32

    def test_several_at_once(self, base: Scenario) -> None:
        both = changed(base, "engine.block_size=32; policy.kind=continuous")
        assert (both.engine.block_size, both.policy.kind) == (32, "continuous")

    def test_a_factor(self, base: Scenario) -> None:
        assert changed(base, "rate*=2").trace.workload["rate"] == 16.0
        assert changed(base, "policy.token_budget*=0.5").policy.settings["token_budget"] == 1024

    def test_longer_prompts(self, base: Scenario) -> None:
        longer = changed(base, "prompt*=1.5").trace.workload["prompt"]
        assert (longer["mean"], longer["p99"], longer["max"]) == (1200, 4500, 6000)

    def test_what_a_preset_has_can_be_multiplied(self) -> None:
        chat = Scenario.of({"trace": {"preset": "chat"}})
        assert changed(chat, "rate*=2").trace.workload["rate"] == pytest.approx(11.06)

    def test_a_lost_replica(self, base: Scenario) -> None:
        two = base.with_values({"fleet.replicas": 2})
        (change,) = changed(two, "lose=0@10min").fleet.changes
        assert (change.at, change.what, change.replica) == (600.0, "lose", 0)

    @pytest.mark.parametrize(
        ("text", "said"),
        [
            ("engine.blok_size=3", "block_size"),
            ("trace.nothing*=2", "no value to multiply"),
            ("policy.kind*=2", "nothing to multiply"),
            ("faster", "expected key=value"),
            ("lose=0@1min", "contradicts|not there|no other|replica"),
        ],
    )
    def test_what_is_no_variant_is_refused(self, base: Scenario, text: str, said: str) -> None:
        if text.startswith("lose"):
            text = "lose=5@1min"
        with pytest.raises(ValueError, match=said):
            changed(base, text)


class TestAnswer:
    def test_a_change_that_changes_nothing_is_no_more_than_chance(self, base: Scenario) -> None:
        answer = ask(base, "engine.max_running=255")
        assert not any(one.real for one in of(answer).values())

    def test_twice_the_rate_is_more_than_chance(self, base: Scenario) -> None:
        told = of(ask(base, "rate*=2"))
        assert told["TTFT P99"].real
        assert told["TTFT P99"].change is not None
        assert told["TTFT P99"].change.low > 0
        assert told["requests/s"].real

    def test_pairs_narrow_the_interval(self, base: Scenario) -> None:
        """The same requests: the difference is known better than either side."""
        one = of(ask(base, "policy.token_budget=1024"))["ITL P99"]
        assert one.change is not None
        assert one.variant is not None
        assert one.change.high < 0

    def test_a_recording_is_paired_by_its_stretches(self, tmp_path: Path) -> None:
        trace = tmp_path / "t.csv"
        rows = "".join(f"{at * 0.05:.2f},{400 + at % 300},{20 + at % 30}\n" for at in range(300))
        trace.write_text("arrival,prompt,output\n" + rows)
        recorded = Scenario.of({"trace": {"file": str(trace)}})
        answer = ask(recorded, "rate*=2")
        assert answer.pairs == "10 stretches of the recording"
        assert of(answer)["QUEUE MEAN"].real
        assert of(answer)["requests/s"].change is None

    def test_a_variant_that_cannot_run_says_so_beside_the_others(self, base: Scenario) -> None:
        answer = ask(base, "policy.token_budget=100", "rate*=2")
        assert "smaller than engine.max_running" in answer.variants[0].error
        assert not answer.variants[1].error

    def test_no_variant_is_refused(self, base: Scenario) -> None:
        with pytest.raises(ValueError, match="no variant"):
            ask(base)


def test_the_command_writes_a_page_and_marks_what_is_real(
    base: Scenario, tmp_path: Path, capsys: Any
) -> None:
    path = tmp_path / "s.toml"
    path.write_text(base.dump())
    out = tmp_path / "out"
    command = ["whatif", str(path), "--set", "rate*=2", "--set", "output*=2", "-j", "1"]
    assert batchlab([*command, "--runs", "3", "-o", str(out)]) == 0
    said = capsys.readouterr().out
    assert "what if rate*=2" in said
    assert "more than chance, over 3 seeds" in said
    told = json.loads((out / "whatif.json").read_text())
    assert [one["name"] for one in told["variants"]] == ["rate*=2", "output*=2"]
    assert "<table>" in (out / "report.html").read_text()


def test_a_table_of_large_changes_fits_eighty_columns() -> None:
    difference = {
        "measure": "output tokens/s", "kind": "time", "base": 0.00829, "variant": 0.169,
        "change": {"estimate": 0.161, "low": -0.0527, "high": 0.326}, "real": True,
    }  # fmt: skip
    wide = difference | {"kind": "seconds", "change": {"estimate": 0.0102, "low": -0.00642,
                         "high": 0.0140}, "base": 0.000769}  # fmt: skip
    answer = {"pairs": "5 seeds", "variants": [
        {"name": "rate*=2", "error": "", "differences": [difference, wide]}]}  # fmt: skip
    for width in (80, 100):
        out = io.StringIO()
        Console(file=out, width=width).print(whatif_table(answer, width))
        assert max(map(len, out.getvalue().splitlines())) <= width
        assert "+10.2 ms (+1326%) *" in out.getvalue()
        assert "-6.42 ms to +14.0 ms" in out.getvalue()


def test_a_command_without_a_variant_is_wrong_input(capsys: Any) -> None:
    assert batchlab(["whatif", "--preset", "chat"]) == 2
    assert "--set" in capsys.readouterr().err
