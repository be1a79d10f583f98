"""Records written to disk while the run goes on, some thousand rows at a time.

The logs of a run say when rows became arrays (`Columns.on_pack`); what is new in them is then
written, in the order in which it came to be. The columns are those of `traces.records`, times in
whole picoseconds.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from calibration.step_time import StepTime
from reports.growing import GrowingTable, growing_table
from reports.tables import to_json
from reports.write import prepare, write_text
from simulator.columns import Columns
from simulator.recorder import LABELS, ReplicaLog, RequestLog
from simulator.step import StepBuilder
from simulator.window import Outside, Passed, Window
from traces.records import REQUEST_COLUMNS, SPELL_COLUMNS, STALL_COLUMNS, STEP_COLUMNS

ROWS = 8192
"""Steps that are worked out and written at once, unless a single leap has more."""
TABLES: dict[str, tuple[str, ...]] = {
    "requests": (*REQUEST_COLUMNS, *LABELS),
    "steps": tuple(STEP_COLUMNS),
    "spells": SPELL_COLUMNS,
    "stalls": STALL_COLUMNS,
}
"""Files and their columns."""


class RecordsWriter:
    """The records of one run, into a folder.

        with RecordsWriter(folder) as writer:
            records = scenario.run(writer=writer)

    leaves requests, steps, spells and stalls (.parquet, or .csv where pyarrow is not installed),
    and about.json once the run is over. A run that is interrupted, or breaks a law, leaves the
    tables up to that moment, and no about.json. Everything raises OSError of one line, naming
    the path, where the folder cannot be written.
    """

    def __init__(self, folder: Path | str) -> None:
        """The folder is made if need be. Files are written only once a run begins."""
        self.folder = prepare(folder)
        self.tables: dict[str, GrowingTable] = {}
        """By name; none before a run has begun."""
        self._sources: list[_Source] = []
        self._logs: list[Columns] = []

    def __enter__(self) -> RecordsWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            self.close()
            return
        with suppress(OSError):  # what went wrong first is what matters
            try:
                if isinstance(error, KeyboardInterrupt | ValueError):
                    for source in self._sources:
                        source.flush(last=False)
            finally:
                self.close()

    def follow(
        self,
        requests: RequestLog,
        logs: list[ReplicaLog],
        steps: list[StepBuilder],
        outside: Outside | None,
        prices: StepTime | None,
    ) -> None:
        """A run begins: write what these logs get. Raises ValueError if it is the second one."""
        if self.tables:
            raise ValueError(f"{self.folder}: a RecordsWriter writes one run, and has begun it")
        (self.folder / "about.json").unlink(missing_ok=True)
        for name, columns in TABLES.items():
            self.tables[name] = growing_table(self.folder, name, columns, texts=LABELS)
        self._add(_Requests(self.tables["requests"], requests), *requests.tables)
        for log in logs:
            self._add(_Steps(self.tables["steps"], log, outside, prices), log.leaps)
        for name in ("spells", "stalls"):
            for replica, step in enumerate(steps):
                rows = step.group.spells if name == "spells" else step.stalls
                self._add(_Gaps(self.tables[name], TABLES[name], replica, rows), rows)

    def _add(self, source: _Source, *logs: Columns) -> None:
        self._sources.append(source)
        self._logs += logs
        for columns in logs:
            columns.on_pack = source.flush

    def complete(self) -> None:
        """The run is over: write what is left, and let go of the logs."""
        for source in self._sources:
            source.flush(last=True)
        for columns in self._logs:
            columns.on_pack = None
        self._sources.clear()
        self._logs.clear()

    def finish(self, about: dict[str, Any]) -> None:
        """The run was right: close the tables and write the facts."""
        self.close()
        write_text(self.folder / "about.json", to_json(about))

    def close(self) -> None:
        """End the files, so that they can be read. The first error is raised, after the last."""
        errors = []
        for table in self.tables.values():
            try:
                table.close()
            except OSError as error:
                errors.append(error)
        if errors:
            raise errors[0]


class _Source(ABC):
    """A log, and how much of it is in its table."""

    def __init__(self, table: GrowingTable) -> None:
        self.table = table
        self._busy = False

    def flush(self, *, last: bool = False) -> None:
        """Write what is new. `last`: nothing more will come."""
        # It stays busy where it was interrupted: a gap is followed by nothing.
        if not self._busy:
            self._busy = True
            self._write(last)
            self._busy = False

    @abstractmethod
    def _write(self, last: bool) -> None: ...


class _Requests(_Source):
    """Those that ended."""

    def __init__(self, table: GrowingTable, log: RequestLog) -> None:
        super().__init__(table)
        self._log = log
        self._packs = slice(0), slice(0)

    def _write(self, last: bool) -> None:
        logs = self._log.tables
        for columns in logs:
            columns.pack()
        rows, short = (
            slice(packs.stop, columns.packs)
            for packs, columns in zip(self._packs, logs, strict=True)
        )
        self.table.add(self._log.some((rows, short)))
        self._packs = rows, short


class _Gaps(_Source):
    """Spells or stalls of a replica."""

    def __init__(
        self, table: GrowingTable, names: tuple[str, ...], replica: int, rows: Columns
    ) -> None:
        super().__init__(table)
        self._names = names
        self._replica = replica
        self._rows = rows
        self._packs = 0

    def _write(self, last: bool) -> None:
        self._rows.pack()
        new = slice(self._packs, self._rows.packs)
        columns = {n: self._rows.column(n, new) for n in self._names if n != "replica"}
        columns["replica"] = np.full(len(columns["request"]), self._replica)
        self.table.add({name: columns[name] for name in self._names})
        self._packs = new.stop


class _Steps(_Source):
    """Steps of a replica.

    The last leap waits until there is another one: only then is all known of it (what its further
    steps took, who arrived during it).
    """

    def __init__(
        self,
        table: GrowingTable,
        log: ReplicaLog,
        outside: Outside | None,
        prices: StepTime | None,
    ) -> None:
        super().__init__(table)
        self._log = log
        self._outside = outside
        self._prices = prices
        self._passed = Passed()
        self._pack = 0
        """The first pack that is not all written."""
        self._leap = 0
        """The first leap of it that is not."""

    def _write(self, last: bool) -> None:
        leaps = self._log.leaps
        leaps.pack()
        packs = slice(self._pack, leaps.packs)
        ends = leaps.column("steps", packs).cumsum()
        stop = len(ends) if last else len(ends) - 1
        at = self._leap
        while at < stop:
            before = ends[at - 1] if at else 0
            until = int(np.searchsorted(ends, before + ROWS, side="right"))
            until = min(max(until, at + 1), stop)
            window = Window(
                self._log, self._outside, self._prices, self._passed, packs, slice(at, until)
            )
            self.table.add({name: window.column(name) for name in STEP_COLUMNS})
            self._passed = window.passed
            at = until
        if at > self._leap:
            newest = len(leaps.column("steps", slice(packs.stop - 1, packs.stop)))
            self._pack, self._leap = packs.stop - 1, newest - (len(ends) - at)
