"""Results on disk by content: one SQLite file that survives being killed and can be shared.

A key is made of everything that a result depends on: the resolved settings, the bytes of profile,
trace and policy file, and our own sources. So what is asked again is found, and what changed is
run again. `cells` holds the summaries of sweeps, `runs` what the planner keeps of its runs.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

from simulator.scenario import Scenario

STORE_SCHEMA = 1
WAIT_S = 30.0
"""How long another process may hold the store before that is an error."""

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


class Store:
    """Outcomes and runs by key, in write-ahead mode; each is there once `put` returns."""

    def __init__(self, path: Path, *, wait_s: float = WAIT_S) -> None:
        """Open, or make. Raises `StoreError` for a file that is not a store of this version."""
        self.path = path
        with self._errors():
            self._db = sqlite3.connect(path, timeout=wait_s, isolation_level=None)
            found = self._db.execute("PRAGMA user_version").fetchone()[0]
            if found not in (0, STORE_SCHEMA):
                raise StoreError(
                    f"{path}: a store of version {found}, this is version {STORE_SCHEMA}; "
                    "take another file"
                )
            self._db.execute("PRAGMA journal_mode = WAL")
            self._db.execute("PRAGMA synchronous = NORMAL")
            for table in (
                "cells (key TEXT PRIMARY KEY, settings TEXT NOT NULL, status TEXT NOT NULL, "
                "summary TEXT, error TEXT NOT NULL)",
                "runs (key TEXT PRIMARY KEY, content BLOB NOT NULL)",
            ):
                self._db.execute(f"CREATE TABLE IF NOT EXISTS {table} WITHOUT ROWID")
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

    def runs(self, keys: Iterable[str]) -> dict[str, bytes]:
        """What is kept of runs, of those keys that are known."""
        found = {}
        with self._errors():
            for key in keys:
                row = self._db.execute("SELECT content FROM runs WHERE key = ?", (key,)).fetchone()
                if row is not None:
                    found[key] = row[0]
        return found

    def put_run(self, key: str, content: bytes) -> None:
        with self._errors():
            self._db.execute("INSERT OR REPLACE INTO runs VALUES (?, ?)", (key, content))

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, json.JSONDecodeError) as error:
            raise StoreError(
                f"{self.path}: the result store cannot be used: {error}{_advice(error)}"
            ) from None


def _advice(error: Exception) -> str:
    said = str(error)
    for sign, advice in (
        ("locked", "another process holds it; try again when that has ended"),
        ("readonly", "make it writable, or copy it to where it is"),
        ("unable to open", "is its folder there, and writable?"),
        ("not a database", "keep it aside, and take another file"),
        ("malformed", "it is damaged; keep it aside, and take another file"),
        ("disk image", "it is damaged; keep it aside, and take another file"),
    ):
        if sign in said:
            return f" ({advice})"
    return ""


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
