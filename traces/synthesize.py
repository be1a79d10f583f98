"""Synthetic load: arrivals, lengths and who sends them, from one seed -> Trace.

Each purpose draws from its own named stream, so that a change of lengths keeps the arrivals, a
change of the rate keeps every length, and fewer requests are a prefix of more.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from traces.lengths import Lengths
from traces.seeds import stream
from traces.sessions import SINGLE, Kind, SharedPrefix
from traces.trace import PS_PER_S, Ints, Trace
from traces.workload import Workload

__all__ = ["Workload", "synthesize"]


def synthesize(workload: Workload, seed: int) -> Trace:
    """The trace of a workload: the same rows for the same seed, on every machine."""
    kinds = workload.kinds
    talks = _talks(workload, kinds, seed)
    rows = _turns(workload, kinds, talks, seed)
    open_loop = np.array([kind.sessions.loop == "open" for kind in kinds])[talks.kind[rows.talk]]
    arrival, after = _send_times(workload, kinds, talks, rows, open_loop, seed)
    # Rows that wait for another have no arrival of their own: they stand with their first turn.
    order = np.argsort(np.where(open_loop, arrival, talks.start[rows.talk]), kind="stable")
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    tenants = tuple(dict.fromkeys(kind.tenant for kind in kinds))
    kind_of = talks.kind[rows.talk]
    by_kind = {
        "priority": np.array([kind.priority for kind in kinds])[kind_of],
        "tenant": np.array([tenants.index(kind.tenant) for kind in kinds])[kind_of],
        "declared": _declared(kinds, kind_of, rows.output),
        "session": np.where(talks.named[rows.talk], rows.talk, -1),
        "after": np.where(after >= 0, place[after], -1),
    }
    return Trace.of(
        arrival[order],
        rows.prompt[order],
        rows.output[order],
        **{name: column[order] for name, column in by_kind.items()},
        **_content(talks, rows, order, place),
        tenants=tenants,
        source="synthetic",
        notes=_notes(kinds, rows, by_kind["declared"]),
    )


@dataclass(frozen=True, kw_only=True)
class _Talks:
    """Conversations in order of their start; a lone request is one of a single turn."""

    start: Ints
    kind: Ints
    turns: Ints
    prefix: Ints
    """Stream of the system prompt; -1 = none."""
    prefix_tokens: Ints
    prefixes: int
    named: NDArray[np.bool_]
    """Whether its requests carry a session number."""


@dataclass(frozen=True, kw_only=True)
class _Rows:
    """Turns, conversation by conversation."""

    talk: Ints
    turn: Ints
    first: Ints
    """Row of the conversation's first turn."""
    new: Ints
    said: Ints
    """New tokens of all earlier turns."""
    prompt: Ints
    output: Ints
    ended: int
    """Turns left out because they would have exceeded max_context."""


def _talks(workload: Workload, kinds: tuple[Kind, ...], seed: int) -> _Talks:
    weights = np.array([kind.weight for kind in kinds])
    weights = weights / weights.sum()
    turns_mean = sum(
        w * kind.sessions.turns.achieved["mean"] for w, kind in zip(weights, kinds, strict=True)
    )
    wanted = workload.requests
    if wanted is None and workload.duration_s is None:
        wanted = 1000
    if workload.clients is not None or workload.rate is None:
        start = np.zeros(wanted or 1000, dtype=np.int64)
    else:
        # One conversation has at least one turn: this many are always enough.
        start = workload.arrivals.times(
            workload.rate / turns_mean,
            stream(seed, "arrivals"),
            count=wanted,
            duration_s=workload.duration_s,
        )
    count = len(start)
    kind_of = np.searchsorted(np.cumsum(weights), stream(seed, "class").random(count), side="right")
    kind_of = np.minimum(kind_of, len(kinds) - 1)
    turns = _by_kind([k.sessions.turns for k in kinds], kind_of, stream(seed, "turns"))
    share = stream(seed, "prefix").random(count)
    prefixes: list[SharedPrefix] = []
    streams: dict[int, int] = {}
    prefix, tokens = np.full(count, -1), np.zeros(count, dtype=np.int64)
    for number, kind in enumerate(kinds):
        upto = 0.0
        for one in kind.shared:
            if id(one) not in streams:
                streams[id(one)] = len(prefixes)
                prefixes.append(one)
            hit = (kind_of == number) & (share >= upto) & (share < upto + one.share)
            prefix[hit], tokens[hit] = streams[id(one)], one.tokens
            upto += one.share
    return _Talks(
        start=start,
        kind=kind_of,
        turns=turns,
        prefix=prefix,
        prefix_tokens=tokens,
        prefixes=len(prefixes),
        named=np.array([kind.sessions is not SINGLE for kind in kinds])[kind_of],
    )


