"""Continuous batching, prefill first: sequences join and leave at every step.

A step either prefills whole prompts or decodes. Decodes stand still while prompts are
prefilled, which the ITL tail shows; chunked prefill is the cure.
"""

from __future__ import annotations

from dataclasses import dataclass

from policies.base import BEHIND_HEAD, Stable, Step, admit_in_order, feed_or_evict
from policies.settings import Settings


@dataclass(frozen=True, kw_only=True)
class Continuous(Settings):
    """`token_budget` bounds a prefill step; it must hold the longest prompt."""

    token_budget: int = 16_384
    """Tokens a step at most."""

    def schedule(self, step: Step) -> Stable | None:
        admit_in_order(step, whole=True, reserve_max=self.reserve_max)
        if not step.tokens:  # a prefill step does not decode
            feed_or_evict(step, self.evict)
        return BEHIND_HEAD
