"""Laws that hold after every run, checked on what it left behind: O(requests + steps)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from traces.records import WAITS, Records

if TYPE_CHECKING:  # its verbs raise LawBroken
    from simulator.step import StepBuilder


class LawBroken(ValueError):
    """A policy, or the engine, broke a law. The message names who, when, and the law."""


def check(records: Records, steps: list[StepBuilder], *, sent: int, complete: bool) -> None:
    """Raise `LawBroken` unless requests, tokens, blocks and time are conserved.

    `sent`: requests that clients sent. `complete`: the run was not cut by a horizon.
    """
    about = records.about
    who = f"policy {about.get('policy', '?')}"

    def law(holds: object, text: str) -> None:
        if not holds:
            raise LawBroken(f"{who}: after the run: {text}")

    r = {name: records.requests[name].to_numpy() for name in records.requests}
    s = {name: records.steps[name].to_numpy() for name in records.steps}
    reason = r["reason"].astype(str)
    law(len(np.unique(r["request"])) == len(reason) == sent, "each request ends exactly once")
    ran = r["first_scheduled"] >= 0
    done = np.isin(reason, ("stop", "length"))
    if complete:
        law(not (reason == "").any(), "nobody is left when nobody is to come")
    law((r["first_scheduled"] >= r["arrival"])[ran].all(), "nobody runs before arriving")
    began = r["first_token"] >= 0
    law((r["first_token"] > r["first_scheduled"])[began].all(), "tokens come after scheduling")
    law((r["last_token"] >= r["first_token"])[began].all(), "tokens come in order")
    law((r["produced"] == r["output"])[reason == "stop"].all(), "a stop has its whole output")
    unique = (r["prompt"] + r["produced"] - 1)[done]
    cached = (r["hit"] + r["resumed_hit"])[done]
    computed, again = r["computed"][done], r["recomputed"][done]
    law((computed + cached >= unique).all(), "every token but the last is computed or cached")
    law((computed - again <= unique).all(), "what is computed again is counted as such")
    waits = sum(r[f"wait_{name}"] for name in WAITS)
    law((waits == r["first_scheduled"] - r["arrival"])[ran].all(), "waits add up to queue time")
    law(all((r[f"wait_{name}"] >= 0).all() for name in WAITS), "no wait is negative")
    law(
        r["computed"].sum() == (s["prefill_tokens"] + s["decodes"]).sum(),
        "tokens computed for requests are tokens run in steps",
    )
    budget, seats = about.get("token_budget"), about.get("max_running")
    if budget is not None:
        law((s["prefill_tokens"] + s["decodes"] <= budget).all(), "the token budget is kept")
    if seats is not None:
        law((s["running"] <= seats).all(), "seats are kept")
    law((s["free_blocks"] >= 0).all(), "no block is handed out twice")
    same = s["replica"][1:] == s["replica"][:-1]
    end = s["start"] + s["duration"]
    law((s["start"][1:] >= end[:-1])[same].all(), "steps do not overlap")
    flow = s["running"][1:] - s["running"][:-1]
    moved = s["admitted"][1:] - s["preempted"][1:] - s["finished"][:-1]
    law((flow == moved)[same].all(), "N(t+1) = N(t) - finished + admitted - preempted")
    _check_gaps(records, law=law)
    for step in steps:
        try:
            step.pool.check(seq.table for seq in step.running)
        except AssertionError as error:
            raise LawBroken(f"{who}: after the run: {error}") from None


def _check_gaps(records: Records, law: object) -> None:
    """TTFT + gaps = E2E, to the picosecond, for every request."""
    assert callable(law)
    r, s = records.requests, records.steps
    rows = len(r)
    position = np.full(int(r["request"].max()) + 1 if rows else 0, -1)
    position[r["request"].to_numpy()] = np.arange(rows)
    total = np.zeros(rows, dtype=np.int64)
    stalls = records.stalls
    np.add.at(total, position[stalls["request"].to_numpy()], stalls["gap"].to_numpy())
    tick, replica = s["tick"].to_numpy(), s["replica"].to_numpy()
    end = (s["start"] + s["duration"]).to_numpy()
    spells = records.spells
    for index in np.unique(replica):
        ends = np.concatenate([[0], end[(replica == index) & (tick >= 0)]])
        mine = spells[spells["replica"] == index]
        last, first = mine["last_tick"].to_numpy(), mine["first_tick"].to_numpy()
        np.add.at(total, position[mine["request"].to_numpy()], ends[last + 1] - ends[first])
    began = (r["first_token"] >= 0).to_numpy()
    law(
        (total == (r["last_token"] - r["first_token"]).to_numpy())[began].all(),
        "first token + gaps = last token",
    )
