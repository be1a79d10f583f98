"""Makes docs/settings.md from the code: `python tests/settings_page.py`. A test compares."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
import textwrap
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from policies import POLICIES
from simulator.clients import RetrySettings
from simulator.door import DoorSettings
from simulator.fleet import Change, FleetSettings
from simulator.scenario import Scenario
from simulator.sections import (
    EngineSettings,
    ExecutorSettings,
    HostSettings,
    PolicySettings,
    TraceSettings,
)
from traces import arrivals, lengths, sessions
from traces.presets import PRESETS
from traces.synthesize import Workload

PAGE = Path(__file__).parent.parent / "docs" / "settings.md"

HEAD = """# Settings

A scenario is one TOML file that says everything a run depends on. Every key here can stand in
the file, and be set on the command line: `--set engine.block_size=32`. Unknown keys are errors.
Paths are relative to the file's folder. Times are seconds, or texts such as `"90s"`, `"1h"`.

```toml file=scenario.toml
seed = 7

[trace]
arrivals = "poisson"
rate = 12.0
requests = 500
prompt = { kind = "lognormal", mean = 1000, p99 = 4000, max = 8192 }
output = { kind = "lognormal", mean = 250, p99 = 1200, max = 2048 }
declared = 2048

[engine]
profile = "h100-sxm_llama3.1-8b_bf16"

[policy]
kind = "chunked"
token_budget = 2048

[sla]
ttft = { p99 = 0.8 }
itl = { p99 = 0.1 }
```

```console varies
$ batchlab simulate scenario.toml
```

`simulate -o DIR` writes the scenario with all its defaults spelt out to `DIR/scenario.toml`.

