"""The plain case, fused: while blocks suffice, a policy that takes all in order is not asked.

A policy that answers `Stable(in_order=True)` feeds everybody who runs, then admits from the head
of its one queue until somebody is refused. As long as nobody starves for blocks, what it would do
follows from counters, without its verbs. And as long as nothing happens outside but that requests
arrive, a lone replica goes from decision to decision ahead of the clock, and takes them in itself
(`Outlook.quiet`); else it sleeps through each leap, and others may cut it.

`cruise` does so on the very sequences, decode group and pool that the verbs work on. Where it
cannot go on, it stops before the decision, and the policy is asked. The records are the same,
byte for byte (`tests/test_same_as_naive.py`): a run without leaps asks at every step. It is one
function because a call costs as much as what it would do: this is where a run spends its time.
"""

from __future__ import annotations

from collections.abc import Generator
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Any

import simpy

from calibration.step_time import StepTime
from policies.base import Answer
from simulator.clock import SCHEDULES, Wake
from simulator.columns import CHUNK
from simulator.leap import FOREVER, Leap, count_blocks, cut, lengthen
from simulator.sequence import Sequence

if TYPE_CHECKING:
    from simulator.replica import Outlook, Replica

NOTHING, TOKENS, BLOCKS = Answer.OK.value, Answer.TOKENS.value, Answer.BLOCKS.value
RESERVE, SEATS = Answer.RESERVE.value, Answer.SEATS.value


