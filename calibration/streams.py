"""Tokens delivered to whoever waits for them: one queue a request."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from queue import SimpleQueue


class Streams:
    """A listener of `Measured` that puts each token into its request's queue, in order.

    None ends a stream. `ended` holds requests in the order in which their streams ended, with
    the reason.
    """

    def __init__(self) -> None:
        self.queues: defaultdict[int, SimpleQueue[int | None]] = defaultdict(SimpleQueue)
        self.ended: SimpleQueue[tuple[int, str]] = SimpleQueue()

    def __call__(self, request: int, token: int, finish: str) -> None:
        self.queues[request].put(token)
        if finish:
            self.queues[request].put(None)
            self.ended.put((request, finish))

    def read(self, request: int) -> Iterator[int]:
        """The request's tokens as they come; blocks until the next, ends with the stream."""
        return iter(self.queues[request].get, None)
