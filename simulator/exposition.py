"""`/metrics` of the mock server, in the names that vLLM gives them (Prometheus text format)."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator

from simulator.live import Answered, Live
from simulator.sequence import Sequence
from traces.trace import PS_PER_S

TTFT = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
        20.0, 40.0, 80.0, 160.0, 640.0, 2560.0)  # fmt: skip
ITL = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
       20.0, 40.0, 80.0)  # fmt: skip
E2E = (0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0,
       240.0, 480.0, 960.0, 1920.0, 7680.0)  # fmt: skip
"""Bucket bounds, as vLLM has them."""


class Histogram:
    """Counts of seconds by bucket."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        self.counts[bisect_left(self.bounds, value)] += times
        self.sum += value * times

    def lines(self, name: str, labels: str) -> Iterator[str]:
        total = 0
        for bound, count in zip((*self.bounds, "+Inf"), self.counts, strict=True):
            total += count
            yield f'{name}_bucket{{{labels},le="{bound}"}} {total}'
        yield f"{name}_sum{{{labels}}} {self.sum:.9g}"
        yield f"{name}_count{{{labels}}} {total}"


class Exposition:
    """What has been served, and what is going on."""

    def __init__(self, model: str, live: Live) -> None:
        self._labels = f'engine="0",model_name="{model}"'
        self._live = live
        self._ended: Counter[str] = Counter()
        self._prompt_tokens = self._output_tokens = self._queried = self._hits = 0
        self._ttft, self._itl, self._e2e = Histogram(TTFT), Histogram(ITL), Histogram(E2E)
        self._queue = Histogram(E2E)

    def ended(self, answered: Answered, seq: Sequence) -> None:
        """A request ended."""
        hung_up = answered.reason == "hung up"
        self._ended["abort" if hung_up else answered.reason or ""] += 1
        if not answered.times:
            return
        first, last = answered.times
        arrival = answered.request.arrival
        self._prompt_tokens += answered.request.prompt
        self._output_tokens += answered.produced
        if self._live.engine.prefix_cache:
            self._queried += answered.request.prompt
            self._hits += answered.hit
        self._ttft.observe((first - arrival) / PS_PER_S)
        self._e2e.observe((last - arrival) / PS_PER_S)
        self._queue.observe((seq.first_scheduled - arrival) / PS_PER_S)
        if (gaps := answered.produced - 1) > 0:
            self._itl.observe((last - first) / PS_PER_S / gaps, gaps)

    @property
    def served(self) -> int:
        """Requests that ended with their whole answer."""
        return self._ended["stop"] + self._ended["length"]

    def text(self) -> str:
        live, labels, engine = self._live, self._labels, self._live.engine
        lines = []

        def put(name: str, kind: str, about: str, *values: str) -> None:
            lines.extend([f"# HELP {name} {about}", f"# TYPE {name} {kind}", *values])

        def one(name: str, kind: str, about: str, value: float) -> None:
            # The name of a counter's family is without the suffix of its sample.
            family = name.removesuffix("_total")
            put(family, kind, about, f"{name}{{{labels}}} {value:.9g}")

        one("vllm:num_requests_running", "gauge", "Requests running.", live.running)
        one("vllm:num_requests_waiting", "gauge", "Requests waiting.", live.waiting)
        one("vllm:kv_cache_usage_perc", "gauge", "KV blocks in use; 1 = all.", live.used_share)
        one("vllm:num_preemptions_total", "counter", "Preemptions.", live.preemptions)
        one("vllm:prompt_tokens_total", "counter", "Prompt tokens served.", self._prompt_tokens)
        one("vllm:generation_tokens_total", "counter", "Tokens generated.", self._output_tokens)
        one("vllm:prefix_cache_queries_total", "counter", "Tokens looked up.", self._queried)
        one("vllm:prefix_cache_hits_total", "counter", "Tokens found.", self._hits)
        put(
            "vllm:request_success",
            "counter",
            "Requests that ended, by reason.",
            *(
                f'vllm:request_success_total{{{labels},finished_reason="{reason}"}} '
                f"{self._ended[reason]}"
                for reason in ("stop", "length", "abort")
            ),
        )
        for name, about, histogram in (
            ("vllm:time_to_first_token_seconds", "Time to first token.", self._ttft),
            ("vllm:inter_token_latency_seconds", "Between tokens, mean of a request.", self._itl),
            ("vllm:e2e_request_latency_seconds", "Arrival to last token.", self._e2e),
            ("vllm:request_queue_time_seconds", "Arrival to first schedule.", self._queue),
        ):
            put(name, "histogram", about, *histogram.lines(name, labels))
        # vLLM counts a block that it keeps for itself.
        config = (
            f'block_size="{engine.block_size}",num_gpu_blocks="{engine.blocks + 1}",'
            f'enable_prefix_caching="{engine.prefix_cache}",engine="0"'
        )
        put(
            "vllm:cache_config_info",
            "gauge",
            "Settings of the KV cache.",
            f"vllm:cache_config_info{{{config}}} 1.0",
        )
        one("batchlab:behind_seconds", "gauge", "Lateness of the last event.", live.behind_s)
        one("batchlab:worst_behind_seconds", "gauge", "The most of it so far.", live.worst_behind_s)
        return "\n".join(lines) + "\n"
