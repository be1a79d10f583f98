"""From a policy's name to its class: ours, a file's (`./mine.py:Mine`), an installed package's."""

from __future__ import annotations

import dataclasses
import importlib.util
import sys
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from policies import POLICIES
from simulator.settings_file import ScenarioError
from traces.settings import nearest

ENTRY_POINTS = "batchlab.policies"
"""The entry-point group under which other packages add policies."""


def known_policies() -> dict[str, str]:
    """Every policy that can be named, with where it comes from."""
    known = dict.fromkeys(POLICIES, "batchlab")
    for point in entry_points(group=ENTRY_POINTS):
        known.setdefault(point.name, f"{point.dist.name if point.dist else ''} ({point.value})")
    return known


def policy_class(kind: str) -> type[Any]:
    """The class that `kind` names. Raises `ScenarioError` where there is none."""
    if kind in POLICIES:
        return POLICIES[kind]
    if ":" in kind or kind.endswith(".py"):
        return _from_file(kind)
    for point in entry_points(group=ENTRY_POINTS, name=kind):
        try:
            return _checked(point.load(), kind)
        except ImportError as error:
            raise ScenarioError(f"policy {kind!r} ({point.value}): {error}") from None
    raise ScenarioError(
        f"policy {kind!r}: unknown{nearest(kind, list(known_policies()))}; or a file: mine.py:Mine"
    )


def policy_file(kind: str) -> Path | None:
    """The file that a policy named `file.py:Class` comes from; None for the others."""
    if kind in POLICIES or ":" not in kind:
        return None
    return Path(kind.rpartition(":")[0])


@cache
def _from_file(kind: str) -> type[Any]:
    file, _, name = kind.rpartition(":")
    path = Path(file)
    if path.suffix != ".py" or not name:
        raise ScenarioError(f"policy {kind!r}: expected a name, or a file as in mine.py:Mine")
    if not path.is_file():
        raise ScenarioError(f"policy {kind!r}: no file {path}")
    module_name = f"batchlab_policy_{path.stem}"
    spec = importlib.util.spec_from_file_location(module_name, path)
    if spec is None or spec.loader is None:
        raise ScenarioError(f"policy {kind!r}: {path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module  # dataclasses look their own module up
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # whatever a stranger's file raises
        raise ScenarioError(
            f"policy {kind!r}: {path} does not load: {type(error).__name__}: {error}"
        ) from None
    if not hasattr(module, name):
        raise ScenarioError(f"policy {kind!r}: {path} has no {name}")
    return _checked(getattr(module, name), kind)


def _checked(found: Any, kind: str) -> type[Any]:
    if not (isinstance(found, type) and dataclasses.is_dataclass(found)):
        raise ScenarioError(f"policy {kind!r}: not a dataclass of settings")
    for needed in ("schedule", "lane", "queue_key", "token_budget"):
        if not hasattr(found, needed) and needed not in {f.name for f in dataclasses.fields(found)}:
            raise ScenarioError(f"policy {kind!r}: has no {needed} (see policies/base.py)")
    return found


def described() -> list[dict[str, str]]:
    """Every known policy in one row: name, origin, what it says of itself, settings."""
    rows = []
    for name, origin in known_policies().items():
        try:
            chosen = policy_class(name)
        except ScenarioError as error:  # a broken package must not hide the others
            rows.append({"name": name, "from": origin, "says": str(error), "settings": ""})
            continue
        says = sys.modules[chosen.__module__].__doc__ or chosen.__doc__ or ""
        settings = (f"{f.name}={f.default!r}" for f in dataclasses.fields(chosen) if f.init)
        first = says.strip().split("\n\n")[0]
        rows.append(
            {
                "name": name,
                "from": origin,
                "says": " ".join(first.split()),
                "settings": ", ".join(settings),
            }
        )
    return rows
