"""A naive walk, token by token: the same run as Records and as plain lists of token times.

Everything is decided by chance (who prefills, pauses, is preempted, is rejected), so that
the two forms meet every case that the contract of `traces.records` allows.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from traces.records import (
    REQUEST_COLUMNS,
    SPELL_COLUMNS,
    STALL_COLUMNS,
    STEP_COLUMNS,
    WAITS,
    Records,
)

S = 10**12


@dataclass
class Seen:
    """What the client of one request sees."""

    arrival: int
    prompt: int
    output: int
    tenant: str = ""
    lane: str = ""
    scheduled: int = -1
    tokens: list[int] = field(default_factory=list)
    reason: str = ""
    ended: int = -1
    preemptions: int = 0
    last_tick: int | None = None
    first_tick: int | None = None

    @property
    def gaps(self) -> list[int]:
        return [b - a for a, b in zip(self.tokens, self.tokens[1:], strict=False)]


def records_of(
    seen: list[Seen],
    steps: list[dict[str, int]],
    spells: list[tuple[int, ...]],
    stalls: list[tuple[int, ...]],
    **about: Any,
) -> Records:
    rows = []
    for index, one in enumerate(seen):
        row = dict.fromkeys(REQUEST_COLUMNS, 0) | {
            "request": index,
            "arrival": one.arrival,
            "first_scheduled": one.scheduled,
            "first_token": one.tokens[0] if one.tokens else -1,
            "last_token": one.tokens[-1] if one.tokens else -1,
            "finished": one.ended,
            "prompt": one.prompt,
            "output": one.output,
            "produced": len(one.tokens),
            "declared": one.output,
            "session": -1,
            "preemptions": one.preemptions,
            "computed": one.prompt + len(one.tokens),
        }
        row[f"wait_{WAITS[index % len(WAITS)]}"] = max(one.scheduled - one.arrival, 0)
        rows.append(row)
    requests = pd.DataFrame(rows, columns=list(REQUEST_COLUMNS)).astype(np.int64)
    for name in ("reason", "tenant", "lane"):
        requests[name] = [getattr(one, name) for one in seen]
    table = pd.DataFrame(steps, columns=list(STEP_COLUMNS)).fillna(0).astype(np.int64)
    defaults = {"policy": "chunked", "replicas": 1, "blocks": 100, "block_size": 16}
    return Records(
        requests=requests,
        steps=table.sort_values(["replica", "start"], kind="stable", ignore_index=True),
        spells=pd.DataFrame(spells, columns=list(SPELL_COLUMNS)).astype(np.int64),
        stalls=pd.DataFrame(stalls, columns=list(STALL_COLUMNS)).astype(np.int64),
        about=defaults | {"max_running": 8} | about,
    )


def walk(seed: int, requests: int = 8, replicas: int = 2) -> tuple[Records, list[Seen]]:
    """A random run: Records, and what each client saw."""
    chance = random.Random(seed)
    seen = [
        Seen(
            arrival=chance.randrange(0, 20) * S,
            prompt=chance.randint(1, 9),
            output=chance.choice([1, 1, 2, 3, 12, 40]),
            tenant=chance.choice(["a", "b"]),
            lane=chance.choice(["fast", "slow"]),
        )
        for _ in range(requests)
    ]
    seen.sort(key=lambda one: one.arrival)
    steps: list[dict[str, int]] = []
    spells: list[tuple[int, ...]] = []
    stalls: list[tuple[int, ...]] = []
    for replica in range(replicas):
        mine = [i for i in range(requests) if i % replicas == replica]
        _run_replica(chance, replica, seen, mine, steps, spells, stalls)
    return records_of(seen, steps, spells, stalls, replicas=replicas), seen


def _run_replica(chance, replica, seen, mine, steps, spells, stalls):  # type: ignore[no-untyped-def]
    now, tick, group = 0, 0, set()
    waiting = list(mine)

    def close(i: int) -> None:
        one = seen[i]
        if one.first_tick is not None:
            spells.append((i, replica, one.first_tick, one.last_tick))
            one.first_tick = None

    def token(i: int, end: int, at: int | None) -> None:
        one = seen[i]
        if one.tokens:
            if at is not None and one.last_tick is not None and one.last_tick == at - 1:
                one.first_tick = at if one.first_tick is None else one.first_tick
            else:
                close(i)
                stalls.append((i, replica, end, end - one.tokens[-1], 0, 0))
        one.last_tick = at
        one.tokens.append(end)

    while waiting or group:
        fresh = [i for i in waiting if seen[i].arrival <= now]
        if not fresh and not group:
            now = min(seen[i].arrival for i in waiting)
            continue
        for i in [i for i in fresh if chance.random() < 0.03]:
            waiting.remove(i)
            fresh.remove(i)
            if not seen[i].tokens:
                seen[i].reason, seen[i].ended = "rejected: too long", now
        if chance.random() < 0.01 or not (fresh or group):
            break  # the horizon: the rest stays unfinished
        for i in [i for i in group if chance.random() < 0.05]:
            group.remove(i)
            waiting.append(i)
            seen[i].preemptions += 1
        prefill = [i for i in fresh if chance.random() < 0.5]
        advance = bool(group) and (not prefill or chance.random() < 0.6)
        paused = {i for i in group if advance and chance.random() < 0.05}
        if len(paused) == len(group):
            paused = set()
        duration = chance.choice([1, 1, 1, 2, 5]) * S // chance.choice([1, 1, 3])
        end, at = now + duration, tick if advance else None
        if not prefill and not advance:
            advance, at = bool(group), tick if group else None
            if at is None:
                prefill = fresh[:1]
        fed = [i for i in sorted(group) if advance and i not in paused]
        for i in prefill:
            waiting.remove(i)
            group.add(i)
            if seen[i].scheduled < 0:
                seen[i].scheduled = now
        for i in fed + prefill:
            token(i, end, at)
        tick += at is not None
        done = [i for i in fed + prefill if len(seen[i].tokens) == seen[i].output]
        for i in done:
            close(i)
            group.remove(i)
            seen[i].reason, seen[i].ended = "stop", end
        steps.append(
            {
                "replica": replica,
                "start": now,
                "duration": duration,
                "host": duration // 4,
                "prefill_tokens": sum(seen[i].prompt for i in prefill),
                "chunks": len(prefill),
                "decodes": len(fed),
                "running": len(group) + len(done),
                "waiting": sum(seen[i].arrival <= now for i in waiting),
                "free_blocks": 100 - 10 * len(group),
                "admitted": len(prefill),
                "finished": len(done),
                "tick": -1 if at is None else at,
                "outside": int(chance.random() < 0.1),
            }
        )
        now = end
    for i in mine:
        close(i)
