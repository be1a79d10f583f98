"""Recorded formats -> Trace. `dialects.py` is the table of those that are known."""

from traces.readers.dialects import DIALECTS, NAMES, Dialect
from traces.readers.reader import read_trace

__all__ = ["DIALECTS", "NAMES", "Dialect", "read_trace"]
