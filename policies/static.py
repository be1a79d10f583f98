"""Static batching: a batch is formed, runs until its last member ends, and only then the next.

The baseline. KV is reserved to the declared maximum. A finished member's blocks go back at
once, but its seat stays empty until the batch is done: that is the waste.
"""

from __future__ import annotations

from dataclasses import dataclass

from policies.base import ALWAYS, BEHIND_HEAD, Answer, Stable, Step
from policies.settings import Settings


@dataclass(frozen=True, kw_only=True)
class Static(Settings):
    """`token_budget` is not binding by default: a batch is prefilled in one step."""

    token_budget: int = 1 << 20
    """Tokens a step at most."""
    batch: int = 8
    """Sequences in a batch."""
    timeout: float = 1.0
    """Seconds after which an incomplete batch starts anyway, from its first member's arrival."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.batch < 1:
            raise ValueError(f"policy.batch = {self.batch}: expected at least 1")
        if not self.timeout >= 0:
            raise ValueError(f"policy.timeout = {self.timeout}: expected seconds ≥ 0")

    @property
    def reserves(self) -> bool:
        return True

    def schedule(self, step: Step) -> Stable | None:
        queue = step.waiting()
        if step.running:
            step.feed_running()
            if queue:
                step.wait(queue[0], Answer.BATCH)
            return BEHIND_HEAD
        if not queue:
            return ALWAYS
        late = queue[0].queued_at + round(self.timeout * 10**12)
        if len(queue) < self.batch and step.more_to_come and step.now < late:
            step.wait(queue[0], Answer.BATCH)
            return Stable(until=late)
        for seq in queue:
            if len(step.running) == self.batch:
                step.wait(seq, Answer.BATCH)
                break
            if not step.admit(seq, whole=True, hold=seq.prompt + seq.declared - 1):
                break
        return BEHIND_HEAD
