"""The sections of a scenario, one model each: their keys, defaults and what they mean.

`docs/settings.md` is made from these docstrings.
"""

from __future__ import annotations

import dataclasses
import re
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_type_hints

from pydantic import BeforeValidator, ConfigDict, Field, TypeAdapter, ValidationError

from calibration.step_time import StepTime
from simulator.policy_names import policy_class
from simulator.settings_file import ScenarioError, Section, whole
from traces.settings import unknown
from traces.trace import to_ps

if TYPE_CHECKING:
    from policies.base import Policy

_UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def seconds(value: Any) -> Any:
    """Seconds from a number, or from text with a unit: "90s", "1.5h", "250ms"."""
    if not isinstance(value, str):
        return value
    found = re.fullmatch(r"\s*(\d+\.?\d*|\.\d+)\s*([a-z]*)\s*", value)
    if not found or (found[2] or "s") not in _UNITS:
        raise ValueError('expected seconds, or a time such as "90s", "15min", "1h", "250ms"')
    return float(found[1]) * _UNITS[found[2] or "s"]


Seconds = Annotated[float, BeforeValidator(seconds)]
HostTime = Annotated[Seconds, Field(ge=0, allow_inf_nan=False)]
Positive = Annotated[int, Field(ge=1)]


class TraceSettings(Section):
    """The load: a recorded trace (`file`), a preset, or a synthetic workload (all other keys)."""

    model_config = ConfigDict(extra="allow")

    file: str | None = None
    """A recorded trace, plain or gzip."""
    dialect: str | None = None
    """Its format, where the columns do not tell it (`batchlab trace info`)."""
    preset: str | None = None
    """A workload with published numbers; keys beside it change it."""
    start: Annotated[Seconds, Field(ge=0)] = 0.0
    """Leave out what a recorded trace has before this time, which becomes time 0."""
    duration: Annotated[Seconds, Field(gt=0)] | None = None
    """Only requests that arrive within this time."""
    limit: Positive | None = None
    """Only this many requests."""
    scale_rate: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0
    """Divide the arrival times of a recorded trace by this: 2 = twice the rate."""
    drop_invalid: bool = False
    """Drop rows of a recorded trace that are wrong, and count them, instead of refusing."""
    unwrap: bool = False
    """Let a recorded clock that starts again (after a day, a week) go on."""
    spread_ticks: bool = False
    """Spread arrivals that were recorded in coarse ticks over their tick, by the seed."""
    declared: Annotated[int, Field(ge=1)] | Literal["exact"] | None = None
    """Maximum output tokens that requests declare: a number, or "exact" (the true lengths: a
    clairvoyant, and labelled so). Default: what the trace records; where it records none, the
    largest output in it."""

    @property
    def workload(self) -> dict[str, Any]:
        """The keys of the synthetic workload, as far as they are given."""
        return dict(self.model_extra or {})


