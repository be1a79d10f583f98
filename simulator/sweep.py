"""Many scenarios: every cell of a grid, in parallel, each run once and kept.

A cell's result is stored the moment it is there, under a key made of everything that it depends
on: the resolved settings, the bytes of profile, trace and policy file, and our own sources. So a
sweep that was killed goes on where it was, and what changed is run again. Cells share nothing
but immutable inputs: results do not depend on the number of workers or on their order.
"""

from __future__ import annotations

import csv
import hashlib
import io
import itertools
import json
import re
import signal
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

from simulator.scenario import Scenario
from simulator.settings_file import parse_value

STORE_SCHEMA = 1
Status = Literal["done", "invalid", "failed"]


class StoreError(ValueError):
    """The result store cannot be used; one line that says why."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a cell came to: a summary, or why there is none."""

    status: Status
    summary: Mapping[str, Any] | None = None
    error: str = ""
    """"invalid": these settings can never work. "failed": the run itself broke."""


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One point of the grid: the keys that vary, in the grid's order, and what came of it."""

    values: Mapping[str, Any]
    outcome: Outcome


class Store:
    """Outcomes by key in one SQLite file (WAL): survives being killed, can be shared."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with self._errors():
            self._db = sqlite3.connect(path, timeout=30, isolation_level=None)
            self._db.execute("PRAGMA journal_mode = WAL")
            self._db.execute("PRAGMA synchronous = NORMAL")
            found = self._db.execute("PRAGMA user_version").fetchone()[0]
            if found not in (0, STORE_SCHEMA):
                raise StoreError(
                    f"{path}: a store of version {found}, this is version {STORE_SCHEMA}; "
                    "sweep into another folder"
                )
            self._db.execute(
                "CREATE TABLE IF NOT EXISTS cells (key TEXT PRIMARY KEY, settings TEXT NOT NULL, "
                "status TEXT NOT NULL, summary TEXT, error TEXT NOT NULL) WITHOUT ROWID"
            )
            self._db.execute(f"PRAGMA user_version = {STORE_SCHEMA}")

    def close(self) -> None:
        self._db.close()

    def get(self, key: str) -> Outcome | None:
        with self._errors():
            row = self._db.execute(
                "SELECT status, summary, error FROM cells WHERE key = ?", (key,)
            ).fetchone()
        if row is None:
            return None
        status, summary, error = row
        return Outcome(status=status, summary=summary and json.loads(summary), error=error)

    def put(self, key: str, settings: str, outcome: Outcome) -> None:
        summary = None if outcome.summary is None else json.dumps(outcome.summary)
        with self._errors():
            self._db.execute(
                "INSERT OR REPLACE INTO cells VALUES (?, ?, ?, ?, ?)",
                (key, settings, outcome.status, summary, outcome.error),
            )

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise StoreError(f"{self.path}: the result store cannot be used: {error}") from None


def parse_grid(texts: Sequence[str]) -> dict[str, list[Any]]:
    """`key=v1,v2,…` texts to axes, in the order given. Raises ValueError where one is not that."""
    axes: dict[str, list[Any]] = {}
    for text in texts:
        key, equals, values = text.partition("=")
        key = key.strip()
        if not equals or not key or not all(v.strip() for v in values.split(",")):
            raise ValueError(f"--grid {text}: expected key=value,value,…")
        if key in axes:
            raise ValueError(f"--grid {text}: {key} is an axis already")
        axes[key] = [parse_value(value) for value in values.split(",")]
        if len({repr(value) for value in axes[key]}) < len(axes[key]):
            raise ValueError(f"--grid {text}: a value is given twice")
    return axes


def points(grid: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """Every combination, the last axis varying fastest."""
    return [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]


@cache
def code_version() -> str:
    """A digest of our own sources: a change of code makes results stale."""
    root = Path(__file__).resolve().parent.parent
    digest = hashlib.sha256()
    for package in ("traces", "calibration", "policies", "simulator", "reports"):
        for path in sorted((root / package).rglob("*.py")):
            if "cli" not in path.relative_to(root).parts:
                digest.update(path.relative_to(root).as_posix().encode() + path.read_bytes())
    return digest.hexdigest()


@cache
def _digest_of_file(path: str, stamp: tuple[int, int]) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def key_of(scenario: Scenario) -> str:
    """The content of everything that a run depends on. Raises what building it would raise."""
    resolved = scenario.resolved()
    inputs = {}
    for role, path in resolved.input_files().items():
        stat = path.stat()
        inputs[role] = _digest_of_file(str(path), (stat.st_mtime_ns, stat.st_size))
    content = {"settings": resolved.tables(), "inputs": inputs, "code": code_version()}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def run_cell(scenario: Scenario) -> Outcome:
    """Run one scenario to its summary; whatever goes wrong becomes its outcome."""
    from reports.metrics import summarize

    try:
        return Outcome(status="done", summary=summarize(scenario.run(), scenario.objectives()))
    except (ValueError, OSError) as error:
        return Outcome(status="invalid", error=str(error))
    except Exception as error:  # one broken cell must not cost the others
        return Outcome(status="failed", error=f"{type(error).__name__}: {error}")


def _in_worker(index: int, scenario: Scenario) -> tuple[int, Outcome]:
    # Ctrl-C goes to the whole process group; the parent alone decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    return index, run_cell(scenario)


def sweep(
    base: Scenario,
    grid: Mapping[str, Sequence[Any]],
    store: Store,
    *,
    workers: int = -1,
    retry_failed: bool = False,
    on_cell: Callable[[int, int], None] | None = None,
) -> list[Cell]:
    """All cells of the grid over `base`, in the grid's order; runs only what the store lacks.

    `workers` as in joblib: -1 = every core, 1 = in this process. `on_cell(settled, all)` is
    called for each one as it is finished or found. Interrupted, it leaves the finished cells in
    the store.
    """
    values = points(grid)
    outcomes: dict[int, Outcome] = {}
    todo: dict[int, tuple[str, Scenario]] = {}

    def settle(index: int, outcome: Outcome) -> None:
        outcomes[index] = outcome
        if on_cell:
            on_cell(len(outcomes), len(values))

    for index, changes in enumerate(values):
        try:
            scenario = base.with_values(changes)
            key = key_of(scenario)
        except ValueError as error:
            settle(index, Outcome(status="invalid", error=str(error)))
            continue
        known = store.get(key)
        if known is None or (retry_failed and known.status == "failed"):
            todo[index] = key, scenario
        else:
            settle(index, known)
    for index, outcome in _outcomes({i: scenario for i, (_, scenario) in todo.items()}, workers):
        key, scenario = todo[index]
        store.put(key, scenario.dump(), outcome)
        settle(index, outcome)
    return [Cell(values=at, outcome=outcomes[index]) for index, at in enumerate(values)]


def to_csv(cells: Sequence[Cell]) -> str:
    """One line a cell in the grid's order: its values, every figure by dotted path, its error."""
    flat = [dict(_figures(cell.outcome.summary or {})) for cell in cells]
    figures = list(dict.fromkeys(name for row in flat for name in row))
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([*cells[0].values, "status", *figures, "error"])
    for cell, row in zip(cells, flat, strict=True):
        numbers = ("" if row.get(name) is None else row[name] for name in figures)
        writer.writerow([*cell.values.values(), cell.outcome.status, *numbers, cell.outcome.error])
    return out.getvalue()


