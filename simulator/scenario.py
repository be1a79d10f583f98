"""`Scenario`: one TOML file = one reproducible run.

Settings are checked here, before anything runs: unknown keys, wrong types and values, and
settings that can never work. Paths in a file are relative to the file's folder.
"""

from __future__ import annotations

import dataclasses
import os
import tomllib
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import numpy as np
from pydantic import Field, ValidationError

from calibration.profile import PROFILES, Grid, Profile, load_profile
from calibration.step_time import Executor, Predicted
from policies import Continuous, Static
from policies.base import Policy
from simulator.clients import RetrySettings
from simulator.door import DoorSettings
from simulator.engine import Engine
from simulator.fleet import FleetSettings
from simulator.policy_names import policy_class, policy_file
from simulator.recorder import Progress
from simulator.run import simulate
from simulator.sections import (
    EngineSettings,
    ExecutorSettings,
    HostSettings,
    PolicySettings,
    Seconds,
    TraceSettings,
)
from simulator.settings_file import (
    ScenarioError,
    Section,
    explain,
    located,
    parse_value,
    read_toml,
    set_key,
    write_toml,
)
from simulator.window import Outside
from simulator.workload import DEFAULT_PRESET, check_load, declared_label, load_trace, trace_files
from simulator.workload import PATHS as TRACE_PATHS
from traces.records import Records
from traces.sla import Sla
from traces.trace import Ints, Trace, to_ps

if TYPE_CHECKING:
    from simulator.stream import RecordsWriter

DEFAULT_PROFILE = {"predicted": "h100-sxm_llama3.1-8b_bf16", "measured": "cpu-tiny"}


