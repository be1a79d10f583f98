"""Named workloads whose numbers come from published traces.

Means, P99s and maxima are those of the trace that each preset names (by nearest rank, as
`trace info` prints them); what no public trace states is marked as assumed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from traces.settings import merged, nearest


@dataclass(frozen=True, kw_only=True)
class Preset:
    """A workload as a settings table, and where its numbers are from."""

    about: str
    source: str
    table: Mapping[str, Any]


def _lognormal(mean: float, p99: float, most: int) -> dict[str, Any]:
    return {"kind": "lognormal", "mean": mean, "p99": p99, "max": most}


_AZURE = "AzurePublicDataset (CC-BY-4.0; Patel et al., ISCA 2024)"
_MOONCAKE = "Mooncake FAST'25 release (Apache-2.0)"

_CHAT = {"prompt": _lognormal(1155, 4142, 14050), "output": _lognormal(211, 601, 1000)}
_CODE = {"prompt": _lognormal(2122, 7436, 7437), "output": _lognormal(27.6, 283, 841)}
_DOCUMENT = {"prompt": _lognormal(13311, 86660, 120786), "output": _lognormal(357, 1019, 2000)}
_READER = {
    "turns": {"kind": "empirical", "values": (1, 1, 1, 2, 2, 3)},
    "followup": _lognormal(100, 400, 2000),
    "think_s": 30.0,
    "max_context": 125_000,
}

PRESETS = {
    "chat": Preset(
        about="conversations: prompts of about a thousand tokens, answers of some hundred",
        source=f"{_AZURE}: AzureLLMInferenceTrace_conv 2023, all 19,366 rows",
        table={"arrivals": {"kind": "gamma", "cv": 1.09}, "rate": 5.53, "requests": 2000, **_CHAT},
    ),
    "code": Preset(
        about="code completion: long prompts, very short outputs with a heavy tail, in bursts",
        source=f"{_AZURE}: AzureLLMInferenceTrace_code 2023, first 1,000 rows; burstiness of the "
        "gaps below 5 s (longer ones are silences)",
        table={"arrivals": {"kind": "gamma", "cv": 2.1}, "rate": 1.92, "requests": 2000, **_CODE},
    ),
    "doc-qa": Preset(
        about="questions about long documents, some asked again, behind one system prompt",
        source=f"{_MOONCAKE}: conversation_trace, first 600 rows; every row opens with one block "
        "of 512 tokens; turns so that reuse is near the 37.4 % of all 12,031 rows; length of "
        "later questions and pauses assumed",
        table={
            "rate": 2.99,
            "requests": 2000,
            **_DOCUMENT,
            "shared": ({"tokens": 512},),
            "sessions": _READER,
        },
    ),
    "multi-tenant": Preset(
        about="chat, code, an assistant and document questions on one service",
        source="the other presets; chat to code as 27.3 to 16.8 million rows (Azure 2024, one "
        "week); assistant: BurstGPT_1 (CC-BY-4.0), first 30 rows; shares of assistant and "
        "documents, and priorities, assumed",
        table={
            "rate": 8.0,
            "requests": 4000,
            **_CHAT,
            "classes": (
                {"name": "chat", "weight": 50.0, **_CHAT},
                {"name": "code", "weight": 31.0, "priority": 1, **_CODE},
                {
                    "name": "assistant",
                    "weight": 16.0,
                    "prompt": _lognormal(611, 1574, 4096),
                    "output": _lognormal(354, 1656, 4096),
                },
                {
                    "name": "documents",
                    "weight": 3.0,
                    "priority": 2,
                    **_DOCUMENT,
                    "shared": ({"tokens": 512},),
                    "sessions": _READER,
                },
            ),
        },
    ),
}


def expand(table: Mapping[str, Any]) -> dict[str, Any]:
    """The table with its `preset` key replaced by that preset's settings underneath its own.

    `clients` in it takes the place of the preset's rate, `duration_s` that of its number of
    requests.
    """
    name = table.get("preset")
    if name is None:
        return dict(table)
    if name not in PRESETS:
        raise ValueError(f"preset {name!r} is unknown{nearest(str(name), sorted(PRESETS))}")
    changes = {key: value for key, value in table.items() if key != "preset"}
    result = merged(PRESETS[name].table, changes)
    for given, instead in (("clients", "rate"), ("duration_s", "requests")):
        if changes.get(given) is not None and instead not in changes:
            del result[instead]
    return result
