"""Sweeps: each cell once, nothing lost, the same bytes however it came about."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from simulator import sweep as sweeping
from simulator.pool import Local
from simulator.scenario import Scenario
from simulator.store import Outcome, Store, StoreError, key_of
from simulator.sweep import parse_grid, points
from simulator.sweep_results import to_csv

GRID = {"engine.block_size": [16, 32, 64], "policy.token_budget": [256, 512]}
LOAD = """
[trace]
rate = 20.0
requests = 40
prompt = { kind = "uniform", min = 20, max = 400 }
output = { kind = "uniform", min = 2, max = 40 }
"""


@pytest.fixture
def base() -> Scenario:
    return Scenario.loads(LOAD)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = Store(tmp_path / "cells.sqlite")
    yield opened
    opened.close()


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[Scenario]:
    """The scenarios that are really run (in this process)."""
    seen: list[Scenario] = []
    really = sweeping.run_cell

    def noted(scenario: Scenario) -> Outcome:
        seen.append(scenario)
        return really(scenario)

    monkeypatch.setattr(sweeping, "run_cell", noted)
    return seen


def command(*grid: str, out: Path, load: Path, workers: int = 2) -> list[str]:
    axes = [part for text in grid for part in ("--grid", text)]
    batchlab = [sys.executable, "-m", "simulator.cli"]
    return [*batchlab, "sweep", str(load), *axes, "-o", str(out), "-j", str(workers)]


AXES = ("engine.block_size=16,32,64", "policy.token_budget=256,512")


def results(folder: Path) -> dict[str, bytes]:
    return {
        path.name: path.read_bytes() for path in folder.iterdir() if path.suffix in (".csv", ".png")
    }


def test_the_last_axis_varies_fastest() -> None:
    grid = parse_grid(["engine.block_size=16,32", "policy.kind=static,chunked"])
    assert [tuple(point.values()) for point in points(grid)] == [
        (16, "static"), (16, "chunked"), (32, "static"), (32, "chunked"),
    ]  # fmt: skip


@pytest.mark.parametrize("text", ["engine.block_size", "=3", "seed=1,,2", "seed=1,1"])
def test_a_grid_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="--grid"):
        parse_grid([text])


def test_an_axis_stands_once() -> None:
    with pytest.raises(ValueError, match="is an axis already"):
        parse_grid(["seed=1,2", "seed=3,4"])


def test_cells_are_never_run_twice(base: Scenario, store: Store, runs: list[Scenario]) -> None:
    first = sweeping.sweep(base, GRID, store, pool=Local(workers=1))
    assert len(runs) == 6
    wider = GRID | {"policy.token_budget": [256, 512, 1024]}
    sweeping.sweep(base, wider, store, pool=Local(workers=1))
    assert len(runs) == 9
    assert sweeping.sweep(base, GRID, store, pool=Local(workers=1)) == first
    assert len(runs) == 9


def test_the_key_is_the_content(base: Scenario, tmp_path: Path) -> None:
    assert key_of(base) == key_of(Scenario.loads(LOAD))
    assert key_of(base) == key_of(base.resolved())  # a default spelt out is the same run
    assert key_of(base) != key_of(base.with_set("seed=1"))
    trace = tmp_path / "t.csv"
    trace.write_text("arrival,prompt,output\n0,10,5\n")
    recorded = base.with_load(file=str(trace))
    before = key_of(recorded)
    trace.write_text("arrival,prompt,output\n0,10,6\n")
    assert key_of(recorded) != before


def test_settings_that_can_never_work_are_marked_and_cost_nothing(
    base: Scenario, store: Store, runs: list[Scenario]
) -> None:
    grid = {"engine.block_size": [16, 0], "policy.token_budget": [100, 512]}
    cells = sweeping.sweep(base, grid, store, pool=Local(workers=1))
    assert [cell.outcome.status for cell in cells] == ["invalid", "done", "invalid", "invalid"]
    assert "smaller than engine.max_running" in cells[0].outcome.error
    assert "engine.block_size = 0" in to_csv(cells).splitlines()[3]
    assert len(runs) == 2


def test_a_cell_that_breaks_leaves_the_others_and_is_retried_on_request(
    base: Scenario, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    really = Scenario.run

    def broken(self: Scenario, **more: object) -> object:
        if self.engine.block_size == 32:
            raise RuntimeError("broken")
        return really(self)

    monkeypatch.setattr(Scenario, "run", broken)
    grid = {"engine.block_size": [16, 32]}
    cells = sweeping.sweep(base, grid, store, pool=Local(workers=1))
    assert [cell.outcome.status for cell in cells] == ["done", "failed"]
    assert cells[1].outcome.error == "RuntimeError: broken"
    monkeypatch.setattr(Scenario, "run", really)
    assert sweeping.sweep(base, grid, store, pool=Local(workers=1)) == cells
    again = sweeping.sweep(base, grid, store, pool=Local(workers=1), retry_failed=True)
    assert [cell.outcome.status for cell in again] == ["done", "done"]


def mortal(folder: Path, base: Scenario, when: str) -> Scenario:
    """A policy that kills the process it runs in, `when` that holds."""
    (folder / "mortal.py").write_text(
        "import os, pathlib, signal\n"
        "from dataclasses import dataclass\n"
        "from policies import Chunked\n"
        f"mark = pathlib.Path({str(folder / 'killed')!r})\n"
        "@dataclass(frozen=True, kw_only=True)\n"
        "class Mortal(Chunked):\n"
        "    def schedule(self, step):\n"
        f"        if {when}:\n"
        "            mark.touch()\n"
        "            os.kill(os.getpid(), signal.SIGKILL)\n"
        "        return super().schedule(step)\n"
    )
    return base.with_values({"policy.kind": f"{folder}/mortal.py:Mortal"})


def test_a_killed_worker_costs_nothing(base: Scenario, store: Store, tmp_path: Path) -> None:
    once = mortal(tmp_path, base, "not mark.exists()")
    cells = sweeping.sweep(once, GRID, store, pool=Local(workers=2))
    assert (tmp_path / "killed").exists()
    assert [cell.outcome.status for cell in cells] == ["done"] * 6


def test_a_cell_that_kills_its_worker_costs_the_others_nothing(
    base: Scenario, store: Store, tmp_path: Path
) -> None:
    deadly = mortal(tmp_path, base, "self.token_budget == 256")
    grid = {"policy.token_budget": [256, 512, 1024]}
    cells = sweeping.sweep(deadly, grid, store, pool=Local(workers=2))
    assert [cell.outcome.status for cell in cells] == ["failed", "done", "done"]
    assert "was killed, twice" in cells[0].outcome.error


class TestStore:
    def test_a_damaged_one_is_said(self, tmp_path: Path) -> None:
        path = tmp_path / "cells.sqlite"
        path.write_bytes(b"not a database at all, but long enough to be read as one" * 40)
        with pytest.raises(StoreError, match=r"cells\.sqlite: the result store cannot be used"):
            Store(path)

    def test_one_of_another_version_is_said(self, tmp_path: Path) -> None:
        path = tmp_path / "cells.sqlite"
        with closing(sqlite3.connect(path)) as db:
            db.execute("PRAGMA user_version = 99")
        with pytest.raises(StoreError, match="a store of version 99, this is version 1"):
            Store(path)

    def test_two_can_share_one(self, store: Store) -> None:
        other = Store(store.path)
        other.put("k", "", Outcome(status="done", summary={"a": 1.5}))
        assert store.get("k") == Outcome(status="done", summary={"a": 1.5})
        other.close()


class TestTheCommand:
    """In processes of their own: what a user's signals and environment do."""

    @pytest.fixture
    def load(self, tmp_path: Path) -> Path:
        path = tmp_path / "load.toml"
        path.write_text(LOAD)
        return path

    @pytest.fixture
    def undisturbed(self, load: Path, tmp_path: Path) -> dict[str, bytes]:
        out = tmp_path / "undisturbed"
        subprocess.run(
            command(*AXES, out=out, load=load, workers=1), check=True, capture_output=True
        )
        return results(out)

    def test_any_number_of_workers_and_any_hash_seed_give_the_same_bytes(
        self, load: Path, tmp_path: Path, undisturbed: dict[str, bytes]
    ) -> None:
        out = tmp_path / "out"
        env = os.environ | {"PYTHONHASHSEED": "1234"}
        done = subprocess.run(
            command(*AXES, out=out, load=load), env=env, check=True, capture_output=True, text=True
        )
        assert results(out) == undisturbed
        assert len(undisturbed) > 3
        assert "Traceback" not in done.stderr

    @pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
    def test_a_sweep_that_is_stopped_goes_on(
        self, load: Path, tmp_path: Path, undisturbed: dict[str, bytes], how: signal.Signals
    ) -> None:
        out = tmp_path / "stopped"
        stopped = subprocess.Popen(
            command(*AXES, out=out, load=load),
            start_new_session=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        while kept(out) == 0 and stopped.poll() is None:
            time.sleep(0.01)
        os.killpg(stopped.pid, how)
        _, said = stopped.communicate(timeout=60)
        before = kept(out)
        assert before > 0
        if how == signal.SIGINT and before < 6:
            assert stopped.returncode == 130
            assert len(said.splitlines()) == 1
            assert f"{before} of 6 cells are kept" in said
            assert "to go on: batchlab sweep" in said
        subprocess.run(command(*AXES, out=out, load=load), check=True, capture_output=True)
        assert results(out) == undisturbed


def kept(folder: Path) -> int:
    """Cells in a store that somebody else writes."""
    path = folder / "cells.sqlite"
    if not path.exists():
        return 0
    try:
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as db:
            return int(db.execute("SELECT count(*) FROM cells").fetchone()[0])
    except sqlite3.OperationalError:  # not made yet, or locked
        return 0
