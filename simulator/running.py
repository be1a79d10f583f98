"""The running set of one replica, in admission order."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as AbstractSequence
from typing import overload

from simulator.sequence import Sequence


class Running(AbstractSequence[Sequence]):
    """Admission order, with O(1) add, remove, first and last."""

    def __init__(self) -> None:
        self.members: dict[Sequence, None] = {}

    def add(self, seq: Sequence) -> None:
        """Append `seq`."""
        self.members[seq] = None

    def remove(self, seq: Sequence) -> None:
        """Take `seq` out; KeyError if it is not there."""
        del self.members[seq]

    def __contains__(self, seq: object) -> bool:
        return seq in self.members

    def __len__(self) -> int:
        return len(self.members)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self.members)

    def __reversed__(self) -> Iterator[Sequence]:
        return reversed(self.members)

    @overload
    def __getitem__(self, at: int) -> Sequence: ...
    @overload
    def __getitem__(self, at: slice) -> list[Sequence]: ...
    def __getitem__(self, at: int | slice) -> Sequence | list[Sequence]:
        if at == -1 and self.members:
            return next(reversed(self.members))
        return list(self.members)[at]
