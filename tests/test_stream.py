"""Records that are written while the run goes on are the records that it returns."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from serving import ask, trace_of
from test_fleet import POLICIES, SECOND, TIMES, doors, fleets, loads
from test_same_as_naive import Case, cases, plain_cases, run_fast

from calibration.step_time import Predicted
from reports.growing import GrowingTable
from simulator.cli import run as batchlab
from simulator.clients import RetrySettings
from simulator.engine import Engine
from simulator.recorder import LABELS
from simulator.run import simulate
from simulator.scenario import Scenario
from simulator.stream import TABLES, RecordsWriter
from traces.records import Records
from traces.trace import PS_PER_S

SCENARIO = {"seed": 3, "trace": {"preset": "chat", "rate": 12.0, "requests": 300}}
FORMS = ("parquet", "csv")
KEYS = {"requests": ["request"], "steps": ["replica", "start"]}
forms = pytest.mark.parametrize("form", FORMS)
often = settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
chunks = st.sampled_from((1, 2, 5))


@contextmanager
def in_chunks(rows: int, form: str = "parquet") -> Iterator[None]:
    """Logs become arrays, and are written, that many rows at a time."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("columns.CHUNK", "cruise.CHUNK", "stream.ROWS"):
            patch.setattr(f"simulator.{name}", rows)
        if form == "csv":
            patch.setitem(sys.modules, "pyarrow.parquet", None)  # as if not installed
        yield


def read(folder: Path, name: str) -> pd.DataFrame:
    """As docs/simulate.md says."""
    if (folder / f"{name}.parquet").exists():
        return pd.read_parquet(folder / f"{name}.parquet")
    return pd.read_csv(folder / f"{name}.csv", keep_default_na=False)


def returned(records: Records, name: str) -> pd.DataFrame:
    table = getattr(records, name)
    return getattr(table, "frame", table)


def rows_of(frame: pd.DataFrame, name: str) -> list[tuple[object, ...]]:
    ordered = frame.sort_values(KEYS.get(name, list(frame.columns)), kind="stable")
    return [tuple(row) for row in ordered.astype(object).itertuples(index=False)]


def assert_streamed(run: Callable[[RecordsWriter | None], Records], rows: int, form: str) -> None:
    plain = run(None)
    with tempfile.TemporaryDirectory() as at:
        folder = Path(at)
        with in_chunks(rows, form), RecordsWriter(folder) as writer:
            streamed = run(writer)
        for name, columns in TABLES.items():
            frame, expected = read(folder, name), returned(streamed, name)
            assert list(frame.columns) == list(expected.columns) == list(columns)
            assert len(frame) == writer.tables[name].rows
            assert all(frame[n].dtype == "int64" for n in {*columns} - {*LABELS} if len(frame))
            assert rows_of(frame, name) == rows_of(expected, name), name
            assert returned(plain, name).equals(expected), f"streaming changed {name}"
        assert plain.about == streamed.about
        about = json.loads((folder / "about.json").read_text())
        assert about == json.loads(json.dumps(streamed.about))


@often
@given(cases() | plain_cases(), st.booleans(), chunks, st.sampled_from(FORMS))
def test_of_any_policy(case: Case, leap: bool, rows: int, form: str) -> None:
    """Prefix caches, preemptions and horizons too."""

    def run(writer: RecordsWriter | None) -> Records:
        return simulate(
            case.trace, case.policy, case.engine, Predicted(case.step_time),
            horizon=case.horizon, leap=leap, writer=writer,
        )  # fmt: skip

    assert_streamed(run, rows, form)


@often
@given(
    loads(), doors, fleets(), st.integers(0, 2), st.sampled_from(POLICIES), st.sampled_from(TIMES),
    st.booleans(), st.none() | st.integers(1, 30), chunks, st.sampled_from(FORMS),
)  # fmt: skip
def test_of_any_fleet(
    asks, door, fleet, retries, policy, step_time, cache, horizon, rows, form
) -> None:
    """Replicas lost and added, requests turned away, late and sent again too."""

    def run(writer: RecordsWriter | None) -> Records:
        return simulate(
            trace_of(asks), policy,
            Engine(kv_tokens=160, block_size=16, max_running=4, prefix_cache=cache),
            Predicted(step_time), door=door, fleet=fleet, writer=writer,
            retry=RetrySettings(count=retries if door.turns_away else 0, backoff=1, jitter=0.5),
            horizon=None if horizon is None else horizon * PS_PER_S,
        )  # fmt: skip

    assert_streamed(run, rows, form)


