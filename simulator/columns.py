"""Columns of whole numbers, written row by row: what a log keeps of a long run.

A row is a tuple, which is the cheapest thing that Python can write down. Every few thousand rows
become arrays, each as narrow as its values allow: a column that never changes takes no room.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from traces.trace import Ints

CHUNK = 1024
"""Rows that are kept as tuples before they become arrays."""
KINDS = (np.int8, np.int16, np.int32, np.int64)


class Columns:
    """Rows of one table."""

    def __init__(self, names: Iterable[str]) -> None:
        self.names = tuple(names)
        self.rows: list[tuple[int, ...]] = []
        """Those that are no arrays yet; who adds many here itself calls `pack` now and then."""
        self.on_pack: Callable[[], None] | None = None
        """Called after rows became arrays."""
        self._packed = 0
        self._packs: list[list[NDArray[np.signedinteger]]] = []
        """Of each pack: its columns."""

    def __len__(self) -> int:
        return self._packed + len(self.rows)

    def add(self, row: tuple[int, ...]) -> None:
        """Write one row, a value for each name."""
        self.rows.append(row)
        if len(self.rows) >= CHUNK:
            self.pack()

    def pack(self) -> None:
        """Turn the rows so far into arrays."""
        rows, width = self.rows, len(self.names)
        if not rows:
            return
        flat = np.fromiter(chain.from_iterable(rows), np.int64, count=len(rows) * width)
        table = flat.reshape(len(rows), width)
        lows, highs = table.min(axis=0).tolist(), table.max(axis=0).tolist()
        pack = [
            _narrow(values, low, high)
            for values, low, high in zip(table.T, lows, highs, strict=True)
        ]
        # An interruption in between may lose rows, but nobody sees any twice or by half.
        self._packed += len(rows)
        rows.clear()
        self._packs.append(pack)
        if self.on_pack is not None:
            self.on_pack()

    @property
    def packs(self) -> int:
        """How many times rows became arrays."""
        return len(self._packs)

    def column(self, name: str, packs: slice = slice(None)) -> Ints:
        """The values of one column, in the order of writing, of all rows or of some `packs`; a
        new array."""
        self.pack()
        at = self.names.index(name)
        parts = [pack[at] for pack in self._packs[packs]]
        out = np.empty(sum(map(len, parts)), dtype=np.int64)
        return np.concatenate(parts, out=out) if parts else out

    def clear(self) -> None:
        """Forget all rows."""
        self.rows.clear()
        self._packed = 0
        self._packs.clear()


def _narrow(values: Ints, low: int, high: int) -> NDArray[np.signedinteger]:
    """The same values in as few bytes as they allow."""
    if low == high:
        return np.broadcast_to(np.array(low, dtype=np.int64), values.shape)
    for kind in KINDS:
        limits = np.iinfo(kind)
        if limits.min <= low and high <= limits.max:
            break
    return values.astype(kind)
