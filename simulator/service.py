"""Service per lane, in tokens: what fair sharing compares (virtual token counter)."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from simulator.decodes import Decodes
from simulator.sequence import Sequence
from simulator.waiting import Lane


class Service:
    """Counts the tokens that each lane was fed.

    A lane that comes back from idleness starts at the least of the busy lanes' service, so that
    it cannot save up. While there is one lane only, its tokens go to a single counter.
    """

    def __init__(self, lanes: Mapping[str, Lane], runs: Callable[[str], bool]) -> None:
        self._lanes = lanes
        self._runs = runs
        self._tokens: dict[str, int] = {}
        self.alone = 0
        """Service of the first lane while there was no other: its batch adds to it."""
        self.returning: list[str] = []
        """Lanes that had nobody waiting or running before an arrival since the last step."""

    def of(self, lane: str) -> int:
        """Tokens of service that `lane` has had."""
        if self.alone:
            first = next(iter(self._lanes))
            self._tokens[first] = self._tokens.get(first, 0) + self.alone
            self.alone = 0
        return self._tokens.get(lane, 0)

    def arrives(self, name: str, lane: Lane) -> None:
        """Somebody is about to queue in `lane`."""
        if len(self._lanes) > 1 and not lane and not self._runs(name):
            self.returning.append(name)

    def begin(self) -> None:
        """A step begins: lanes that came back (`returning`) are lifted."""
        back = set(self.returning)
        self.returning.clear()
        others = [
            self.of(name)
            for name, lane in self._lanes.items()
            if name not in back and (lane or self._runs(name))
        ]
        for name in back:
            self._tokens[name] = max(self.of(name), min(others, default=0))

    def count(self, fed: Mapping[Sequence, int], group: Decodes | None, steps: int) -> None:
        """`steps` equal steps fed `fed`, and the decode group if given."""
        for seq, amount in fed.items():
            if seq.group is None:
                self._tokens[seq.lane] = self.of(seq.lane) + amount * steps
        if group is not None:
            for lane, members in group.lanes.items():
                self._tokens[lane] = self.of(lane) + members * steps
