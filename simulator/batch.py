"""The sequences of one replica and the pool they share; what happens when time passes.

`Batch` holds what a step leaves to the next: who waits, who runs, who holds which blocks. What
the next step does is decided on top of it, in `simulator.step`.
"""

from __future__ import annotations

from calibration.step_time import Row
from policies.base import Policy
from simulator.blocks import BlockPool, ContiguousPool
from simulator.columns import Columns
from simulator.decodes import Decodes
from simulator.engine import Engine
from simulator.identity import extend
from simulator.running import Running
from simulator.sequence import Sequence
from simulator.service import Service
from simulator.waiting import Waiting


class Batch:
    """All times are picoseconds."""

    def __init__(self, engine: Engine, policy: Policy) -> None:
        pool = ContiguousPool if engine.contiguous else BlockPool
        self.pool = pool(engine.blocks, engine.block_size)
        self.queue = Waiting(policy)
        self.running = Running()
        self.group = Decodes(self.pool, eager=engine.prefix_cache)
        self.chunks: dict[Sequence, None] = {}
        """Running sequences outside the decode group: partial prefills, paused decodes."""
        self.service = Service(self.queue.lanes, self._runs)
        self.now = 0
        self.number = 0
        """Steps so far."""
        self.tokens = 0
        """Tokens of the step under construction."""
        self.fed: dict[Sequence, int] = {}
        """Sequences fed one by one, in the order they were fed, and their tokens."""
        self.tick = False
        """The step advances the decode group."""
        self.stalls = Columns(("request", "end", "gap", "queued", "recompute"))
        """Every gap that is in no spell."""
        self.swap_free = engine.swap_tokens // engine.block_size
        """Blocks that fit on the host beside those that are there."""
        self.swaps = 0
        """Preempted sequences whose KV went to the host."""
        self.moved = 0
        """Bytes moved between host and device since the last step."""
        self.turned = 0
        """`pool.turned` as far as steps have counted it."""
        self.engine = engine
        self._block_size = engine.block_size

    def arrive(self, seq: Sequence) -> None:
        """Queue a new sequence."""
        lane = self.queue.lane(seq.lane)
        self.service.arrives(seq.lane, lane)
        lane.arrive(seq)

    def withdraw(self, seq: Sequence) -> None:
        """A waiting sequence leaves."""
        self.queue.lane(seq.lane).remove(seq)
        if seq.swapped:
            self.swap_free += seq.swapped
            seq.swapped = seq._computed = 0

    def stop(self, index: int) -> None:
        """The token that request `index` gets in this step is its end of sequence."""
        for seq in self.running:
            if seq.index == index:
                if seq.group is self.group:
                    self.group.end_after(seq, 1)
                else:
                    seq.goal = seq._produced + 1
                seq.output = seq.goal
                return

    def would_name(self, seq: Sequence, block: int) -> int | None:
        """The identity that logical block `block` of `seq` has or will have."""
        if (block + 1) * self._block_size >= seq.prompt + seq.goal:
            return None
        extend(seq, block + 1, self._block_size)
        return seq.chain[block]

    def rows(self) -> list[Row]:
        """What runs, in running order, for an executor that really runs it."""
        rows = []
        for seq in self.running:
            amount = self.fed.get(seq, 0)
            if seq.group is not None:
                seq.group.settle(seq)
                amount = amount or int(seq.group.fed)
            if amount:
                rows.append(Row(seq.index, seq.computed, amount, tuple(seq.table)))
        return rows

    def apply(self, steps: int, first_end: int, end: int) -> list[Sequence]:
        """The time of `steps` equal steps has passed: the first ended at `first_end`.

        Tokens appear; returns the sequences that are done, with their blocks given back.
        """
        if steps > 1:
            self._grow(steps)
            self.turned = self.pool.turned
        self.number += steps
        self.moved = 0
        if len(self.queue.lanes) > 1:
            self.service.count(self.fed, self.group if self.tick else None, steps)
        else:
            self.service.alone += self.tokens * steps
        group = self.group
        done: dict[Sequence, int] = {}  # and the blocks each was promised, but nobody chose
        if self.tick:
            if group.fresh:
                self.begin_gaps(first_end)
            group.ticks += steps
            group.context += steps * group.size
            group.last_end = end
            group.fed = False
            done = {seq: group.leave(seq) for seq in group.ended()}
        for seq, amount in self.fed.items():
            if seq.group is None and seq in self.chunks and self.advance(seq, amount * steps, end):
                done[seq] = 0
        ended = sorted(done, key=lambda seq: seq.place) if len(done) > 1 else [*done]
        for seq in ended:
            self.finish(seq, done[seq])
        return ended

    def begin_gaps(self, end: int) -> None:
        """A tick ended at `end`: for those who did not see the one before, the gap is a stall."""
        fresh = self.group.fresh
        for seq in fresh:
            self.stalls.add((seq.index, end, end - seq.last_token, 0, 0))
        fresh.clear()

    def advance(self, seq: Sequence, tokens: int, end: int) -> bool:
        """One outside the decode group has computed `tokens` more, at `end`. Whether it is done.

        Where nothing of what is known is left to compute, it gets a token and joins the group.
        """
        before = seq._computed
        computed = seq._computed = before + tokens
        if before < seq.high_water:
            seq.recomputed += min(computed, seq.high_water) - before
        seq.fed += tokens
        if computed < seq.prompt + seq._produced:
            return False
        if seq._produced:
            self.resume_gaps(seq, end)
        else:
            seq.first_token = end
            seq.stalled_first = seq.stalled
            seq.lost_at = -1
        seq.last_token = end
        seq._produced += 1
        del self.chunks[seq]
        if seq._produced == seq.goal:
            return True
        self.group.join(seq)
        return False

    def resume_gaps(self, seq: Sequence, end: int) -> None:
        """One that was preempted or paused gets its next token, at `end`."""
        queued = again = 0
        if seq.lost_at >= 0:
            queued = seq.stalled - seq.stalled_then
            again = end - seq.lost_at - queued
            seq.lost_at = -1
        self.stalls.add((seq.index, end, end - seq.last_token, queued, again))

    def finish(self, seq: Sequence, promised: int) -> None:
        """It is done: its blocks go back, and those `promised` to it that nobody chose."""
        self.running.remove(seq)
        self._free(seq, promised)

    def _grow(self, steps: int) -> None:
        """Blocks that a leap needed in its second and later steps, in step order."""
        naming = self.engine.prefix_cache
        chunks = [(seq, n) for seq, n in self.fed.items() if seq.group is None]
        if self.tick and not naming:
            self.group.grow(1, steps - 1)
        if not (chunks or naming):
            return
        for step in range(1, steps):
            if naming and self.tick:
                self.group.grow(step, 1)
            for seq, n in chunks:
                self._grow_chunk(seq, seq._computed + n * (step + 1))
            if naming:
                amounts = [(seq, seq._computed + n * step, n) for seq, n in chunks]
                self._name_all(amounts, self.tick, step)

    def _grow_chunk(self, seq: Sequence, computed: int) -> None:
        """Give a chunk the blocks that `computed` tokens need."""
        short = -(-computed // self._block_size) - len(seq.table)
        if short > 0:
            seq.table += self.pool.take(short)

    def _runs(self, lane: str) -> bool:
        return self.group.lanes.get(lane, 0) > 0 or any(seq.lane == lane for seq in self.chunks)

    def _pause(self, seq: Sequence) -> None:
        seq.table += self.pool.redeem(self.group.leave(seq))
        self.chunks[seq] = None

    def _free(self, seq: Sequence, promised: int = 0) -> None:
        """Give back its blocks, and those `promised` to it."""
        blocks = len(seq.table) + promised
        if blocks > seq.peak:
            seq.peak = blocks
        self.pool.release(seq.table)
        self.pool.renounce(promised)

    def _name(self, seq: Sequence, computed: int, amount: int) -> None:
        """Blocks become hittable when the step that fills them is scheduled (A13)."""
        first, last = computed // self._block_size, (computed + amount) // self._block_size
        if last > first:
            extend(seq, last, self._block_size)
            for block in range(first, last):
                self.pool.name(seq.table[block], seq.chain[block])

    def _name_all(
        self, chunks: list[tuple[Sequence, int, int]], members: bool, ahead: int = 0
    ) -> None:
        """The same for all that were fed by counters, in running order.

        `chunks` are (sequence, computed before, tokens); `ahead` counts steps of a leap that
        the group's counters do not know yet.
        """
        if members:
            at = (self.group.ticks + ahead + 1) % self._block_size
            full = [*self.group.growers[at], *self.group.held[at]]
            chunks = chunks + [(seq, seq.computed + ahead, 1) for seq in full]
        for seq, computed, amount in sorted(chunks, key=lambda chunk: chunk[0].place):
            self._name(seq, computed, amount)
