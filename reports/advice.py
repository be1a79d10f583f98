"""Advice as sentences: the trouble, what was ruled out, what was tried, before and after.

Takes the plain form (`dataclasses.asdict` of `simulator.remedies.Advice`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from reports.units import NONE, digits, seconds, share

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


def advice_rows(advice: Plain) -> list[dict[str, str]]:
    """A row for what is, and for each cure that was tried: `name`, its figures, and `said`."""
    rows = [{"name": "as it is", **_figures(advice["before"]), "said": ""}]
    for one in advice["tried"]:
        if one["after"] is None:
            rows.append({"name": one["name"], **dict.fromkeys(HEADS, NONE), "said": one["error"]})
            continue
        best = advice["best"] is not None and one["name"] == advice["best"]["name"]
        flags = " ".join(f"--set {key}={_toml(value)}" for key, value in one["changes"].items())
        said = f"{'cures it' if one['cured'] else 'no cure'}{f'; do: {flags}' if best else ''}"
        rows.append({"name": one["name"], **_figures(one["after"]), "said": said})
    return rows


HEADS = {
    "preemptions": "preemptions per request",
    "recomputed": "tokens recomputed",
    "ttft_p99": "P99 TTFT",
    "itl_p99": "P99 ITL",
    "output_tokens_per_s": "output tokens/s",
}
"""The figures of a row, by what they are called."""


def _figures(state: Plain) -> dict[str, str]:
    return {
        "preemptions": digits(state["preemptions"]),
        "recomputed": share(state["recomputed"]),
        "ttft_p99": seconds(state["ttft_p99"]),
        "itl_p99": seconds(state["itl_p99"]),
        "output_tokens_per_s": digits(state["output_tokens_per_s"]),
    }


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
