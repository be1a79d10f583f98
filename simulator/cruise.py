"""The plain case, fused: while blocks suffice, a policy that takes all in order is not asked.

A policy that answers `Stable(in_order=True)` feeds everybody who runs, then admits from the head
of its one queue until somebody is refused. As long as nobody starves for blocks, what it would do
follows from counters, without its verbs; and as long as nothing happens outside but that requests
arrive, a lone replica can go from decision to decision without waking up for each.

`cruise` does so on the very sequences, decode group and pool that the verbs work on. Where it
cannot go on, it stops before the decision, and the policy is asked. The records are the same,
byte for byte (`tests/test_same_as_naive.py`): a run without leaps asks at every step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from calibration.step_time import StepTime
from policies.base import Answer
from simulator.columns import CHUNK
from simulator.leap import FOREVER, Leap, count_blocks, cut, lengthen
from simulator.sequence import Sequence

if TYPE_CHECKING:
    from simulator.replica import Outlook, Replica
    from simulator.step import StepBuilder

TOKENS, BLOCKS, RESERVE, SEATS = Answer.TOKENS, Answer.BLOCKS, Answer.RESERVE, Answer.SEATS


def cruise(replica: Replica, world: Outlook, prices: StepTime, now: int) -> tuple[int, bool]:
    """Take decisions from `now` on, as long as they need no policy.

    Returns when the next decision is due (ps), and whether the run is over: its step would end
    after the horizon.
    """
    step, log, horizon, clients = replica.step, replica.log, replica.horizon, world.clients
    group, pool, chunks, engine = step.group, step.pool, step.chunks, step.engine
    queue, running = step.queue.first_come, step.running.members
    assert queue is not None
    size, budget, seats = pool.block_size, step.budget, engine.max_running
    reserve, gate, longest = step.reserve, engine.gate, step.max_model_len - 1
    rows, known_ps, counts_blocks = log.leaps.rows, prices.known, prices.counts_blocks
    area_ps, reach_ps, alone_ps = prices.pA2, prices.pH, prices.decode[2]
    mixed_ps = (prices.mixed or prices.decode)[2]
    decided = 0
    while True:
        # Whoever runs is fed: decodes by counters, and the one prompt that is not done.
        decodes = group.size
        left = budget - decodes
        if left < 0 or len(chunks) > 1:
            break
        grown = group.due[group.ticks % size] if decodes else 0
        table, computed, blocks = group.table + grown, group.context, grown
        single, context = decodes, computed
        prefill = parts = area2 = reach = squares = 0
        steady = True
        fed: list[tuple[Sequence, int]] = []
        if chunks:
            (seq,) = chunks
            before = seq._computed
            todo = seq.prompt + seq._produced - before
            amount = todo if todo < left else left
            if amount > longest - before:
                amount = longest - before
            # The last of the budget goes by order of admission.
            if amount < 1 or (amount == left and next(reversed(running)) is not seq):
                break
            held = -(-(before + amount) // size)
            table += held
            blocks += held - -(-before // size)
            computed += before
            left -= amount
            steady = amount < todo
            fed.append((seq, amount))
            if amount > 1:
                prefill, parts, squares = amount, 1, amount * amount
                area2, reach = amount * (before + before + amount), before + amount
            else:
                single += 1
                context += before
        free = pool.free - blocks
        if free < 0:
            break

        # Whoever waits is admitted, until one is refused.
        floor = admitted = 0
        why = None
        while queue:
            if not left:
                why = TOKENS
                break
            if len(running) >= seats:
                why = SEATS
                break
            seq = queue[0]
            known = seq.prompt + seq._produced
            amount = known if known < left else left
            if amount > longest:
                amount = longest
            need = -(-(known if gate else amount) // size)
            if need > free:
                why = BLOCKS
                break
            if need + reserve > free and running:
                why, floor = RESERVE, need
                break
            queue.popleft()
            step.seat(seq, now)
            admitted += 1
            left -= amount
            held = -(-amount // size)
            table += held
            blocks += held
            free -= held
            fed.append((seq, amount))
            if amount > 1:
                prefill += amount
                parts += 1
                area2 += amount * amount
                reach += amount
            else:
                single += 1
        if left == budget:
            arrival = clients.next
            if queue or arrival is None or arrival > horizon:
                break
            now = arrival
            while (arrived := world.pull(now)) is not None:
                arrived.boundary = now
                log.queued.append(now)
                queue.append(arrived)
            continue

        # What the step takes.
        pool.free = free
        pool.turned += blocks
        turned = pool.turned - step.turned
        step.turned = pool.turned
        group.table += grown
        key = (prefill, parts, single)
        first = known_ps.get(key) or prices.by_counts(*key)
        if prefill:
            first += area_ps * area2 + reach_ps * reach + mixed_ps * context
        else:
            first += alone_ps * context
        host = prices.t0 + prices.tS * (parts + single)
        if counts_blocks:
            of_blocks = prices.tB * table + prices.tT * turned
            first += of_blocks
            host += of_blocks
        end = now + first
        if end > horizon or first <= 0:
            group.fed = decodes > 0
            for seq, amount in fed:
                _settle(step, seq, seq._computed + amount)
            replica.check(first, now)
            return now, True

        # As many equal ones as can follow.
        steps = 1
        growth = 0
        leap = None
        if steady and not admitted:
            most = group.next_end() if decodes else FOREVER
            if fed and (todo - 1) // amount < most:
                most = (todo - 1) // amount
            until = horizon + 1
            if not queue and clients.next is not None and clients.next < until:
                until = clients.next
            if most > 1 and end < until:
                growth = prices.growth(prefill, single, squares)
                leap = Leap(now, first, growth, most)
                ticking = group if decodes else None
                lengthen(leap, ticking, fed, size, free - floor, until)
                if counts_blocks:
                    count_blocks(leap, prices, turned, [0] * leap.steps, until)
                if leap.end(leap.steps) > horizon:
                    cut(leap, leap.steps - 1)
                steps, end = leap.steps, leap.end(leap.steps)
                log.grew(leap)
                more = sum(leap.grown)
                pool.promise(more)
                step.turned = pool.turned
                group.table += more
                if fed:
                    group.table -= -(-(before + amount * steps) // size) - held

        # Its time passes.
        if queue and why is not None and queue[0].first_scheduled < 0:
            queue[0].wait(why, end - now)
        tokens = budget - left
        unused = table * size - computed - tokens
        tick = -1
        finished = 0
        if decodes:
            tick = group.ticks
            if group.fresh:
                step.begin_gaps(now + first)
            group.ticks = tick + steps
            group.context += steps * decodes
            group.last_end = end
            if group.ends[0] <= group.ticks:
                for seq in group.ended():
                    promised = group.leave(seq)
                    step.finish(seq, promised)
                    world.gone(seq, end)
                    finished += 1
        for seq, amount in fed:
            if step.advance(seq, amount * steps, end):
                step.finish(seq, -(-seq._computed // size) - len(seq.table))
                world.gone(seq, end)
                finished += 1
        rows.append(
            (
                now, first, growth, steps, prefill, parts, single, area2, context, host, free,
                admitted, 0, finished, tick, unused, 0,
            )
        )  # fmt: skip
        if len(rows) >= CHUNK:
            log.leaps.pack()
        step.number += steps
        step.service.alone += tokens * steps
        decided += 1
        arrival = clients.next
        if arrival is not None and arrival <= end:
            while (arrived := world.pull(end)) is not None:
                at = arrived.arrival
                arrived.boundary = end if leap is None else leap.end(leap.reach(at))
                log.queued.append(at)
                queue.append(arrived)
        now = end
    for seq in chunks:
        _settle(step, seq, seq._computed)
    if decided:
        step.passed()
    return now, False


def _settle(step: StepBuilder, seq: Sequence, tokens: int) -> None:
    """Choose the blocks that a prompt was promised so far."""
    short = -(-tokens // step.pool.block_size) - len(seq.table)
    seq.table += step.pool.redeem(short)
