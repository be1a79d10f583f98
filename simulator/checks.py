"""Laws that hold after every run, checked on what it left behind: O(requests + steps)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from traces.records import REQUEST_COLUMNS, WAITS, Records
from traces.trace import Ints

if TYPE_CHECKING:  # its verbs raise LawBroken
    from simulator.step import StepBuilder


class LawBroken(ValueError):
    """A policy, or the engine, broke a law. The message names who, when, and the law."""


def check(records: Records, builders: list[StepBuilder], *, sent: int, complete: bool) -> None:
    """Raise `LawBroken` unless requests, tokens, blocks and time are conserved.

    `sent`: requests that clients sent. `complete`: the run was not cut by a horizon.
    """
    about = records.about
    who = f"policy {about.get('policy', '?')}"

    def law(holds: object, text: str) -> None:
        if not holds:
            raise LawBroken(f"{who}: after the run: {text}")

    def steps(name: str) -> Ints:
        return np.asarray(records.steps[name])

    r = {name: records.requests[name].to_numpy() for name in REQUEST_COLUMNS}
    reason = records.requests["reason"]
    once = (np.diff(r["request"]) > 0).all()  # they are sorted
    law(once and len(reason) == sent, "each request ends exactly once")
    ran = r["first_scheduled"] >= 0
    done = reason.isin(("stop", "length")).to_numpy()
    if complete:
        law(not (reason == "").any(), "nobody is left when nobody is to come")
    law((r["first_scheduled"] >= r["arrival"])[ran].all(), "nobody runs before arriving")
    began = r["first_token"] >= 0
    law((r["first_token"] > r["first_scheduled"])[began].all(), "tokens come after scheduling")
    law((r["last_token"] >= r["first_token"])[began].all(), "tokens come in order")
    law(
        (r["produced"] == r["output"])[(reason == "stop").to_numpy()].all(),
        "a stop has its whole output",
    )
    unique = (r["prompt"] + r["produced"] - 1)[done]
    cached = (r["hit"] + r["resumed_hit"])[done]
    computed, again = r["computed"][done], r["recomputed"][done]
    law((computed + cached >= unique).all(), "every token but the last is computed or cached")
    law((computed - again <= unique).all(), "what is computed again is counted as such")
    waits = sum(r[f"wait_{name}"] for name in WAITS)
    law((waits == r["first_scheduled"] - r["arrival"])[ran].all(), "waits add up to queue time")
    law(all((r[f"wait_{name}"] >= 0).all() for name in WAITS), "no wait is negative")
    fed = steps("prefill_tokens") + steps("decodes")
    running = steps("running")
    law(
        r["computed"].sum() == fed.sum(),
        "tokens computed for requests are tokens run in steps",
    )
    budget, seats = about.get("token_budget"), about.get("max_running")
    if budget is not None:
        law((fed <= budget).all(), "the token budget is kept")
    if seats is not None:
        law((running <= seats).all(), "seats are kept")
    law((steps("free_blocks") >= 0).all(), "no block is handed out twice")
    same = np.diff(steps("replica")) == 0
    start = steps("start")
    law((start[1:] >= (start + steps("duration"))[:-1])[same].all(), "steps do not overlap")
    flow = np.diff(running)
    moved = (steps("admitted") - steps("preempted"))[1:] - steps("finished")[:-1]
    law((flow == moved)[same].all(), "N(t+1) = N(t) - finished + admitted - preempted")
    _check_gaps(records, law=law)
    for builder in builders:
        try:
            builder.pool.check(seq.table for seq in builder.running)
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
    ticking = np.asarray(s["tick"]) >= 0
    replica = np.asarray(s["replica"])[ticking]
    end = (np.asarray(s["start"]) + np.asarray(s["duration"]))[ticking]
    spells = records.spells
    for index in range(records.about["replicas"]):
        ends = np.concatenate([[0], end[replica == index]])
        mine = spells[spells["replica"] == index]
        last, first = mine["last_tick"].to_numpy(), mine["first_tick"].to_numpy()
        np.add.at(total, position[mine["request"].to_numpy()], ends[last + 1] - ends[first])
    began = (r["first_token"] >= 0).to_numpy()
    law(
        (total == (r["last_token"] - r["first_token"]).to_numpy())[began].all(),
        "first token + gaps = last token",
    )