@often
@given(cases() | plain_cases(), chunks, st.integers(1, 3))
def test_steps_are_the_same_in_many_windows_as_in_one(case: Case, rows: int, packs: int) -> None:
    """What `simulator.unroll` does to long runs."""
    whole = run_fast(case, leap=True)
    with in_chunks(rows), pytest.MonkeyPatch.context() as patch:
        patch.setattr("simulator.unroll.PACKS", packs)
        parts = run_fast(case, leap=True)
        assert whole.steps.equals(parts.steps)
        assert whole.about == parts.about


def test_requests_stand_in_the_order_in_which_they_ended(tmp_path: Path) -> None:
    asks = [ask(10, 30), ask(10, 5), ask(10, 50), ask(10, 10), ask(10, 2, at=3)]
    engine = Engine(kv_tokens=1 << 12, block_size=16, max_running=8)
    with in_chunks(2), RecordsWriter(tmp_path) as writer:
        simulate(
            trace_of(asks), POLICIES[0], engine, Predicted(SECOND),
            horizon=20 * PS_PER_S, writer=writer,
        )  # fmt: skip
    requests = read(tmp_path, "requests")
    assert requests["request"].tolist() == [1, 4, 3, 0, 2]
    assert requests["reason"].tolist() == ["stop", "stop", "stop", "", ""]


