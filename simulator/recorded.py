"""Recorded runs of real engines: what was asked, when it came, and how the engine was set.

`read_recorded` finds the form by its keys. Another form is one more entry of `FORMS`: the keys
that its file (of JSON lines, the first line) must have, and a function that reads it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from calibration.raw import read_text
from reports.percentiles import Distribution
from traces.readers.table import cut
from traces.trace import PS_PER_S, Segment, Trace, to_ps

Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The engine's, as far as they are recorded (else None)."""

    kv_tokens: int | None = None
    block_size: int | None = None
    max_running: int | None = None
    max_model_len: int | None = None
    token_budget: int | None = None
    long_prefill: int | None = None
    gate: bool | None = None
    prefix_cache: bool | None = None


@dataclass(frozen=True, kw_only=True, eq=False)
class Recorded:
    """A real run. Columns have one value for each row of `trace`, in seconds since its arrival;
    None where the form does not record them."""

    name: str
    trace: Trace
    ttft: Floats
    e2e: Floats
    queue: Floats | None = None
    gaps: tuple[Floats, ...] | None = None
    """Of each request, the gaps between its tokens."""
    settings: Settings = field(default_factory=Settings)
    step_log: Path | None = None
    """A file that `calibration.steplog` reads."""

    def distributions(self, rows: slice = slice(None)) -> dict[str, Distribution]:
        """Latencies in picoseconds by the names of `reports.metrics`, of some requests."""
        several = self.trace.output[rows] >= 2
        spread = (self.e2e - self.ttft)[rows] / np.maximum(self.trace.output[rows] - 1, 1)
        found = {"ttft": self.ttft[rows]}
        if self.gaps is not None:
            found["itl"] = np.concatenate(self.gaps[rows])
        found |= {"tpot": spread[several], "e2e": self.e2e[rows]}
        if self.queue is not None:
            found["queue"] = self.queue[rows]
        return {metric: Distribution(seconds * PS_PER_S) for metric, seconds in found.items()}


class Form(NamedTuple):
    """One way of recording a run."""

    name: str
    keys: frozenset[str]
    read: Callable[[Path, list[dict[str, Any]]], Recorded]
    """Takes the file's objects: one, or one a line."""


def read_recorded(path: Path | str) -> Recorded:
    """Read a recorded run, a file or the folder of one. Raises ValueError in one line."""
    path = Path(path)
    if path.is_dir():
        path = path / "requests.jsonl"
    objects = _objects(path)
    first = objects[0]
    for form in FORMS:
        if form.keys <= first.keys():
            try:
                return form.read(path, objects)
            except (KeyError, TypeError, IndexError) as error:
                raise ValueError(f"{path}: not as {form.name} writes it: {error!r}") from None
    known = "; ".join(f"{form.name} ({', '.join(sorted(form.keys))})" for form in FORMS)
    raise ValueError(
        f"{path}: keys {cut(', '.join(sorted(first)[:8]))}, expected those of a recorded run: "
        f"{known}"
    )


def _objects(path: Path) -> list[dict[str, Any]]:
    """The one object of a JSON file, or those of JSON lines."""
    text = read_text(path)
    try:
        found = [json.loads(text)]
    except json.JSONDecodeError:
        found = []
        for number, line in enumerate(text.splitlines(), 1):
            try:
                found += [json.loads(line)] if line.strip() else []
            except json.JSONDecodeError as error:
                raise ValueError(
                    f"{path}, line {number}: not JSON ({error.msg}), expected a recorded run"
                ) from None
    if not found or not all(isinstance(one, dict) for one in found):
        raise ValueError(f"{path}: no JSON object, expected a recorded run")
    return found


