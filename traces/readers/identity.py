"""Ids of prompt blocks -> segments: what is the same in two prompts.

Block id i stands for positions i·unit … of one stream, so that a prompt whose ids run on needs
a single segment.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from traces.trace import Ints


def ids_fit(ids: list[Any], prompt: Ints, unit: int) -> NDArray[np.bool_]:
    """Whether each row has a list of ceil(tokens / unit) whole ids of at least 0."""
    return np.array(
        [
            isinstance(row, list)
            and len(row) == -(-int(tokens) // unit)
            and all(type(one) is int and one >= 0 for one in row)
            for row, tokens in zip(ids, prompt, strict=True)
        ],
        dtype=np.bool_,
    )


def segments(ids: list[list[int]], prompt: Ints, unit: int) -> dict[str, Any]:
    """The content columns of a trace, consecutive ids as one segment."""
    counts = np.array([len(row) for row in ids], dtype=np.int64)
    flat = _small([one for row in ids for one in row], unit)
    row = np.repeat(np.arange(len(ids)), counts)
    tokens = np.full(len(flat), unit, dtype=np.int64)
    ends = np.cumsum(counts)[counts > 0] - 1
    tokens[ends] = (prompt - (counts - 1) * unit)[counts > 0]
    return _merge(row, flat * unit, tokens, len(ids))


def token_segments(prompts: list[list[int]]) -> dict[str, Any]:
    """The same for token ids, whose meaning lies in all that stands before them.

    Each different prefix becomes one position of the stream, numbered as it first appears.
    """
    known: dict[tuple[int, int], int] = {}
    places = []
    for prompt in prompts:
        before = -1
        for token in prompt:
            before = known.setdefault((before, token), len(known))
            places.append(before)
    counts = np.array([len(prompt) for prompt in prompts], dtype=np.int64)
    row = np.repeat(np.arange(len(prompts)), counts)
    at = np.array(places, dtype=np.int64)
    return _merge(row, at, np.ones(len(at), dtype=np.int64), len(prompts))


def _small(ids: Iterable[int], unit: int) -> Ints:
    numbers = list(ids)
    if max(numbers, default=0) < 2**62 // unit:
        return np.array(numbers, dtype=np.int64)
    # Hashes rather than numbers: count them through as they first appear.
    names: dict[int, int] = {}
    return np.array([names.setdefault(one, len(names)) for one in numbers], dtype=np.int64)


def _merge(row: Ints, start: Ints, tokens: Ints, rows: int) -> dict[str, Any]:
    new = np.ones(len(row), dtype=np.bool_)
    new[1:] = (row[1:] != row[:-1]) | (start[1:] != start[:-1] + tokens[:-1])
    begins = np.flatnonzero(new)
    offsets = np.searchsorted(row[begins], np.arange(rows + 1))
    return {
        "content_offsets": offsets.astype(np.int64),
        "content_stream": np.zeros(len(begins), dtype=np.int64),
        "content_start": start[begins],
        "content_tokens": np.add.reduceat(tokens, begins) if len(begins) else tokens,
    }
