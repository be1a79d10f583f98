"""The load: `Request`, one immutable row; `Trace`, the immutable columns.

Times are whole picoseconds (`int`) since the trace's time 0; lengths are tokens.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import repeat
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

PS_PER_S = 10**12
"""Picoseconds in a second. An int64 of picoseconds spans 107 days."""

Ints = NDArray[np.int64]


def to_ps(seconds: float) -> int:
    """Seconds to the nearest whole picosecond."""
    return round(seconds * PS_PER_S)


@dataclass(frozen=True, slots=True)
class Segment:
    """Identity of `tokens` prompt tokens without their text: positions `start…` of stream `stream`.

    Two tokens are the same iff stream and position are. Streams ≥ 0 are named by the
    trace (hash ids, shared prefixes); stream -(i + 1) is what request i generated.
    """

    stream: int
    start: int
    tokens: int


class Request(NamedTuple):
    """One row of a trace. Never changes; progress is kept in `simulator.sequence`."""

    index: int  # type: ignore[assignment]  # hides tuple.index, which nobody calls
    """Row in the trace: our id, unique."""
    arrival: int
    """Picoseconds since time 0; with `after`, the think time after that request's end."""
    prompt: int
    output: int
    """True output length in tokens. No policy sees it."""
    declared: int
    """Maximum output that the client declares; at least `output` unless it cuts it."""
    priority: int = 0
    """Lower is more urgent."""
    tenant: str = ""
    session: int = -1
    after: int = -1
    """Closed loop: the row that must end before this one is sent; -1 = open loop."""
    content: tuple[Segment, ...] = ()
    """Covers a prefix of the prompt; tokens beyond it are this request's own."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Trace:
    """Columns of equal length, one row a request, ordered by arrival; read-only.

    A row with `after` stands anywhere behind the row that it names: its arrival is a pause.
    `declared` 0 means that no maximum was recorded. `content_offsets` (n + 1) cuts the
    three segment columns into rows (CSR); it is empty where a trace has no identity.
    """

    arrival: Ints
    prompt: Ints
    output: Ints
    declared: Ints
    priority: Ints
    tenant: Ints
    """Codes into `tenants`."""
    session: Ints
    after: Ints
    content_offsets: Ints
    content_stream: Ints
    content_start: Ints
    content_tokens: Ints
    tenants: tuple[str, ...] = ("",)
    labels: tuple[str, ...] = ()
    """The source's own ids: labels, not keys; may repeat. Empty where it has none."""
    source: str = ""
    notes: tuple[str, ...] = field(default=())
    """What was repaired, dropped, cut or assumed: one sentence each, for people."""

    def __post_init__(self) -> None:
        for column in vars(self).values():
            if isinstance(column, np.ndarray):
                column.flags.writeable = False
        rows = len(self.arrival)
        for name in ("prompt", "output", "declared", "priority", "tenant", "session", "after"):
            if len(getattr(self, name)) != rows:
                raise ValueError(f"{name}: {len(getattr(self, name))} rows, expected {rows}")

    @classmethod
    def of(cls, arrival: Any, prompt: Any, output: Any, declared: Any = 0, **columns: Any) -> Trace:
        """Build from arrays or scalars (broadcast); columns left out take their neutral value.

        `content` may be given as a list of tuples of `Segment`, one a row.
        """
        content = columns.pop("content", None)
        if content is not None:
            columns |= _columns_of(content)
        given = {"arrival": arrival, "prompt": prompt, "output": output, "declared": declared}
        neutral = {"priority": 0, "tenant": 0, "session": -1, "after": -1}
        rows = next((len(value) for value in given.values() if np.ndim(value)), 1)
        for name, value in neutral.items():
            given[name] = columns.pop(name, value)
        # An array is copied; one value for all takes no more room than that.
        full: dict[str, Any] = {
            name: np.array(np.broadcast_to(value, rows), dtype=np.int64)
            if np.ndim(value)
            else np.broadcast_to(np.asarray(value, dtype=np.int64), rows)
            for name, value in given.items()
        }
        for name in ("content_offsets", "content_stream", "content_start", "content_tokens"):
            full[name] = np.array(columns.pop(name, ()), dtype=np.int64)
        return cls(**full, **columns)

    def __len__(self) -> int:
        return len(self.arrival)

    def content(self, index: int) -> tuple[Segment, ...]:
        """The identity of row `index`; empty where the trace has none."""
        if not len(self.content_offsets):
            return ()
        first, last = int(self.content_offsets[index]), int(self.content_offsets[index + 1])
        rows = zip(
            self.content_stream[first:last].tolist(),
            self.content_start[first:last].tolist(),
            self.content_tokens[first:last].tolist(),
            strict=True,
        )
        return tuple(Segment(*row) for row in rows)

    def requests(self) -> Iterator[Request]:
        """Rows in order, as Python scalars."""
        make = partial(tuple.__new__, Request)
        # Chunked: a million rows as Python ints at once would cost hundreds of megabytes, and a few
        # thousand stay in the cache until they are used.
        for begin in range(0, len(self), 4096):
            end = min(begin + 4096, len(self))
            arrival, prompt, output, declared, priority, tenant, session, after = (
                column[begin:end].tolist()
                for column in (
                    self.arrival, self.prompt, self.output, self.declared,
                    self.priority, self.tenant, self.session, self.after,
                )
            )  # fmt: skip
            rows = range(begin, end)
            content = map(self.content, rows) if len(self.content_offsets) else repeat(())
            tenants = map(self.tenants.__getitem__, tenant)
            # Rows of a million requests: put together without a call for each.
            yield from map(
                make,
                zip(
                    rows, arrival, prompt, output, declared, priority, tenants, session, after,
                    content, strict=False,
                ),
            )  # fmt: skip

    def with_notes(self, *notes: str) -> Trace:
        """The same rows with further notes."""
        return replace(self, notes=self.notes + notes)


def _columns_of(content: list[tuple[Segment, ...]]) -> dict[str, Any]:
    flat = [segment for row in content for segment in row]
    return {
        "content_offsets": np.concatenate([[0], np.cumsum([len(row) for row in content])]),
        "content_stream": [s.stream for s in flat],
        "content_start": [s.start for s in flat],
        "content_tokens": [s.tokens for s in flat],
    }
