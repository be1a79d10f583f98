"""Laws that hold after every run, checked on what it left behind: O(requests + steps)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from traces.records import REQUEST_COLUMNS, WAITS, Records

if TYPE_CHECKING:  # its verbs raise LawBroken
    from simulator.step import StepBuilder


Law = Callable[[object, str], None]
"""Told whether a law holds, and the law."""


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
    _check_steps(records, law)
    _check_flow(records, law)
    _check_gaps(records, law)
    for builder in builders:
        try:
            builder.pool.check(seq.table for seq in builder.running)
        except AssertionError as error:
            raise LawBroken(f"{who}: after the run: {error}") from None


def _check_steps(records: Records, law: Law) -> None:
    """Budget, blocks and time. A column of millions of steps goes before the next one comes."""
    about, steps = records.about, records.steps
    fed = np.asarray(steps["prefill_tokens"]) + np.asarray(steps["decodes"])
    law(
        records.requests["computed"].sum() == fed.sum(),
        "tokens computed for requests are tokens run in steps",
    )
    budget = about.get("token_budget")
    if budget is not None:
        law((fed <= budget).all(), "the token budget is kept")
    del fed
    law((steps["free_blocks"] >= 0).all(), "no block is handed out twice")
    start = np.asarray(steps["start"])
    pause = np.diff(start)
    pause -= np.asarray(steps["duration"])[:-1]
    law((pause >= 0)[_same_replica(records)].all(), "steps do not overlap")


def _check_flow(records: Records, law: Law) -> None:
    """Who comes and goes, step by step."""
    steps, seats = records.steps, records.about.get("max_running")
    running = np.asarray(steps["running"])
    if seats is not None:
        law((running <= seats).all(), "seats are kept")
    flow = np.diff(running)
    flow -= np.asarray(steps["admitted"])[1:]
    flow += np.asarray(steps["preempted"])[1:]
    flow += np.asarray(steps["finished"])[:-1]
    law(
        (flow == 0)[_same_replica(records)].all(),
        "N(t+1) = N(t) - finished + admitted - preempted",
    )


def _same_replica(records: Records) -> Any:
    """Of each step but the first: whether it follows one of its own replica."""
    if records.about["replicas"] == 1:
        return slice(None)
    return np.diff(np.asarray(records.steps["replica"])) == 0


def _check_gaps(records: Records, law: Law) -> None:
    """TTFT + gaps = E2E, to the picosecond, for every request."""
    r, s = records.requests, records.steps
    rows = len(r)
    position = np.full(int(r["request"].max()) + 1 if rows else 0, -1)
    position[r["request"].to_numpy()] = np.arange(rows)
    total = np.zeros(rows, dtype=np.int64)
    stalls, spells = records.stalls, records.spells
    np.add.at(total, position[stalls["request"].to_numpy()], stalls["gap"].to_numpy())
    end = np.asarray(s["start"]) + np.asarray(s["duration"])
    ticking = np.asarray(s["tick"]) >= 0
    several = records.about["replicas"] > 1
    replica = np.asarray(s["replica"]) if several else None
    home = spells["replica"].to_numpy()
    for index in range(records.about["replicas"]):
        ends = end[ticking if replica is None else ticking & (replica == index)]
        mine = home == index
        last, first = spells["last_tick"].to_numpy()[mine], spells["first_tick"].to_numpy()[mine]
        # The tick before the first one ended at 0, or long ago: nobody's gap begins there.
        since = np.where(first > 0, ends[first - 1], 0)
        np.add.at(total, position[spells["request"].to_numpy()[mine]], ends[last] - since)
    began = (r["first_token"] >= 0).to_numpy()
    law(
        (total == (r["last_token"] - r["first_token"]).to_numpy())[began].all(),
        "first token + gaps = last token",
    )
