"""The paged KV pool: physical blocks, reference counts, free list, prefix cache.

A block table (one list per sequence, kept by the sequence) maps logical to physical blocks.
The pool owns one invariant: free + cached + referenced = all, and a block's reference count is
the number of tables that hold it.

Identity (rules A12-A14): with `prefix_cache` a full block may carry the chained identity of its
tokens. Blocks that nobody references keep it until they are taken for new use, least recently
used first. Blocks without identity are always taken before any that has one.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable


class BlockPool:
    """`blocks` physical blocks of `block_size` tokens."""

    def __init__(self, blocks: int, block_size: int) -> None:
        self.blocks = blocks
        self.block_size = block_size
        self.free = blocks
        """Blocks that can be had: unreferenced, with or without identity, and not promised."""
        self._free: list[int] = list(range(blocks - 1, -1, -1))
        """Stack of blocks without identity; the last is taken next."""
        self._cached: OrderedDict[int, int] = OrderedDict()
        """Unreferenced blocks with identity, least recently used first: block → identity."""
        self._identity: dict[int, int] = {}
        """Referenced blocks with identity."""
        self._holders: dict[int, list[int]] = {}
        """identity → blocks that carry it, oldest first."""
        self._extra: dict[int, int] = {}
        """References beyond the first, of shared blocks only."""
        self.pinned: list[int] = []
        """Blocks that are held for good, with identity."""
        self.turned = 0
        """Blocks ever taken plus blocks ever returned: what the host has handled."""

    def take(self, n: int) -> list[int]:
        """Remove `n` free blocks, with one reference each. The caller has checked `free`."""
        self.free -= n
        self.turned += n
        return self._pop(n)

    def fits(self, n: int) -> bool:
        """Whether `n` blocks can be taken at once."""
        return n <= self.free

    def promise(self, n: int) -> None:
        """`n` blocks will be redeemed: they are no longer free, but not yet chosen."""
        self.free -= n
        self.turned += n

    def redeem(self, n: int) -> list[int]:
        """`n` promised blocks, with one reference each."""
        return self._pop(n)

    def unchoose(self, table: list[int]) -> None:
        """Blocks without identity, held once each, are as if only promised; `table` is emptied."""
        self._free += reversed(table)
        table.clear()

    def renounce(self, n: int) -> None:
        """`n` promised blocks will not be redeemed: they are free again."""
        self.free += n
        self.turned += n

    def _pop(self, n: int) -> list[int]:
        stack = self._free
        if n <= len(stack):
            if n == 1:
                return [stack.pop()]
            if not n:
                return []
            taken = stack[: -n - 1 : -1]
            del stack[-n:]
            return taken
        taken = stack[::-1]
        stack.clear()
        while len(taken) < n:
            block, identity = self._cached.popitem(last=False)
            self._forget(block, identity)
            taken.append(block)
        return taken

    def release(self, table: list[int]) -> None:
        """Drop one reference to each block of `table`, tail first, and empty it."""
        self.turned += len(table)
        if not self._extra and not self._identity:
            self.free += len(table)
            table.reverse()
            self._free += table
            table.clear()
            return
        while table:
            block = table.pop()
            extra = self._extra.get(block)
            if extra is not None:
                if extra > 1:
                    self._extra[block] = extra - 1
                else:
                    del self._extra[block]
            else:
                self.free += 1
                identity = self._identity.pop(block, None)
                if identity is None:
                    self._free.append(block)
                else:
                    self._cached[block] = identity

    def references(self, block: int) -> int:
        """Tables that hold `block`."""
        if block in self._extra:
            return self._extra[block] + 1
        return 0 if block in self._cached or block in self._unused() else 1

    def _unused(self) -> list[int]:
        return self._free

    # Prefix cache

    def name(self, block: int, identity: int) -> None:
        """Give a referenced block its identity: from now on it can be hit."""
        if block not in self._identity:
            self._identity[block] = identity
            self._holders.setdefault(identity, []).append(block)

    def pin(self, chain: Iterable[int]) -> None:
        """Take a block for each identity of `chain` for good: it can be hit, and is never free."""
        for identity in chain:
            [block] = self._pop(1)
            self.free -= 1
            self.name(block, identity)
            self.pinned.append(block)

    def forget(self, block: int) -> None:
        """Take the identity of a referenced block back: it was never computed."""
        if block in self._identity:
            self._forget(block, self._identity.pop(block))

    def lookup(self, chain: Iterable[int]) -> list[int]:
        """The longest run of blocks, from the start, that carry the identities of `chain`."""
        found = []
        for identity in chain:
            holders = self._holders.get(identity)
            if not holders:
                break
            found.append(holders[0])
        return found

    def idle(self, found: list[int]) -> int:
        """How many of `found` are unreferenced: a hit on them takes them off the free list."""
        return sum(block in self._cached for block in found)

    def share(self, found: list[int]) -> None:
        """Add one reference to each block of a hit."""
        self.turned += len(found)
        for block in found:
            identity = self._cached.pop(block, None)
            if identity is not None:
                self._identity[block] = identity
                self.free -= 1
            else:
                self._extra[block] = self._extra.get(block, 0) + 1

    def _forget(self, block: int, identity: int) -> None:
        holders = self._holders[identity]
        holders.remove(block)
        if not holders:
            del self._holders[identity]

    def check(self, tables: Iterable[list[int]]) -> None:
        """Raise AssertionError unless the pool and `tables` (all there are) agree."""
        counts = dict.fromkeys(self.pinned, 1)
        for table in tables:
            for block in table:
                counts[block] = counts.get(block, 0) + 1
        unused = self._unused()
        free = set(unused)
        assert len(free) == len(unused), "a block is on the free list twice"
        assert not free & counts.keys(), "a free block is in a table"
        assert not self._cached.keys() & counts.keys(), "a cached block is in a table"
        assert not self._cached.keys() & free, "a block is both free and cached"
        assert len(free) + len(self._cached) + len(counts) == self.blocks, "a block is lost"
        assert len(free) + len(self._cached) == self.free, "the count of free blocks is off"
        shared = {block: n - 1 for block, n in counts.items() if n > 1}
        assert shared == self._extra, "reference counts differ from table entries"
        assert self._identity.keys() <= counts.keys(), "an unreferenced block is not on the list"
        named = {**self._identity, **self._cached}
        holders = {b: i for i, blocks in self._holders.items() for b in blocks}
        assert named == holders, "identities and holders differ"


class ContiguousPool(BlockPool):
    """A sequence's blocks lie side by side, first fit, as in engines before paging.

    Room in sum is not room in one piece: external fragmentation.
    """

    def __init__(self, blocks: int, block_size: int) -> None:
        super().__init__(blocks, block_size)
        self._free.clear()
        self._map = bytearray(b"\1" * blocks)
        """1 where a block is free."""

    def fits(self, n: int) -> bool:
        """Whether `n` blocks in one piece are free."""
        return n <= self.free and self._map.find(b"\1" * n) >= 0

    def _pop(self, n: int) -> list[int]:
        at = self._map.find(b"\1" * n)
        self._map[at : at + n] = bytes(n)
        return list(range(at, at + n))

    def release(self, table: list[int]) -> None:
        """Drop the only reference to each block of `table`, and empty it."""
        self.turned += len(table)
        self.free += len(table)
        for block in table:
            self._map[block] = 1
        table.clear()

    def _unused(self) -> list[int]:
        return [block for block, free in enumerate(self._map) if free]
