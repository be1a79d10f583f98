"""What to ask a server from outside: which steps, with how many requests and tokens.

Three kinds of points. *prefill*: one prompt alone; its first token comes after one step of so
many tokens. *decode*: D streams at once; once all of them decode, a gap is a decode step.
*mixed*: D streams decode while prompts come in, one after the other; the gap that ends with a
prompt's first token is a mixed step.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from typing import Literal

Kind = Literal["prefill", "decode", "mixed"]
WINDOW = 16
"""Gaps over which a decode step is timed, after all streams decode."""
SHORT = 64
"""Prompt tokens of streams that decode while others prefill."""
APART = 7
"""Steps between two prompts of a mixed point, and as many to be late in."""
BEFORE = 16
"""Requests to warm up, and to find out what the server takes."""
SHARE = 0.9
"""Of the KV pool that a point may fill."""
TIMES = 3
"""Times that a first token is waited for: a late one is no rare thing, a gap has many beside it."""
PROMPTS = 72
"""Lengths of the prefill curve."""
STREAMS = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
MIXED = (2, 8, 24)
CONTEXTS = (64, 256, 1024, 4096)


@dataclass(frozen=True)
class Limits:
    """What may be asked of a server."""

    concurrency: int = 32
    """Streams at once."""
    longest: int = 4096
    """Tokens of the longest prompt."""
    token_budget: int = 2048
    """Tokens that the server takes in a step: no prompt that is timed has more."""
    max_model_len: int = 1 << 20
    kv_tokens: int = 1 << 40

    def __post_init__(self) -> None:
        for name in ("concurrency", "longest", "token_budget"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} {getattr(self, name)}, expected at least 1")


@dataclass(frozen=True, order=True)
class Point:
    """A measurement. `prompts`: of the one prompt, of the D streams, or those that come in."""

    kind: Kind
    streams: int
    prompts: tuple[int, ...]
    tokens: int
    """Tokens that each stream is asked for."""

    @property
    def rows(self) -> int:
        """Steps that it times."""
        return len(self.prompts) if self.kind == "mixed" else 1

    @property
    def requests(self) -> int:
        if self.kind == "prefill":
            return TIMES
        return self.streams + (len(self.prompts) if self.kind == "mixed" else 0)

    @property
    def prompt_tokens(self) -> int:
        if self.kind == "prefill":
            return TIMES * self.prompts[0]
        if self.kind == "mixed":
            return self.streams * SHORT + sum(self.prompts)
        return self.streams * self.prompts[0]

    @property
    def output_tokens(self) -> int:
        if self.kind == "prefill":
            return TIMES
        return self.streams * self.tokens + (len(self.prompts) if self.kind == "mixed" else 0)


@dataclass(frozen=True)
class Cost:
    """What a plan asks of the server."""

    points: int
    requests: int
    prompt_tokens: int
    output_tokens: int
    most_at_once: int


def points(limits: Limits) -> list[Point]:
    """The grid of one pass."""
    budget = limits.token_budget
    longest = min(budget, limits.longest, limits.max_model_len - 2)
    found = [Point("prefill", 1, (n,), 1) for n in _spread(min(16, longest), longest, PROMPTS)]
    for streams in STREAMS:
        if streams > min(limits.concurrency, budget // 2):
            continue
        for context in CONTEXTS:
            # Those that came first decode while the last ones still prefill.
            steps = max(streams, math.ceil(streams * context / max(1, budget - streams)))
            tokens = WINDOW + steps + 2 if streams > 1 else WINDOW + 2
            whole = context + tokens
            fits = streams * whole <= SHARE * limits.kv_tokens
            if fits and whole <= limits.max_model_len and context <= limits.longest:
                found.append(Point("decode", streams, (context,), tokens))
    for streams in MIXED:
        most = min(longest, budget - streams, limits.max_model_len - 2)
        if streams >= limits.concurrency or most < 2:
            continue
        prompts = tuple(_spread(min(16, most), most, 7))
        tokens = (len(prompts) + 1) * 2 * APART + streams
        used = streams * (SHORT + tokens) + most
        if used <= SHARE * limits.kv_tokens and SHORT + tokens <= limits.max_model_len:
            found.append(Point("mixed", streams, prompts, tokens))
    return found


def plan(limits: Limits, passes: int, seed: int = 0) -> list[tuple[int, Point]]:
    """(pass, point) in the order to measure: each pass in a random order of its own, so that no
    kind of step is measured in a slow minute of the server alone."""
    order = []
    for number in range(passes):
        some = points(limits)
        random.Random(f"{seed}/{number}").shuffle(some)
        order += [(number, point) for point in some]
    return order


def cost(planned: list[tuple[int, Point]]) -> Cost:
    some = [point for _, point in planned]
    return Cost(
        points=len(some),
        requests=sum(point.requests for point in some),
        prompt_tokens=sum(point.prompt_tokens for point in some),
        output_tokens=sum(point.output_tokens for point in some),
        most_at_once=max((point.streams + (point.kind == "mixed") for point in some), default=0),
    )


def within(limits: Limits, passes: int, requests: int) -> Limits:
    """The same with as many streams at once as `requests` requests allow.

    Raises ValueError where not even one stream fits.
    """
    for streams in (limits.concurrency, *reversed(STREAMS)):
        if streams > limits.concurrency:
            continue
        less = Limits(
            streams, limits.longest, limits.token_budget, limits.max_model_len, limits.kv_tokens
        )
        least = cost(plan(less, passes)).requests + BEFORE
        if least <= requests:
            return less
    raise ValueError(f"--max-requests {requests}: expected at least {least} (or fewer --passes)")


def _spread(low: int, high: int, count: int) -> list[int]:
    """Whole numbers from low to high, each about as many times the one before."""
    step = (high / low) ** (1 / max(1, count - 1))
    return sorted({round(low * step**at) for at in range(count)} | {high})