def _turns(workload: Workload, kinds: tuple[Kind, ...], talks: _Talks, seed: int) -> _Rows:
    most = workload.requests
    if most is None and workload.duration_s is None:
        most = 1000
    talk, turn, first = _unfold(talks.turns)
    kind_of = talks.kind[talk]
    followups = [kind.sessions.followup or kind.prompt for kind in kinds]
    share = stream(seed, "prompt").random(len(talk))
    new = np.zeros(len(talk), dtype=np.int64)
    for number, kind in enumerate(kinds):
        for lengths, chosen in ((kind.prompt, turn == 0), (followups[number], turn > 0)):
            rows = (kind_of == number) & chosen
            new[rows] = lengths.lengths(share[rows])
    output = _by_kind([kind.output for kind in kinds], kind_of, stream(seed, "output"))
    said = _before(new, first)
    prompt = talks.prefix_tokens[talk] + said + _before(output, first) + new
    limit = np.array([kind.sessions.max_context or np.iinfo(np.int64).max for kind in kinds])
    # Contexts only grow, so what is kept of a conversation is its beginning.
    kept = (prompt + output <= limit[kind_of]) | (turn == 0)
    ended = int(np.sum(~kept))
    chosen = np.flatnonzero(kept)[:most]
    if ended and most is not None and len(chosen) == most:
        ended = int(np.sum(~kept[: chosen[-1] + 1]))
    moved = np.cumsum(kept) - 1
    return _Rows(
        talk=talk[chosen],
        turn=turn[chosen],
        first=moved[first[chosen]],
        new=new[chosen],
        said=said[chosen],
        prompt=prompt[chosen],
        output=output[chosen],
        ended=ended,
    )


def _send_times(
    workload: Workload,
    kinds: tuple[Kind, ...],
    talks: _Talks,
    rows: _Rows,
    open_loop: NDArray[np.bool_],
    seed: int,
) -> tuple[Ints, Ints]:
    """Arrival (with `after`, the pause) and `after` of each row, in rows before sorting."""
    later = rows.turn > 0
    think = np.array([kind.sessions.think_s for kind in kinds])[talks.kind[rows.talk]]
    pause = stream(seed, "think").standard_exponential(len(think))
    gap = np.rint(pause * think * PS_PER_S).astype(np.int64)
    gap[~later] = 0
    own = np.arange(len(think))
    after = np.where(later & ~open_loop, own - 1, -1)
    passed = np.cumsum(gap)
    sent = talks.start[rows.talk] + passed - passed[rows.first]
    arrival = np.where(after >= 0, gap, sent)
    if workload.clients is not None:
        firsts = np.flatnonzero(~later)
        lasts = np.concatenate([firsts[1:] - 1, [len(own) - 1]])
        waits = firsts[workload.clients.count :]
        after[waits] = lasts[: len(waits)]
        between = pause[waits] * workload.clients.think_s * PS_PER_S
        arrival[waits] = np.rint(between).astype(np.int64)
    return arrival, after


def _content(talks: _Talks, rows: _Rows, order: Ints, place: Ints) -> dict[str, Any]:
    """Identity: system prompts are streams 0…, what the user says in one talk is one stream."""
    named = talks.named[rows.talk]
    prefix = talks.prefix[rows.talk]
    if not named.any() and (prefix < 0).all():
        return {}
    front = (prefix >= 0).astype(np.int64)
    # Turn n holds n - 1 pairs of question and answer, then its own question.
    pieces = front + np.where(named, 2 * rows.turn + 1, 0)
    row, slot, _ = _unfold(pieces[order])
    row = order[row]
    slot = slot - front[row]
    source = rows.first[row] + np.maximum(slot, 0) // 2
    system, answer = slot < 0, slot % 2 == 1
    stream_of = np.where(answer, -(place[source] + 1), talks.prefixes + rows.talk[row])
    return {
        "content_offsets": np.concatenate([[0], np.cumsum(pieces[order])]),
        "content_stream": np.where(system, prefix[row], stream_of),
        "content_start": np.where(system | answer, 0, rows.said[source]),
        "content_tokens": np.where(
            system,
            talks.prefix_tokens[rows.talk[row]],
            np.where(answer, rows.output[source], rows.new[source]),
        ),
    }


def _declared(kinds: tuple[Kind, ...], kind_of: Ints, output: Ints) -> Ints:
    exact = np.array([kind.declared == "exact" for kind in kinds])[kind_of]
    constant = np.array([k.declared if isinstance(k.declared, int) else 0 for k in kinds])[kind_of]
    result: Ints = np.where(exact, output, constant)
    return result


def _notes(kinds: tuple[Kind, ...], rows: _Rows, declared: Ints) -> tuple[str, ...]:
    notes = []
    for kind in kinds:
        of = f" of {kind.name}" if kind.name else ""
        for what, lengths in (("prompt", kind.prompt), ("output", kind.output)):
            achieved = lengths.achieved
            if achieved["cut_share"] > 0:
                notes.append(
                    f"{what} lengths{of}: {100 * achieved['cut_share']:.2g} % are cut at "
                    f"{lengths.max}; mean {achieved['mean']:.1f}, P99 {achieved['p99']:.0f} "
                    "after that"
                )
    if rows.ended:
        notes.append(f"{rows.ended} turns left out: they would have exceeded max_context")
    short = int(np.sum((declared > 0) & (declared < rows.output)))
    if short:
        notes.append(f"{short} requests would produce more than they declare")
    return tuple(notes)


def _by_kind(lengths: list[Lengths], kind_of: Ints, rng: np.random.Generator) -> Ints:
    share = rng.random(len(kind_of))
    drawn = np.zeros(len(kind_of), dtype=np.int64)
    for number, one in enumerate(lengths):
        rows = kind_of == number
        drawn[rows] = one.lengths(share[rows])
    return drawn


def _unfold(counts: Ints) -> tuple[Ints, Ints, Ints]:
    """Groups of `counts` members laid end to end: each one's group, place in it, and its first."""
    group = np.repeat(np.arange(len(counts)), counts)
    first = np.repeat(np.cumsum(counts) - counts, counts)
    return group, np.arange(len(group)) - first, first


def _before(values: Ints, first: Ints) -> Ints:
    """The sum of the values in the same group before each one."""
    total = np.cumsum(values) - values
    result: Ints = total - total[first]
    return result
