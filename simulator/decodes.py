"""The decode group: sequences that get one token in every step, without being touched.

Steady decoding costs no work per sequence: the group counts *ticks*, and everything that a tick
changes follows from counters. The sum of contexts grows by the group's size; which members need
a block follows from how many stand at each offset within a block; finishes sit in buckets by
tick. A member is touched when it joins and when it leaves; the blocks that it needs meanwhile
are promised by the pool and put into its table when somebody looks (`settle`).

With a prefix cache blocks have names, so that it matters who takes which: then (`eager`) every
member that needs a block gets it at once.
"""

from __future__ import annotations

from heapq import heappop, heappush

from simulator.blocks import BlockPool
from simulator.columns import Columns
from simulator.sequence import Sequence


class Decodes:
    """The group of one replica."""

    __slots__ = (
        "block_size", "context", "due", "eager", "ends", "fed", "finishing", "fresh",
        "growers", "held", "lanes", "last_end", "pool", "size", "spells", "table", "ticks",
    )  # fmt: skip

    def __init__(self, pool: BlockPool, *, eager: bool) -> None:
        self.pool = pool
        self.block_size = block_size = pool.block_size
        self.eager = eager
        self.fed = False
        """The step under construction feeds every member."""
        self.ticks = 0
        """Ticks so far."""
        self.last_end = -1
        """When the last tick ended."""
        self.size = 0
        self.context = 0
        """Sum of the members' computed tokens."""
        self.table = 0
        """Sum of the members' block-table lengths, promised blocks included."""
        self.growers: list[dict[Sequence, None]] = [{} for _ in range(block_size)]
        """If eager: members that need a block at ticks ≡ i (mod block size)."""
        self.held: list[dict[Sequence, None]] = [{} for _ in range(block_size)]
        """Members that would need one then, had they not reserved it."""
        self.due = [0] * block_size
        """How many need a block at ticks ≡ i (mod block size)."""
        self.lanes: dict[str, int] = {}
        """Members by lane."""
        self.fresh: dict[Sequence, None] = {}
        """Members whose last token did not come from the last tick: their next gap is a stall."""
        self.spells = Columns(("request", "first_tick", "last_tick"))
        """Every spell that is over."""
        self.finishing: dict[int, dict[Sequence, None]] = {}
        """Members by the tick at which they end."""
        self.ends: list[int] = []
        """Heap of the ticks at which members end; may hold some at which nobody ends any more."""

    def join(self, seq: Sequence) -> None:
        """A sequence with one token to compute becomes a member."""
        ticks = self.ticks
        seq.group = self
        seq.joined = ticks
        if seq.last_token == self.last_end:
            seq.spell = ticks
        else:
            seq.spell = ticks + 1
            self.fresh[seq] = None
        self.size += 1
        self.lanes[seq.lane] = self.lanes.get(seq.lane, 0) + 1
        self.context += seq._computed
        self.table += len(seq.table) if seq.hold else -(-seq._computed // self.block_size)
        at = (ticks - seq._computed) % self.block_size
        if not seq.hold:
            self.due[at] += 1
        if self.eager:
            (self.held if seq.hold else self.growers)[at][seq] = None
        self._will_end(seq, ticks + seq.goal - seq._produced)

    def _will_end(self, seq: Sequence, end: int) -> None:
        bucket = self.finishing.get(end)
        if bucket is None:
            self.finishing[end] = {seq: None}
            heappush(self.ends, end)
        else:
            bucket[seq] = None

    def _will_not(self, seq: Sequence) -> None:
        end = seq.joined + seq.goal - seq._produced
        bucket = self.finishing.get(end)
        if bucket is not None:
            del bucket[seq]
            if not bucket:
                del self.finishing[end]

    def leave(self, seq: Sequence) -> int:
        """Bring a member's counters up to date and let it go.

        Returns how many blocks it was promised that nobody has chosen yet.
        """
        ticks = self.ticks - seq.joined
        at = (seq.joined - seq._computed) % self.block_size
        if not seq.hold:
            self.due[at] -= 1
        if self.eager:
            del (self.held if seq.hold else self.growers)[at][seq]
        self._will_not(seq)
        computed = seq._computed = seq._computed + ticks
        seq._produced += ticks
        seq.fed += ticks
        seq.group = None
        if ticks:
            seq.last_token = self.last_end
            if seq.spell < self.ticks:
                self.spells.add((seq.index, seq.spell, self.ticks - 1))
        else:
            self.fresh.pop(seq, None)
        self.size -= 1
        self.lanes[seq.lane] -= 1
        self.context -= computed
        chosen = len(seq.table)
        blocks = max(chosen, -(-(computed + self.fed) // self.block_size))
        self.table -= blocks
        return blocks - chosen

    def settle(self, seq: Sequence) -> None:
        """Put the blocks promised to a member into its table."""
        tokens = seq._computed + self.ticks - seq.joined + self.fed
        short = -(-tokens // self.block_size) - len(seq.table)
        if short > 0:
            seq.table += self.pool.redeem(short)

    def grow(self, ahead: int, steps: int) -> None:
        """Give, or promise, the blocks needed at the `steps` ticks that follow the next `ahead`."""
        size = self.block_size
        first = self.ticks + ahead
        if not self.eager:
            n = self.due[first % size] if steps == 1 else sum(self.due_ahead(ahead, steps))
            self.pool.promise(n)
            self.table += n
            return
        for tick in range(first, first + steps):
            bucket = self.growers[tick % size]
            for seq, block in zip(bucket, self.pool.take(len(bucket)), strict=True):
                seq.table.append(block)
            self.table += len(bucket)

    def due_ahead(self, ahead: int, steps: int) -> list[int]:
        """Blocks needed at each of the `steps` ticks that follow the next `ahead`."""
        due = self.due
        at = (self.ticks + ahead) % len(due)
        return ((due[at:] + due[:at]) * (steps // len(due) + 1))[:steps]

    def filling(self, ahead: int) -> int:
        """If eager: members whose last block fills up at the tick after the next `ahead`."""
        at = (self.ticks + ahead + 1) % self.block_size
        return len(self.growers[at]) + len(self.held[at])

    def end_after(self, seq: Sequence, tokens: int) -> None:
        """Member `seq` will end after `tokens` more ticks."""
        self._will_not(seq)
        seq.goal = seq.produced + tokens
        self._will_end(seq, self.ticks + tokens)

    def next_end(self) -> int:
        """Ticks until the next member ends, as things stand; 0 when there is no member."""
        ends = self.ends
        while ends:
            if ends[0] in self.finishing:
                return ends[0] - self.ticks
            heappop(ends)
        return 0

    def ended(self) -> list[Sequence]:
        """Members that reached their goal with the last tick, in the order they joined."""
        done: list[Sequence] = []
        while self.ends and self.ends[0] <= self.ticks:
            done += self.finishing.pop(heappop(self.ends), ())
        return done
