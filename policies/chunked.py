"""Chunked prefill: running sequences first, then prompts in chunks from what is left.

The rules of vLLM's V1 scheduler (A1-A10 of its behaviour): decodes and unfinished chunks share
one list in admission order and one token budget, so no decode waits for a whole prefill.
"""

from __future__ import annotations

from dataclasses import dataclass

from policies.base import ALL, ALWAYS, BEHIND_HEAD, Stable, Step, admit_in_order, feed_or_evict
from policies.settings import Settings


@dataclass(frozen=True, kw_only=True)
class Chunked(Settings):
    """A larger `token_budget` lowers TTFT and raises the ITL tail."""

    long_prefill: int = 0
    """Tokens of one prompt a step at most, while others run or wait; 0 = no limit."""
    adaptive: bool = False
    """Raise that limit to an equal share of the budget where it is larger."""
    chunks: bool = True
    """False: a prompt is prefilled whole, when it fits what is left of the budget."""

    def most(self, step: Step) -> int:
        """Prefill tokens a sequence may get in this step (rule A3)."""
        if not (self.long_prefill or self.adaptive):
            return ALL
        crowd = len(step.running) + len(step.waiting())
        if crowd <= 1:
            return ALL
        share = self.token_budget // crowd if self.adaptive else 0
        return max(self.long_prefill, share) or ALL

    def schedule(self, step: Step) -> Stable | None:
        most = self.most(step)
        feed_or_evict(step, self.evict, most)
        admit_in_order(step, most, whole=not self.chunks)
        return ALWAYS if self.long_prefill or self.adaptive else BEHIND_HEAD
