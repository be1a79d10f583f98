"""A scenario's settings as flags of real engines, to paste; and what no flag says.

vLLM (V1 engine) and SGLang. A flag is given where it says the same as our setting; a setting that
is not at its neutral value and has no flag there is named, so that nobody believes it was set.
"""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass
from typing import Any

from calibration.profile import Profile, load_profile
from simulator.engine import Engine
from simulator.scenario import Scenario

OWN_WAY = {
    "static": "policy.kind = static: it never waits for a batch to end",
    "fast-lane": "policy.kind = fast-lane: it has no lanes",
    "fair-share": "policy.kind = fair-share: it knows no tenants",
}


@dataclass(frozen=True)
class Flags:
    """How one engine is started."""

    engine: str
    flags: tuple[str, ...]
    unsaid: tuple[str, ...]
    """Settings that it has no flag for: "key = value", or a sentence."""

    def __str__(self) -> str:
        return " ".join(self.flags)


def engine_flags(scenario: Scenario) -> tuple[Flags, Flags]:
    """vLLM's and SGLang's."""
    profile = load_profile(scenario.profile_name)
    engine = scenario.engine_limits(profile)
    return _vllm(scenario, profile, engine), _sglang(scenario, profile, engine)


def _vllm(scenario: Scenario, profile: Profile, engine: Engine) -> Flags:
    policy = scenario.policy.resolved().settings
    flags = [
        f"--max-num-batched-tokens {policy['token_budget']}",
        f"--max-num-seqs {engine.max_running}",
        f"--block-size {engine.block_size}",
        f"--max-model-len {engine.max_model_len}",
        "--enable-prefix-caching" if engine.prefix_cache else "--no-enable-prefix-caching",
    ]
    flags += _memory(scenario, profile, "--gpu-memory-utilization")
    if scenario.engine.kv_tokens:
        # One block of vLLM's is its null block.
        flags.append(f"--num-gpu-blocks-override {engine.blocks + 1}")
    if profile.tp > 1:
        flags.append(f"--tensor-parallel-size {profile.tp}")
    if policy.get("long_prefill"):
        flags.append(f"--long-prefill-token-threshold {policy['long_prefill']}")
    if policy.get("partials"):
        flags.append(f"--max-num-partial-prefills {policy['partials']}")
    if policy.get("order") == "priority":
        flags.append("--scheduling-policy priority")
    if scenario.policy.kind == "chunked" and not policy.get("chunks", True):
        flags.append("--no-enable-chunked-prefill")
    said = {"token_budget", "long_prefill", "partials", "chunks"}
    unsaid = _unsaid(scenario, policy, said, orders=("fcfs", "priority"))
    if scenario.policy.kind == "continuous":
        unsaid.insert(0, "policy.kind = continuous: it mixes prefill and decode in a step")
    if engine.block_size not in (1, 8, 16, 32, 64, 128):
        unsaid.append(f"engine.block_size = {engine.block_size}: not a size that vLLM takes")
    return Flags("vLLM", tuple(flags), tuple(unsaid))


def _sglang(scenario: Scenario, profile: Profile, engine: Engine) -> Flags:
    policy = scenario.policy.resolved().settings
    chunks = scenario.policy.kind != "continuous" and policy.get("chunks", True)
    flags = [
        f"--chunked-prefill-size {policy['token_budget'] if chunks else -1}",
        f"--max-prefill-tokens {policy['token_budget']}",
        f"--max-running-requests {engine.max_running}",
        f"--page-size {engine.block_size}",
        f"--context-length {engine.max_model_len}",
    ]
    if chunks:
        flags.append("--enable-mixed-chunk")
    if not engine.prefix_cache:
        flags.append("--disable-radix-cache")
    flags += _memory(scenario, profile, "--mem-fraction-static")
    if scenario.engine.kv_tokens:
        flags.append(f"--max-total-tokens {engine.blocks * engine.block_size}")
    if profile.tp > 1:
        flags.append(f"--tp-size {profile.tp}")
    if policy.get("order") == "fcfs":
        flags.append("--schedule-policy fcfs")
    if policy.get("order") == "priority":
        flags.append("--enable-priority-scheduling")
    said = {"token_budget", "chunks"}
    return Flags(
        "SGLang",
        tuple(flags),
        tuple(_unsaid(scenario, policy, said, orders=("fcfs", "priority"))),
    )


def _memory(scenario: Scenario, profile: Profile, flag: str) -> list[str]:
    """The share of the memory from which the profile's pool was computed, where it says."""
    found = re.search(r"(0\.\d+)\s*·\s*memory", profile.pool_rule)
    return [f"{flag} {found[1]}"] if found and not scenario.engine.kv_tokens else []


def _unsaid(
    scenario: Scenario, policy: dict[str, Any], said: set[str], *, orders: tuple[str, ...]
) -> list[str]:
    built: Any = scenario.policy.build()
    found = [OWN_WAY[scenario.policy.kind]] if scenario.policy.kind in OWN_WAY else []
    own = set() if not found else {"batch", "timeout", "share", "fast_prompt", "fast_output"}
    for field in dataclasses.fields(built):
        value = policy.get(field.name, field.default)
        told = field.name in said or (field.name == "order" and value in orders)
        if not told and (value != field.default or field.name in own):
            found.append(f"policy.{field.name} = {value}")
    engine = scenario.engine
    if engine.reserve:
        found.append(f"engine.reserve = {engine.reserve:g}")
    if not engine.gate:
        found.append("engine.gate = false")
    if engine.output_cap is not None:
        found.append(f"engine.output_cap = {engine.output_cap}: send it as max_tokens")
    for key, value in scenario.tables().get("door", {}).items():
        found.append(f"door.{key} = {value}: belongs to the gateway in front")
    return found