def _vllm_steps(path: Path, objects: list[dict[str, Any]]) -> Recorded:
    """vLLM with its scheduler logged: requests with the time of every token, steps, config."""
    content = objects[0]
    rows = sorted(content["requests"], key=lambda row: float(row["arrival_s"]))
    config = content["config"]
    streams: dict[str, int] = {}
    arrival = np.array([float(row["arrival_s"]) for row in rows])
    tokens = [np.array(row["token_s"], dtype=np.float64) for row in rows]
    for row, times in zip(rows, tokens, strict=True):
        if not len(times):
            raise ValueError(f"{path}: request {row['id']}: no tokens, expected at least one")
    content_of = [
        tuple(
            Segment(streams.setdefault(name, len(streams)), int(start), int(count))
            for name, start, count in row["prompt"]
        )
        for row in rows
    ]
    size = int(config["block_size"])
    return Recorded(
        name=path.name.partition(".")[0],
        trace=Trace.of(
            [to_ps(at) for at in arrival.tolist()],
            [int(row["prompt_len"]) for row in rows],
            [len(times) for times in tokens],
            content=content_of,
            labels=tuple(str(row["id"]) for row in rows),
            source=str(path),
        ),
        ttft=np.array([times[0] for times in tokens]) - arrival,
        e2e=np.array([times[-1] for times in tokens]) - arrival,
        gaps=tuple(np.diff(times) for times in tokens),
        settings=Settings(
            kv_tokens=_usable(int(config["num_gpu_blocks"]), size),
            block_size=size,
            max_running=int(config["max_num_seqs"]),
            max_model_len=int(config["max_model_len"]),
            token_budget=int(config["max_num_batched_tokens"]),
            long_prefill=int(config["long_prefill_token_threshold"]),
            prefix_cache=bool(config["enable_prefix_caching"]),
        ),
        step_log=path,
    )


def _vllm_stamps(path: Path, objects: list[dict[str, Any]]) -> Recorded:
    """The engine's own stamps of each request (LLMServingSim's bench), `meta.json` beside them.

    An arrival is when the engine queued the request; it may differ from the front end's by
    hundreds of milliseconds.
    """
    for number, row in enumerate(objects, 1):
        stamps = [row[name] for name in STAMPS]
        if sorted(stamps) != stamps:
            raise ValueError(
                f"{path}, line {number}: {', '.join(STAMPS)} {stamps}, expected them to rise"
            )
    rows = sorted(objects, key=lambda row: float(row["queued_ts"]))
    at = {name: np.array([float(row[name]) for row in rows]) for name in STAMPS}
    queued = at["queued_ts"]
    meta_path = path.with_name("meta.json")
    meta = json.loads(read_text(meta_path)) if meta_path.exists() else {}
    return Recorded(
        name=path.parent.name or path.stem,
        trace=Trace.of(
            [to_ps(x) for x in (queued - queued[0]).tolist()],
            [int(row["input_toks"]) for row in rows],
            [int(row["output_toks"]) for row in rows],
            labels=tuple(str(row["request_id"]) for row in rows),
            source=str(path),
        ),
        ttft=at["first_token_ts"] - queued,
        e2e=at["last_token_ts"] - queued,
        queue=at["scheduled_ts"] - queued,
        settings=_settings_of(meta),
    )


STAMPS = ("queued_ts", "scheduled_ts", "first_token_ts", "last_token_ts")


def _settings_of(meta: Mapping[str, Any]) -> Settings:
    given = meta.get("engine_kwargs", {})
    resolved = meta.get("resolved_config", {})
    scheduler, cache = resolved.get("scheduler_config", {}), resolved.get("cache_config", {})
    kv = meta.get("kv_cache", {})
    blocks, size = kv.get("num_gpu_blocks"), kv.get("block_size", cache.get("block_size"))
    return Settings(
        kv_tokens=_usable(blocks, size) if blocks and size else None,
        block_size=size,
        max_running=given.get("max_num_seqs", scheduler.get("max_num_seqs")),
        max_model_len=given.get("max_model_len"),
        token_budget=given.get("max_num_batched_tokens", scheduler.get("max_num_batched_tokens")),
        long_prefill=scheduler.get("long_prefill_token_threshold"),
        gate=scheduler.get("scheduler_reserve_full_isl"),
        prefix_cache=kv.get("enable_prefix_caching", cache.get("enable_prefix_caching")),
    )


def _usable(blocks: int, size: int) -> int:
    """vLLM keeps its first block for itself."""
    return (blocks - 1) * size


FORMS = [
    Form(
        "vLLM with its steps logged",
        frozenset({"config", "requests", "steps"}),
        _vllm_steps,
    ),
    Form(
        "the engine's stamps",
        frozenset({"input_toks", "output_toks", *STAMPS}),
        _vllm_stamps,
    ),
]
"""Tried in this order."""
