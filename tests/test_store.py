"""The store and the pools: what is there once it is put, and what is said where it cannot be."""

from __future__ import annotations

import os
import signal
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from simulator.pool import Local, Pool, Ray, pool_of
from simulator.runs import RunFailed, Runs, together
from simulator.scenario import Scenario
from simulator.store import Outcome, Store, StoreError
from simulator.sweep import points, sweep
from simulator.sweep_results import to_csv, to_parquet

LOAD = """
[trace]
rate = 20.0
requests = 40
prompt = { kind = "uniform", min = 20, max = 400 }
output = { kind = "uniform", min = 2, max = 40 }
"""
GRID = {"engine.block_size": [16, 32], "policy.token_budget": [256, 512]}


@pytest.fixture
def base() -> Scenario:
    return Scenario.loads(LOAD)


def test_runs_are_kept_by_content(base: Scenario, tmp_path: Path) -> None:
    store = Store(tmp_path / "runs.sqlite")
    first, again = (Runs(store=store, pool=Local(workers=1)) for _ in range(2))
    one, two = first.of([base, base])  # equal scenarios are run once
    (three,) = again.of([base])
    store.close()
    assert (first.made, again.made, again.found) == (1, 0, 1)
    assert not isinstance(three, RunFailed)
    assert three.facts == one.facts == two.facts


def test_a_run_that_cannot_be_says_why_and_leaves_the_others(base: Scenario) -> None:
    bad = base.with_values({"policy.token_budget": 100})
    good, failed = Runs(pool=Local(workers=1)).of([base, bad])
    assert not isinstance(good, RunFailed)
    assert "smaller than engine.max_running" in str(failed)


def test_studies_share_the_rounds(base: Scenario) -> None:
    from simulator.runs import Study, Wanted

    def study(rates: list[float]) -> Study[int]:
        for rate in rates:
            yield Wanted([base.with_values({"trace.rate": rate})], "")
        return len(rates)

    rounds: list[tuple[int, int, int]] = []
    ended = together(
        {"a": study([1.0, 2.0]), "b": study([3.0])},
        Runs(pool=Local(workers=1)),
        lambda done, all, going, about: rounds.append((done, all, going)),
    )
    assert ended == {"a": 2, "b": 1}
    assert rounds == [(1, 2, 2), (2, 2, 2), (1, 1, 1)]


class TestFaults:
    def test_a_folder_that_is_not_there(self, tmp_path: Path) -> None:
        with pytest.raises(StoreError, match=r"unable to open database file .is its folder there"):
            Store(tmp_path / "no" / "such.sqlite")

    def test_one_that_another_process_holds(self, tmp_path: Path) -> None:
        path = tmp_path / "cells.sqlite"
        Store(path).close()
        waiting = Store(path, wait_s=0.05)
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN EXCLUSIVE")
            with pytest.raises(StoreError, match=r"locked .another process holds it"):
                waiting.put_run("k", b"x")
        waiting.put_run("k", b"x")
        assert waiting.runs(["k", "other"]) == {"k": b"x"}
        waiting.close()

    def test_one_that_is_read_only(self, tmp_path: Path) -> None:
        path = tmp_path / "cells.sqlite"
        store = Store(path)
        store._db.execute("PRAGMA query_only = ON")
        with pytest.raises(StoreError, match=r"readonly database .make it writable"):
            store.put("k", "", Outcome(status="done", summary={}))
        store.close()

    def test_a_run_in_it_that_is_damaged(self, base: Scenario, tmp_path: Path) -> None:
        store = Store(tmp_path / "runs.sqlite")
        runs = Runs(store=store, pool=Local(workers=1))
        runs.of([base])
        store._db.execute("UPDATE runs SET content = x'00'")
        with pytest.raises(StoreError, match="damaged"):
            runs.of([base])
        store.close()


class TestSample:
    def test_a_larger_one_holds_the_smaller(self) -> None:
        few, more = (points(GRID, sample=n, seed=7) for n in (2, 3))
        assert len(few) == 2
        assert all(point in more for point in few)
        assert all(point in points(GRID) for point in more)

    def test_one_of_all_is_the_grid(self) -> None:
        assert points(GRID, sample=99) == points(GRID)


def test_parquet_has_the_same_table(base: Scenario, tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow", reason="--export parquet needs pyarrow")
    store = Store(tmp_path / "cells.sqlite")
    cells = sweep(base, {"engine.block_size": [16, 32]}, store, pool=Local(workers=1))
    store.close()
    path = tmp_path / "sweep.parquet"
    path.write_bytes(to_parquet(cells))
    read = pandas.read_parquet(path)
    assert list(read.columns) == to_csv(cells).splitlines()[0].split(",")
    assert read["status"].tolist() == ["done", "done"]


@pytest.mark.parametrize(
    ("name", "address", "said"),
    [("cloud", None, "expected local or ray"), ("local", "host:1", "needs --pool ray")],
)
def test_pools_that_are_none(name: str, address: str | None, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        pool_of(name, address=address)


class TestRay:
    """Two workers of a Ray cluster on this machine."""

    @pytest.fixture(scope="class")
    def pool(self) -> Pool:
        pytest.importorskip("ray", reason="needs the extra `ray`")
        return Ray(workers=2)

    @pytest.mark.filterwarnings("ignore")
    def test_the_same_cells_as_here_even_if_a_worker_is_killed(
        self, base: Scenario, pool: Pool, tmp_path: Path
    ) -> None:
        import ray

        here, there = (Store(tmp_path / f"{name}.sqlite") for name in ("here", "there"))
        try:
            mortal = base.with_values({"policy.kind": f"{_mortal(tmp_path)}:Mortal"})
            cells = sweep(mortal, GRID, there, pool=pool)
            assert (tmp_path / "killed").exists()
            assert to_csv(cells) == to_csv(sweep(mortal, GRID, here, pool=Local(workers=1)))
            assert [cell.outcome.status for cell in cells] == ["done"] * 4
        finally:
            ray.shutdown()
            here.close()
            there.close()


def _mortal(folder: Path) -> Path:
    """A policy that ends its process the first time that it is asked to schedule."""
    path = folder / "mortal.py"
    path.write_text(
        "import os, pathlib, signal\n"
        "from dataclasses import dataclass\n"
        "from policies import Chunked\n"
        "@dataclass(frozen=True, kw_only=True)\n"
        "class Mortal(Chunked):\n"
        "    def schedule(self, step):\n"
        f"        mark = pathlib.Path({str(folder / 'killed')!r})\n"
        f"        if not mark.exists() and os.getpid() != {os.getpid()}:\n"
        "            mark.touch()\n"
        f"            os.kill(os.getpid(), {int(signal.SIGKILL)})\n"
        "        return super().schedule(step)\n"
    )
    return path