class Scenario(Section):
    """Everything that a run depends on. Immutable; equal scenarios give equal runs."""

    seed: Annotated[int, Field(ge=0)] = 0
    """One seed; every random purpose has its own stream from it."""
    horizon: Annotated[Seconds, Field(gt=0)] | None = None
    """Stop after this much simulated time, such as "1h". Default: when all are done."""
    trace: TraceSettings = TraceSettings()
    engine: EngineSettings = EngineSettings()
    executor: ExecutorSettings = ExecutorSettings()
    host: HostSettings = HostSettings()
    policy: PolicySettings = PolicySettings()
    door: DoorSettings = DoorSettings()
    retry: RetrySettings = RetrySettings()
    fleet: FleetSettings = FleetSettings()
    sla: dict[str, Any] = Field(default_factory=dict)
    """Bounds on latency in seconds: `ttft = { p99 = 0.8 }`."""

    @classmethod
    def of(cls, tables: Mapping[str, Any]) -> Scenario:
        """From tables as TOML has them. Raises `ScenarioError` of one line."""
        try:
            scenario = cls.model_validate(dict(tables))
        except ValidationError as error:
            raise ScenarioError(explain(error, cls)) from None
        check_load(scenario.trace)
        scenario.policy.build()
        scenario.objectives()
        scenario.door.check()
        scenario.retry.check(scenario.door, scenario.fleet)
        scenario.fleet.check(scenario.door)
        if scenario.executor.kind == "measured" and scenario.fleet.most > 1:
            raise ScenarioError(
                f"fleet.replicas = {scenario.fleet.most} contradicts executor.kind = "
                '"measured": one device is one replica'
            )
        if scenario.executor.kind == "measured" and scenario.engine.pinned_tokens:
            raise ScenarioError(
                f"engine.pinned_tokens = {scenario.engine.pinned_tokens} contradicts "
                'executor.kind = "measured": really executed steps compute all that they read'
            )
        return scenario

    @classmethod
    def load(cls, path: Path | str) -> Scenario:
        """From a TOML file, whose paths are relative to its folder.

        Raises `ScenarioError`, naming file and line, or OSError where it cannot be read.
        """
        path = Path(path)
        tables, text = read_toml(path)
        try:
            return cls.of(_with_paths(tables, lambda file: os.path.normpath(path.parent / file)))
        except ValueError as error:
            raise located(error, path, text) from None

    @classmethod
    def loads(cls, text: str) -> Scenario:
        """From TOML text, whose paths are relative to the working folder."""
        return cls.of(tomllib.loads(text))

    def with_values(self, values: Mapping[str, Any]) -> Scenario:
        """A copy with dotted keys set: {"engine.block_size": 32}.

        Another `policy.kind` keeps those settings that it knows.
        """
        tables = self.tables()
        for key, value in values.items():
            if key == "policy.kind":
                tables["policy"] = _fitting(tables.get("policy", {}), value)
            else:
                tables = set_key(tables, key, value)
        return Scenario.of(tables)

    def with_load(self, *, file: str | None = None, preset: str | None = None) -> Scenario:
        """A copy with another load. What was set of the old one goes, but for what is selected."""
        trace = self.tables().get("trace", {})
        kept = {key: trace[key] for key in ("duration", "limit", "declared") if key in trace}
        named = {"file": file, "preset": preset}
        new = kept | {key: value for key, value in named.items() if value is not None}
        return Scenario.of(self.tables() | {"trace": new})

    def with_set(self, *texts: str) -> Scenario:
        """The same from texts as on the command line: "engine.block_size=32"."""
        return self.with_values(dict(parse_set(text) for text in texts))

    def tables(self) -> dict[str, Any]:
        """What is set, as TOML has it; defaults that nobody set are left out."""
        return self.model_dump(exclude_unset=True, exclude_none=True)

    def resolved(self) -> Scenario:
        """The same run with its defaults written out, those of profile and policy too."""
        engine = self.engine_limits(load_profile(self.profile_name))
        tables = self.model_dump(exclude_none=True)
        tables["trace"] = self.tables().get("trace", {}) or {"preset": DEFAULT_PRESET}
        tables["policy"] = self.policy.resolved().model_dump()
        tables["engine"] |= {
            "profile": self.profile_name,
            "kv_tokens": engine.kv_tokens,
            "max_model_len": engine.max_model_len,
            "kv_bytes_per_token": engine.kv_bytes_per_token,
        }
        return Scenario.of(tables)

    def dump(self, folder: Path | None = None) -> str:
        """TOML text that `loads` back equal; for a file in `folder`, with paths from there."""
        tables = self.tables()
        if folder is not None:
            tables = _with_paths(tables, lambda file: os.path.relpath(file, folder))
        return write_toml(tables)

    def objectives(self) -> Sla:
        """The SLA; without terms where none is set."""
        return Sla.from_table(self.sla)

    @property
    def profile_name(self) -> str:
        """Name or file of the profile."""
        return self.engine.profile or DEFAULT_PROFILE[self.executor.kind]

    def input_files(self) -> dict[str, Path]:
        """The files that the run reads, by what they are to it."""
        named = {
            "policy": policy_file(self.policy.kind),
            "profile": profile_file(self.profile_name) or PROFILES / f"{self.profile_name}.json",
        }
        files = {role: path for role, path in named.items() if path is not None}
        traces = trace_files(self.tables().get("trace", {}))
        return files | {f"trace {number}": path for number, path in enumerate(traces)}

    def engine_limits(self, profile: Profile) -> Engine:
        """The engine with the profile's defaults filled in.

        Raises `ScenarioError` for limits that can never work.
        """
        given = self.engine.model_dump(exclude={"profile"})
        pool = self.engine.kv_tokens or profile.pool_tokens
        defaults = {
            "kv_tokens": pool,
            "max_model_len": min(profile.max_model_len, pool),
            "kv_bytes_per_token": profile.kv_bytes_per_token,
        }
        given |= {name: value for name, value in defaults.items() if given[name] is None}
        engine = Engine(**given | {"rank_kv_tokens": tuple(self.engine.rank_kv_tokens)})
        if engine.blocks < 1:
            raise ScenarioError(
                f"engine.kv_tokens = {pool}: expected at least one block of {engine.block_size}"
            )
        if engine.max_model_len > pool:
            raise ScenarioError(
                f"engine.max_model_len = {engine.max_model_len}: larger than the pool "
                f"(engine.kv_tokens = {pool}), so that one request could never end"
            )
        if engine.max_model_len > profile.max_model_len:
            raise ScenarioError(
                f"engine.max_model_len = {engine.max_model_len}: larger than what the model of "
                f"{profile.name} can do ({profile.max_model_len})"
            )
        return engine

    def build(self) -> Built:
        """Trace, policy, engine and executor. Raises ValueError or OSError of one line."""
        profile = load_profile(self.profile_name)
        engine = self.engine_limits(profile)
        policy = self.policy.build()
        trace = load_trace(self.trace, self.seed, engine.max_model_len)
        refuse_impossible(policy, engine, trace)
        _refuse_small_batches(policy, self.door, self.fleet)
        executor: Executor
        if self.executor.kind == "measured":
            from calibration.executor import Measured  # torch, which only this one needs

            executor = Measured.create(
                requests=trace.requests(),
                model=self.executor.model,
                device=self.executor.device,
                blocks=engine.blocks,
                block_size=engine.block_size,
                seed=self.seed,
            )
        else:
            executor = Predicted(self.host.added_to(profile.step_time()))
        return Built(trace, policy, engine, executor)

    def run(
        self,
        *,
        leap: bool = True,
        on_progress: Progress | None = None,
        writer: RecordsWriter | None = None,
    ) -> Records:
        """Build it and run it; the arguments are those of `simulate`.

        Raises ValueError or OSError for what can never work.
        """
        profile = load_profile(self.profile_name)
        steps = self.executor
        measured = f"{steps.model} on {steps.device}" if steps.kind == "measured" else ""
        built = self.build()
        return simulate(
            *built,
            seed=self.seed,
            horizon=None if self.horizon is None else to_ps(self.horizon),
            leap=leap,
            door=self.door,
            retry=self.retry,
            fleet=self.fleet,
            outside=None if measured else _outside(profile.grid()),
            about={
                "policy": self.policy.kind,
                "profile": f"{measured}, measured" if measured else profile.name,
                "profile_errors": None if measured else profile.errors.model_dump(),
                "declared": declared_label(built.trace, self.trace.declared),
                "scenario": self.resolved().tables(),
                "version": version("batchlab"),
            },
            on_progress=on_progress,
            writer=writer,
        )


