"""Wrong input: exit code 2 and one line that says what, where and what was expected."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from calibration.profile import load_profile
from simulator.cli import run

ONE_SECOND = "arrival,prompt,output\n0,20,5\n1,20,5\n"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "good.csv").write_text(ONE_SECOND)
    (tmp_path / "good.toml").write_text('[trace]\nfile = "good.csv"\n')
    return tmp_path


def said(capsys: pytest.CaptureFixture[str], *args: str, code: int = 2) -> str:
    """The one line that a command says on stderr; nothing is on stdout."""
    assert run(list(args)) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("batchlab: ")
    assert len(err.splitlines()) == 1, err
    return err


@pytest.mark.parametrize("command", ["simulate", "compare", "sweep --grid seed=1,2"])
@pytest.mark.parametrize(
    ("args", "expected"),
    [
        (["--set", "engine.blok_size=3"], "engine.blok_size: unknown key; did you mean"),
        (["--set", "engine.block_size"], "--set engine.block_size: expected key=value"),
        (["--set", "trace.rate=3"], "trace.rate: is for synthetic load, but trace.file is set"),
        (["--block-size", "0"], "engine.block_size = 0: expected"),
        (["--set", "engine=3"], "engine = 3: expected a table of keys"),
        (["--seed", "x"], "'--seed'"),
        (["--limit", "1.5"], "'--limit': 1.5, expected a whole number"),
        (["--limit", "1e400"], "'--limit': 1e400, expected a whole number"),
        (["--set", "engine.max_running=1.5"], "engine.max_running = 1.5: expected a valid integer"),
        (["--set", "policy.token_budget=1.5"], "policy.token_budget = 1.5: expected a valid int"),
        (["--set", "engine.seats=3"], "engine.seats: unknown key; did you mean 'engine.max_runn"),
        (["--set", "policy.batch_size=3"], "unknown key of chunked; did you mean 'engine.max_run"),
        (["--set", "max_num_batched_tokens=3"], "did you mean 'policy.token_budget'?"),
        (["--format", "xml"], "'--format'"),
        (["--sed", "1"], "No such option: --sed"),
        (["--start", "-1"], "trace.start"),
    ],
)
def test_wrong_flags(
    capsys: pytest.CaptureFixture[str], command: str, args: list[str], expected: str
) -> None:
    assert expected in said(capsys, *command.split(), "good.toml", *args)


@pytest.mark.parametrize("command", ["simulate", "compare"])
@pytest.mark.parametrize(
    ("args", "expected"),
    [
        (["--token-budget", "100"], "policy.token_budget = 100: smaller than engine.max_running"),
        (["--set", "engine.reserve=1"], "engine.reserve = 1: expected less than 1"),
        (["--set", "engine.max_model_len=999999"], "larger than the pool"),
        (["--profile", "h100-sxm_llama3.1-8b"], "unknown profile 'h100-sxm_llama3.1-8b'"),
        (["--profile", "./none.json"], "none.json: cannot be read: No such file"),
        (["--trace", "none.csv"], "none.csv: No such file or directory"),
        (["--trace", "."], ".: Is a directory"),
        (["--limit", "0"], "trace.limit = 0: expected"),
        (["--scale-rate", "1e300"], "scale-rate: 1e+300, expected a factor above 0"),
        (["--duration", "soon"], "trace.duration = 'soon': expected seconds, or a time"),
    ],
)
def test_impossible_settings_and_missing_files(
    capsys: pytest.CaptureFixture[str], command: str, args: list[str], expected: str
) -> None:
    assert expected in said(capsys, command, "good.toml", *args)


def test_a_wrong_key_in_a_file(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    (folder / "bad.toml").write_text("seed = 1\n[engine]\nblok_size = 16\n")
    expected = "bad.toml line 3: engine.blok_size: unknown key; did you mean 'block_size'?"
    assert expected in said(capsys, "simulate", "bad.toml")
    assert "none.toml: No such file" in said(capsys, "simulate", "none.toml")


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ("2,-5,5", "line 4: prompt -5, expected"),
        ("2,12.5,5", "line 4: prompt 12.5, expected"),
        ("2,20,0", "line 4: output 0, expected"),
        ("nan,20,5", "line 4: arrival nan, expected"),
        ("2,20", "line 4: 2 fields, expected 3"),
    ],
)
def test_a_broken_trace_row(
    capsys: pytest.CaptureFixture[str], folder: Path, row: str, expected: str
) -> None:
    (folder / "bad.csv").write_text(ONE_SECOND + row + "\n")
    assert expected in said(capsys, "simulate", "--trace", "bad.csv")
    assert run(["simulate", "--trace", "bad.csv", "--drop-invalid", "--format", "json"]) in (0, 2)


def test_a_name_of_another_tool_that_is_nearly_ours(capsys: pytest.CaptureFixture[str]) -> None:
    args = ["--policy", "static", "--set", "policy.batch_size=8"]
    assert "did you mean 'batch'?" in said(capsys, "simulate", "good.toml", *args)


def test_every_other_name_is_of_a_setting_that_exists() -> None:
    from policies import Chunked
    from simulator.scenario import Scenario
    from traces.settings import ALSO_CALLED
    from traces.workload import Workload

    for key in ALSO_CALLED.values():
        section, _, name = key.partition(".")
        known = {"policy": Chunked, "trace": Workload}.get(section)
        fields = (
            known.__dataclass_fields__ if known else type(getattr(Scenario(), section)).model_fields
        )
        assert name in fields, key


@pytest.mark.parametrize("arrivals", ["poisson", "constant", "diurnal"])
@pytest.mark.parametrize("rate", ["1e308", "1e13", "5e-324"])
def test_rates_that_no_clock_can_tell(
    capsys: pytest.CaptureFixture[str], rate: str, arrivals: str
) -> None:
    load = ["--preset", "chat", "--rate", rate, "--set", f"trace.arrivals={arrivals}"]
    expected = "requests per second above 0 (1e-12 to 1e+12, or inf for all at once)"
    assert expected in said(capsys, "simulate", *load)


def test_a_file_that_is_named_gz_and_is_none(
    capsys: pytest.CaptureFixture[str], folder: Path
) -> None:
    (folder / "bad.csv.gz").write_text(ONE_SECOND)
    assert "bad.csv.gz: not a gzip file" in said(capsys, "simulate", "--trace", "bad.csv.gz")


def test_a_long_header_is_cut(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    (folder / "bad.csv").write_text("x" * 5000 + "\n1\n")
    found = said(capsys, "simulate", "--trace", "bad.csv")
    assert f"has the columns {'x' * 80}…; expected plain" in found


@pytest.mark.parametrize("form", ["table", "csv", "json"])
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
def test_an_output_that_takes_no_more_is_named(folder: Path, form: str) -> None:
    command = [sys.executable, "-m", "simulator.cli", "simulate", "good.toml", "--format", form]
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True)
    said = "batchlab: stdout: cannot write: no space left on device\n"
    assert (done.returncode, done.stderr) == (2, said)


def test_a_header_that_nobody_knows(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    (folder / "bad.csv").write_text("a,b,c\n1,2,3\n")
    assert "expected" in said(capsys, "simulate", "--trace", "bad.csv")


class TestProfiles:
    @pytest.fixture
    def values(self) -> dict[str, object]:
        from calibration.profile import PROFILES

        text = (PROFILES / "h100-sxm_llama3.1-8b_bf16.json").read_text()
        return dict(json.loads(text))

    def test_not_json(self, capsys: pytest.CaptureFixture[str], folder: Path) -> None:
        (folder / "bad.json").write_text('{"schema": 1,')
        assert "bad.json, line 1: not JSON" in said(capsys, "simulate", "--profile", "./bad.json")

    @pytest.mark.parametrize(
        ("part", "value", "expected"),
        [
            ("t0", -1e-6, "cost.t0 -1e-06, expected"),
            ("g", {"knots": [1, 2], "seconds": [2.0, 1.0]}, "cost.g.seconds[1] 1.0, expected"),
            ("t1", 0.0, "unknown field 'cost.t1'"),
        ],
    )
    def test_wrong_numbers(
        self,
        capsys: pytest.CaptureFixture[str],
        folder: Path,
        values: dict[str, dict[str, object]],
        part: str,
        value: object,
        expected: str,
    ) -> None:
        values["cost"][part] = value
        (folder / "bad.json").write_text(json.dumps(values))
        assert expected in said(capsys, "simulate", "--profile", "./bad.json")


@pytest.mark.parametrize("command", ["simulate", "compare", "sweep --grid seed=1,2"])
def test_an_output_that_cannot_be_written_is_said_before_the_run(
    capsys: pytest.CaptureFixture[str], folder: Path, command: str
) -> None:
    (folder / "file").write_text("")
    expected = "file/out: cannot make the folder: not a directory"
    assert expected in said(capsys, *command.split(), "good.toml", "-o", "file/out")


@pytest.mark.parametrize(
    ("policies", "expected"),
    [
        ("static,static", "policy 'static': given twice"),
        ("static,chunkd", "policy 'chunkd': unknown"),
        ("static:batch", "policy 'static:batch': expected a name, or a file"),
        ("static:batch=8:timeout", "expected name:key=value:key=value"),
        ("static:size=8", "policy.size: unknown key of static"),
        ("chunked,continuous:token_budget=100", "continuous:token_budget=100: policy.token_budget"),
    ],
)
def test_policies_that_cannot_be_compared(
    capsys: pytest.CaptureFixture[str], policies: str, expected: str
) -> None:
    assert expected in said(capsys, "compare", "good.toml", "--policies", policies)


def test_a_grid_that_is_none(capsys: pytest.CaptureFixture[str]) -> None:
    assert "Missing option '--grid'" in said(capsys, "sweep", "good.toml")
    assert "expected key=value,value" in said(capsys, "sweep", "good.toml", "--grid", "seed")


def test_a_sweep_without_a_single_possible_cell(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["sweep", "good.toml", "--grid", "engine.block_size=0,-1", "-o", "s"]) == 2
    assert "2 of 2 cells are invalid; the first: engine.block_size = 0" in capsys.readouterr().err


def test_folders_without_a_run(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    assert ".: no run in it, summary.json is missing" in said(capsys, "report", ".")
    (folder / "summary.json").write_text("[]")
    assert "summary.json: not a summary" in said(capsys, "report", ".")


def test_a_request_that_can_never_fit_is_rejected_and_counted(
    capsys: pytest.CaptureFixture[str], folder: Path
) -> None:
    """Case B1: 50 blocks of 16 tokens; 1002 + 50 tokens never fit, ten times 20 + 20 do."""
    (folder / "b1.csv").write_text("arrival,prompt,output\n0,1002,50\n" + "1,20,20\n" * 10)
    pool = ["--set", "engine.kv_tokens=800"]
    assert run(["simulate", "--trace", "b1.csv", *pool, "--format", "json"]) == 0
    requests = json.loads(capsys.readouterr().out)["requests"]
    assert (requests["arrived"], requests["finished"], requests["rejected"]) == (11, 10, 1)


def test_a_policy_that_breaks_the_rules_fails_the_run(
    capsys: pytest.CaptureFixture[str], folder: Path
) -> None:
    (folder / "idle.py").write_text(
        "from dataclasses import dataclass\n"
        "from policies import Chunked\n"
        "@dataclass(frozen=True, kw_only=True)\n"
        "class Idle(Chunked):\n"
        "    def schedule(self, step):\n"
        "        return None\n"
    )
    said(capsys, "simulate", "good.toml", "--policy", "idle.py:Idle", code=1)


def test_a_fault_of_ours_is_one_line_too(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from simulator.scenario import Scenario

    def broken(self: Scenario, **_: object) -> None:
        raise RuntimeError("oh")

    monkeypatch.setattr(Scenario, "run", broken)
    assert run(["simulate", "good.toml"]) == 1
    assert "a fault of batchlab: RuntimeError: oh" in capsys.readouterr().err
    monkeypatch.setenv("BATCHLAB_TRACEBACK", "1")
    with pytest.raises(RuntimeError):
        run(["simulate", "good.toml"])


def test_ctrl_c_says_what_is_kept(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from simulator.scenario import Scenario

    def interrupted(self: Scenario, **_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Scenario, "run", interrupted)
    assert "interrupted; nothing was written" in said(capsys, "simulate", "good.toml", code=130)


def test_no_workers(capsys: pytest.CaptureFixture[str]) -> None:
    args = ["good.toml", "--policies", "chunked", "-j", "0"]
    assert "0, expected at least 1, or -1" in said(capsys, "compare", *args)


def test_a_profile_whose_steps_take_no_time(capsys: pytest.CaptureFixture[str]) -> None:
    shipped = load_profile("h100-sxm_llama3.1-8b_bf16")
    profile = shipped.model_dump(mode="json", by_alias=True) | {"cost": {}}
    Path("free.json").write_text(json.dumps(profile), encoding="utf-8")
    expected = "free.json: cost: the least decode step takes 0 s"
    assert expected in said(capsys, "simulate", "good.toml", "--profile", "free.json")


def test_a_terminal_without_our_signs_and_none_at_all() -> None:
    command = [sys.executable, "-m", "simulator.cli", "simulate", "good.toml"]
    ascii_only = {**os.environ, "PYTHONIOENCODING": "ascii", "COLUMNS": "40"}
    done = subprocess.run(command, env=ascii_only, capture_output=True, text=True, check=True)
    assert not done.stderr
    assert "2 finished, 0 rejected, 0 unfinished" in done.stdout
    closed = shlex.join(command) + " >&-"
    assert subprocess.run(["sh", "-c", closed], stderr=subprocess.PIPE).stderr == b""


def test_more_requests_than_memory(capsys: pytest.CaptureFixture[str]) -> None:
    args = ["simulate", "--preset", "chat", "--set", "trace.requests=10000000000000000"]
    assert "not enough memory: " in said(capsys, *args, code=1)
