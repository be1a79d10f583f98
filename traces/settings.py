"""Settings tables (TOML, keyword arguments) into validated dataclasses, with one-line errors."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any, TypeVar, get_args

from pydantic import ConfigDict, TypeAdapter, ValidationError

T = TypeVar("T")

STRICT = ConfigDict(extra="forbid")
"""For `pydantic.dataclasses.dataclass`: unknown keys are errors."""


def load(kind: Any, table: Any, where: str = "") -> Any:
    """Validate `table` as `kind` (a dataclass or a union of them).

    Raises ValueError with one line that names the key (below `where`), the value and what was
    expected; an unknown key comes with the nearest known one.
    """
    try:
        return TypeAdapter(kind).validate_python(table)
    except ValidationError as error:
        raise ValueError(explain(error, kind, where)) from None


ALSO_CALLED = {
    "seats": "engine.max_running",
    "batch_size": "engine.max_running",
    "max_batch_size": "engine.max_running",
    "max_num_seqs": "engine.max_running",
    "max_running_requests": "engine.max_running",
    "blocks": "engine.kv_tokens",
    "num_gpu_blocks": "engine.kv_tokens",
    "max_total_tokens": "engine.kv_tokens",
    "page_size": "engine.block_size",
    "watermark": "engine.reserve",
    "enable_prefix_caching": "engine.prefix_cache",
    "gpu": "engine.profile",
    "model": "engine.profile",
    "max_num_batched_tokens": "policy.token_budget",
    "chunked_prefill_size": "policy.token_budget",
    "qps": "trace.rate",
    "request_rate": "trace.rate",
    "num_prompts": "trace.requests",
}
"""What engines and load generators call a setting, and which of ours it is."""


def explain(error: ValidationError, kind: Any, where: str = "") -> str:
    """The first problem of a pydantic error as one line."""
    # A misspelt key also makes the right one missing: the misspelling is the cause.
    problems = error.errors(include_url=False)
    problem = next((p for p in problems if p["type"] == _UNKNOWN), problems[0])
    path = [str(part) for part in problem["loc"] if part not in ("function-before", "tagged")]
    known, shown = _follow(kind, path)
    name = ".".join(filter(None, [where, *shown]))
    match problem["type"]:
        case "unexpected_keyword_argument" | "extra_forbidden":
            return f"{name}: unknown key{unknown(path[-1], known)}"
        case "missing" | "missing_argument" | "missing_keyword_only_argument":
            return f"{name}: missing"
        case "union_tag_invalid":
            context = problem["ctx"]
            kinds = [tag.strip("'") for tag in context["expected_tags"].split(", ")]
            return f"{name}: kind {context['tag']!r} is unknown{nearest(context['tag'], kinds)}"
        case "union_tag_not_found":
            return f"{name}: needs a kind"
        case "dataclass_type" | "model_attributes_type":
            return f"{name}: {problem['input']!r}, expected a table of settings"
        case "value_error":
            message = problem["msg"].removeprefix("Value error, ")
            return f"{name}: {message}" if name else message
        case _:
            said = problem["msg"].replace("Input should be", "expected")
            return f"{name}: {problem['input']!r}, {said[0].lower()}{said[1:]}"


def nearest(name: str, known: list[str]) -> str:
    """How an error about an unknown name goes on: the nearest known one, and all of them."""
    if not known:
        return ""
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    guess = f"; did you mean {close[0]!r}?" if close else ""
    return f"{guess} (known: {', '.join(known)})"


def unknown(key: str, known: list[str]) -> str:
    """The same about an unknown key, which may be another tool's name for one of ours."""
    ours = ALSO_CALLED.get(key.replace("-", "_"))
    if any(key.startswith(name) for name in known):  # static has a `batch`
        ours = None
    listed = f" (known: {', '.join(known)})" if known else ""
    return f"; did you mean {ours!r}?{listed}" if ours else nearest(key, known)


_UNKNOWN = "unexpected_keyword_argument"


def _follow(kind: Any, path: list[str]) -> tuple[list[str], list[str]]:
    """The keys known where `path` ends, and the path without pydantic's own names for kinds."""
    at, shown = [kind], []
    known: list[str] = []
    for part in path:
        options = [option for one in at for option in _dataclasses(one)]
        tagged = [o for o in options if part in (o.__name__, _tag(o))]
        if tagged and not any(part == f.name for o in options for f in fields(o)):
            at = tagged
            continue
        shown.append(part)
        known = sorted({f.name for o in options for f in fields(o)})
        annotations = [getattr(o, "__pydantic_fields__", {}).get(part) for o in options]
        at = [found.annotation for found in annotations if found is not None] or at
    return known, shown


def _dataclasses(kind: Any) -> list[Any]:
    if isinstance(kind, type) and is_dataclass(kind):
        return [kind]
    return [found for part in get_args(kind) for found in _dataclasses(part)]


def _tag(kind: Any) -> str | None:
    return next((str(f.default) for f in fields(kind) if f.name == "kind"), None)


def merged(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """`base` with `changes` laid over it; a table merges into a table unless its kind differs."""
    result = dict(base)
    for key, value in changes.items():
        old = result.get(key)
        if isinstance(old, Mapping) and isinstance(value, Mapping):
            same_kind = value.get("kind", old.get("kind")) == old.get("kind")
            result[key] = merged(old, value) if same_kind else dict(value)
        else:
            result[key] = value
    return result
