"""From the `[trace]` section of a scenario to the requests of a run."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import numpy as np

from simulator.sections import TraceSettings
from simulator.settings_file import ScenarioError
from traces.readers import read_trace
from traces.select import scale_rate, window, with_declared
from traces.settings import unknown
from traces.synthesize import Workload, synthesize
from traces.trace import Trace

DEFAULT_PRESET = "chat"
RECORDED_ONLY = ("dialect", "start", "scale_rate", "drop_invalid", "unwrap", "spread_ticks")
PATHS = ("file", "prompt.file", "output.file")
"""Keys of `[trace]` that are paths."""


def check_load(settings: TraceSettings) -> None:
    """Raises ValueError where keys contradict each other, or the synthetic ones are wrong."""
    if settings.file is None:
        for name in RECORDED_ONLY:
            if name in settings.model_fields_set:
                raise ScenarioError(f"trace.{name}: is for recorded traces; trace.file is not set")
        Workload.from_table(_table(settings))
        return
    if settings.preset is not None:
        raise ScenarioError("trace.preset: contradicts trace.file; give one of the two")
    for name in settings.workload:
        if name in Workload.__dataclass_fields__:
            more = "; scale a recorded rate with scale_rate" if name == "rate" else ""
            raise ScenarioError(f"trace.{name}: is for synthetic load, but trace.file is set{more}")
        known = list(TraceSettings.model_fields)
        raise ScenarioError(f"trace.{name}: unknown key{unknown(name, known)}")


def load_trace(settings: TraceSettings, seed: int, room: int) -> Trace:
    """The requests of a run, each with a declared maximum.

    `room` is the most that prompt and output may be together. Reading is remembered: the cells
    of a sweep mostly share their trace, which never changes. Raises ValueError or OSError.
    """
    table = settings.model_dump(exclude_unset=True, exclude={"declared"})
    stamps = tuple(
        (str(path), (stat := path.stat()).st_mtime_ns, stat.st_size) for path in trace_files(table)
    )
    trace = _load(json.dumps(table, sort_keys=True), seed, stamps)
    return _declared(trace, settings.declared, room)


def declared_label(trace: Trace, stated: int | str | None) -> str | int:
    """What reports call the declared maximum: "exact", or the largest one."""
    return "exact" if stated == "exact" else int(trace.declared.max(initial=0))


def trace_files(table: Mapping[str, Any]) -> list[Path]:
    """The files that a `[trace]` section reads."""
    found = []
    for key in PATHS:
        at: Any = table
        for part in key.split("."):
            at = at.get(part) if isinstance(at, Mapping) else None
        if isinstance(at, str):
            found.append(Path(at))
    return found


@lru_cache(maxsize=4)
def _load(table: str, seed: int, stamps: tuple[tuple[str, int, int], ...]) -> Trace:
    settings = TraceSettings.model_validate(json.loads(table))
    if settings.file is None:
        trace = synthesize(Workload.from_table(_table(settings)), seed)
    else:
        trace = read_trace(
            settings.file,
            settings.dialect,
            drop_invalid=settings.drop_invalid,
            unwrap=settings.unwrap,
            spread_ticks=settings.spread_ticks,
            seed=seed,
        )
    chosen = window(
        trace, start_s=settings.start, duration_s=settings.duration, limit=settings.limit
    )
    if not len(chosen):
        raise ScenarioError("trace: no request is left to run")
    return scale_rate(chosen, settings.scale_rate)


def _table(settings: TraceSettings) -> dict[str, Any]:
    """The synthetic workload's table; the default preset's, where nothing is said."""
    table = settings.workload
    if settings.preset or not table:
        table["preset"] = settings.preset or DEFAULT_PRESET
    return table


def _declared(trace: Trace, stated: int | Literal["exact"] | None, room: int) -> Trace:
    if stated is not None:
        return with_declared(trace, stated)
    unknown = trace.declared == 0
    if not unknown.any():
        return trace
    # As a server fills in for a client that states none: never more than there is room for.
    most = int(trace.output.max())
    filled = np.clip(room - trace.prompt, 1, most)
    return dataclasses.replace(
        trace, declared=np.where(unknown, filled, trace.declared)
    ).with_notes(f"no declared maximum is recorded: {most} assumed, the largest output there is")
