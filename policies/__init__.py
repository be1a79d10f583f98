"""Who runs next. Imports `traces` only; each policy is one short file."""

from __future__ import annotations

from policies.base import Answer, Policy, Stable, Step, View, admit_in_order, feed_or_evict
from policies.chunked import Chunked
from policies.continuous import Continuous
from policies.fair_share import FairShare
from policies.fast_lane import FastLane
from policies.static import Static

POLICIES: dict[str, type[Policy]] = {
    "static": Static,
    "continuous": Continuous,
    "chunked": Chunked,
    "fast-lane": FastLane,
    "fair-share": FairShare,
}
"""Every policy by the name that scenarios and `--policy` use."""

__all__ = [
    "POLICIES", "Answer", "Chunked", "Continuous", "FairShare", "FastLane", "Policy", "Stable",
    "Static", "Step", "View", "admit_in_order", "feed_or_evict",
]  # fmt: skip
