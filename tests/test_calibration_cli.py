"""`batchlab profile`: what it prints, what it writes, how it refuses."""

import csv
import io
import json

import pytest
from test_calibration_fit import HEADER, TRUE, measured, steps_of_a_grid
from typer.testing import CliRunner

from calibration.profile import list_profiles, load_profile
from calibration.raw import RawRow, shape_of, write_raw
from simulator.cli import app

H100 = "h100-sxm_llama3.1-8b_bf16"


@pytest.fixture
def run():
    def invoke(*words):
        return CliRunner().invoke(app, ["profile", *map(str, words)])

    return invoke


def test_list_names_every_profile(run):
    rows = json.loads(run("list", "--format", "json").stdout)

    assert [row["name"] for row in rows] == list_profiles()
    assert max(map(len, run("list").stdout.splitlines())) <= 80


def test_show_prints_the_curves_of_the_form(run):
    rows = list(csv.DictReader(io.StringIO(run("show", H100, "--format", "csv").stdout)))
    price = load_profile(H100).step_time().price(shape_of([(1, 512)] * 64))

    (row,) = (r for r in rows if r["curve"] == "decode, 512 cached" and r["tokens"] == "64")
    assert float(row["step ms"]) == pytest.approx(price / 1e9, rel=1e-3)
    assert float(row["µs a token"]) == pytest.approx(price / 1e6 / 64, rel=1e-3)


def test_show_draws(run, tmp_path):
    assert run("show", H100, "--plot", tmp_path / "curves.png").exit_code == 0
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_fit_prints_held_out_errors_and_writes_the_profile(run, tmp_path):
    raw, out = tmp_path / "cpu.raw.csv", tmp_path / "mine.json"
    rows = measured(TRUE, steps_of_a_grid(), noise=0.02)
    write_raw(raw, HEADER, [RawRow(*row) for row in rows.itertuples(index=False)])

    done = run("fit", raw, "-o", out)

    assert "held out, random" in done.stdout
    assert "held out, largest" in done.stdout
    profile = load_profile(out)
    assert (profile.name, profile.form) == ("mine", "table")
    assert profile.pool_tokens == HEADER.pool_tokens


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["fit"], "give a raw table, --step-log, or --bench"),
        (["fit", "none.csv"], "none.csv: cannot be read as text"),
        (["fit", "--step-log", "none.json"], "none.json: cannot be read as text"),
        (["show", "h100-sxm_lama3.1-8b_bf16"], f"did you mean '{H100}'"),
        (["import", "presets", "none.json"], "none.json: cannot be read"),
        (["import", "aiconfigurator"], "give the STEM of recorded tables, or --system"),
        (["import", "aiconfigurator", "x"], "configuration 'x', expected"),
        (["import", "llmservingsim", "x"], "expected a path that ends in GPU_ORG_MODEL"),
        (["import", "vidur", ".", "--gpu", "a10", "--model", "tiny"], "unknown GPU 'a10'"),
    ],
)
def test_wrong_input_is_one_line(run, words, reason, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    error = run(*words).exception

    assert isinstance(error, ValueError)
    assert reason in str(error)
    assert "\n" not in str(error)