def shown(cells: Sequence[Cell], *, exact: bool) -> list[dict[str, Any]]:
    """The metrics of the heat maps, one row a cell: exact, or as people read them.

    For people metrics are left out that no cell has, or that are 0 in all, and "done".
    """
    from reports.figures.heat import SWEPT
    from reports.tables import value_at

    found = [
        {name: value_at(cell.outcome.summary or {}, row.path) for name, row in SWEPT.items()}
        for cell in cells
    ]
    told = [name for name in SWEPT if exact or any(values[name] for values in found)]
    odd = any(cell.outcome.status != "done" for cell in cells)
    rows = []
    for cell, values in zip(cells, found, strict=True):
        metrics = {SWEPT[n].label: values[n] if exact else SWEPT[n].form(values[n]) for n in told}
        axes = {key if exact else key.rpartition(".")[2]: at for key, at in cell.values.items()}
        status = {"status": cell.outcome.status} if exact or odd else {}
        rows.append({**axes, **status, **metrics})
    return rows


def heat_maps(
    base: Scenario, grid: Mapping[str, Sequence[Any]], cells: Sequence[Cell]
) -> dict[str, bytes]:
    """PNGs by name: a metric over the first two axes, for each combination of the others."""
    from reports.figures.heat import sweep_figures

    axes = list(grid)
    x = axes[0], list(grid[axes[0]])
    y = (axes[1], list(grid[axes[1]])) if axes[1:] else ("policy.kind", [base.policy.kind])
    planes: dict[str, dict[tuple[Any, Any], Mapping[str, Any] | None]] = {}
    for cell in cells:
        others = "".join(f"_{key}={cell.values[key]}" for key in axes[2:])
        at = cell.values[x[0]], cell.values.get(y[0], y[1][0])
        planes.setdefault(re.sub(r"[^\w.=-]", "-", others), {})[at] = cell.outcome.summary
    return {
        f"{name}{others}": picture
        for others, plane in planes.items()
        for name, picture in sweep_figures(x, y, plane).items()
    }


def _figures(summary: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in summary.items():
        if isinstance(value, Mapping):
            if key != "scenario":
                yield from _figures(value, f"{path}{key}.")
        elif not isinstance(value, list):
            yield f"{path}{key}", value


def _outcomes(todo: Mapping[int, Scenario], workers: int) -> Iterator[tuple[int, Outcome]]:
    """Outcomes as they come. A cell whose worker was killed is run again, once."""
    if workers == 1 or len(todo) < 2:
        yield from ((index, run_cell(scenario)) for index, scenario in todo.items())
        return
    from joblib import Parallel, delayed
    from joblib.externals.loky.process_executor import TerminatedWorkerError

    left = dict(todo)
    for last in (False, True):
        pool = Parallel(n_jobs=workers, return_as="generator_unordered", batch_size=1)
        try:
            for index, outcome in pool(delayed(_in_worker)(*item) for item in list(left.items())):
                del left[index]
                yield index, outcome
        except TerminatedWorkerError:
            if last:
                break
        if not left:
            return
    for index in list(left):
        yield index, Outcome(status="failed", error="its worker was killed twice")
