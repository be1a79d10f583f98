"""Token ids for requests that a trace knows only by length and identity."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

SHARED, OWN = 0, 1


class Content(Protocol):
    """`tokens` positions from `start` of a stream; -(i + 1) is what request i generated."""

    @property
    def stream(self) -> int: ...
    @property
    def start(self) -> int: ...
    @property
    def tokens(self) -> int: ...


class Prompted(Protocol):
    """What the executor needs to know of a request; `traces.trace.Request` is one."""

    @property
    def index(self) -> int: ...
    @property
    def prompt(self) -> int: ...
    @property
    def output(self) -> int:
        """Tokens after which its output ends."""
        ...

    @property
    def content(self) -> Sequence[Content]:
        """Covers a prefix of the prompt."""
        ...


def prompt_tokens(
    request: Prompted,
    vocab: int,
    seed: int = 0,
    outputs: Callable[[int], Sequence[int]] = lambda request: (),
) -> list[int]:
    """`request.prompt` ids below `vocab`; equal content gives equal ids, the rest is its own.

    `outputs(i)` is what request i generated, for prompts that go on from it. Where it produced
    less than its turn quotes, the rest is made up, the same for everybody.
    """
    ids: list[int] = []
    for part in request.content:
        end = part.start + part.tokens
        said = [] if part.stream >= 0 else list(outputs(-part.stream - 1))[:end]
        # A negative stream's made-up rest must not be the content of a shared one.
        key = (SHARED, 2 * part.stream if part.stream >= 0 else -2 * part.stream - 1)
        ids += (said + stream_tokens(key, len(said), end, vocab, seed))[part.start :]
    own = stream_tokens((OWN, request.index), 0, request.prompt - len(ids), vocab, seed)
    return (ids + own)[: request.prompt]


def stream_tokens(key: tuple[int, int], start: int, end: int, vocab: int, seed: int) -> list[int]:
    """Positions start … end - 1 of the random stream `key`: the same for any cut of it."""
    if end <= start:
        return []
    drawn: list[int] = np.random.default_rng([seed, *key]).integers(vocab, size=end).tolist()
    return drawn[start:]