def cruise(
    replica: Replica, world: Outlook, prices: StepTime, now: int
) -> Generator[simpy.Event, Any, tuple[int, bool]]:
    """Take decisions from `now` on, as long as they need no policy.

    Returns when the next decision is due (ps), and whether the run is over: its step would end
    after the horizon.
    """
    ahead = world.quiet
    step, log, clients, done = replica.step, replica.log, world.clients, world.done
    group, pool, chunks, engine = step.group, step.pool, step.chunks, step.engine
    queue, running, fresh, due = step.queue.first_come, step.running.members, group.fresh, group.due
    assert queue is not None
    assert done is not None
    size, budget, seats, gate = pool.block_size, step.budget, engine.max_running, engine.gate
    reserve, longest = step.reserve, step.max_model_len - 1
    beyond = min(replica.horizon + 1, FOREVER)
    ends, finishing, spells = group.ends, group.finishing, group.spells.rows
    rows, queued, grown_later = log.leaps.rows, log.queued, log.grown
    known_ps, counts_blocks = prices.known, prices.counts_blocks
    area_ps, reach_ps, alone_ps = prices.pA2, prices.pH, prices.decode[2]
    mixed_ps = (prices.mixed or prices.decode)[2]
    step_host_ps, sequence_host_ps = prices.t0, prices.tS
    # The group's and the pool's counters are kept here until the end.
    decodes, contexts, tables, ticks = group.size, group.context, group.table, group.ticks
    free, handled, counted = pool.free, pool.turned, step.turned
    number = step.number
    fed_tokens = came = came_tokens = 0
    arrival = FOREVER if clients.next is None or not ahead else clients.next
    lanes = step.queue.lanes
    done.lane = lane = step.queue.only_name
    start, first, growth, steps = now, 0, 0, 1
    leap: Leap | None = None
    over = False
    while True:
        # Ahead of the clock: who was sent during the last leap, or now.
        while arrival <= now:
            at = arrival
            if (new := world.pull(lane)) is not None:
                new.boundary = now
                if steps > 1 and at < now:
                    leap = leap or Leap(start, first, growth, steps, [])
                    new.boundary = leap.end(leap.reach(at))
                queued.append(at)
                queue.append(new)
                came += 1
                came_tokens += new.prompt + new.declared
            arrival = FOREVER if clients.next is None else clients.next

        # Whoever runs is fed: decodes by counters, and the one prompt that is not done.
        left = budget - decodes
        if left < 0:
            break
        # In the letters of `StepShape`: P, F and D are `prefill`, `parts` and `single`; 2A, H, K
        # and B are `area2`, `reach`, `context` and `held`.
        blocks = grown = due[ticks % size] if decodes else 0
        prefill = parts = area2 = reach = squares = admitted = floor = 0
        single = decodes
        context = computed = contexts
        held = tables + grown
        why = NOTHING
        steady = True
        fed: list[tuple[Sequence, int]] = []
        if chunks:
            if len(chunks) > 1:
                break
            (seq,) = chunks
            before = seq._computed
            todo = seq.prompt + seq._produced - before
            amount = todo if todo < left else left
            if amount > longest - before:
                amount = longest - before
            # The last of the budget goes by order of admission.
            if amount < 1 or (amount == left and next(reversed(running)) is not seq):
                break
            own = -(-(before + amount) // size)
            blocks += own - -(-before // size)
            held += own
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
        if blocks > free:
            break
        free -= blocks

        # Whoever waits is admitted, until one is refused.
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
            own = -(-amount // size)
            held += own
            blocks += own
            free -= own
            fed.append((seq, amount))
            if amount > 1:
                prefill += amount
                parts += 1
                area2 += amount * amount
                reach += amount
            else:
                single += 1
        if left == budget:  # nobody is there
            if queue or arrival >= beyond:
                break
            now, steps = arrival, 1
            continue
        head = queue[0] if why else None

        # What the step takes.
        handled += blocks
        turned = handled - counted
        counted = handled
        tables += grown
        tokens = budget - left
        key = (prefill, parts, single)
        first = known_ps.get(key) or prices.by_counts(*key)
        if prefill:
            first += area_ps * area2 + reach_ps * reach + mixed_ps * context
        else:
            first += alone_ps * context
        host = step_host_ps + sequence_host_ps * (parts + single)
        if counts_blocks:
            of_blocks = prices.tB * held + prices.tT * turned
            first += of_blocks
            host += of_blocks
        end = now + first
        if end >= beyond or first <= 0:
            replica.check(first, now)
            group.fed = decodes > 0
            over = True
            break

        # As many equal ones as can follow.
        steps, growth, more, leap = 1, 0, 0, None
        if steady and not admitted:
            most = FOREVER
            if decodes:
                while ends[0] not in finishing:
                    heappop(ends)
                most = ends[0] - ticks
            if fed and (todo - 1) // amount < most:
                most = (todo - 1) // amount
            until = beyond if queue or arrival > beyond else arrival
            if not ahead:
                most = min(most, replica.most)
                if replica.solo and not queue and world.next is not None and world.next < until:
                    until = world.next
            if most > 1 and end < until:
                growth = prices.growth(prefill, single, squares) if fed else alone_ps * single
                brief = ahead and not (fed or counts_blocks)
                if brief:  # what `lengthen` comes to for decodes alone, without its calls
                    steps = most
                    end = now + steps * first + growth * (steps * (steps - 1) // 2)
                    if end > until:
                        steps = Leap(now, first, growth, most, []).reach(until)
                        end = now + steps * first + growth * (steps * (steps - 1) // 2)
                    at = (ticks + 1) % size
                    later = ((due[at:] + due[:at]) * ((steps - 1) // size + 1))[: steps - 1]
                    more = sum(later)
                    brief = more <= free - floor and end < beyond
                    if brief:
                        grown_later.extend(later)
                if not brief:
                    leap = Leap(now, first, growth, most, [])
                    lengthen(leap, group if decodes else None, fed, size, free - floor, until)
                    if counts_blocks:
                        count_blocks(leap, prices, turned, [0] * leap.steps, until)
                    if leap.steps > 1 and leap.end(leap.steps) >= beyond:
                        cut(leap, leap.steps - 1)
                    end = leap.end(leap.steps)
        if not ahead:
            leap = leap or Leap(now, first, 0, 1, [])
            yield replica.sleep(leap)
            replica.awake()
            end = leap.end(leap.steps)
        if leap is not None:
            steps, more = leap.steps, sum(leap.grown)
            log.grew(leap)
        if more:
            handled += more
            counted = handled
            tables += more
            if fed:
                tables -= -(-(before + amount * steps) // size) - own

        # Its time passes.
        if head is not None and head.first_scheduled < 0:
            if head.waits is None:
                head.waits = [0] * len(Answer)
            head.waits[why] += end - now
        unused = held * size - computed - tokens
        scheduled_free, tick, finished = free, -1, 0
        free -= more
        ending: list[Sequence] = []
        if decodes:
            tick = ticks
            if fresh:
                step.begin_gaps(now + first)
            ticks += steps
            contexts += steps * decodes
            group.ticks, group.last_end = ticks, end
            while ends and ends[0] <= ticks:
                for seq in finishing.pop(heappop(ends), ()):
                    final = seq.prompt + seq.goal - 1
                    due[(ticks - final) % size] -= 1
                    decodes -= 1
                    contexts -= final
                    tables -= -(-final // size)
                    if seq.spell < ticks:
                        spells.append((seq.index, seq.spell, ticks - 1))
                    ending.append(seq)
        for seq, amount in fed:
            computed = seq._computed + amount * steps
            if seq._computed < seq.high_water:
                seq.recomputed += min(computed, seq.high_water) - seq._computed
            seq._computed = computed
            seq.fed += amount * steps
            produced = seq._produced
            if computed < seq.prompt + produced:
                continue
            del chunks[seq]
            if produced:
                step.resume_gaps(seq, end)
            else:
                seq.first_token = end
                if seq.preemptions:
                    seq.stalled_first, seq.lost_at = seq.stalled, -1
            seq.last_token = end
            seq._produced = produced + 1
            if produced + 1 == seq.goal:
                ending.append(seq)
                continue
            seq.group, seq.joined = group, ticks
            if group.last_end == end:
                seq.spell = ticks
            else:
                seq.spell = ticks + 1
                fresh[seq] = None
            decodes += 1
            contexts += computed
            tables += -(-computed // size)
            due[(ticks - computed) % size] += 1
            last = ticks + seq.goal - produced - 1
            if last in finishing:
                finishing[last][seq] = None
            else:
                finishing[last] = {seq: None}
                heappush(ends, last)
        for seq in ending:
            own = -(-(seq.prompt + seq.goal - 1) // size)
            free += own
            handled += own
            finished += 1
            came -= 1
            came_tokens -= seq.prompt + seq.declared
            if seq.table:
                pool.unchoose(seq.table)
            del running[seq]
            if ahead and not seq.preemptions:
                done.undisturbed(seq, end)
                continue
            seq.fed += seq.prompt + seq.goal - 1 - seq._computed
            seq._produced, seq.last_token, seq.group = seq.goal, end, None
            seq.peak = max(seq.peak, own)
            if ahead:
                done.left(seq, replica.index, end, seq.reason)
        rows.append(
            (
                now, first, growth, steps, prefill, parts, single, area2, context, host,
                scheduled_free, admitted, 0, finished, tick, unused, 0,
            )
        )  # fmt: skip
        number += steps
        fed_tokens += tokens * steps
        if len(rows) >= CHUNK:
            log.leaps.pack()
            group.spells.pack()
            done.tell()
        start, now = now, end
        if not ahead:
            for seq in ending:
                replica.on_left(seq, replica.index, seq.reason)
            if replica.env.peek() == now:
                # What is sent at this very instant is seen by the next schedule.
                yield Wake(replica.env, SCHEDULES + replica.index, 0)
            if len(lanes) > 1:
                break

    if number > step.number:
        step.passed()
    group.size, group.context, group.table = decodes, contexts, tables
    group.lanes[lane] = decodes
    pool.free, pool.turned, step.turned = free, handled, counted
    step.number = number
    step.service.alone += fed_tokens
    if ahead:
        world.counted(came, came_tokens)
    pending = dict(fed) if over else {}
    for seq in running if over else chunks:
        if seq.group is None:
            tokens = seq._computed + pending.get(seq, 0)
            seq.table += pool.redeem(-(-tokens // size) - len(seq.table))
    return now, over
