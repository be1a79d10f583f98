"""A run as Chrome trace events: a file for ui.perfetto.dev or chrome://tracing.

A replica is a process: its steps are one thread, each of its slots another; counters tell who
runs and waits, free blocks and what a step is made of. The process "requests" has a line for every
request from arrival to end: queue, prefill, decode, stalls.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np

from reports.gaps import Ints, column
from reports.latencies import Latencies
from reports.slots import slots
from reports.slowest import KINDS, stretches
from traces.trace import PS_PER_S

Event = dict[str, Any]
_PS_PER_US = 10**6
_STEPS = 0
COUNTERS = ("running", "waiting", "free_blocks")


def perfetto(run: Latencies, *, start_s: float = 0.0, end_s: float = float("inf")) -> str:
    """The events that touch the time from `start_s` to `end_s`, as JSON."""
    end_s = min(end_s, run.step_end / PS_PER_S)
    about = {key: str(run.about.get(key)) for key in ("policy", "profile", "seed", "version")}
    events = [*_names(run), *_replicas(run, start_s, end_s), *_requests(run, start_s, end_s)]
    return json.dumps(
        {"displayTimeUnit": "ms", "otherData": about, "traceEvents": events},
        separators=(",", ":"),
        ensure_ascii=False,
        allow_nan=False,
    )


def _names(run: Latencies) -> Iterator[Event]:
    yield {"ph": "M", "name": "process_name", "pid": 0, "args": {"name": "requests"}}
    for replica in range(run.replicas):
        pid = replica + 1
        yield {
            "ph": "M",
            "name": "process_name",
            "pid": pid,
            "args": {"name": f"replica {replica}"},
        }
        yield _thread(pid, _STEPS, "steps")


def _thread(pid: int, tid: int, name: str) -> Event:
    return {"ph": "M", "name": "thread_name", "pid": pid, "tid": tid, "args": {"name": name}}


def _replicas(run: Latencies, start_s: float, end_s: float) -> Iterator[Event]:
    steps = run.records.steps
    begin = column(steps, "start")
    end = begin + column(steps, "duration")
    inside = (end >= start_s * PS_PER_S) & (begin <= end_s * PS_PER_S)
    names = ("replica", "start", "duration", "prefill_tokens", "decodes", *COUNTERS)
    table = {name: column(steps, name)[inside] for name in names}
    for replica in range(run.replicas):
        mine = table["replica"] == replica
        one = {name: values[mine] for name, values in table.items()}
        yield from _steps(replica + 1, one)
        for name in COUNTERS:
            yield from _counter(replica + 1, name, one["start"], {name: one[name]})
        batch = {"prefill": one["prefill_tokens"], "decode": one["decodes"]}
        yield from _counter(replica + 1, "tokens in the step", one["start"], batch)
        yield from _slots(run, replica, start_s, end_s)


def _steps(pid: int, steps: dict[str, Ints]) -> Iterator[Event]:
    columns = ("start", "duration", "prefill_tokens", "decodes")
    for start, duration, prefill, decodes in zip(
        *(steps[name].tolist() for name in columns), strict=True
    ):
        kind = "mixed" if prefill and decodes else "prefill" if prefill else "decode"
        yield {
            "ph": "X", "name": kind, "cat": "step", "pid": pid, "tid": _STEPS,
            "ts": start / _PS_PER_US, "dur": duration / _PS_PER_US,
            "args": {"prefill tokens": prefill, "decodes": decodes},
        }  # fmt: skip


def _counter(pid: int, name: str, start: Ints, values: dict[str, Ints]) -> Iterator[Event]:
    """Only where a value changes."""
    if not len(start):
        return
    changed = np.zeros(len(start), dtype=bool)
    changed[0] = True
    for each in values.values():
        changed[1:] |= np.diff(each) != 0
    columns = [each[changed].tolist() for each in values.values()]
    for at, *now in zip(start[changed].tolist(), *columns, strict=True):
        yield {
            "ph": "C", "name": name.replace("_", " "), "pid": pid, "ts": at / _PS_PER_US,
            "args": dict(zip(values, now, strict=True)),
        }  # fmt: skip


def _slots(run: Latencies, replica: int, start_s: float, end_s: float) -> Iterator[Event]:
    laid = slots(run, end_s, replica)
    pid = replica + 1
    for slot in range(laid.used):
        yield _thread(pid, slot + 1, f"slot {slot + 1}")
    for piece in laid.pieces:
        if piece.end >= start_s:
            yield {
                "ph": "X", "name": f"{piece.kind} {piece.request}", "cat": piece.kind,
                "pid": pid, "tid": piece.slot + 1, "ts": piece.start * 1e6,
                "dur": (piece.end - piece.start) * 1e6, "args": {"request": piece.request},
            }  # fmt: skip
    for slot, at in laid.preempted:
        if start_s <= at <= end_s:
            yield {
                "ph": "i", "name": "preempted", "s": "t", "pid": pid, "tid": slot + 1,
                "ts": at * 1e6,
            }  # fmt: skip


def _requests(run: Latencies, start_s: float, end_s: float) -> Iterator[Event]:
    names = ("request", "prompt", "produced", "preemptions")
    rows = np.flatnonzero(run.arrived & (run.column("arrival") <= end_s * PS_PER_S)).tolist()
    columns = [run.column(name)[rows].tolist() for name in names]
    reasons = run.records.requests["reason"].astype(str).to_numpy()[rows].tolist()
    for pieces, reason, request, prompt, produced, preemptions in zip(
        stretches(run, rows), reasons, *columns, strict=True
    ):
        if not pieces or pieces[-1][2] < start_s * PS_PER_S:
            continue
        same = {"cat": "request", "id": request, "pid": 0, "tid": 0}
        told = {
            "prompt tokens": prompt, "output tokens": produced, "preemptions": preemptions,
            "ended": reason or "unfinished",
        }  # fmt: skip
        name = f"request {request}"
        yield {"ph": "b", "name": name, "ts": pieces[0][1] / _PS_PER_US, "args": told, **same}
        for kind, begin, end in pieces:
            yield {"ph": "b", "name": KINDS[kind], "ts": begin / _PS_PER_US, **same}
            yield {"ph": "e", "name": KINDS[kind], "ts": end / _PS_PER_US, **same}
        yield {"ph": "e", "name": name, "ts": pieces[-1][2] / _PS_PER_US, **same}
