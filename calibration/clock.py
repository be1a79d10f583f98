"""Stopwatches for one engine step: host part and whole, in whole picoseconds."""

from __future__ import annotations

import time
from typing import Protocol

import torch

CLOCKS = {"cpu": time.thread_time_ns, "wall": time.perf_counter_ns}
"""`cpu`: time of the calling thread alone, blind to what else runs on the machine; right only
where torch computes in that thread. `wall`: what passes outside."""

PS_PER_NS = 1000


class Stopwatch(Protocol):
    """`start`, `launch` where inputs are ready, `stop` where the tokens are known."""

    def start(self) -> None: ...

    def launch(self) -> None: ...

    def stop(self) -> tuple[int, int]:
        """Picoseconds from start to launch (the host's part) and from start to stop."""
        ...


class HostStopwatch:
    """For work that runs in the calling thread. `clock` is a key of CLOCKS."""

    def __init__(self, clock: str) -> None:
        self._now = CLOCKS[clock]

    def start(self) -> None:
        self._start = self._now()

    def launch(self) -> None:
        self._launch = self._now()

    def stop(self) -> tuple[int, int]:
        stop = self._now()
        return (self._launch - self._start) * PS_PER_NS, (stop - self._start) * PS_PER_NS


class CudaStopwatch:
    """Wall time on the host up to the launch, CUDA events from there on."""

    def __init__(self) -> None:
        self._begin = torch.cuda.Event(enable_timing=True)
        self._end = torch.cuda.Event(enable_timing=True)

    def start(self) -> None:
        torch.cuda.synchronize()
        self._start = time.perf_counter_ns()

    def launch(self) -> None:
        self._host = time.perf_counter_ns() - self._start
        self._begin.record()

    def stop(self) -> tuple[int, int]:
        self._end.record()
        self._end.synchronize()
        host = self._host * PS_PER_NS
        return host, host + round(self._begin.elapsed_time(self._end) * 1e9)
