"""The CPU path: vectorised torch, cost linear in the sum of contexts."""

from calibration.attention.reference import paged_attention, write_kv

__all__ = ["paged_attention", "write_kv"]
