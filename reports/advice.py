"""Advice as sentences: the trouble, what was ruled out, what was tried, before and after.

Takes the plain form (`dataclasses.asdict` of `simulator.remedies.Advice`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from reports.units import digits, seconds, share

Plain = Mapping[str, Any]


def advice_lines(advice: Plain) -> list[str]:
    """One sentence each, the trouble first, what to do last."""
    before = advice["before"]
    said = [f"Trouble: {_trouble(before)}."]
    said += [f"Ruled out: {one}." for one in advice["ruled_out"]]
    for one in advice["tried"]:
        if one["after"] is None:
            said.append(f"Tried: {one['name']}: not possible here ({one['error']}).")
            continue
        mark = ": that cures it" if one["cured"] else ""
        said.append(f"Tried: {one['name']}: {_after(before, one['after'])}{mark}.")
    best = advice["best"]
    if best is None:
        said.append("None of them helps: the load is more than this setting can hold.")
    else:
        flags = " ".join(f"--set {key}={_toml(value)}" for key, value in best["changes"].items())
        verb = "Do" if best["cured"] else "The least bad, no cure"
        said.append(f"{verb}: {flags}.")
    return said


def _trouble(state: Plain) -> str:
    rate = f"{digits(state['preemptions'])} preemptions a request"
    again = f"{share(state['recomputed'])} of the tokens are computed again"
    parts = [rate, again]
    if state["avalanche"]:
        parts.append(state["avalanche"])
    return ", ".join(parts)


def _after(before: Plain, after: Plain) -> str:
    said = [
        f"preemptions {digits(before['preemptions'])} → {digits(after['preemptions'])}",
        f"output tokens/s {digits(before['output_tokens_per_s'])} → "
        f"{digits(after['output_tokens_per_s'])}",
        f"P99 TTFT {seconds(before['ttft_p99'])} → {seconds(after['ttft_p99'])}",
        f"P99 ITL {seconds(before['itl_p99'])} → {seconds(after['itl_p99'])}",
    ]
    if before["avalanche"]:
        said.append("the avalanche stays" if after["avalanche"] else "no avalanche")
    return ", ".join(said)


def _toml(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
