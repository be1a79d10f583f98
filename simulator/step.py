"""The step under construction: the policy's verbs over sequences and blocks.

`StepBuilder` implements `policies.base.Step` on the real pool, so a policy can neither
over-commit nor leak. One per replica, reused: `open`, the policy's verbs, `close`, and, when the
time has passed, `apply`.

The common case touches no sequence: the whole decode group is fed by counters
(`_feed_all`). Only when tokens or blocks do not suffice for everybody does `feed_running` walk
the running set in admission order.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

import numpy as np

from calibration.step_time import StepShape
from policies.base import ALL, Answer, Policy
from simulator.batch import Batch
from simulator.checks import LawBroken
from simulator.engine import Engine
from simulator.identity import prefix
from simulator.sequence import Sequence
from simulator.waiting import Lane, Waiting


class StepBuilder(Batch):
    """The verbs, and what they came to. All times are picoseconds."""

    def __init__(
        self, engine: Engine, policy: Policy, max_model_len: int, victims: np.random.Generator
    ) -> None:
        super().__init__(engine, policy)
        self.more_to_come = True
        self.tokens_left = 0
        self.admitted: list[Sequence] = []
        self.preempted: list[tuple[Sequence, int, int, int]] = []
        """(sequence, computed, known, blocks held) in eviction order."""
        self.squares = 0
        """Σ q² over this step's chunks."""
        self.steady = False
        """After `close`: an equal step could follow."""
        self.floor = 0
        """With fewer free blocks the gate would have answered otherwise."""
        self.refused: dict[str, Answer] = {}
        """Answer to the first sequence of each lane that was not admitted."""
        self.evictions_in_a_row = 0
        self.fragmented = False
        """Somebody was refused though the blocks suffice in sum: they lie in pieces."""
        self.withdraws = False
        """What a victim was to compute in this very step loses its identity: where steps are
        really run, nobody may read it. (vLLM keeps it, rule A13.)"""
        self.budget = policy.token_budget
        self.max_model_len = max_model_len
        self.reserve = int(engine.reserve * engine.blocks)
        self.seated = 0
        """Sequences seated so far."""
        self._pause_until = 0
        """Free blocks at which paused admissions go on; 0 = not paused."""
        self._victims = victims
        self._members_fed = 0
        self._scarce = False
        """Tokens suffice for everybody, blocks do not: only those who need blocks are walked."""
        self._walk: Iterator[Sequence] | None = None
        self._starved: tuple[Sequence, int] | None = None

    # What a policy sees

    @property
    def seats_left(self) -> int:
        return self.engine.max_running - len(self.running)

    @property
    def free_blocks(self) -> int:
        return self.pool.free

    @property
    def pool_blocks(self) -> int:
        return self.pool.blocks

    @property
    def prefilling(self) -> Collection[Sequence]:
        return self.chunks.keys()

    @property
    def unfinished(self) -> int:
        return sum(seq.todo > max(self.fed.get(seq, 0), 1) for seq in self.chunks)

    @property
    def paused(self) -> bool:
        if self._pause_until and (self.pool.free >= self._pause_until or not self.running):
            self._pause_until = 0
        return self._pause_until > 0

    @property
    def lanes(self) -> Collection[str]:
        return self.queue.lanes.keys()

    def waiting(self, lane: str | None = None) -> Lane | Waiting:
        if lane is not None:
            return self.queue.lane(lane)
        return self.queue if self.queue.only is None else self.queue.only

    def wanted(self, lane: str, most: int = ALL) -> int:
        enough = self.tokens_left
        total = 0
        for seq in self.chunks:
            if seq.lane == lane and seq not in self.fed and seq.todo > 1:
                total += min(seq.todo, most)
        if self.preempted:
            return min(total, enough)
        seats = self.seats_left
        for seq in self.queue.lane(lane):
            if total >= enough or not seats:
                break
            hits = self._hits(seq)
            cached = seq._computed + len(hits) * self._block_size
            amount = self._amount(seq, cached, most)
            if not self._room(seq, hits, min(amount, enough - total), 0):
                break
            total += amount
            seats -= 1
        return min(total, enough)

    def served(self, lane: str) -> int:
        return self.service.of(lane)

    def shortage(self, most: int = ALL) -> int:
        left = self.tokens_left
        need = 0
        for seq in self.running:
            if self._is_fed(seq):
                continue
            amount = self._least(seq, most, left)
            left -= amount
            need += max(0, -(-(seq.computed + amount) // self._block_size) - seq.blocks)
        return max(0, need - self.pool.free)

    # The verbs

    def draw(self, n: int) -> int:
        return int(self._victims.integers(n))

    def pause(self, share: float) -> None:
        self._pause_until = max(1, int(share * self.pool.blocks))

    def feed_running(
        self, most: int = ALL, lane: str | None = None, within: int = ALL
    ) -> Sequence | None:
        left = min(within, self.tokens_left)
        if self._walk is None:
            if lane is None and self._feed_all(most, left):
                return None
            self._walk = iter(self._needy() if self._scarce else self._unfed())
        floor = self.tokens_left - left
        if self._starved is not None:
            seq, amount = self._starved
            self._starved = None
            if seq in self.running and not self._give(seq, amount):
                self._starved = (seq, amount)
                return seq
        for seq in self._walk:
            if (lane is not None and seq.lane != lane) or seq not in self.running:
                continue
            amount = self._least(seq, most, self.tokens_left - floor)
            if amount > 0 and not self._give(seq, amount):
                self._starved = (seq, amount)
                return seq
        self._walk = None
        if self._scarce:
            self._feed_rest()
        return None

    def feed(self, seq: Sequence, tokens: int) -> Answer:
        if seq not in self.running:
            raise LawBroken(f"request {seq.index} is fed, but does not run")
        if self._is_fed(seq):
            raise LawBroken(f"request {seq.index} is fed twice in one step")
        amount = min(tokens, seq.todo, self.max_model_len - seq.computed - 1)
        if amount > self.tokens_left or amount < 1:
            return Answer.TOKENS
        return Answer.OK if self._give(seq, amount) else Answer.BLOCKS

    def admit(
        self,
        seq: Sequence,
        most: int = ALL,
        *,
        within: int = ALL,
        whole: bool = False,
        hold: int = 0,
    ) -> Answer:
        if seq in self.running:
            raise LawBroken(f"request {seq.index} is admitted, but runs already")
        answer = self._admit(seq, most, min(within, self.tokens_left), whole, hold)
        if answer is not Answer.OK:
            self.refused.setdefault(seq.lane, answer)
        return answer

    def preempt(self, seq: Sequence) -> None:
        if seq not in self.running:
            raise LawBroken(f"request {seq.index} is preempted, but does not run")
        group = self.group
        promised = 0
        amount = self.fed.pop(seq, 0)
        if seq.group is group:
            if self.group.fed:
                amount = 1
            elif amount:
                self._members_fed -= 1
            promised = group.leave(seq)
        else:
            del self.chunks[seq]
        self.tokens -= amount
        self.tokens_left += amount
        if self._starved is not None and self._starved[0] is seq:
            self._walk = self._starved = None
            if self._scarce:
                self._feed_before(seq)
        self.running.remove(seq)
        self.preempted.append((seq, seq._computed, seq.known, len(seq.table) + promised))
        if self.withdraws and amount and self.engine.prefix_cache:
            size = self._block_size
            for block in seq.table[seq._computed // size : (seq._computed + amount) // size]:
                self.pool.forget(block)
        self._free(seq, promised)
        seq.high_water = max(seq.high_water, seq._computed)
        if not self._swap_out(seq):
            seq._computed = 0
        seq.hold = 0
        seq.preemptions += 1
        if seq.lost_at < 0:
            seq.lost_at, seq.stalled_then = self.now, seq.stalled
        seq.evicted_step = self.number
        seq.queued_at = self.now
        self.queue.lane(seq.lane).come_back(seq)

    def wait(self, seq: Sequence, why: Answer) -> None:
        self.refused.setdefault(seq.lane, why)

    # Building

    def evacuate(self, now: int) -> list[Sequence]:
        """Everybody leaves without KV, at `now`: running ones first, in order."""
        self.now = now
        there = [*self.running, *self.queue]
        for seq in list(self.running):
            if seq.group is not None:
                self._pause(seq)
            if not seq.hold:  # what the lost step took counts as never taken
                kept = -(-seq._computed // self._block_size)
                taken = seq.table[kept:]
                del seq.table[kept:]
                self.pool.release(taken)
            self.preempt(seq)
        for seq in there:
            self.withdraw(seq)
            seq.evicted_step = -1  # steps are numbered by replica
            seq.passed_over = 0
            if seq.boundary > now:  # the step that it waited for never ended
                seq.boundary = -1
        return there

    def passed(self) -> None:
        """Steps were taken by counters, without evictions."""
        self.preempted = []
        self.evictions_in_a_row = 0

    def open(self, now: int, more_to_come: bool) -> None:
        """Begin a step at `now`."""
        self.evictions_in_a_row = self.evictions_in_a_row + 1 if self.preempted else 0
        if self.service.returning:
            self.service.begin()
        self.now = now
        self.more_to_come = more_to_come
        self.tokens = 0
        self.tokens_left = self.budget
        self.fed = {}
        self.group.fed = False
        self.admitted = []
        self.preempted = []
        self.refused = {}
        self.floor = 0
        self.fragmented = False
        self._members_fed = 0
        self._scarce = False
        self._walk = self._starved = None

    def close(self) -> StepShape:
        """The step's shape. Group members that others left behind become paused decodes."""
        group = self.group
        whole = True
        if not self.group.fed and 0 < self._members_fed < group.size:
            whole = False
            for seq in self.running:
                if seq.group is group and seq not in self.fed:
                    self._pause(seq)
        self.tick = group.size > 0 and (self.group.fed or self._members_fed > 0)
        p = f = area2 = reach = self.squares = 0
        d, context, table = (group.size, group.context, group.table) if self.tick else (0, 0, 0)
        named = group.filling(0) if self.tick and self.engine.prefix_cache else 0
        completes = False
        for seq, amount in self.fed.items():
            if seq.group is not None:
                continue
            computed = seq._computed
            table += len(seq.table)
            if group.eager:
                size = self._block_size
                named += (computed + amount) // size - computed // size
            if computed + amount == seq.prompt + seq._produced:
                completes = True
            if amount > 1:
                p += amount
                f += 1
                self.squares += amount * amount
                area2 += amount * (2 * computed + amount)
                reach += computed + amount
            else:
                d += 1
                context += computed
        self.steady = whole and not (completes or self.admitted or self.preempted or self.moved)
        turned = self.pool.turned - self.turned
        if self.tokens:  # else the next step that runs pays for them
            self.turned = self.pool.turned
        return StepShape(p, f, d, area2, reach, context, table, self.moved, turned, named)

    # Inside

    def _unfed(self) -> list[Sequence]:
        """Running sequences not yet fed, in admission order."""
        if self.group.fed or not self.group.size:
            chunks = [seq for seq in self.chunks if seq not in self.fed]
            return sorted(chunks, key=lambda seq: seq.place)
        return [seq for seq in self.running if seq not in self.fed]

    def _least(self, seq: Sequence, most: int, left: int) -> int:
        """Tokens that a running sequence gets of `left` (rule A1)."""
        todo = seq.todo
        if todo > 1:
            todo = min(todo, most)
        return min(todo, left, self.max_model_len - seq.computed - 1)

    def _is_fed(self, seq: Sequence) -> bool:
        return (self.group.fed and seq.group is self.group) or seq in self.fed

    def _feed_all(self, most: int, left: int) -> bool:
        """Feed everybody by counters if tokens and blocks suffice; else change nothing."""
        group = self.group
        size = 0 if self.group.fed else group.size
        if self._members_fed or size > left:
            return False
        due = group.due[group.ticks % self._block_size] if size else 0
        amounts: list[tuple[Sequence, int]] = []
        if self.chunks:
            amounts, blocks, cut = self._share(most, left - size)
            if cut and not self._chunks_last():
                return False
            blocks += due
        else:
            blocks, cut = due, False
        if blocks > self.pool.free:
            self._scarce = size > 0 and not (cut or self.engine.prefix_cache)
            return False
        if size:
            if due:
                group.grow(0, 1)
            group.fed = True
            self.tokens += size
            self.tokens_left -= size
        for seq, amount in amounts:
            self._grow_chunk(seq, seq._computed + amount)
            self.fed[seq] = amount
            self.tokens += amount
            self.tokens_left -= amount
        if self.engine.prefix_cache:
            self._name_all([(seq, seq._computed, n) for seq, n in amounts], size > 0)
        return True

    def _needy(self) -> list[Sequence]:
        """Unfed running sequences that may need a block, in admission order."""
        ticks, size = self.group.ticks, self._block_size
        return [
            seq
            for seq in self.running
            if (
                seq not in self.fed
                if seq.group is None
                else not (seq.hold or (seq._computed + ticks - seq.joined) % size)
            )
        ]

    def _feed_rest(self) -> None:
        """Members that need no block are fed by counters, after a walk over those who do."""
        self._scarce = False
        rest = self.group.size - self._members_fed
        self.group.fed = self.group.size > 0
        self.tokens += rest
        self.tokens_left -= rest

    def _feed_before(self, starved: Sequence) -> None:
        """The walk ended at `starved`: members admitted before it are fed, later ones are not."""
        self._scarce = False
        if next(reversed(self.running)) is starved:
            self._feed_rest()
            return
        for seq in self.running:
            if seq is starved:
                return
            if seq.group is not None and seq not in self.fed:
                self._members_fed += 1
                self._feed(seq, 1, seq.computed)

    def _share(self, most: int, spare: int) -> tuple[list[tuple[Sequence, int]], int, bool]:
        """What the unfed chunks get of `spare` tokens, one after the other; the blocks that
        takes; and whether nothing is left, so that the order decides who gets how much."""
        amounts = []
        blocks = 0
        for seq in self.chunks:
            if seq in self.fed:
                continue
            amount = self._least(seq, most, spare)
            if amount > 0:
                amounts.append((seq, amount))
                spare -= amount
                short = -(-(seq._computed + amount) // self._block_size) - len(seq.table)
                if short > 0:
                    blocks += short
        return amounts, blocks, not spare

    def _chunks_last(self) -> bool:
        """Whether the chunks were admitted after every group member, and stand in order."""
        if len(self.chunks) == 1:
            return next(reversed(self.running)) in self.chunks
        for chunk, seq in zip(reversed(self.chunks), reversed(self.running), strict=False):
            if chunk is not seq:
                return False
        return True

    def _give(self, seq: Sequence, amount: int) -> bool:
        """Feed one running sequence; False if its blocks cannot be had."""
        if seq.group is not None:
            seq.group.settle(seq)
        computed = seq.computed
        short = -(-(computed + amount) // self._block_size) - len(seq.table)
        if short > 0:
            if short > self.pool.free:
                return False
            seq.table += self.pool.take(short)
        if seq.group is not None:
            self._members_fed += 1
            if short > 0:
                self.group.table += short
        self._feed(seq, amount, computed)
        return True

    def _feed(self, seq: Sequence, amount: int, computed: int) -> None:
        self.fed[seq] = amount
        self.tokens += amount
        self.tokens_left -= amount
        if self.engine.prefix_cache:
            self._name(seq, computed, amount)

    def _admit(self, seq: Sequence, most: int, left: int, whole: bool, hold: int) -> Answer:
        if self.preempted:
            return Answer.BLOCKS
        if left <= 0 or most <= 0:
            return Answer.LANE if self.tokens_left > 0 else Answer.TOKENS
        if len(self.running) >= self.engine.max_running:
            return Answer.SEATS
        hits = self._hits(seq)
        cached = seq._computed + len(hits) * self._block_size
        amount = self._amount(seq, cached, most)
        if amount > left:
            if whole and amount <= self.budget:  # else, after a preemption, it never would fit
                return Answer.LANE if amount <= self.tokens_left else Answer.TOKENS
            amount = left
        answer = self._room(seq, hits, amount, hold)
        if answer is not Answer.OK:
            return answer
        self._take_seat(seq)
        if hits:
            self.pool.share(hits)
            seq.table += hits
            seq._computed = cached
            if seq.preemptions:
                seq.resumed_hit += cached
            else:
                seq.hit = cached
        if seq.swapped:
            self._swap_in(seq)
        seq.hold = hold
        slots = max(hold, cached + amount)
        seq.table += self.pool.take(-(-slots // self._block_size) - len(hits))
        self._feed(seq, amount, cached)
        return Answer.OK

    def _take_seat(self, seq: Sequence) -> None:
        lane = self.queue.lane(seq.lane)
        if (head := lane[0]) is not seq:
            head.passed_over += 1
        lane.remove(seq)
        self.seat(seq, self.now)
        self.admitted.append(seq)

    def seat(self, seq: Sequence, now: int) -> None:
        """One that has left the queue begins to run."""
        self.seated += 1
        seq.place = self.seated
        self.running.add(seq)
        self.chunks[seq] = None
        seq.admitted_at = now
        stay = now - seq.queued_at
        seq.waited += stay
        if seq.first_scheduled < 0:
            seq.first_scheduled = now
        else:
            seq.stalled += stay

    def _hits(self, seq: Sequence) -> list[int]:
        if not self.engine.prefix_cache or seq.swapped:
            return []
        return self.pool.lookup(prefix(seq, self._block_size))

    def _amount(self, seq: Sequence, cached: int, most: int) -> int:
        return min(seq.known - cached, most, self.max_model_len - cached - 1)

    def _room(self, seq: Sequence, hits: list[int], amount: int, hold: int) -> Answer:
        """The admission gate (A6) and the reserve (A7)."""
        cached = seq._computed + len(hits) * self._block_size
        slots = seq.known if self.engine.gate else cached + amount
        need = -(-max(slots, hold) // self._block_size) - len(hits) + self.pool.idle(hits)
        free = self.pool.free
        if need > free:
            return Answer.BLOCKS
        if self.engine.contiguous and not self.pool.fits(need):
            self.fragmented = True
            return Answer.BLOCKS
        if self.running and need + self.reserve > free:
            self.floor = max(self.floor, need)
            return Answer.RESERVE
        self.floor = max(self.floor, need + self.reserve)
        return Answer.OK

    # Ranks

    def recompute_alone(self) -> bool:
        """Under `rank_evict = "local"`: who lost its KV on one rank is recomputed first, and the
        other ranks, who kept theirs, wait for it with everybody. False = nobody is."""
        for seq in self.chunks:
            if seq.preemptions and seq._computed < seq.high_water:
                return bool(self.feed(seq, self.tokens_left))
        heads = [lane[0] for lane in self.queue.lanes.values() if lane]
        return any(seq.preemptions and self.admit(seq) for seq in heads)

    # Swapping

    def _swap_out(self, seq: Sequence) -> bool:
        """Keep the KV of a victim on the host, if there is room; else it is lost."""
        blocks = -(-seq._computed // self._block_size)
        if not 0 < blocks <= self.swap_free:
            return False
        seq.swapped = blocks
        self.swap_free -= blocks
        self.swaps += 1
        self.moved += blocks * self._block_size * self.engine.kv_bytes_per_token
        return True

    def _swap_in(self, seq: Sequence) -> None:
        """Its KV comes back into fresh blocks."""
        self.swap_free += seq.swapped
        self.moved += seq.swapped * self._block_size * self.engine.kv_bytes_per_token
        seq.swapped = 0
