"""Fair share over chunked prefill: the tenant that has had the least service is admitted next.

Service is counted in tokens, prompt and output alike. A tenant that comes back from idleness
is lifted to the least served of those waiting, so that it cannot save up (virtual token
counter, Sheng et al., OSDI'24).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from policies.base import ALWAYS, Answer, Stable, Step
from policies.chunked import Chunked
from traces.trace import Request


@dataclass(frozen=True, kw_only=True)
class FairShare(Chunked):
    """One lane a tenant."""

    # What is about the one head of one queue does not apply.
    prefill_first: bool = field(default=False, init=False)
    skips: int = field(default=0, init=False)
    patience: float = field(default=0.0, init=False)

    def lane(self, request: Request) -> str:
        """The tenant."""
        return request.tenant

    def schedule(self, step: Step) -> Stable | None:
        most = self.most(step)
        self.feed(step, most)
        if not self.admits(step):
            return ALWAYS
        while waiting := [lane for lane in step.lanes if step.waiting(lane)]:
            lane = min(waiting, key=lambda lane: (step.served(lane), lane))
            head = step.waiting(lane)[0]
            if self.partials and step.unfinished >= self.partials:
                step.wait(head, Answer.LANE)
                return None
            hold = head.prompt + head.declared - 1 if self.reserve_max else 0
            if not step.admit(head, most, whole=not self.chunks, hold=hold):
                # Who is least served changes from step to step.
                return ALWAYS if len(waiting) == 1 else None
        return ALWAYS