class Built(NamedTuple):
    """What a scenario comes to."""

    trace: Trace
    policy: Policy
    engine: Engine
    executor: Executor


def _outside(grid: Grid) -> Outside:
    """Which steps lie beyond what the profile was measured on."""

    def outside(steps: dict[str, Ints]) -> Ints:
        decodes, chunks = steps["decodes"], steps["chunks"]
        beyond = (
            (steps["prefill_tokens"] + decodes > grid.tokens)
            | (chunks + decodes > grid.sequences)
            | (steps["decode_context"] > grid.decode_context)
            | (steps["decode_context"] > decodes * grid.context)
            | (steps["area2"] > grid.area2)
        )
        return beyond.astype(np.int64)

    return outside


def parse_set(text: str) -> tuple[str, Any]:
    """ "engine.block_size=32" to key and value; text that is no TOML value is a string."""
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise ScenarioError(f"--set {text}: expected key=value, such as engine.block_size=32")
    return key.strip(), parse_value(value)


def refuse_impossible(policy: Policy, engine: Engine, trace: Trace) -> None:
    """Raises `ScenarioError` for settings that can never work together (rule A4)."""
    budget = policy.token_budget
    if budget < engine.max_running:
        raise ScenarioError(
            f"policy.token_budget = {budget}: smaller than engine.max_running = "
            f"{engine.max_running}, so that not all seats could decode in one step"
        )
    if prefills_whole(policy) and len(trace):
        runnable = trace.prompt[trace.prompt < engine.max_model_len]
        longest = int(runnable.max()) if len(runnable) else 0
        if longest > budget:
            raise ScenarioError(
                f"policy.token_budget = {budget}: smaller than the longest prompt ({longest} "
                "tokens), which this policy prefills whole"
            )


def _refuse_small_batches(policy: Policy, door: DoorSettings, fleet: FleetSettings) -> None:
    """Raises `ScenarioError` where the door lets in too few for a batch to fill."""
    most = door.max_in_flight
    if most is None or not isinstance(policy, Static):
        return
    if door.in_flight_per == "fleet":
        most //= fleet.replicas
    if most < policy.batch:
        raise ScenarioError(
            f"door.max_in_flight = {door.max_in_flight} per {door.in_flight_per} contradicts "
            f"policy.batch = {policy.batch}: no batch could fill"
        )


def prefills_whole(policy: Policy) -> bool:
    """Whether a prompt longer than the token budget can never run."""
    return isinstance(policy, Static | Continuous) or getattr(policy, "chunks", True) is False


def _with_paths(tables: Mapping[str, Any], change: Callable[[str], str]) -> dict[str, Any]:
    """A copy of a scenario's tables with every path that is in it changed."""

    def changed(key: str, of: Callable[[str], bool], tables: dict[str, Any]) -> dict[str, Any]:
        at: Any = tables
        for part in key.split("."):
            at = at.get(part) if isinstance(at, Mapping) else None
        return set_key(tables, key, change(at)) if isinstance(at, str) and of(at) else tables

    result = dict(tables)
    for key in TRACE_PATHS:
        result = changed(f"trace.{key}", lambda _: True, result)
    result = changed("engine.profile", lambda name: profile_file(name) is not None, result)
    return changed("policy.kind", lambda kind: policy_file(kind) is not None, result)


def profile_file(name: str) -> Path | None:
    """The file of a profile that is named by path; None for shipped ones."""
    return Path(name) if "/" in name or name.endswith(".json") else None


def _fitting(policy: Mapping[str, Any], kind: str) -> dict[str, Any]:
    """Another policy with those settings that it knows."""
    known = {f.name for f in dataclasses.fields(policy_class(kind)) if f.init}
    return {"kind": kind, **{k: v for k, v in policy.items() if k in known}}
