"""What rows may say beyond time and lengths: conversation, tenant, label, content."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from traces.readers.dialects import Dialect
from traces.readers.table import Table
from traces.readers.values import MAX_TOKENS, whole
from traces.trace import Ints


def sessions(table: Table, form: Dialect) -> Ints | int:
    """Conversation numbers: theirs where whole, else counted as they first appear."""
    if parents := form.also.get("parent"):
        return _chats(table.column(form.also["label"]), table.column(parents))
    theirs = form.also.get("session")
    if theirs is None or not table.has(theirs):
        return -1
    values = table.column(theirs)
    numbers, bad = whole([-1 if value is None or value == "" else value for value in values])
    if not bad.any():
        return numbers
    names = pd.Series([None if value is None or value == "" else str(value) for value in values])
    return np.asarray(pd.factorize(names)[0], dtype=np.int64)


def _chats(chats: list[Any], parents: list[Any]) -> Ints:
    """Turns name their chat and the chat they continue: a session is a whole chain of them."""
    session: dict[Any, int] = {}
    result = []
    for number, (chat, parent) in enumerate(zip(chats, parents, strict=True)):
        session[chat] = session.get(parent, session.get(chat, number))
        result.append(session[chat])
    return np.array(result, dtype=np.int64)


def tenants(table: Table, form: Dialect) -> tuple[Ints | int, tuple[str, ...]]:
    """Tenants coded in order of appearance, and their names."""
    theirs = form.also.get("tenant")
    if theirs is None or not table.has(theirs):
        return 0, ("",)
    values = ["" if value is None else str(value) for value in table.column(theirs)]
    codes, names = pd.factorize(np.array(values, dtype=object))
    return np.asarray(codes, dtype=np.int64), tuple(map(str, names))


def labels(table: Table, form: Dialect) -> tuple[str, ...]:
    """The source's own ids, whatever they are."""
    theirs = form.also.get("label")
    if theirs is None or not table.has(theirs):
        return ()
    return tuple("" if value is None else str(value) for value in table.column(theirs))


def own_content(table: Table) -> dict[str, Any]:
    """Segments as `traces.write` writes them: [[stream, start, tokens], …] a row."""
    flat: list[list[int]] = []
    offsets = [0]
    for row, pieces in enumerate(table.column("content")):
        pieces = [] if pieces is None else pieces
        sound = isinstance(pieces, list) and all(
            isinstance(piece, list)
            and [type(part) for part in piece] == [int] * 3
            and -table.rows <= piece[0] < 2**62
            and 0 <= piece[1] < 2**62
            and 0 < piece[2] <= MAX_TOKENS
            for piece in pieces
        )
        if not sound:
            raise ValueError(
                f"{table.path} {table.place(row)}: content {str(pieces)[:60]}, expected "
                "[[stream, start, tokens], …]"
            )
        flat += pieces
        offsets.append(len(flat))
    columns = np.array(flat, dtype=np.int64).reshape(-1, 3)
    return {
        "content_offsets": np.array(offsets, dtype=np.int64),
        "content_stream": columns[:, 0].copy(),
        "content_start": columns[:, 1].copy(),
        "content_tokens": columns[:, 2].copy(),
    }
