"""Policies on the very same requests, side by side."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from simulator.parallel import spread
from simulator.scenario import Scenario
from simulator.settings_file import parse_value
from traces.records import Records


def parse_policy(text: str) -> tuple[str, dict[str, Any]]:
    """ "static:batch=64:timeout=2" to the name and its settings; files (`mine.py:Mine`) too."""
    parts = text.strip().split(":")
    at = next((i for i, part in enumerate(parts) if "=" in part), len(parts))
    settings = {}
    for part in parts[at:]:
        name, equals, value = part.partition("=")
        if not equals:
            raise ValueError(f"policy {text!r}: {part!r}, expected name:key=value:key=value")
        settings[f"policy.{name.strip()}"] = parse_value(value)
    return ":".join(parts[:at]), settings


def variants(base: Scenario, policies: Sequence[str]) -> dict[str, Scenario]:
    """One scenario a policy, all else equal. Settings in `base` hold where a policy knows them.

    All are built once, so that what can never work is refused before anything runs.
    """
    chosen = {}
    for text in policies:
        kind, settings = parse_policy(text)
        if text in chosen:
            raise ValueError(f"policy {text!r}: given twice")
        chosen[text] = base.with_values({"policy.kind": kind}).with_values(settings)
    for text, scenario in chosen.items():
        try:
            scenario.build()
        except ValueError as error:
            raise ValueError(f"{text}: {error}") from None
    return chosen


def compare(
    scenarios: Mapping[str, Scenario],
    *,
    workers: int = -1,
    on_done: Callable[[str, Records], None] | None = None,
) -> dict[str, Records]:
    """Run them, in parallel; records by name, in the order given."""
    runs: dict[str, Records] = {}
    for name, records in spread(Scenario.run, scenarios, workers=workers):
        runs[name] = records
        if on_done:
            on_done(name, records)
    return {name: runs[name] for name in scenarios}
