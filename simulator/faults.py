"""How the mock server misbehaves on demand, so that clients can be tried against it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from traces.settings import nearest

STATUSES = {
    401: "Invalid API key",
    429: "Rate limit reached",
    500: "Internal server error",
    503: "The server is overloaded",
}

KINDS = {
    **{str(status): f"answers {status} to every nth request" for status in STATUSES},
    "truncate": "ends every nth stream in the middle, as if it were whole",
    "drop": "closes the connection in the middle of every nth stream",
    "stop-early": "ends every nth answer at half its length",
    "slow": "answers so many seconds later",
    "chunk": "puts so many tokens into a chunk",
    "strict": "refuses parameters that are not OpenAI's",
    "no-token-ids": "refuses prompts of token ids",
    "no-tokenize": "has no /tokenize",
    "no-metrics": "has no /metrics",
    "no-usage": "never states usage",
    "no-completions": "has no /v1/completions, only chat",
}
"""What each kind does; a number behind `=` is n, the seconds or the tokens (default 1)."""
NUMBERED = ("truncate", "drop", "stop-early", "slow", "chunk", *map(str, STATUSES))


@dataclass(frozen=True)
class Faults:
    """Kinds that are on, each with its number."""

    on: dict[str, float] = field(default_factory=dict)

    @classmethod
    def parse(cls, texts: Iterable[str]) -> Faults:
        """From texts such as "503=3" and "no-metrics". Raises ValueError for others."""
        on: dict[str, float] = {}
        for text in texts:
            kind, equals, number = text.partition("=")
            if kind not in KINDS:
                raise ValueError(f"misbehave {kind!r}: unknown{nearest(kind, list(KINDS))}")
            if equals and kind not in NUMBERED:
                raise ValueError(f"misbehave {text!r}: {kind} takes no number")
            try:
                on[kind] = float(number) if equals else 1.0
            except ValueError:
                on[kind] = 0.0
            whole = kind == "slow" or on[kind] == int(on[kind])
            if not 0 < on[kind] < 1e6 or not whole:
                raise ValueError(f"misbehave {text!r}: expected a number above 0 behind {kind}=")
        return cls(on)

    def __contains__(self, kind: str) -> bool:
        return kind in self.on

    @property
    def slow_s(self) -> float:
        return self.on.get("slow", 0.0)

    @property
    def chunk(self) -> int:
        """Tokens a chunk at least."""
        return int(self.on.get("chunk", 1))

    def hits(self, kind: str, number: int) -> bool:
        """Whether request `number` (from 1) is one of every nth."""
        return kind in self.on and number % int(self.on[kind]) == 0

    def status(self, number: int) -> int | None:
        """The error that request `number` gets."""
        return next((s for s in STATUSES if self.hits(str(s), number)), None)
