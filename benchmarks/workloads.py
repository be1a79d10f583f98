"""The workloads that speed is measured on: W1-W8, and one recorded hour of Azure chat.

W1-W8 are Poisson arrivals with lognormal lengths (prompts with a sigma of 1, outputs with a
P99 of ten means) on two linear cost curves. `load` is the share of the rate at which requests
are admitted when all are queued at time 0; `rate` is what that came to when it was measured.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from calibration.step_time import StepTime
from policies.chunked import Chunked
from simulator.engine import Engine
from traces.arrivals import Poisson
from traces.lengths import Z99, Lognormal
from traces.seeds import stream
from traces.trace import Trace

US, NS = 10**6, 10**3
"""Picoseconds."""
MAX = 1 << 15
"""Tokens of a prompt, and of an output, at most."""


def linear(base_us: int, token_us: int, context_ns: int, area_ps: int) -> StepTime:
    """Base + per token + per decoded context token + per position attended in prefill."""
    return StepTime(
        t0=base_us * US,
        g=((1, 2), (token_us * US, 2 * token_us * US)),
        decode=(0, 0, context_ns * NS),
        pA2=area_ps,
    )


A100 = linear(8000, 50, 87, 2600)
H200 = linear(6000, 17, 33, 900)


@dataclass(frozen=True, kw_only=True)
class Workload:
    """One load on one engine under the chunked policy."""

    name: str
    about: str
    step_time: StepTime
    token_budget: int
    prompt_mean: int
    output_mean: int
    load: float
    rate: float
    """Requests per second."""
    requests: int = 20_000
    max_running: int = 256
    blocks: int = 1 << 17

    @property
    def policy(self) -> Chunked:
        return Chunked(token_budget=self.token_budget)

    @property
    def engine(self) -> Engine:
        return Engine(kv_tokens=self.blocks * 16, block_size=16, max_running=self.max_running)

    def trace(self, requests: int | None = None, rate: float | None = None) -> Trace:
        """The first `requests` of it; the same whatever their number."""
        count = requests or self.requests
        prompts = Lognormal(
            mean=self.prompt_mean, p99=self.prompt_mean * math.exp(Z99 - 0.5), max=MAX
        )
        outputs = Lognormal(mean=self.output_mean, p99=10 * self.output_mean, max=MAX)
        output = outputs.draw(stream(1, self.name, "output"), count)
        return Trace.of(
            arrival=Poisson().times(
                rate or self.rate, stream(1, self.name, "arrivals"), count=count
            ),
            prompt=prompts.draw(stream(1, self.name, "prompt"), count),
            output=output,
            declared=output,
            source=f"{self.name}: {self.about}",
        )


WORKLOADS = (
    Workload(
        name="W1", about="the base case", step_time=A100, token_budget=512,
        prompt_mean=1000, output_mean=250, load=0.8, rate=6.42,
    ),
    Workload(
        name="W2", about="a faster GPU", step_time=H200, token_budget=2048,
        prompt_mean=1000, output_mean=250, load=0.8, rate=18.2,
    ),
    Workload(
        name="W3", about="decode heavy", step_time=A100, token_budget=512,
        prompt_mean=200, output_mean=1000, load=0.8, rate=2.42,
    ),
    Workload(
        name="W4", about="an idle machine", step_time=A100, token_budget=512,
        prompt_mean=1000, output_mean=250, load=0.2, rate=1.62,
    ),
    Workload(
        name="W5", about="long prompts, mixed steps", step_time=A100, token_budget=512,
        prompt_mean=8000, output_mean=250, load=0.8, rate=0.853,
    ),
    Workload(
        name="W6", about="tight memory, preemptions", step_time=A100, token_budget=512,
        prompt_mean=500, output_mean=1000, load=0.97, rate=1.87, blocks=9_000,
    ),
    Workload(
        name="W7", about="overload", step_time=A100, token_budget=512,
        prompt_mean=1000, output_mean=250, load=1.2, rate=9.63,
    ),
    Workload(
        name="W8", about="reasoning", step_time=A100, token_budget=512,
        prompt_mean=500, output_mean=4000, load=0.8, rate=0.21, max_running=32,
        requests=4_000,
    ),
)  # fmt: skip
"""W1-W8."""
