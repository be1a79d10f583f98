"""The waiting room of one replica: one queue per lane, in the policy's order."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from heapq import merge
from typing import Literal

from sortedcontainers import SortedKeyList

from policies.base import Policy
from simulator.sequence import Sequence


class Lane:
    """One queue: first come first served (a deque) or by key (a sorted list)."""

    def __init__(self, policy: Policy, reentry: Literal["head", "tail"]) -> None:
        self._policy = policy
        self._at_head = reentry == "head"
        self._queue: deque[Sequence] | SortedKeyList = deque()
        self._keyed: bool | None = None

    def __len__(self) -> int:
        return len(self._queue)

    def __bool__(self) -> bool:
        return bool(self._queue)

    def __iter__(self) -> Iterator[Sequence]:
        at = 0
        while at < len(self._queue):
            seq = self._queue[at]
            yield seq
            # Admitted meanwhile: the next one has moved up to its place.
            if at < len(self._queue) and self._queue[at] is seq:
                at += 1

    def __getitem__(self, at: int) -> Sequence:
        seq: Sequence = self._queue[at]
        return seq

    def arrive(self, seq: Sequence) -> None:
        """Queue a new sequence."""
        if self._keyed is None:
            self._choose(seq)
        if self._keyed:
            self._queue.add(seq)  # type: ignore[union-attr]
        else:
            self._queue.append(seq)

    def come_back(self, seq: Sequence) -> None:
        """Queue a preempted sequence: by key, or at the head or tail as the policy says."""
        if self._keyed or not self._at_head:
            self.arrive(seq)
        else:
            self._queue.appendleft(seq)

    def _choose(self, seq: Sequence) -> None:
        """A sorted list if the policy's order has keys."""
        self._keyed = self._policy.queue_key(seq) is not None
        if self._keyed:
            self._queue = SortedKeyList(key=lambda seq: (self._policy.queue_key(seq), seq.index))

    def remove(self, seq: Sequence) -> None:
        """Take `seq` out, wherever it stands."""
        if not self._keyed and self._queue[0] is seq:
            self._queue.popleft()
        else:
            self._queue.remove(seq)


class Waiting:
    """All lanes of a replica, seen as one queue; a policy without lanes has just one."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._reentry: Literal["head", "tail"] = getattr(policy, "reentry", "head")
        self.lanes: dict[str, Lane] = {}
        self.only: Lane | None = None
        """The lane, while there is just one."""

    def lane(self, name: str) -> Lane:
        """The queue of lane `name`, made when first asked for."""
        lane = self.lanes.get(name)
        if lane is None:
            lane = self.lanes[name] = Lane(self._policy, self._reentry)
            self.only = lane if len(self.lanes) == 1 else None
        return lane

    @property
    def first_come(self) -> deque[Sequence] | None:
        """The only queue there is, if it is first come, first served."""
        lane = self.only
        if lane is None or not isinstance(lane._queue, deque):
            return None
        return lane._queue

    @property
    def only_name(self) -> str:
        """Its name."""
        [name] = self.lanes
        return name

    def __len__(self) -> int:
        return sum(map(len, self.lanes.values()))

    def __bool__(self) -> bool:
        lane = self.only
        return bool(lane._queue) if lane is not None else any(self.lanes.values())

    def __iter__(self) -> Iterator[Sequence]:
        if len(self.lanes) == 1:
            return iter(next(iter(self.lanes.values())))
        return merge(*self.lanes.values(), key=lambda seq: (seq.queued_at, seq.index))

    def __getitem__(self, at: int) -> Sequence:
        if len(self.lanes) == 1:
            return next(iter(self.lanes.values()))[at]
        return list(self)[at]
