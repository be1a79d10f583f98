"""`batchlab trace`: results on stdout, notes on stderr, wrong input in one line."""

from __future__ import annotations

import csv
import io
import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from simulator.command import main
from traces.readers import read_trace
from traces.synthesize import Workload, synthesize

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """`batchlab trace …` in 80 columns: exit code, stdout, stderr."""
    monkeypatch.setenv("COLUMNS", "80")

    def run(*words: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["batchlab", "trace", *map(str, words)])
        with pytest.raises(SystemExit) as ended:
            main()
        said = capsys.readouterr()
        return int(ended.value.code or 0), said.out, said.err

    return run


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    file = tmp_path / "recorded.csv"
    lines = [f"{second},{100 + second},{10 + second % 3}" for second in range(60)]
    file.write_text("\n".join(["arrival,prompt,output", *lines, ""]))
    return file


def test_info_prints_a_table_that_fits(run: Run, recorded: Path) -> None:
    code, out, err = run("info", recorded)
    assert code == 0
    assert err == ""
    assert "recorded.csv (plain)" in out
    assert "a thin reserve" in out
    assert max(len(line) for line in out.splitlines()) <= 80


def test_info_as_json_and_csv_has_the_same_numbers(run: Run, recorded: Path) -> None:
    values = json.loads(run("info", recorded, "--format", "json")[1])
    (row,) = csv.DictReader(io.StringIO(run("info", recorded, "--format", "csv")[1]))
    assert values["requests"] == int(row["requests"]) == 60
    assert values["prompt"]["p50"] == int(row["prompt_p50"]) == 129


def test_a_window_and_a_rate(run: Run, recorded: Path) -> None:
    cut = ("--start", "10s", "--duration", "0.5min", "--limit", 20, "--scale-rate", 2)
    code, out, err = run("info", recorded, *cut, "--format", "json")
    assert code == 0
    values = json.loads(out)
    assert (values["requests"], values["duration_s"]) == (20, 9.5)
    assert values["notes"][0] == "20 of 60 requests kept: from 10 s on, for 30 s, at most 20"
    _, _, err = run("info", recorded, *cut)
    assert "note: 20 of 60 requests kept" in err


def test_make_writes_what_the_workload_is(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "made.csv"
    code, out, err = run("make", "--preset", "chat", "--requests", 50, "--seed", 3, "-o", file)
    assert code == 0
    assert "synthetic" in out
    assert f"50 requests written to {file}" in err
    expected = synthesize(Workload.from_table({"preset": "chat", "requests": 50}), 3)
    assert list(read_trace(file).requests()) == list(expected.requests())


def test_make_from_a_scenario_and_set(run: Run, tmp_path: Path) -> None:
    scenario, file = tmp_path / "s.toml", tmp_path / "made.jsonl"
    scenario.write_text("[trace]\nrate = 2.0\nrequests = 9\nprompt = 10\noutput = 5\n")
    sets = ("--set", "trace.sessions.turns=3", "--set", 'sessions.loop="open"')
    assert run("make", scenario, "--rate", 4, *sets, "-o", file)[0] == 0
    assert sorted(read_trace(file).prompt.tolist()) == [10] * 3 + [25] * 3 + [40] * 3


def test_convert_keeps_rows_and_says_what_a_csv_cannot_hold(run: Run, tmp_path: Path) -> None:
    source = tmp_path / "mooncake.jsonl"
    rows = [{"timestamp": 1000 * k, "input_length": 600, "output_length": 5} for k in range(4)]
    source.write_text("".join(json.dumps(row | {"hash_ids": [0, 7]}) + "\n" for row in rows))
    full, flat = tmp_path / "full.jsonl", tmp_path / "flat.csv"
    assert run("convert", source, "-o", full)[0] == 0
    assert list(read_trace(full).requests()) == list(read_trace(source).requests())
    code, out, err = run("convert", source, "-o", flat)
    assert (code, out) == (0, "")
    assert "does not hold which prompts share a prefix" in err
    assert len(read_trace(flat)) == 4


def test_formats_lists_what_is_known(run: Run) -> None:
    code, out, _ = run("formats")
    assert code == 0
    for name in ("azure", "burstgpt", "mooncake", "ContextTokens"):
        assert name in out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["info", "none.csv"], "none.csv: No such file"),
        (["info", "BAD"], "line 2: output 0, expected a whole number of tokens"),
        (["info", "GOOD", "--dialect", "azur"], "did you mean 'azure'"),
        (["info", "GOOD", "--start", "soon"], "expected seconds, or a time"),
        (["info", "GOOD", "--start", "1h"], "no request arrives from 3600 s on"),
        (["info", "GOOD", "--scale-rate", "0"], "scale-rate: 0.0, expected"),
        (["convert", "GOOD", "-o", "t.parquet"], "expected a name that ends in .csv or .jsonl"),
        (["convert", "GOOD", "-o", "no/such/t.csv"], "no/such/t.csv: No such file"),
        (["make", "-o", "t.csv"], "expected a --preset, a scenario file, or --set"),
        (["make", "--preset", "chatt", "-o", "t.csv"], "did you mean 'chat'"),
        (["make", "--preset", "chat", "--set", "rate", "-o", "t.csv"], "expected key=value"),
        (
            ["make", "--preset", "chat", "--set", "prompt.mena=3", "-o", "t.csv"],
            "trace.prompt.mena",
        ),
        (["make", "--preset", "chat", "--rate", "0", "-o", "t.csv"], "trace.rate: 0.0, expected"),
        (["make", "--preset", "chat", "--rate", "nan", "-o", "t.csv"], "trace.rate: nan"),
    ],
)
def test_wrong_input_is_one_line_and_exit_2(
    run: Run,
    recorded: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    words: list[str],
    said: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("bad.csv").write_text("arrival,prompt,output\n0,5,0\n")
    files = {"GOOD": recorded.name, "BAD": "bad.csv"}
    code, out, err = run(*(files.get(word, word) for word in words))
    assert (code, out) == (2, "")
    assert err.startswith("batchlab: ")
    assert err.count("\n") == 1
    assert said in err
    assert not Path("t.csv").exists()
