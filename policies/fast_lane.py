"""A fast lane over chunked prefill: short jobs have a share of the token budget of their own.

A request with a short prompt and a small declared output queues in the lane "fast". Decodes of
both lanes come first; of the budget that is left the fast lane may use its share, and whatever
the slow lane does not want. Beyond shares of about 35 % the slow lane pays visibly.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from policies.base import ALWAYS, Stable, Step, admit_in_order, feed_or_evict
from policies.chunked import Chunked
from traces.trace import Request


@dataclass(frozen=True, kw_only=True)
class FastLane(Chunked):
    """Who is fast, and how much of the budget is theirs."""

    share: float = 0.3
    """Share of the token budget kept for the fast lane (0 < share < 1)."""
    fast_prompt: int = 512
    """Tokens of prompt at most."""
    fast_output: int = 0
    """Declared output tokens at most; 0 = go by the prompt alone."""

    # What orders the whole batch or one queue contradicts two lanes with shares of their own.
    chunks: bool = field(default=True, init=False)
    prefill_first: bool = field(default=False, init=False)
    partials: int = field(default=0, init=False)
    skips: int = field(default=0, init=False)
    check_first: bool = field(default=False, init=False)
    patience: float = field(default=0.0, init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.share < 1:
            raise ValueError(f"policy.share = {self.share}: expected more than 0, less than 1")

    @property
    def starves(self) -> str:
        """The budget is shared, but seats and blocks go to the fast lane first."""
        return "the slow lane, while fast requests fill the seats or the pool"

    def lane(self, request: Request) -> str:
        """ "fast" or "slow"."""
        small = not self.fast_output or request.declared <= self.fast_output
        return "fast" if small and request.prompt <= self.fast_prompt else "slow"

    def schedule(self, step: Step) -> Stable | None:
        most = self.most(step)
        feed_or_evict(step, self.evict, most=0)  # decodes of both lanes
        admits = self.admits(step)
        kept = min(step.tokens_left, int(self.share * self.token_budget))
        slow = min(step.wanted("slow", most), step.tokens_left - kept)
        for lane, left in (("fast", slow), ("slow", 0)):
            # What chunks in progress take of a lane's share, newcomers cannot take again.
            feed_or_evict(step, self.evict, most, lane, step.tokens_left - left)
            within = step.tokens_left - left
            if admits:
                admit_in_order(step, most, lane, within, reserve_max=self.reserve_max)
        return ALWAYS
