"""Laws of the pool and of the decode group, whatever is done to them in whatever order."""

from __future__ import annotations

from collections import OrderedDict

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    invariant,
    precondition,
    rule,
)

from simulator.blocks import BlockPool

BLOCKS = 12


class Pool(RuleBasedStateMachine):
    """Tables take, share, name and release blocks; a model of three plain containers follows.

    The model knows which blocks are plain free (a stack), which are cached (in the order in
    which they were let go), and who holds which identity since when.
    """

    tables = Bundle("tables")

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(BLOCKS, 16)
        self.held: list[list[int]] = []
        self.plain = list(range(BLOCKS - 1, -1, -1))
        self.cached: OrderedDict[int, int] = OrderedDict()
        self.named: dict[int, int] = {}
        """Block → identity, oldest first."""

    @rule(target=tables, n=st.integers(0, 4))
    @precondition(lambda self: self.pool.free >= 4)
    def take(self, n: int) -> list[int]:
        """A14: blocks without identity first, then the least recently used."""
        expected = [self.plain.pop() for _ in range(min(n, len(self.plain)))]
        while len(expected) < n:
            block, _ = self.cached.popitem(last=False)
            del self.named[block]
            expected.append(block)
        table = self.pool.take(n)
        assert table == expected
        self.held.append(table)
        return table

    @rule(table=tables, identity=st.integers(1, 6))
    def name(self, table: list[int], identity: int) -> None:
        """A13: a block that is computed can be hit; its first name stays."""
        if table:
            block = table[-1]
            self.pool.name(block, identity)
            self.named.setdefault(block, identity)

    @rule(target=tables, chain=st.lists(st.integers(1, 6), min_size=1, max_size=4))
    def share(self, chain: list[int]) -> list[int]:
        """A12, A14: the longest run from the start; of several copies the oldest."""
        expected = []
        for identity in chain:
            carriers = [block for block, name in self.named.items() if name == identity]
            if not carriers:
                break
            expected.append(carriers[0])
        found = self.pool.lookup(chain)
        assert found == expected
        found = list(dict.fromkeys(found))  # a chain never names one block twice
        assert self.pool.idle(found) == sum(block in self.cached for block in found)
        self.pool.share(found)
        for block in found:
            self.cached.pop(block, None)
        self.held.append(found)
        return found

    @rule(table=consumes(tables))
    def release(self, table: list[int]) -> None:
        """A14: tail first; with identity to the back of the list, without on top of the stack."""
        at = next(i for i, one in enumerate(self.held) if one is table)
        del self.held[at]
        gone = list(table)
        self.pool.release(table)
        assert table == []
        for block in reversed(gone):
            if any(block in other for other in self.held):
                continue
            if block in self.named:
                self.cached[block] = self.named[block]
            else:
                self.plain.append(block)

    @invariant()
    def nothing_is_lost(self) -> None:
        """free + cached + referenced = all; references equal table entries."""
        referenced = {block for table in self.held for block in table}
        assert self.pool.free == len(self.plain) + len(self.cached)
        assert self.pool.free + len(referenced) == BLOCKS
        for block in range(BLOCKS):
            entries = sum(table.count(block) for table in self.held)
            assert self.pool.references(block) == entries
        self.pool.check(self.held)


TestPool = Pool.TestCase
TestPool.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