<!-- The tables are made from the code by tests/settings_page.py. -->
"""


def page() -> str:
    """The whole page."""
    sections = ("trace", "engine", "executor", "policy", "door", "retry", "fleet")
    top = [row for row in rows(Scenario) if row[0] not in sections]
    parts = [HEAD, "## The run\n", table(top)]
    parts += ["## `[trace]`: a recorded trace\n", table(rows(TraceSettings))]
    presets = ", ".join(f"`{name}`" for name in PRESETS)
    parts += [
        "## `[trace]`: a synthetic load\n",
        f"Where no `file` is named. Presets: {presets}. Where nothing is said, it is `chat`.\n",
        table([row for row in rows(Workload) if row[0] != "declared"]),
    ]
    for key, base, module in (
        ("arrivals", arrivals.Process, arrivals),
        ("prompt` and `output", lengths.Distribution, lengths),
    ):
        parts.append(f"### Kinds of `{key}`\n")
        parts.append(kinds(base, module))
    for name in ("Sessions", "Clients", "SharedPrefix", "RequestClass"):
        made = getattr(sessions, name)
        key = {"SharedPrefix": "shared", "RequestClass": "classes"}.get(name, name.lower())
        parts += [f"### `{key}`\n", f"{doc(made)}\n", table(rows(made))]
    parts += ["## `[engine]`\n", table(rows(EngineSettings))]
    parts += ["## `[policy]`\n", table(rows(PolicySettings))]
    for name, policy in POLICIES.items():
        parts += [f"### `{name}`\n", f"{doc(policy)}\n", table(rows(policy))]
    for name, made in (("door", DoorSettings), ("retry", RetrySettings), ("fleet", FleetSettings)):
        parts += [f"## `[{name}]`\n", f"{doc(made)}\n", table(rows(made))]
    parts += ["### `changes`\n", f"{doc(Change)}\n", table(rows(Change))]
    parts += ["## `[executor]`\n", table(rows(ExecutorSettings))]
    parts += ["## `[host]`\n", table(rows(HostSettings))]
    return "\n".join(parts)


def kinds(base: type, module: Any) -> str:
    """One row a kind, with its keys."""
    found = [
        made
        for made in vars(module).values()
        if inspect.isclass(made) and issubclass(made, base) and "kind" in made.__annotations__
    ]
    lines = ["| kind | keys | |", "|---|---|---|"]
    for made in found:
        fields = [f for f in dataclasses.fields(made) if f.name != "kind"]
        keys = ", ".join(
            f"`{f.name}`" if required(f) else f"`{f.name}` = {shown(default_of(f))}" for f in fields
        )
        kind = next(f.default for f in dataclasses.fields(made) if f.name == "kind")
        kind = getattr(kind, "default", kind)
        lines.append(f"| `{kind}` | {keys} | {doc(made)} |")
    return "\n".join(lines) + "\n"


def rows(made: Any) -> list[tuple[str, str, str, str]]:
    """Key, type, default and meaning of each setting."""
    says = attribute_docs(made)
    hints = get_type_hints(made, include_extras=True)
    if issubclass(made, BaseModel):
        given = {
            name: "required"
            if field.is_required()
            else shown(None if field.default is PydanticUndefined else field.default)
            for name, field in made.model_fields.items()
        }
    else:
        given = {
            f.name: "required" if required(f) else shown(default_of(f))
            for f in dataclasses.fields(made)
            if f.init
        }
    return [
        (name, kind(hints[name]), default, says.get(name, "")) for name, default in given.items()
    ]


def table(found: list[tuple[str, str, str, str]]) -> str:
    """A Markdown table of settings."""
    lines = ["| key | type | default | |", "|---|---|---|---|"]
    lines += [f"| `{name}` | {of} | {default} | {says} |" for name, of, default, says in found]
    return "\n".join(lines) + "\n"


def attribute_docs(made: type) -> dict[str, str]:
    """The docstrings under the attributes of a class and its bases."""
    found: dict[str, str] = {}
    for base in reversed(made.__mro__):
        if not base.__module__.startswith(("simulator", "traces", "policies")):
            continue
        body = ast.parse(textwrap.dedent(inspect.getsource(base))).body[0]
        assert isinstance(body, ast.ClassDef)
        for field, text in zip(body.body, body.body[1:], strict=False):
            if (
                isinstance(field, ast.AnnAssign)
                and isinstance(field.target, ast.Name)
                and isinstance(text, ast.Expr)
                and isinstance(text.value, ast.Constant)
            ):
                found[field.target.id] = " ".join(str(text.value.value).split())
    return found


def kind(annotation: Any) -> str:
    """A type as people read it."""
    if isinstance(annotation, str):
        return annotation
    origin = get_origin(annotation)
    if origin is Annotated:
        if "seconds" in repr(get_args(annotation)[1:]):
            return "time"
        return kind(get_args(annotation)[0])
    if origin is Literal:
        return " or ".join(f"`{value!r}`".replace("'", '"') for value in get_args(annotation))
    if origin in (Union, UnionType):
        options = [kind(one) for one in get_args(annotation) if one is not type(None)]
        if any(inspect.isclass(one) and hasattr(one, "kind") for one in get_args(annotation)):
            return "table with a `kind`"
        return " or ".join(dict.fromkeys(options))
    if origin in (tuple, list):
        return "list of tables"
    names = {
        int: "whole number",
        float: "number",
        str: "text",
        bool: "true or false",
        dict: "table",
    }
    return names.get(origin or annotation, "table")


def required(field: dataclasses.Field[Any]) -> bool:
    return default_of(field) is dataclasses.MISSING


def default_of(field: dataclasses.Field[Any]) -> Any:
    default = field.default
    if hasattr(default, "is_required"):  # pydantic's own
        return dataclasses.MISSING if default.is_required() else default.get_default()
    return default


def shown(value: Any) -> str:
    if value is None or value in ((), {}):
        return "none"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, str):
        return f'`"{value}"`'
    return f'`"{value.kind}"`' if hasattr(value, "kind") else f"`{value}`"


def doc(made: type) -> str:
    """The first paragraph of a docstring, on one line."""
    text = inspect.getdoc(made) or ""
    return re.sub(r"\s+", " ", text.split("\n\n")[0])


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
