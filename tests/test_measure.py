"""Measuring: the grid spans what it says, the table survives being stopped."""

from __future__ import annotations

import dataclasses
import os

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from calibration import measure as measuring
from calibration.grid import Limits, anchor, grid, shape_of
from calibration.measure import Measurement, measure, plan
from calibration.raw import kind_of, read_raw
from calibration.step_time import StepShape
from simulator.cli import app

SMALL = Limits(sequences=3, tokens=8, context=24, held=48)
SETTINGS = Measurement(limits=SMALL, quick=True, passes=1, block_sizes=(4, 8))


def test_the_shape_of_a_step_is_the_sums_over_its_rows():
    point = ((10, 5), (1, 20), (1, 4))
    assert shape_of(point, 4) == StepShape(
        prefill_tokens=10,
        chunks=1,
        decodes=2,
        area2=10 * (2 * 5 + 10),
        reach=15,
        context=24,
        table=4 + 6 + 2,
    )


@settings(max_examples=20, deadline=None)
@given(
    st.builds(
        Limits,
        sequences=st.integers(2, 300),
        tokens=st.integers(2, 3000),
        context=st.integers(16, 3000),
        held=st.integers(3000, 100_000),
    ),
    st.integers(0, 3),
)
def test_a_grid_keeps_its_limits_and_has_every_kind_of_step(limits, seed):
    points = grid(limits, quick=True, seed=seed)
    assert all(limits.allow(point) for point in points)
    assert {kind_of(shape_of(point, 16)) for point in points} == {"decode", "prefill", "mixed"}
    assert len(points) == len(set(points))
    assert points == grid(limits, quick=True, seed=seed)
    assert limits.allow(anchor(limits))


def test_a_grid_reaches_its_limits():
    shapes = [shape_of(point, 16) for point in grid(measuring.CPU_LIMITS)]
    assert max(shape.decodes for shape in shapes) == 64
    assert max(shape.prefill_tokens for shape in shapes) == 512
    assert max(shape.reach for shape in shapes if shape.chunks == 1) == 2048
    assert max(shape.context for shape in shapes) > 30_000


def test_a_grid_has_batches_of_unequal_contexts():
    batches = [[cached for new, cached in point if new == 1] for point in grid(SMALL)]
    assert any(len(set(batch)) > 1 for batch in batches)


def test_every_pass_times_each_step_once_in_an_order_of_its_own():
    twice = list(plan(dataclasses.replace(SETTINGS, passes=2), SMALL))
    steps = [visit[:2] for visit in twice if visit.point != anchor(SMALL)]
    first, second = steps[: len(steps) // 2], steps[len(steps) // 2 :]
    assert len(set(first)) == len(first)
    assert set(first) == set(second)
    assert first != second


@pytest.fixture
def few(monkeypatch):
    """A grid of six steps."""
    six = grid(SMALL)[::16][:6]
    monkeypatch.setattr(measuring, "grid", lambda limits, quick, seed: six[seed:] + six[:seed])


@pytest.mark.usefixtures("few")
def test_a_measurement_writes_each_step_and_its_host_part(tmp_path):
    path = tmp_path / "raw.csv"
    shares: list[float] = []
    drift = measure(SETTINGS, path, shares.append)
    table = read_raw(path)
    host = table.rows["kind"] == "host"
    visits = list(plan(SETTINGS, SMALL))
    assert host.tolist() == [False, True] * len(visits)
    assert set(table.rows["block_size"]) == {4, 8}
    assert table.header.clock == "cpu time"
    assert table.header.threads == 1
    assert shares == [i / len(visits) for i in range(len(visits))]
    assert drift.spread >= 0


@pytest.mark.usefixtures("few")
class TestResuming:
    @pytest.fixture
    def stopped(self, tmp_path, few):
        """A measurement that Ctrl-C ended after five steps."""
        path = tmp_path / "raw.csv"

        def interrupt(share: float) -> None:
            if share * len(list(plan(SETTINGS, SMALL))) >= 5:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            measure(SETTINGS, path, interrupt)
        return path

    def test_it_keeps_what_is_done_and_goes_on(self, stopped):
        kept = stopped.read_text()
        assert len(read_raw(stopped).rows) == 10
        measure(SETTINGS, stopped)
        assert stopped.read_text().startswith(kept)
        assert len(read_raw(stopped).rows) == 2 * len(list(plan(SETTINGS, SMALL)))

    def test_a_finished_one_measures_nothing_again(self, stopped):
        measure(SETTINGS, stopped)
        done = stopped.read_bytes()
        measure(SETTINGS, stopped)
        assert stopped.read_bytes() == done

    def test_another_model_is_refused(self, stopped):
        other = dataclasses.replace(SETTINGS, dtype="fp64")
        with pytest.raises(ValueError, match="its dtype is 'fp32', expected 'fp64'"):
            measure(other, stopped)

    def test_another_grid_is_refused(self, stopped):
        other = dataclasses.replace(SETTINGS, seed=1)
        with pytest.raises(ValueError, match=r"line \d+: a step that these settings do not plan"):
            measure(other, stopped)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"model": "llama-3.1-8"}, "did you mean 'llama-3.1-8b'"),
        ({"device": "tpu"}, "expected cpu or cuda"),
        ({"dtype": "fp3"}, "expected one of fp64, fp32, bf16, fp16"),
        ({"clock": "sun"}, "expected one of cpu, wall"),
        ({"threads": 2}, "clock cpu measures 1 thread, got 2"),
        ({"block_sizes": (0,)}, "block size 0"),
        ({"passes": 0}, "passes 0"),
    ],
)
def test_impossible_settings_are_refused_and_leave_no_file(tmp_path, wrong, message):
    path = tmp_path / "raw.csv"
    with pytest.raises(ValueError, match=message):
        measure(dataclasses.replace(SETTINGS, **wrong), path)
    assert not path.exists()


def test_a_model_larger_than_memory_is_refused_before_it_is_built(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "sysconf", lambda name: 2**16)
    whole = dataclasses.replace(SETTINGS, model="llama-3.1-8b", limits=None)
    with pytest.raises(ValueError, match=r"llama-3.1-8b in fp32 needs .* GiB"):
        measure(whole, tmp_path / "raw.csv")


@pytest.mark.usefixtures("few")
class TestCommand:
    def run(self, *options: str):
        return CliRunner().invoke(app, ["profile", "measure", *options])

    def test_it_names_the_table_on_stdout_and_the_drift_on_stderr(self, tmp_path):
        path = tmp_path / "raw.csv"
        done = self.run("--quick", "--passes", "1", "--block-size", "8", "-o", str(path))
        assert done.exit_code == 0
        assert done.stdout.strip() == str(path)
        assert "P10 to P90" in done.stderr
        assert set(read_raw(path).rows["block_size"]) == {8}

    def test_stopped_it_says_how_to_go_on(self, tmp_path, monkeypatch):
        def interrupt(*_: object) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr(measuring, "append_raw", interrupt)
        stopped = self.run("--quick", "-o", str(tmp_path / "raw.csv"))
        assert stopped.exit_code == 130
        assert "run the same command again to go on" in stopped.stderr

    @pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
    def test_without_a_gpu_cuda_is_refused_in_words(self):
        refused = self.run("--device", "cuda")
        assert isinstance(refused.exception, ValueError)
        assert str(refused.exception) == "device cuda: torch finds no CUDA device on this machine"
