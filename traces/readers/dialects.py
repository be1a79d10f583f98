"""The recorded formats that are known: one row each. Detection goes by the columns alone."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from traces.readers.table import cut, fold
from traces.settings import nearest

Clock = Literal["s", "ms", "ns", "wall"]


@dataclass(frozen=True, kw_only=True)
class Dialect:
    """How a format names what a trace holds. Column names are compared without case."""

    name: str
    about: str
    arrival: str | None
    """None: lengths without times."""
    clock: Clock = "s"
    """The unit of `arrival`; "wall" = date and time, UTC where no zone is named."""
    own_zero: bool = False
    """Whether the clock's zero is time 0; otherwise the first row is."""
    prompt: str
    output: str
    needs: tuple[str, ...] = ()
    """Further columns that tell this format from others."""
    also: Mapping[str, str] = field(default_factory=dict)
    """Our optional columns -> theirs: declared, priority, tenant, session, after, label, parent."""
    ids: str | None = None
    """Column with the ids of the prompt's blocks, where rows have one."""
    unit: int = 0
    """Tokens that an id covers."""
    unused: Mapping[str, str] = field(default_factory=dict)
    """Columns that say something which is not used, and what to tell people about it."""

    @property
    def required(self) -> frozenset[str]:
        """The columns, folded, by which it is known."""
        names = (self.arrival, self.prompt, self.output, *self.needs)
        return frozenset(fold(name) for name in names if name)


DIALECTS = (
    Dialect(
        name="plain",
        about="our own: seconds from time 0; further columns are optional",
        arrival="arrival",
        own_zero=True,
        prompt="prompt",
        output="output",
        also={
            name: name for name in ("declared", "priority", "tenant", "session", "after", "label")
        },
    ),
    Dialect(
        name="azure",
        about="Azure LLM inference traces 2023, 2024 and 2025 (AzurePublicDataset)",
        arrival="TIMESTAMP",
        clock="wall",
        prompt="ContextTokens",
        output="GeneratedTokens",
        unused={"NumImages": "images are not modelled beyond the tokens they are counted as"},
    ),
    Dialect(
        name="burstgpt",
        about="BurstGPT, files 1 and 2 (6 columns) and 3 (8 columns)",
        arrival="Timestamp",
        prompt="Request tokens",
        output="Response tokens",
        also={"session": "Session ID"},
    ),
    Dialect(
        name="mooncake",
        about="Mooncake (FAST'25): milliseconds, ids of blocks of 512 tokens",
        arrival="timestamp",
        clock="ms",
        prompt="input_length",
        output="output_length",
        ids="hash_ids",
        unit=512,
    ),
    Dialect(
        name="mooncake",
        about="Mooncake without ids, as CSV",
        arrival="timestamp_ms",
        clock="ms",
        prompt="input_length",
        output="output_length",
    ),
    Dialect(
        name="bailian",
        about="Qwen on Alibaba Bailian: seconds, ids of blocks of 16 tokens, chats",
        arrival="timestamp",
        prompt="input_length",
        output="output_length",
        needs=("chat_id", "parent_chat_id"),
        also={"label": "chat_id", "parent": "parent_chat_id"},
        ids="hash_ids",
        unit=16,
    ),
    Dialect(
        name="ragpulse",
        about="RAGPulse: seconds of a week, ids of parts of unstated length",
        arrival="timestamp",
        prompt="input_length",
        output="output_length",
        needs=("session_id", "hash_ids"),
        also={"session": "session_id"},
        unused={"hash_ids": "hash_ids name parts without their lengths: no prefix identity"},
    ),
    Dialect(
        name="splitwise",
        about="splitwise-sim",
        arrival="arrival_timestamp",
        prompt="prompt_size",
        output="token_size",
        also={"label": "request_id"},
    ),
    Dialect(
        name="vidur",
        about="Vidur replay traces",
        arrival="arrived_at",
        prompt="num_prefill_tokens",
        output="num_decode_tokens",
    ),
    Dialect(
        name="vidur",
        about="Vidur length files",
        arrival=None,
        prompt="num_prefill_tokens",
        output="num_decode_tokens",
    ),
    Dialect(
        name="llmservingsim",
        about="LLMServingSim: nanoseconds, token ids",
        arrival="arrival_time_ns",
        clock="ns",
        prompt="input_toks",
        output="output_toks",
        ids="input_tok_ids",
        unit=1,
    ),
    Dialect(
        name="inference-perf",
        about="inference-perf per_request_lifecycle_metrics.json",
        arrival="start_time",
        prompt="prompt",
        output="output",
        needs=("end_time", "info"),
    ),
    *(
        Dialect(
            name="sharegpt-lengths",
            about="lengths of ShareGPT-like data sets, without times",
            arrival=None,
            prompt=prompt,
            output=output,
        )
        for prompt, output in (
            ("prompt_len", "output_len"),
            ("input_len", "output_len"),
            ("input_tokens", "output_tokens"),
            ("prompt_tokens", "completion_tokens"),
        )
    ),
)

NAMES = tuple(dict.fromkeys(one.name for one in DIALECTS))

_BENCH = "a benchmark result, expected a trace: rows with the lengths of one request each"
REFUSED = {
    "conversations": "ShareGPT with its texts: expected lengths in tokens; count them first",
    **dict.fromkeys(
        ("ttfts", "request_throughput", "experiments", "metadata", "custom_id", "metric"), _BENCH
    ),
}
"""Keys of formats that are known, and no traces."""


def lift(entry: dict[str, Any]) -> dict[str, Any]:
    """An inference-perf record as a flat row: its token counts lie deep inside."""
    info = entry.get("info") or {}
    answer = info.get("response_metrics") or {}
    times = answer.get("output_token_times") or ()
    return entry | {
        "prompt": info.get("input_tokens"),
        "output": answer.get("output_tokens", len(times)),
    }


def choose(keys: Collection[str], name: str | None, where: str) -> Dialect:
    """The dialect of a file with these columns: the one named, or the one that needs most of them.

    Raises ValueError that says what was found and what was expected.
    """
    have = {fold(key) for key in keys}
    if {"start_time", "info"} <= have:
        have |= {"prompt", "output"}
    if name is not None and name not in NAMES:
        raise ValueError(f"dialect {name!r} is unknown{nearest(name, list(NAMES))}")
    candidates = [one for one in DIALECTS if name in (None, one.name)]
    fitting = [one for one in candidates if one.required <= have]
    if fitting:
        return max(fitting, key=lambda one: len(one.required))
    found = cut(", ".join(keys)) if keys else "none"
    for key, reason in REFUSED.items():
        if key in have and name is None:
            raise ValueError(f"{where}: {reason}")
    if name is not None:
        lacks = min((sorted(one.required - have) for one in candidates), key=len)
        raise ValueError(f"{where}: {name} needs {', '.join(lacks)}; found: {found}")
    expected = "; ".join(f"{one.name} ({_columns(one)})" for one in _distinct())
    raise ValueError(f"{where}: no known format has the columns {found}; expected {expected}")


def _columns(one: Dialect) -> str:
    return ", ".join(name for name in (one.arrival, one.prompt, one.output, *one.needs) if name)


def _distinct() -> list[Dialect]:
    return [next(one for one in DIALECTS if one.name == name) for name in NAMES]
