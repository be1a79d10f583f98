"""A scenario: what a file may say, what it comes to, and what is refused before anything runs."""

from __future__ import annotations

import dataclasses
import os
import sys
from pathlib import Path

import pytest
import settings_page

from simulator import policy_names
from simulator.engine import Engine
from simulator.scenario import Scenario, parse_set
from simulator.sections import EngineSettings
from simulator.settings_file import ScenarioError, line_of
from traces.presets import PRESETS

DESIGN = """\
seed = 7
horizon = "1h"
[trace]
arrivals = "poisson"
rate = 12.0
requests = 20
prompt = { kind = "lognormal", mean = 1000, p99 = 4000, max = 8192 }
output = { kind = "lognormal", mean = 250, p99 = 1200, max = 2048 }
declared = 2048
[engine]
profile = "h100-sxm_llama3.1-8b_bf16"
block_size = 16
kv_tokens = 430000
max_running = 256
max_model_len = 131072
reserve = 0.0
gate = true
prefix_cache = false
output_cap = 2048
[policy]
kind = "chunked"
token_budget = 2048
long_prefill = 0
order = "fcfs"
victim = "last-in"
reentry = "head"
[sla]
ttft = { p99 = 0.8 }
itl  = { p99 = 0.1 }
"""

MINE = """
from dataclasses import dataclass
from policies import Chunked

@dataclass(frozen=True, kw_only=True)
class Mine(Chunked):
    boldness: float = 0.5
"""


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    """A recorded trace of three requests, prompts 100, 2000 and 300, outputs 10, 20 and 5."""
    path = tmp_path / "rows.csv"
    path.write_text("arrival,prompt,output\n0,100,10\n0.5,2000,20\n1,300,5\n")
    return path


def recorded(rows: Path, **more: object) -> Scenario:
    return Scenario.of({"trace": {"file": str(rows)}}).with_values(more)


def test_every_key_of_the_design_is_one(tmp_path: Path) -> None:
    (tmp_path / "design.toml").write_text(DESIGN)
    scenario = Scenario.load(tmp_path / "design.toml")
    assert (scenario.seed, scenario.horizon) == (7, 3600.0)
    assert str(scenario.objectives()) == "ttft p99 <= 800 ms, itl p99 <= 100 ms"
    built = scenario.build()
    assert len(built.trace) == 20
    assert built.engine.blocks == 430_000 // 16
    assert built.policy.token_budget == 2048


@pytest.mark.parametrize("text", ["", "seed = 3\n", DESIGN, '[trace]\npreset = "chat"\n'])
def test_a_dump_loads_back_equal(text: str) -> None:
    scenario = Scenario.loads(text)
    assert Scenario.loads(scenario.dump()) == scenario
    resolved = scenario.resolved()
    assert Scenario.loads(resolved.dump()) == resolved == resolved.resolved()


def test_what_nobody_set_comes_from_the_profile() -> None:
    engine = Scenario.loads('[engine]\nprofile = "h100-sxm_llama3.1-8b_bf16"\n').resolved().engine
    assert engine.kv_tokens is not None
    assert engine.kv_tokens > 400_000
    assert engine.max_model_len == 131_072


def test_a_small_pool_lowers_the_default_length_and_refuses_an_explicit_one() -> None:
    small = Scenario().with_set("engine.kv_tokens=8000")
    assert small.build().engine.max_model_len == 8000
    with pytest.raises(ScenarioError, match=r"engine.max_model_len = 8001: larger than the pool"):
        small.with_set("engine.max_model_len=8001").build()


