"""Laws that hold after every run, checked on what it left behind: O(requests + steps)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from traces.records import REQUEST_COLUMNS, WAITS, Records, parts
from traces.trace import Ints

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
    _check_gaps(records, _check_steps(records, law), law)
    for builder in builders:
        try:
            builder.pool.check(seq.table for seq in builder.running)
        except AssertionError as error:
            raise LawBroken(f"{who}: after the run: {error}") from None


STEPS = (
    "replica", "start", "duration", "prefill_tokens", "decodes", "running", "free_blocks",
    "admitted", "preempted", "finished", "tick",
)  # fmt: skip
"""Columns that the laws are about."""


def _check_steps(records: Records, law: Law) -> list[tuple[int, Ints]]:
    """Budget, seats, blocks and time, and who comes and goes, some steps at a time.

    Returns when the ticks of each part ended, and the replica of the part.
    """
    about, run = records.about, 0
    budget, seats = about.get("token_budget"), about.get("max_running")
    ticks: list[tuple[int, Ints]] = []
    before = (-1, 0, 0)
    """Of the last step of the part before: replica, end, and who still ran when it was over."""
    for part in parts(records.steps, STEPS):
        for index, columns in _by_replica(part):
            start, duration, prefill, decodes, running, free, came, left, done, tick = columns
            fed = prefill + decodes
            run += int(fed.sum())
            if budget is not None:
                law((fed <= budget).all(), "the token budget is kept")
            if seats is not None:
                law((running <= seats).all(), "seats are kept")
            law((free >= 0).all(), "no block is handed out twice")
            end, stay = start + duration, running - done
            last = before[1:] if before[0] == index else (int(start[0]), 0)
            before = index, int(end[-1]), int(stay[-1])
            law((start >= np.append(last[0], end[:-1])).all(), "steps do not overlap")
            flow = running - np.append(last[1], stay[:-1])
            law((flow == came - left).all(), "N(t+1) = N(t) - finished + admitted - preempted")
            ticks.append((index, end[tick >= 0]))
    law(
        records.requests["computed"].sum() == run,
        "tokens computed for requests are tokens run in steps",
    )
    return ticks


def _by_replica(part: tuple[Ints, ...]) -> Iterator[tuple[int, list[Ints]]]:
    """The steps of each replica in it: its index, and the columns but `replica`."""
    replica, *columns = part
    cuts = [0, *(np.flatnonzero(np.diff(replica)) + 1).tolist(), len(replica)]
    for begin, end in pairwise(cuts):
        if end > begin:
            yield int(replica[begin]), [column[begin:end] for column in columns]


def _check_gaps(records: Records, ticks: list[tuple[int, Ints]], law: Law) -> None:
    """TTFT + gaps = E2E, to the picosecond, for every request."""
    r = records.requests
    rows = len(r)
    position = np.full(int(r["request"].max()) + 1 if rows else 0, -1)
    position[r["request"].to_numpy()] = np.arange(rows)
    total = np.zeros(rows, dtype=np.int64)
    stalls, spells = records.stalls, records.spells
    np.add.at(total, position[stalls["request"].to_numpy()], stalls["gap"].to_numpy())
    home = spells["replica"].to_numpy()
    for index in sorted({index for index, _ in ticks}):
        ends = np.concatenate([part for whose, part in ticks if whose == index])
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
