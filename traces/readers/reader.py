"""A recorded trace -> Trace: every row checked, nothing cut or repaired without a word.

Text becomes columns (`table`), columns find their dialect (`dialects`), values become whole
numbers (`values`), and the rows become a trace: time 0 set, order restored, names coded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from traces.readers.dialects import Dialect, choose, lift
from traces.readers.identity import ids_fit, segments, token_segments
from traces.readers.optional import labels, own_content, sessions, tenants
from traces.readers.source import read_text
from traces.readers.table import Table, read_table
from traces.readers.ticks import spread, tick_note
from traces.readers.values import MAX_PS, MAX_TOKENS, Mask, seconds_or_dates, tokens, whole
from traces.select import roots, select
from traces.trace import PS_PER_S, Ints, Trace

PERIODS_S = {86_400: "day", 604_800: "week"}
"""Clocks that start again do so after a day or a week."""


@dataclass(frozen=True)
class _Fault:
    """Rows whose value in a column is not what was expected."""

    rows: Mask
    column: str
    values: Sequence[Any]
    expected: str

    def about(self, table: Table, row: int) -> str:
        value = self.values[row]
        said = "missing" if value is None or value == "" else repr(value).strip("'")
        return f"{table.place(row)}: {self.column} {said[:60]}, expected {self.expected}"


def read_trace(
    path: str | Path,
    dialect: str | None = None,
    *,
    drop_invalid: bool = False,
    unwrap: bool = False,
    spread_ticks: bool = False,
    seed: int = 0,
) -> Trace:
    """Read a recorded trace in any known dialect, found by its columns or named.

    Time 0 is the first row, in formats with a clock of their own its zero. Shuffled rows are
    sorted (stably). Three repairs are done on request only: `drop_invalid` leaves out rows that
    cannot be used, `unwrap` lets a clock that starts again go on, `spread_ticks` spreads
    arrivals recorded in coarse ticks evenly over each tick (from `seed`). What was done is in
    the notes.

    Raises ValueError with file, line, field, value and what was expected; OSError where the
    file cannot be read.
    """
    path = Path(path)
    table = read_table(path, read_text(path))
    form = choose(table.keys, dialect, str(path))
    if form.name == "inference-perf":
        table = _lifted(table)
    if not table.rows:
        raise ValueError(f"{path}: a header and no rows")

    prompt_values, output_values = table.column(form.prompt), table.column(form.output)
    prompt, prompt_bad = tokens(prompt_values)
    output, output_bad = tokens(output_values)
    count = f"a whole number of tokens from 1 to {MAX_TOKENS:,}"
    faults = [
        _Fault(prompt_bad, form.prompt, prompt_values, count),
        _Fault(output_bad, form.output, output_values, count),
    ]
    notes: list[str] = []
    after, fault = _numbers(table, form, "after", -1, -1)
    too_late = after >= np.arange(table.rows)
    faults.append(replace(fault, rows=fault.rows | too_late, expected="an earlier row, from 0"))
    arrival = _arrivals(table, form, faults, unwrap, notes)
    declared, fault = _numbers(table, form, "declared", 0, 0)
    faults.append(fault)
    priority, fault = _numbers(table, form, "priority", 0, -(2**31))
    faults.append(fault)
    ids = table.column(form.ids) if form.ids and table.has(form.ids) else None
    if ids is not None:
        expected = "one id for each token" if form.unit == 1 else f"one for {form.unit} tokens each"
        odd = ~ids_fit(ids, prompt, form.unit) & ~prompt_bad
        sizes = [f"of {len(row)} ids" if isinstance(row, list) else row for row in ids]
        wants = [-(-int(size) // form.unit) for size in prompt] if odd.any() else []
        first = int(odd.argmax())
        detail = f"{expected}, {wants[first]} for {prompt[first]} tokens" if wants else expected
        faults.append(_Fault(odd, form.ids or "", sizes, detail))

    kept, dropped = _sound(table, faults, drop_invalid)
    notes += dropped
    tenant, names = tenants(table, form)
    trace = Trace.of(
        arrival,
        prompt,
        output,
        declared,
        priority=priority,
        tenant=tenant,
        tenants=names,
        session=sessions(table, form),
        after=np.where(too_late, -1, after),
        labels=labels(table, form),
        source=f"{path.name} ({form.name})",
    )
    if form.name == "plain" and table.has("content"):
        trace = replace(trace, **own_content(table))
    if not kept.all():
        trace, ids = _without(trace, kept, ids, notes)
    if ids is not None:
        known = token_segments(ids) if form.unit == 1 else segments(ids, trace.prompt, form.unit)
        trace = replace(trace, **known)
    trace = _in_order(table, trace, form, notes)
    notes += [text for key, text in form.unused.items() if table.has(key)]
    if form.arrival is None:
        notes.append("no times recorded: every request arrives at time 0")
    elif spread_ticks:
        trace, said = spread(trace, seed)
        notes.append(said)
    elif warning := tick_note(trace):
        notes.append(warning)
    return trace.with_notes(*notes)


def _numbers(
    table: Table, form: Dialect, name: str, neutral: int, least: int
) -> tuple[Ints, _Fault]:
    theirs = form.also.get(name)
    if theirs is None or not table.has(theirs):
        nothing = np.zeros(table.rows, dtype=np.bool_)
        return np.full(table.rows, neutral, dtype=np.int64), _Fault(nothing, name, (), "")
    values = table.column(theirs)
    filled = [neutral if value is None or value == "" else value for value in values]
    numbers, bad = whole(filled)
    bad = bad | (numbers < least) | (numbers > 10**12)
    return numbers, _Fault(bad, theirs, values, f"a whole number of at least {least}")


def _arrivals(
    table: Table, form: Dialect, faults: list[_Fault], unwrap: bool, notes: list[str]
) -> Ints:
    """Picoseconds since time 0; adds what is wrong with them to `faults`."""
    if form.arrival is None:
        return np.zeros(table.rows, dtype=np.int64)
    values = table.column(form.arrival)
    clock, bad = seconds_or_dates(values, form.clock)
    if form.clock != "wall":
        sound = np.flatnonzero(~bad)
        drops = sound[1:][clock[sound[1:]] < clock[sound[:-1]]]
        if len(drops) and (on := _turns(table, form, clock, sound, drops, unwrap, notes)).any():
            clock = clock.astype(object) + on
    zero = 0 if form.own_zero or bad.all() else int(clock[~bad].min())
    since = clock - zero
    far = (since > MAX_PS) | (since < 0)
    unit = {"wall": "a date and time", "s": "seconds", "ms": "milliseconds", "ns": "nanoseconds"}
    origin = "time 0" if form.own_zero else "the first row"
    expected = f"{unit[form.clock]} of at least 0 and at most 104 days after {origin}"
    faults.append(_Fault(bad | far.astype(np.bool_), form.arrival, values, expected))
    return np.where(bad | far, 0, since).astype(np.int64)


def _turns(
    table: Table,
    form: Dialect,
    clock: Any,
    sound: Ints,
    drops: Ints,
    unwrap: bool,
    notes: list[str],
) -> NDArray[Any]:
    """What to add to a clock that starts again in the rows `drops`, which only `unwrap` allows.

    Nothing where the drops look like rows out of order.
    """
    before = sound[np.searchsorted(sound, drops) - 1]
    for period, name in PERIODS_S.items():
        full, near = period * PS_PER_S, period * PS_PER_S // 50
        high, low = clock[before], clock[drops]
        starts = (high >= full - near) & (high <= full) & (low <= near)
        # Rows out of order drop by less, or from and to anywhere.
        if not starts.any() or ((high - low > full // 2) & ~starts).any():
            continue
        before, again = before[starts], drops[starts]
        if not unwrap:
            values, row = table.column(form.arrival or ""), int(again[0])
            raise ValueError(
                f"{table.path} {table.place(row)}: {form.arrival} drops from "
                f"{values[before[0]]} to {values[row]}, expected times that go on; it looks like "
                f"a clock that starts again after a {name}: --unwrap lets it go on"
            )
        notes.append(f"the clock starts again {len(again)} times: counted on by a {name} each time")
        return np.searchsorted(again, np.arange(table.rows), side="right").astype(object) * full
    return np.zeros(table.rows, dtype=np.int64)


def _sound(table: Table, faults: list[_Fault], drop_invalid: bool) -> tuple[Mask, list[str]]:
    """The rows without a fault. Raises at the first fault unless such rows may be dropped."""
    bad = np.zeros(table.rows, dtype=np.bool_)
    for fault in faults:
        bad |= fault.rows
    if not bad.any():
        return ~bad, []
    row = int(bad.argmax())
    about = next(fault.about(table, row) for fault in faults if fault.rows[row])
    if not drop_invalid:
        raise ValueError(f"{table.path} {about} (--drop-invalid leaves such rows out)")
    if bad.all():
        raise ValueError(f"{table.path}: no row can be used; {about}")
    return ~bad, [f"{int(bad.sum())} of {table.rows} rows dropped as invalid (first: {about})"]


def _without(
    trace: Trace, kept: Mask, ids: list[Any] | None, notes: list[str]
) -> tuple[Trace, list[Any] | None]:
    """The kept rows but those that follow one that is not, and their ids."""
    kept = kept.copy()
    dropped = int((~kept).sum())
    for row in np.flatnonzero(trace.after >= 0).tolist():
        kept[row] &= kept[trace.after[row]]
    if more := int((~kept).sum()) - dropped:
        notes.append(f"{more} rows left out that follow one of these")
    rows = np.flatnonzero(kept)
    return select(trace, rows), None if ids is None else [ids[row] for row in rows.tolist()]


def _in_order(table: Table, trace: Trace, form: Dialect, notes: list[str]) -> Trace:
    sent = trace.arrival[roots(trace)]
    if not (sent[1:] < sent[:-1]).any():
        return trace
    row = int((sent[1:] < sent[:-1]).argmax()) + 1
    notes.append(
        f"rows were not in order of {form.arrival} (first at row {row + 1}): sorted, rows of "
        "equal times as in the file"
    )
    return select(trace, np.argsort(sent, kind="stable"))


def _lifted(table: Table) -> Table:
    names = ("start_time", "info")
    entries = [
        lift(dict(zip(names, row, strict=True)))
        for row in zip(*(table.column(name) for name in names), strict=True)
    ]
    keys = (*table.keys, "prompt", "output")
    return replace(
        table,
        keys=keys,
        column=lambda name: [entry.get(name) for entry in entries],
    )