def test_paths_are_relative_to_the_file(rows: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = rows.parent / "scenarios"
    folder.mkdir()
    (folder / "a.toml").write_text('[trace]\nfile = "../rows.csv"\n')
    scenario = Scenario.load(folder / "a.toml")
    assert len(scenario.build().trace) == 3
    elsewhere = rows.parent / "x" / "y"
    elsewhere.mkdir(parents=True)
    (elsewhere / "b.toml").write_text(scenario.dump(elsewhere))
    monkeypatch.chdir(folder)
    assert len(Scenario.load(os.path.relpath(elsewhere / "b.toml")).build().trace) == 3


def test_set_takes_toml_values_and_bare_words() -> None:
    assert parse_set("engine.block_size=32") == ("engine.block_size", 32)
    assert parse_set("policy.order = longest-wait") == ("policy.order", "longest-wait")
    assert parse_set("trace.output={kind='fixed', value=3}")[1] == {"kind": "fixed", "value": 3}
    assert parse_set("trace.rate=inf")[1] == float("inf")
    scenario = Scenario.loads(DESIGN).with_set("trace.prompt.mean=500", "sla.itl.p99=0.05")
    assert scenario.trace.workload["prompt"]["mean"] == 500
    assert scenario.sla["itl"] == {"p99": 0.05}


def test_a_whole_number_may_be_written_as_a_float() -> None:
    made = Scenario.of({"trace": {"preset": "chat", "requests": 1e3}}).with_set(
        "seed=1e3", "engine.max_running=1e2", "engine.rank_kv_tokens=[1e5, 200000]",
        "policy.token_budget=8.192e3", "fleet.replicas=2.0", "engine.reserve=0.0",
        "sla.ttft={p99=1e1}",
    )  # fmt: skip
    assert (made.seed, made.engine.max_running, made.fleet.replicas) == (1000, 100, 2)
    assert made.engine.rank_kv_tokens == [100_000, 200_000]
    assert repr(made.policy.build().token_budget) == "8192"
    assert isinstance(made.engine.reserve, float)
    for key in ("engine.max_running", "policy.token_budget", "fleet.replicas"):
        with pytest.raises(ScenarioError, match=rf"{key} = 1\.5: expected a valid integer"):
            made.with_values({key: 1.5})


def test_another_policy_keeps_the_settings_that_it_knows() -> None:
    chunked = Scenario().with_set("policy.token_budget=4096", "policy.long_prefill=512")
    static = chunked.with_set("policy.kind=static")
    assert static.policy.settings == {"token_budget": 4096}


def test_a_preset_can_be_changed_in_part() -> None:
    scenario = Scenario.loads('[trace]\npreset = "chat"\nrequests = 7\n')
    assert len(scenario.build().trace) == 7
    assert "chat" in PRESETS


class TestDeclared:
    def test_recorded_nowhere_it_is_the_largest_output_there_is(self, rows: Path) -> None:
        trace = recorded(rows).build().trace
        assert trace.declared.tolist() == [20, 20, 20]
        assert any("20 assumed" in note for note in trace.notes)

    def test_the_assumption_never_refuses_a_request(self, rows: Path) -> None:
        trace = recorded(rows, **{"engine.max_model_len": 2010}).build().trace
        assert trace.declared.tolist() == [20, 10, 20]

    def test_a_constant_is_stated(self, rows: Path) -> None:
        scenario = recorded(rows, **{"trace.declared": 64})
        assert scenario.build().trace.declared.tolist() == [64, 64, 64]
        assert scenario.run().about["declared"] == 64

    def test_the_true_lengths_are_labelled(self, rows: Path) -> None:
        scenario = recorded(rows, **{"trace.declared": "exact"})
        assert scenario.build().trace.declared.tolist() == [10, 20, 5]
        assert scenario.run().about["declared"] == "exact"


class TestPolicies:
    def test_from_a_file(self, tmp_path: Path) -> None:
        (tmp_path / "mine.py").write_text(MINE)
        (tmp_path / "s.toml").write_text('[policy]\nkind = "mine.py:Mine"\nboldness = 0.25\n')
        scenario = Scenario.load(tmp_path / "s.toml")
        assert type(scenario.policy.build()).__name__ == "Mine"
        assert scenario.resolved().policy.settings["boldness"] == 0.25
        assert scenario.input_files()["policy"] == tmp_path / "mine.py"

    def test_from_an_installed_package(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from importlib.metadata import EntryPoint, EntryPoints

        def installed(**wanted: str) -> EntryPoints:
            found = EntryPoint("guest", "policies.chunked:Chunked", policy_names.ENTRY_POINTS)
            return EntryPoints([found]).select(**wanted)

        monkeypatch.setattr(policy_names, "entry_points", installed)
        assert "guest" in policy_names.known_policies()
        scenario = Scenario().with_set("policy.kind=guest", "policy.token_budget=512")
        assert scenario.policy.build().token_budget == 512

    @pytest.mark.parametrize(
        ("file", "name", "said"),
        [
            ("x = 1", "Mine", "has no Mine"),
            ("class Mine: pass", "Mine", "not a dataclass of settings"),
            ("raise RuntimeError('no')", "Mine", "does not load: RuntimeError: no"),
            (
                "import dataclasses\n@dataclasses.dataclass\nclass Mine: pass",
                "Mine",
                "has no sched",
            ),
        ],
    )
    def test_a_file_without_a_policy_is_said(
        self, tmp_path: Path, file: str, name: str, said: str
    ) -> None:
        (tmp_path / "p.py").write_text(file)
        with pytest.raises(ScenarioError, match=said):
            Scenario().with_values({"policy.kind": f"{tmp_path}/p.py:{name}"})


@pytest.mark.parametrize(
    ("key", "said"),
    [
        ("engine.blok_size=3", r"engine\.blok_size: unknown key; did you mean 'block_size'\?"),
        ("policy.token_budgt=3", r"policy\.token_budgt: unknown key of chunked; did you mean"),
        ("trace.prompt.maen=3", r"trace\.prompt\.maen: unknown key; did you mean 'mean'\?"),
        ("trace.raet=3", r"trace\.raet: unknown key; did you mean 'rate'\?"),
        ("polici.kind=3", r"polici: unknown key; did you mean 'policy'\?"),
        ("policy.kind=chunkd", r"policy 'chunkd': unknown; did you mean 'chunked'\?"),
        ("engine.block_size=big", r"engine\.block_size = 'big': expected a valid integer"),
        ("engine.block_size=true", r"engine\.block_size = True: expected a valid integer"),
        ("engine.block_size=0", r"engine\.block_size = 0: expected greater than or equal to 1"),
        ("engine.reserve=1", r"engine\.reserve = 1: expected less than 1"),
        ("engine.reserve=-0.1", r"engine\.reserve = -0.1: expected greater than or equal to 0"),
        ("policy.token_budget=2.5", r"policy\.token_budget = 2.5: expected a valid integer"),
        ("policy.order=random", r"policy\.order = 'random': expected one of fcfs"),
        ("policy.reentry=middle", r"policy\.reentry = 'middle': expected 'head' or 'tail'"),
        ("executor.kind=guessed", r"executor\.kind = 'guessed': expected 'predicted' or"),
        ("horizon=soon", r"horizon = 'soon': expected seconds, or a time such as"),
        ("seed=-1", r"seed = -1: expected greater than or equal to 0"),
        ("trace.rate=0", r"trace\.rate: 0, expected greater than 0"),
        ("trace.rate=nan", r"trace\.rate"),
        ("trace.start=5", r"trace\.start: is for recorded traces"),
        ("sla.ttft.p98=1", r"sla: statistic 'p98', expected mean, p50"),
        ("sla.ttft=1", r"sla\.ttft: 1, expected a table"),
    ],
)
def test_a_wrong_setting_is_one_line_with_key_and_value(key: str, said: str) -> None:
    with pytest.raises(ValueError, match=said) as error:
        Scenario.loads(DESIGN).with_set(key)
    assert "\n" not in str(error.value)


class TestImpossible:
    """Rule A4: refused before the run."""

    def test_a_budget_below_the_seats(self) -> None:
        with pytest.raises(ScenarioError, match=r"policy.token_budget = 255: smaller than engine"):
            Scenario().with_set("policy.token_budget=255").build()

    @pytest.mark.parametrize("policy", ["policy.kind=continuous", "policy.chunks=false"])
    def test_a_prompt_that_never_fits_whole(self, rows: Path, policy: str) -> None:
        scenario = recorded(rows).with_set(policy, "policy.token_budget=1999")
        with pytest.raises(ScenarioError, match=r"smaller than the longest prompt \(2000 tokens\)"):
            scenario.build()
        assert scenario.with_set("policy.token_budget=2000").build()

    def test_a_prompt_that_is_rejected_anyway_binds_nothing(self, rows: Path) -> None:
        scenario = recorded(rows).with_set("policy.kind=continuous", "policy.token_budget=500")
        assert scenario.with_set("engine.max_model_len=1000").build()

    def test_a_length_beyond_the_model(self) -> None:
        with pytest.raises(ScenarioError, match="larger than what the model of h100"):
            Scenario().with_set("engine.max_model_len=131073").build()

    def test_a_pool_below_a_block(self) -> None:
        with pytest.raises(ScenarioError, match=r"engine.kv_tokens = 15: expected at least one bl"):
            Scenario().with_set("engine.kv_tokens=15", "policy.token_budget=300").build()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[engine]\n\nblock_sise = 3\n", "line 3: engine.block_sise: unknown key"),
        ("seed = 'x'\n", "line 1: seed = 'x': expected"),
        ("[policy]\nkind='chunked'\ntoken_budget = 0\n", "line 3: policy.token_budget = 0"),
        ("[trace]\nrate = 1\nprompt = {kind='fixed'}\noutput = 1\n", "line 3: trace.prompt.value"),
        ("[engine\n", "not TOML: .*line 1"),
        ("[trace]\nfile = 'a.csv'\nrate = 3\n", "line 3: trace.rate: is for synthetic load"),
        ("[trace]\nfile = 'a.csv'\npreset = 'chat'\n", "line 3: trace.preset: contradicts"),
    ],
)
def test_an_error_in_a_file_names_file_and_line(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "s.toml").write_text(text)
    with pytest.raises(ScenarioError, match=r"s\.toml.*" + said):
        Scenario.load(tmp_path / "s.toml")


