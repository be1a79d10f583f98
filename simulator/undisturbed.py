"""Requests that nothing happened to but waiting and being served: a short row says it all."""

from __future__ import annotations

import numpy as np

from policies.base import Answer
from simulator.columns import Columns
from traces.trace import Ints, Trace

UNDISTURBED = (
    "request", "first_scheduled", "boundary", "first_token", "finished", "produced", "declared",
    "wait_tokens", "wait_blocks", "wait_reserve", "wait_seats",
)  # fmt: skip
"""What is written of such a request."""
ITS_WAITS = slice(Answer.TOKENS.value, Answer.LANE.value)
"""Its clocks at the head of the queue that may be more than 0."""


class Derived:
    """The columns of undisturbed requests."""

    def __init__(
        self, trace: Trace, block_size: int, short: Columns, packs: slice = slice(None)
    ) -> None:
        """Of the rows `short`, or of some `packs` of them."""
        self._trace = trace
        self._block_size = block_size
        self._columns = short
        self._packs = packs
        self._row = self._short("request")

    def _short(self, name: str) -> Ints:
        return self._columns.column(name, self._packs)

    def column(self, name: str) -> Ints:
        """A column of `REQUEST_COLUMNS`."""
        if name in UNDISTURBED:
            return self._short(name)
        if name in ("arrival", "prompt", "output", "priority", "session"):
            return np.asarray(getattr(self._trace, name)[self._row])
        if name == "last_token":
            return self._short("finished")
        if name == "computed":
            return self.column("prompt") + self._short("produced") - 1
        if name == "blocks_peak":
            return -(-self.column("computed") // self._block_size)
        if name == "wait_boundary":
            return self._short("boundary") - self.column("arrival")
        if name == "wait_behind":
            behind = self._short("first_scheduled") - self._short("boundary")
            for head in ("wait_tokens", "wait_blocks", "wait_reserve", "wait_seats"):
                behind -= self._short(head)
            return behind
        return np.zeros(len(self._row), dtype=np.int64)

    def codes(self, name: str, codes: dict[str, int], lane: str) -> Ints:
        """A column of `LABELS`; texts that `codes` lacks are added."""
        trace, rows = self._trace, len(self._row)
        if name == "tenant":
            used, at = np.unique(trace.tenant[self._row], return_inverse=True)
            texts = [trace.tenants[code] for code in used.tolist()]
        elif name == "reason":
            cut = self._short("produced") < self.column("output")
            used, at = np.unique(cut, return_inverse=True)
            texts = ["length" if short else "stop" for short in used.tolist()]
        else:
            texts, at = [lane] if rows else [], np.zeros(rows, dtype=np.int64)
        found = [codes.setdefault(text, len(codes)) for text in texts]
        return np.array(found, dtype=np.int64)[at]
