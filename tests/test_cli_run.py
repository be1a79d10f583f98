"""What the commands do with right input."""

from __future__ import annotations

import csv
import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from simulator.cli import run

SCENARIO = """\
seed = 3
[trace]
rate = 20.0
requests = 60
prompt = { kind = "uniform", min = 20, max = 900 }
output = { kind = "uniform", min = 2, max = 60 }
[sla]
ttft = { p99 = 5.0 }
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "s.toml").write_text(SCENARIO)
    return tmp_path


def printed(capsys: pytest.CaptureFixture[str], *args: str, code: int = 0) -> str:
    assert run(list(args)) == code
    return capsys.readouterr().out


def batchlab(*args: str, **env: str) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "simulator.cli", *args]
    return subprocess.run(command, env=os.environ | env, capture_output=True, check=True)


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert printed(capsys, "--version").startswith("batchlab ")


def test_simulate_leaves_everything_in_its_folder(
    capsys: pytest.CaptureFixture[str], folder: Path
) -> None:
    assert "TTFT" in printed(capsys, "simulate", "s.toml", "-o", "out")
    names = {path.name for path in (folder / "out").iterdir()}
    assert names >= {
        "scenario.toml", "requests.csv", "steps.csv", "summary.json", "report.html", "figures",
    }  # fmt: skip
    assert list((folder / "out" / "figures").glob("*.png"))
    rows = list(csv.DictReader(io.StringIO((folder / "out" / "requests.csv").read_text())))
    assert len(rows) == 60


def test_the_scenario_that_is_left_is_the_run(
    capsys: pytest.CaptureFixture[str], folder: Path
) -> None:
    printed(capsys, "simulate", "s.toml", "-o", "one")
    printed(capsys, "simulate", "one/scenario.toml", "-o", "two")
    for name in ("summary.json", "requests.csv", "steps.csv"):
        assert (folder / "one" / name).read_bytes() == (folder / "two" / name).read_bytes()


def test_json_and_csv_are_what_programs_read(capsys: pytest.CaptureFixture[str]) -> None:
    summary = json.loads(printed(capsys, "simulate", "s.toml", "--format", "json"))
    assert summary["requests"]["finished"] == 60
    assert summary["scenario"]["policy"]["kind"] == "chunked"
    rows = list(
        csv.DictReader(io.StringIO(printed(capsys, "simulate", "s.toml", "--format", "csv")))
    )
    assert float(rows[0]["ttft_s.p99"]) == summary["ttft_s"]["p99"]
    runs = json.loads(printed(capsys, "compare", "s.toml", "--format", "json"))["runs"]
    assert list(runs) == ["static", "continuous", "chunked", "fast-lane"]
    assert runs["chunked"]["ttft_s"] == summary["ttft_s"]
    cells = json.loads(
        printed(capsys, "sweep", "s.toml", "--grid", "seed=3,4", "--format", "json", "-j", "1")
    )
    assert [cell["values"] for cell in cells] == [{"seed": 3}, {"seed": 4}]
    assert cells[0]["summary"]["ttft_s"] == summary["ttft_s"]


@pytest.mark.parametrize(
    ("flag", "key", "value"),
    [
        (["--policy", "static"], "policy.kind", "static"),
        (["--rate", "5"], "trace.rate", 5.0),
        (["--block-size", "32"], "engine.block_size", 32),
        (["--token-budget", "512"], "policy.token_budget", 512),
        (["--profile", "a100-sxm_llama3.1-8b_bf16"], "engine.profile", "a100-sxm_llama3.1-8b_bf16"),
        (["--seed", "9"], "seed", 9),
        (["--set", "engine.reserve=0.1"], "engine.reserve", 0.1),
        (["--set", "seed=4", "--seed", "9"], "seed", 4),
        (["--limit", "10"], "trace.limit", 10),
    ],
)
def test_flags_set_keys(
    capsys: pytest.CaptureFixture[str], flag: list[str], key: str, value: object
) -> None:
    found = json.loads(printed(capsys, "simulate", "s.toml", *flag, "--format", "json"))["scenario"]
    for part in key.split("."):
        found = found[part]
    assert found == value


def test_a_trace_or_preset_takes_the_place_of_the_load(
    capsys: pytest.CaptureFixture[str], folder: Path
) -> None:
    (folder / "t.csv").write_text("arrival,prompt,output\n0,20,5\n1,20,5\n2,20,5\n")
    args = ["--trace", "t.csv", "--start", "0.5", "--scale-rate", "2", "--format", "json"]
    summary = json.loads(printed(capsys, "simulate", "s.toml", *args))
    assert summary["requests"]["arrived"] == 2
    args = ["--preset", "chat", "--limit", "20", "--format", "json"]
    summary = json.loads(printed(capsys, "simulate", "s.toml", *args))
    assert summary["requests"]["arrived"] == 20


def test_a_missed_sla_is_exit_code_1_and_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["simulate", "s.toml", "--set", "sla.ttft.p99=0.0001"]) == 1
    out, err = capsys.readouterr()
    assert "TTFT" in out
    assert "the SLA is missed: ttft p99 <= 0.1 ms" in err


def test_both_ways_of_stepping_leave_the_same_records(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["simulate", "s.toml", "--check-leap"]) == 0
    assert "leaping on and off: the same records" in capsys.readouterr().err


def test_steps_outside_the_grid_are_refused_on_request(
    capsys: pytest.CaptureFixture[str], folder: Path
) -> None:
    """Case E2: a prompt of 126,195 tokens lies far beyond what was measured."""
    (folder / "t.csv").write_text("arrival,prompt,output\n0,126195,5\n")
    args = ["simulate", "--trace", "t.csv", "--token-budget", "131072"]
    assert run([*args, "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["profile"]["outside_grid_share"] > 0
    assert run([*args, "--strict-profile"]) == 1
    assert "outside the grid" in capsys.readouterr().err


def test_all_policies_serve_the_very_same_requests(
    capsys: pytest.CaptureFixture[str], folder: Path
) -> None:
    printed(capsys, "compare", "s.toml", "-o", "out", "--policies", "static:batch=4,chunked")
    runs = json.loads((folder / "out" / "summary.json").read_text())["runs"]
    assert [run["requests"]["arrived"] for run in runs.values()] == [60, 60]
    assert runs["static:batch=4"]["scenario"]["policy"]["batch"] == 4
    first, second = (run["scenario"]["trace"] for run in runs.values())
    assert first == second


def test_a_page_can_be_built_again_and_over_several_runs(
    capsys: pytest.CaptureFixture[str], folder: Path
) -> None:
    printed(capsys, "simulate", "s.toml", "-o", "one")
    page = (folder / "one" / "report.html").read_bytes()
    (folder / "one" / "report.html").unlink()
    printed(capsys, "report", "one")
    assert len((folder / "one" / "report.html").read_bytes()) > len(page) // 2
    printed(capsys, "simulate", "s.toml", "--policy", "static", "-o", "two")
    printed(capsys, "report", "one", "two", "-o", "both")
    runs = json.loads((folder / "both" / "summary.json").read_text())["runs"]
    assert list(runs) == ["one", "two"]


def test_policies_are_listed_with_their_settings(capsys: pytest.CaptureFixture[str]) -> None:
    assert "fast-lane" in printed(capsys, "policy", "list")
    rows = json.loads(printed(capsys, "policy", "list", "--format", "json"))
    assert {row["name"] for row in rows} >= {"static", "continuous", "chunked", "fast-lane"}
    assert all(row["says"] and row["settings"] for row in rows)


def test_neither_hash_seed_nor_workers_nor_order_change_a_byte(folder: Path) -> None:
    """Case F8."""
    one = batchlab("simulate", "s.toml", "-o", "one", PYTHONHASHSEED="0").stdout
    two = batchlab("simulate", "s.toml", "-o", "two", PYTHONHASHSEED="99").stdout
    assert one == two
    for name in ("summary.json", "requests.csv", "steps.csv"):
        assert (folder / "one" / name).read_bytes() == (folder / "two" / name).read_bytes()
    args = ("compare", "s.toml", "--format", "json", "--policies")
    three = json.loads(batchlab(*args, "static,chunked", "-j", "1").stdout)
    four = json.loads(batchlab(*args, "chunked,static", "-j", "2").stdout)
    assert three == four


def test_a_plain_run_loads_no_torch(folder: Path) -> None:
    code = (
        "import sys; from simulator.cli import run; "
        "code = run(['simulate', 's.toml', '-o', 'out']); "
        "sys.exit(code or 10 * ('torch' in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_help_loads_nothing_heavy() -> None:
    code = (
        "import sys; from simulator.cli import run; run(['--help']); "
        "print({'numpy', 'pandas', 'pydantic', 'matplotlib', 'scipy', 'simpy'} & {*sys.modules})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.rstrip().endswith("set()"), done.stdout


def test_steps_can_really_be_run(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch")
    args = ["--executor", "measured", "--limit", "3", "--profile", "a100-sxm_llama3.1-8b_bf16"]
    small = ["--set", "engine.kv_tokens=4096"]
    summary = json.loads(printed(capsys, "simulate", "s.toml", *args, *small, "--format", "json"))
    assert summary["requests"]["finished"] == 3
    assert summary["steps"]["mean_s"] > 0
    assert summary["profile"]["name"] == "tiny on cpu, measured"


def test_a_ramp_says_when_the_backlog_recovered(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "ramp.toml").write_text(
        "[trace]\nrate = 4\nduration_s = 60\n"
        'arrivals = { kind = "ramp", peak = 2, before_s = 10, up_s = 5, hold_s = 5, down_s = 5 }\n'
        'prompt = { kind = "fixed", value = 100 }\noutput = { kind = "fixed", value = 20 }\n'
    )
    out = printed(capsys, "simulate", "ramp.toml")
    assert "After the ramp the load is back at 25 s" in out