class TestInterrupted:
    """What had come to be by then can be read, and there is no about.json."""

    @forms
    @pytest.mark.parametrize("rows", [16, 4096], ids=["many chunks", "less than a chunk"])
    def test_all_that_had_ended_is_kept(self, tmp_path: Path, form: str, rows: int) -> None:
        scenario = Scenario.of(SCENARIO)
        records = scenario.run()
        seen: list[int] = []

        def stop(ended: int, of: int) -> None:
            seen.append(ended)
            if ended >= 100:
                raise KeyboardInterrupt

        (tmp_path / "about.json").write_text("of the run before")
        with in_chunks(rows, form), pytest.MonkeyPatch.context() as patch:
            patch.setattr("simulator.cruise.CHUNK", 16)  # it tells the progress then
            with pytest.raises(KeyboardInterrupt), RecordsWriter(tmp_path) as writer:
                scenario.run(on_progress=stop, writer=writer)
        assert not (tmp_path / "about.json").exists()
        requests = read(tmp_path, "requests")
        assert len(requests) == seen[-1] == writer.tables["requests"].rows
        for name in TABLES:
            kept, whole = (
                rows_of(t, name) for t in (read(tmp_path, name), returned(records, name))
            )
            assert set(kept) <= set(whole), name
        steps = rows_of(read(tmp_path, "steps"), "steps")
        assert steps == rows_of(returned(records, "steps"), "steps")[: len(steps)]
        assert len(steps) > 100

    @forms
    @pytest.mark.parametrize("name", ["requests", "steps", "spells"])
    def test_a_gap_is_followed_by_nothing(
        self, tmp_path: Path, form: str, name: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Ctrl-C in the midst of writing a chunk."""
        scenario = Scenario.of(SCENARIO)
        whole = rows_of(returned(scenario.run(), name), name)
        calls = 0

        def interrupted(table: GrowingTable, columns: Any) -> None:
            nonlocal calls
            calls += table.path.stem == name
            if table.path.stem == name and calls == 3:
                raise KeyboardInterrupt
            usual(table, columns)

        usual = GrowingTable.add
        monkeypatch.setattr(GrowingTable, "add", interrupted)
        stop = pytest.raises(KeyboardInterrupt)
        with in_chunks(20, form), stop, RecordsWriter(tmp_path) as writer:
            scenario.run(writer=writer)
        kept = rows_of(read(tmp_path, name), name)
        assert 0 < len(kept) < len(whole)
        assert set(kept) <= set(whole)
        assert len(kept) == writer.tables[name].rows
        if name == "steps":
            assert kept == whole[: len(kept)]

    def test_of_the_command(self, tmp_path: Path) -> None:
        """A real one. What is kept is said, and can be read."""
        out = tmp_path / "raw"
        command = [sys.executable, "-m", "simulator.cli", "simulate", "--preset", "chat"]
        long = ["--rate", "8", "--set", "trace.requests=2e5", "--records", str(out)]
        process = subprocess.Popen([*command, *long], stderr=subprocess.PIPE, text=True)
        while process.poll() is None and not any(
            path.stat().st_size > 100_000 for path in out.glob("requests.*")
        ):
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        said = process.communicate()[1]
        assert process.returncode == 130
        requests, steps = read(out, "requests"), read(out, "steps")
        assert f"batchlab: interrupted; kept in {out}/: {len(requests):,} requests" in said
        assert f"{len(steps):,} steps" in said
        assert len(requests) > 0
        assert (requests["finished"] >= 0).all()


class TestTheCommand:
    @pytest.fixture(autouse=True)
    def folder(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        Path("s.toml").write_text(Scenario.of(SCENARIO).dump())

    def refused(self, capsys: pytest.CaptureFixture[str], *args: str) -> str:
        assert batchlab(["simulate", "s.toml", *args]) == 2
        out, err = capsys.readouterr()
        assert not out
        assert err.startswith("batchlab: ")
        assert err.count("\n") == 1
        return err

    @forms
    def test_says_what_it_wrote(self, capsys: pytest.CaptureFixture[str], form: str) -> None:
        with in_chunks(64, form):
            assert batchlab(["simulate", "s.toml", "--format", "json", "--records", "raw"]) == 0
        out, err = capsys.readouterr()
        assert f"written to raw/: requests.{form}, steps.{form}" in err
        assert {path.name for path in Path("raw").iterdir()} == {
            *(f"{name}.{form}" for name in TABLES),
            "about.json",
        }
        assert batchlab(["simulate", "s.toml", "--format", "json"]) == 0
        assert capsys.readouterr().out == out

    def test_needs_a_folder_that_can_be_made(self, capsys: pytest.CaptureFixture[str]) -> None:
        said = self.refused(capsys, "--records", "s.toml/raw")
        assert "s.toml/raw: cannot make the folder" in said

    def test_needs_a_folder_of_its_own(self, capsys: pytest.CaptureFixture[str]) -> None:
        said = self.refused(capsys, "--records", "out", "-o", "./out")
        assert "--records out: expected another folder" in said

    @forms
    @pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
    def test_a_full_disk(self, capsys: pytest.CaptureFixture[str], form: str) -> None:
        Path("raw").mkdir()
        Path(f"raw/steps.{form}").symlink_to("/dev/full")
        with in_chunks(64, form):
            said = self.refused(capsys, "--records", "raw")
        assert f"raw/steps.{form}: cannot write: no space left on device" in said

    @forms
    @pytest.mark.skipif(os.name != "posix", reason="needs limits on the size of files")
    def test_a_disk_that_fills_up(self, form: str) -> None:
        """What no longer fits is not left behind by half: whole rows, or no file."""
        hide = "import sys; sys.modules['pyarrow'] = None; " if form == "csv" else ""
        start = (
            f"{hide}import simulator.columns as columns; columns.CHUNK = 64; "
            "import simulator.stream as stream; stream.ROWS = 64; "
            "from simulator.cli import run; raise SystemExit(run())"
        )
        args = "simulate s.toml --rate 5 --limit 300 --records raw"
        done = subprocess.run(
            ["bash", "-c", f'ulimit -f 40; exec "$0" -c "$1" {args}', sys.executable, start],
            capture_output=True,
            text=True,
        )
        assert done.returncode == 2, done.stderr
        assert f": cannot write: {os.strerror(27).lower()}" in done.stderr
        assert done.stderr.count("\n") == 1
        assert not Path("raw/about.json").exists()
        assert list(read(Path("raw"), "requests").columns) == [*TABLES["requests"]]
        if form == "csv":
            steps = read(Path("raw"), "steps")
            assert len(steps) > 0
            assert (steps.dtypes == "int64").all()
        else:
            assert not Path("raw/steps.parquet").exists()


def test_a_writer_writes_one_run(tmp_path: Path) -> None:
    scenario = Scenario.of(SCENARIO | {"trace": {"preset": "chat", "requests": 5}})
    with RecordsWriter(tmp_path) as writer:
        scenario.run(writer=writer)
        with pytest.raises(ValueError, match="writes one run"):
            scenario.run(writer=writer)