class EngineSettings(Section):
    """One replica: what it runs on, its KV pool, its limits."""

    profile: str | None = None
    """Cost curve: a shipped profile by name, or a file (`batchlab profile list`). Default:
    h100-sxm_llama3.1-8b_bf16; cpu-tiny where steps are measured."""
    block_size: Positive = 16
    """Tokens a block."""
    kv_tokens: Positive | None = None
    """The KV pool in tokens; blocks = kv_tokens // block_size. Default: from the profile."""
    max_running: Positive = 256
    """Seats: sequences that run at once."""
    max_model_len: Positive | None = None
    """Prompt + output at most, in tokens. Default: the least of the model's limit and the pool;
    only a larger explicit value is refused."""
    reserve: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Share of the pool kept free at admission; at least 0, less than 1."""
    gate: bool = True
    """Admit only what fits with all its known tokens, not just its first chunk."""
    prefix_cache: bool = False
    """Share full blocks of equal prefixes."""
    pinned_tokens: Annotated[int, Field(ge=0)] = 0
    """Keep the beginning that most requests share (a system prompt) in the pool for good, up to so
    many tokens: computed before the run, never evicted, no room for anything else."""
    output_cap: Positive | None = None
    """Cut outputs at this many tokens. Default: never."""
    contiguous: bool = False
    """A sequence's blocks lie in one piece, as before paging; for policies that reserve to the
    declared maximum."""
    swap_tokens: Annotated[int, Field(ge=0)] = 0
    """Room on the host for the KV of preempted sequences, in tokens; 0 = recompute."""
    swap_bandwidth: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 25e9
    """Bytes per second between host and device."""
    kv_bytes_per_token: Positive | None = None
    """KV of a token on one device, over all layers. Default: from the profile."""
    rank_kv_tokens: list[Positive] = Field(default_factory=list)
    """Pools of tensor-parallel ranks where they differ, in tokens; the smallest binds."""
    rank_evict: Literal["global", "local"] = "global"
    """Who evicts when the smallest rank is full: all ranks together, or that rank alone, while
    the others keep their blocks and wait."""


class HostSettings(Section):
    """Host time of a step that the profile does not have: added to what it has."""

    per_step: HostTime = 0.0
    """For each step: scheduling, launching."""
    per_sequence: HostTime = 0.0
    """For each sequence fed."""
    per_table_entry: HostTime = 0.0
    """For each entry of the block tables of the sequences fed: grows as blocks get smaller."""
    per_block: HostTime = 0.0
    """For each block taken or returned."""
    per_name: HostTime = 0.0
    """For each block that gets an identity; with the prefix cache only."""

    def added_to(self, prices: StepTime) -> StepTime:
        """The step time with this host time in it."""
        return dataclasses.replace(
            prices,
            t0=prices.t0 + to_ps(self.per_step),
            tS=prices.tS + to_ps(self.per_sequence),
            tB=prices.tB + to_ps(self.per_table_entry),
            tT=prices.tT + to_ps(self.per_block),
            tN=prices.tN + to_ps(self.per_name),
        )


class ExecutorSettings(Section):
    """How a step's time is found: priced from the profile, or by really running it."""

    kind: Literal["predicted", "measured"] = "predicted"
    """`predicted` from the profile, or `measured`: every step is run on a real model."""
    model: str = "tiny"
    """The model that `measured` runs (`batchlab profile measure`)."""
    device: str = "cpu"
    """Where `measured` runs it: cpu or cuda."""


class PolicySettings(Section):
    """The policy by name, and its own settings, which depend on it."""

    model_config = ConfigDict(extra="allow")

    kind: str = "chunked"
    """A name of `batchlab policy list`, or `mine.py:Mine`."""

    @property
    def settings(self) -> dict[str, Any]:
        """Its own settings, as far as they are given."""
        return dict(self.model_extra or {})

    def build(self) -> Policy:
        """The policy. Raises ValueError for a setting that it does not know or accept."""
        chosen = policy_class(self.kind)
        hints = get_type_hints(chosen)
        known = [field.name for field in dataclasses.fields(chosen) if field.init]
        settings = {name: whole(value, hints.get(name)) for name, value in self.settings.items()}
        for name, value in settings.items():
            if name not in known:
                raise ScenarioError(
                    f"policy.{name}: unknown key of {self.kind}{unknown(name, known)}"
                )
            try:
                TypeAdapter(hints[name]).validate_python(value, strict=True)
            except ValidationError as error:
                said = error.errors()[0]["msg"].replace("Input should be", "expected")
                raise ScenarioError(f"policy.{name} = {value!r}: {said}") from None
        built: Policy = chosen(**settings)
        return built

    def resolved(self) -> PolicySettings:
        """With every setting of the policy written out."""
        built: Any = self.build()
        values = {f.name: getattr(built, f.name) for f in dataclasses.fields(built) if f.init}
        return PolicySettings(kind=self.kind, **values)
