"""What a run leaves behind: the columns that the simulator writes and the reports read.

Times are whole picoseconds since time 0 (int64), -1 where the moment never came.

**Ticks.** On one replica the sequences that decode without a break form a group; a step in
which the whole group gets its token is a *tick*, numbered 0, 1, … per replica. The gap that
a member sees at tick i is `end(tick i) - end(tick i - 1)`. So inter-token latencies need no
per-token storage: `spells` says which ticks each request took part in, `stalls` holds the few
gaps that span anything else (a resumed or paused sequence, a first tick after a prefill step).
Every gap between consecutive tokens of a request is counted in exactly one of the two.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

WAITS = ("tokens", "blocks", "reserve", "seats", "lane", "batch", "behind", "boundary", "door")
"""Why a request waited before it was first scheduled (the `Answer` that its turn got; *behind*
the head of the queue; *boundary*: arrived in mid-step; *door*: held outside, or turned away and
not yet sent again). They add up to the queue time."""

REQUEST_COLUMNS = {
    "request": "row of the trace",
    "replica": "the replica that took it; -1 = none",
    "arrival": "ps; when the client meant to send it",
    "first_scheduled": "ps; start of the first step that fed it",
    "first_token": "ps; end of the step that produced its first token",
    "last_token": "ps; end of the step that produced its last token so far",
    "finished": "ps; when it ended, in whatever way; -1 = still there at the horizon",
    "prompt": "tokens",
    "output": "tokens it would produce undisturbed",
    "produced": "tokens it did produce",
    "declared": "tokens; the maximum its client declared",
    "priority": "lower is more urgent",
    "session": "-1 = none",
    "preemptions": "times it lost its KV",
    "computed": "tokens fed to the model for it, recomputation included",
    "recomputed": "of these, tokens that had been computed before",
    "hit": "prompt tokens found in the prefix cache at first admission",
    "resumed_hit": "tokens found in the prefix cache when re-admitted",
    "blocks_peak": "most blocks it held",
    "stalled": "ps it spent in the queue after preemptions",
    "stalled_first": "of these, before its first token",
    "retries": "times it was sent again after a rejection or a timeout",
    **{f"wait_{name}": f"ps it waited for: {name}" for name in WAITS},
}
"""int64 columns of `Records.requests`; beside them the strings `reason`, `tenant`, `lane`.

`reason`: "stop" (produced its output), "length" (cut by the output cap or max_model_len),
"rejected: …" (never ran; says why), "timeout" (left the queue), "lost: …" (had begun when its
replica was lost, and there was no other), "" (unfinished at the horizon).
"""

STEP_COLUMNS = {
    "replica": "index",
    "start": "ps; when the step was scheduled",
    "duration": "ps",
    "host": "ps of the duration spent on the host (t0 + tS·S + tB·B), as the profile has it",
    "interference": "ps of the duration beyond what its decodes alone would take: prefill beside "
    "them, KV moved; 0 without decodes, and where steps are measured",
    "prefill_tokens": "P: tokens fed in chunks of more than one",
    "chunks": "F: number of such chunks",
    "decodes": "D: sequences fed one token",
    "decode_context": "K: sum of their contexts without the new token",
    "running": "sequences in the running set after scheduling",
    "waiting": "sequences in the queue after scheduling",
    "free_blocks": "after scheduling; cached but unreferenced blocks count as free",
    "admitted": "sequences (re-)admitted",
    "preempted": "sequences preempted",
    "finished": "sequences that ended with this step",
    "tick": "number of the tick; -1 = the decode group did not advance",
    "outside": "1 = its shape lies outside the grid on which the profile was measured",
}
"""int64 columns of `Records.steps`, one row a step, by (replica, start)."""

SPELL_COLUMNS = ("request", "replica", "first_tick", "last_tick")
"""int64: the request saw the gap of every tick first_tick … last_tick (inclusive)."""

STALL_COLUMNS = ("request", "replica", "end", "gap", "queued", "recompute")
"""int64: one gap of `gap` ps that ended at `end` and is in no spell. Of a gap that spans
preemptions, `queued` ps were spent in the queue and `recompute` ps after re-admissions; where
`recompute` is 0 the gap ends with a decode like any other."""


class ColumnFrame:
    """A table like a DataFrame whose columns are made when asked for, and not kept.

    `table["column"]`, `len` and `columns` cost no more than they must; anything else builds the
    whole DataFrame (`frame`), once.
    """

    def __init__(
        self,
        names: tuple[str, ...],
        rows: int,
        make: Callable[[str], NDArray[np.int64]],
        parts: Callable[[tuple[str, ...]], Iterator[tuple[NDArray[np.int64], ...]]],
    ) -> None:
        """`make` gives a whole column, `parts` several columns by some rows at a time."""
        self.columns = pd.Index(names)
        self.parts = parts
        self._rows = rows
        self._make = make

    def __len__(self) -> int:
        return self._rows

    def __iter__(self) -> Iterator[str]:
        return iter(self.columns)

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, str) and key in self.columns:
            return pd.Series(self._make(key), name=key, copy=False)
        return self.frame[key]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return self[name] if name in self.columns else getattr(self.frame, name)

    @cached_property
    def frame(self) -> pd.DataFrame:
        """All columns at once."""
        return pd.DataFrame({name: self._make(name) for name in self.columns}, copy=False)

    def equals(self, other: object) -> bool:
        """As `DataFrame.equals`."""
        right = other.frame if isinstance(other, ColumnFrame) else other
        return isinstance(right, pd.DataFrame) and self.frame.equals(right)


def parts(table: Any, names: tuple[str, ...]) -> Iterator[tuple[NDArray[np.int64], ...]]:
    """Columns of a table of `Records`, some rows at a time where it is made so."""
    if isinstance(table, ColumnFrame):
        yield from table.parts(names)
    else:
        yield tuple(np.asarray(table[name], dtype=np.int64) for name in names)


@dataclass(frozen=True)
class Records:
    """A finished run. `about` carries what reports print beside the numbers."""

    requests: pd.DataFrame
    steps: pd.DataFrame
    """Possibly a `ColumnFrame`: ask for columns rather than for the whole."""
    spells: pd.DataFrame
    stalls: pd.DataFrame
    about: dict[str, Any] = field(default_factory=dict)
    """Keys: `policy`, `profile` (name), `profile_errors` (as in its file), `remedies` (the plain
    form of `simulator.remedies.Advice`, or None), `seed`, `declared` ("exact" or the constant),
    `scenario` (nested dict of every setting), `blocks` (per replica), `block_size`,
    `replicas`, `max_running`, `token_budget`, `version`, `horizon_s`, `notes` (list of
    sentences), `waste_share`, `needless_evictions`, `idle_held_share`."""
