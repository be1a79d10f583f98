"""Where each request's time went, exactly: its clocks, in whole picoseconds.

To the first token (with the waits of `traces.records.WAITS`, these add up to TTFT):
  prefill     first scheduled to first token, less what it was stalled meanwhile
  stalled     in the queue again after a preemption
Each gap between two tokens (they add up to E2E - TTFT):
  decode      the step that made the token, as long as its decodes alone would take
  others      the rest of that step: other requests' prefill in it, KV moved
  still       running, while steps fed others only
  stalled     in the queue again after a preemption
  recompute   from the re-admission to the token: what had been lost is computed again
Where steps are measured nobody knows what the decodes alone would have taken: `others` is 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from reports.gaps import Gaps, Ints, column
from traces.records import WAITS, Records

GAP_PARTS = ("decode", "others", "still", "stalled", "recompute")


@dataclass(frozen=True)
class GapParts:
    """Gaps, each with how often it was seen and what it is made of."""

    length: Ints
    weight: Ints
    parts: Mapping[str, Ints]
    """By the names of `GAP_PARTS`; they add up to `length`."""


class Clocks:
    """The clocks of every request of one run. Rows are positions in `records.requests`."""

    def __init__(self, records: Records, gaps: Gaps) -> None:
        self._records = records
        self._gaps = gaps

    @cached_property
    def gaps(self) -> GapParts:
        """First the ticks of all replicas, then the stalls."""
        steps, gaps = self._records.steps, self._gaps
        ticking = column(steps, "tick") >= 0
        duration = column(steps, "duration")
        others = column(steps, "interference")
        length = np.concatenate([gaps.gap, gaps.stall])
        # A replica's first tick ends nobody's gap.
        tick_step = np.minimum(duration[ticking], gaps.gap)
        tick_others = np.minimum(others[ticking], tick_step)
        stall_step, stall_others = self._last_steps(duration, others)
        step = np.concatenate([tick_step, stall_step])
        beside = np.concatenate([tick_others, stall_others])
        nothing = np.zeros(len(gaps.gap), dtype=np.int64)
        stalls = self._records.stalls
        stalled = np.concatenate([nothing, column(stalls, "queued")])
        again = np.concatenate([nothing, column(stalls, "recompute")])
        weight = np.concatenate([gaps.weights(), np.ones(len(gaps.stall), dtype=np.int64)])
        parts = {
            "decode": step - beside,
            "others": beside,
            "still": length - step - stalled - again,
            "stalled": stalled,
            "recompute": again,
        }
        return GapParts(length, weight, parts)

    @cached_property
    def of_requests(self) -> dict[str, Ints]:
        """`prefill`, and `GAP_PARTS` summed over each request's gaps so far.

        `stalled` also has what came before the first token. All are 0 without a first token.
        """
        gaps, rows = self._gaps, self._gaps.rows
        ticks = len(gaps.gap)
        requests = self._records.requests
        first = column(requests, "first_token")
        began = first >= 0
        before = np.where(began, column(requests, "stalled_first"), 0)
        found = {
            "prefill": np.where(began, first - column(requests, "first_scheduled") - before, 0)
        }
        for name, each in self.gaps.parts.items():
            total = np.zeros(rows, dtype=np.int64)
            if name in ("decode", "others", "still"):
                so_far = np.concatenate([[0], np.cumsum(each[:ticks])])
                np.add.at(total, gaps.spell_row, so_far[gaps.last + 1] - so_far[gaps.first])
            np.add.at(total, gaps.stall_row, each[ticks:])
            found[name] = total
        found["stalled"] += before
        return found

    def waits(self) -> dict[str, Ints]:
        """Per request, by the names of `WAITS`."""
        return {name: column(self._records.requests, f"wait_{name}") for name in WAITS}

    def _last_steps(self, duration: Ints, others: Ints) -> tuple[Ints, Ints]:
        """Of each stall: how long the step took that ended it, and what of that is not decode.

        0 and 0 where the gap ended with a recompute.
        """
        steps, stalls = self._records.steps, self._records.stalls
        end = column(stalls, "end")
        home, replica = column(stalls, "replica"), column(steps, "replica")
        step, beside = np.zeros_like(end), np.zeros_like(end)
        decoded = column(stalls, "recompute") == 0
        step[decoded] = self._gaps.stall[decoded]  # where no step is recorded
        ends = column(steps, "start") + duration
        for index in np.unique(home[decoded]).tolist():
            first, last = np.searchsorted(replica, (index, index + 1))
            mine = np.flatnonzero(decoded & (home == index))
            if first == last:
                continue
            at = np.minimum(np.searchsorted(ends[first:last], end[mine]), last - first - 1) + first
            known = ends[at] == end[mine]
            step[mine[known]] = duration[at[known]]
            beside[mine[known]] = others[at[known]]
        return step, beside


def weighted_means(
    parts: Mapping[str, NDArray[np.int64]], weights: NDArray[np.float64]
) -> dict[str, float]:
    """The mean of each part where values count as often as `weights` say."""
    total = float(weights.sum())
    return {
        name: float((values.astype(np.float64) * weights).sum()) / total
        for name, values in parts.items()
    }
