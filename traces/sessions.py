"""Who sends the requests: conversations, closed-loop clients, shared system prompts, classes."""

from __future__ import annotations

import dataclasses
from typing import Annotated, Literal

from pydantic import AfterValidator, Field
from pydantic.dataclasses import dataclass

from traces.lengths import Fixed, Lengths
from traces.settings import STRICT

ThinkTime = Annotated[float, Field(ge=0, allow_inf_nan=False)]


def _declared(value: int | str) -> int | str:
    if value == "exact" or (isinstance(value, int) and value >= 1):
        return value
    raise ValueError(f'{value!r}, expected tokens (at least 1) or "exact"')


Declared = Annotated[int | str, AfterValidator(_declared)]
"""The maximum output that requests declare: tokens, or "exact" (their true output)."""


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Sessions:
    """Conversations: the prompt of turn n is all that was said before it, and something new.

    The workload's `prompt` is what is new in a turn; `rate` stays that of requests, so
    conversations start at `rate` divided by the mean number of turns. A first turn alone is a
    conversation of one.
    """

    turns: Lengths
    """How many turns a conversation has."""
    followup: Lengths | None = None
    """New tokens in turns after the first; None = drawn like the first."""
    think_s: ThinkTime = 10.0
    """Mean pause (exponential). Closed loop: from the end of the answer to the next turn; open
    loop: from one send to the next."""
    loop: Literal["closed", "open"] = "closed"
    """Closed: a turn is never sent before the one before it has ended."""
    max_context: Annotated[int, Field(ge=2)] | None = None
    """A conversation ends before the turn whose prompt and output would exceed this."""


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Clients:
    """A closed loop: `count` clients, each with one request at a time. There is no rate.

    A client sends its next request (or its next conversation's first) when the one before has
    ended and it has paused; conversations are dealt out to the clients in turn.
    """

    count: Annotated[int, Field(ge=1)]
    """Also the most requests in flight."""
    think_s: ThinkTime = 0.0
    """Mean pause between conversations (exponential)."""


@dataclass(frozen=True, kw_only=True, config=STRICT)
class SharedPrefix:
    """A system prompt: the same `tokens` tokens in front of a `share` of all conversations."""

    tokens: Annotated[int, Field(ge=1)]
    share: Annotated[float, Field(gt=0, le=1)] = 1.0


@dataclass(frozen=True, kw_only=True, config=STRICT)
class RequestClass:
    """One kind of request in a mixture. What it leaves out is as in the workload."""

    name: Annotated[str, Field(min_length=1)]
    weight: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0
    """Share of the conversations (requests, where there are none), relative to the others."""
    tenant: str | None = None
    """None = the class's name."""
    priority: int = 0
    prompt: Lengths | None = None
    output: Lengths | None = None
    declared: Declared | None = None
    shared: tuple[SharedPrefix, ...] | None = None
    sessions: Sessions | None = None


SINGLE = Sessions(turns=Fixed(value=1))
"""No conversations: every request stands alone."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Kind:
    """A request class with everything filled in: what `synthesize` works with."""

    name: str
    weight: float
    tenant: str
    priority: int
    prompt: Lengths
    output: Lengths
    declared: Declared | None
    shared: tuple[SharedPrefix, ...]
    sessions: Sessions