def test_a_file_that_is_no_text_is_said(tmp_path: Path) -> None:
    (tmp_path / "s.toml").write_bytes(b"\xff\xfe\x00s")
    with pytest.raises(ScenarioError, match="not a text file in UTF-8"):
        Scenario.load(tmp_path / "s.toml")


def test_the_line_of_a_key_is_the_nearest_one_there_is() -> None:
    text = 'a = 1\n[b]\nc = { d = 2 }\n[b.e]\n"f" = 3\n'
    assert line_of(text, ["b", "c", "d"]) == 3
    assert line_of(text, ["b", "e", "f"]) == 5
    assert line_of(text, ["b", "missing"]) == 2
    assert line_of(text, ["z"]) is None


def test_equal_scenarios_leave_equal_records(rows: Path) -> None:
    first, again = recorded(rows).run(), recorded(rows).run()
    assert first.requests.equals(again.requests)
    assert first.steps.equals(again.steps)
    assert first.about == again.about


def test_the_page_of_settings_is_what_the_code_says() -> None:
    assert settings_page.PAGE.read_text(encoding="utf-8") == settings_page.page(), (
        f"run {Path(sys.executable).name} tests/settings_page.py"
    )


def test_every_setting_of_the_engine_is_a_key() -> None:
    engine = {field.name for field in dataclasses.fields(Engine)}
    assert set(EngineSettings.model_fields) == engine | {"profile"}
