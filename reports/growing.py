"""Tables on disk that grow while they are made: Parquet where pyarrow is installed, else CSV.

Rows are added some thousand at a time. Once the table is closed those that were added can be
read, whatever happened: what came only by half is taken back.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

import pandas as pd
from numpy.typing import NDArray


class GrowingTable(ABC):
    """One file. Whole numbers are int64, texts UTF-8; nothing is missing."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows = 0
        """Added so far; once closed, those in the file, also where an addition was interrupted."""

    def add(self, columns: Mapping[str, NDArray[Any]]) -> None:
        """Append rows: every column of the table, equally long.

        Raises OSError of one line, naming the path; nothing can be added after that.
        """
        rows = len(next(iter(columns.values())))
        if not rows:
            return
        with _naming(self.path):
            self._add(columns)
        self.rows += rows

    @abstractmethod
    def _add(self, columns: Mapping[str, NDArray[Any]]) -> None: ...

    @abstractmethod
    def close(self) -> None:
        """End the file. Raises OSError of one line where that fails. A second call does nothing."""


def growing_table(
    folder: Path, name: str, columns: Sequence[str], texts: Collection[str] = ()
) -> GrowingTable:
    """A new empty table `folder/name.parquet`, or `.csv`; a file of that name is overwritten.

    Raises OSError of one line, naming the path.
    """
    try:
        return _Parquet(folder / f"{name}.parquet", columns, texts)
    except ImportError:
        return _Csv(folder / f"{name}.csv", columns)


class _Parquet(GrowingTable):
    """A row group for each addition. Readable only once its footer is written."""

    def __init__(self, path: Path, columns: Sequence[str], texts: Collection[str]) -> None:
        import pyarrow
        import pyarrow.parquet

        super().__init__(path)
        self._make = pyarrow.table
        self._metadata = pyarrow.parquet.read_metadata
        kinds = {name: pyarrow.string() if name in texts else pyarrow.int64() for name in columns}
        fields = [pyarrow.field(name, kind, nullable=False) for name, kind in kinds.items()]
        self._schema = pyarrow.schema(fields)
        self._torn = False
        """A row group was written by half, so that no footer can save the file."""
        with _naming(path):
            # By its name: an interruption reaches no file of Python's in the midst of a write.
            self._writer = pyarrow.parquet.ParquetWriter(str(path), self._schema)

    def _add(self, columns: Mapping[str, NDArray[Any]]) -> None:
        table = self._make(dict(columns), schema=self._schema)
        try:
            self._writer.write_table(table)
        except OSError:
            self._torn = True
            raise

    def close(self) -> None:
        if not self._writer.is_open:
            return
        try:
            with _naming(self.path):
                self._writer.close()
                if not self._torn:
                    self.rows = self._metadata(str(self.path)).num_rows
        except OSError:
            self._torn = True
            raise
        finally:
            self._writer.is_open = False  # else it is tried again when Python forgets it
            if self._torn:
                self.rows = 0
                with suppress(OSError):
                    self.path.unlink()


class _Csv(GrowingTable):
    """A line a row. Without a buffer: what is written is there."""

    def __init__(self, path: Path, columns: Sequence[str]) -> None:
        super().__init__(path)
        self._whole = 0, 0
        """Bytes and rows up to the end of the last addition: one value, lest an interruption part
        them."""
        with _naming(path):
            self._file: IO[bytes] = open(path, "wb", buffering=0)  # noqa: SIM115
            try:
                self._write(pd.DataFrame(columns=list(columns)), header=True)
            except BaseException:
                self._file.close()
                raise

    def _add(self, columns: Mapping[str, NDArray[Any]]) -> None:
        self._write(pd.DataFrame(dict(columns), copy=False), header=False)

    def _write(self, frame: pd.DataFrame, header: bool) -> None:
        text = frame.to_csv(index=False, header=header, lineterminator="\n").encode()
        rest = memoryview(text)
        while rest:
            rest = rest[self._file.write(rest) :]
        size, rows = self._whole
        self._whole = size + len(text), rows + len(frame)

    def close(self) -> None:
        if not self._file.closed:
            self._file.close()
            size, self.rows = self._whole
            with suppress(OSError):  # no file in whose midst to cut
                os.truncate(self.path, size)


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Errors name the path, on one line."""
    try:
        yield
    except OSError as error:
        why = os.strerror(error.errno) if error.errno else str(error)
        raise OSError(f"{path}: cannot write: {why.lower()}") from None
