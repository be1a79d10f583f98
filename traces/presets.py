"""Named workloads whose numbers come from published traces."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from traces.settings import merged, nearest

PRESETS: dict[str, dict[str, Any]] = {}


def expand(table: Mapping[str, Any]) -> dict[str, Any]:
    """The table with its `preset` key replaced by that preset's settings underneath its own."""
    name = table.get("preset")
    if name is None:
        return dict(table)
    if name not in PRESETS:
        raise ValueError(f"preset {name!r} is unknown{nearest(str(name), sorted(PRESETS))}")
    changes = {key: value for key, value in table.items() if key != "preset"}
    return merged(PRESETS[name], changes)
