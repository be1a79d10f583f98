"""Settings on disk: read TOML, and say in one line what is wrong with it and where."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

import tomli_w
from pydantic import BaseModel, ConfigDict, ValidationError, ValidationInfo, field_validator

from traces.settings import unknown


class ScenarioError(ValueError):
    """Settings that are wrong or can never work. The message is one line, made for people."""


class Section(BaseModel):
    """A table of settings: frozen, checked once, unknown keys are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    @field_validator("*", mode="before")
    @classmethod
    def _whole(cls, value: Any, info: ValidationInfo) -> Any:
        return whole(value, cls.model_fields[info.field_name or ""].annotation)


def whole(value: Any, wanted: Any) -> Any:
    """The value; where a whole number is `wanted`, and no other, 1e6 is 1000000."""
    if isinstance(value, list):
        return [whole(one, wanted) for one in value]
    asked = _among(int, wanted) and not _among(float, wanted)
    return int(value) if asked and isinstance(value, float) and value.is_integer() else value


def _among(kind: type, wanted: Any) -> bool:
    """Whether a type, as annotations put it together, takes a `kind`."""
    return wanted is kind or any(_among(kind, part) for part in get_args(wanted))


def one_line(error: Exception) -> str:
    """What an error says, on one line; of an OSError, which file and why."""
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    return " ".join(str(error).split())


def read_toml(path: Path) -> tuple[dict[str, Any], str]:
    """The tables of a TOML file, and its text. Raises `ScenarioError`, or OSError if unreadable."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ScenarioError(f"{path}: not a text file in UTF-8 ({error.reason})") from None
    try:
        return tomllib.loads(text), text
    except tomllib.TOMLDecodeError as error:
        raise ScenarioError(f"{path}: not TOML: {error}") from None


def write_toml(tables: Mapping[str, Any]) -> str:
    """Tables to TOML text; keys whose value is None are left out, as TOML has no null."""
    return tomli_w.dumps(_without_none(tables))


def _without_none(tables: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: _without_none(value) if isinstance(value, Mapping) else value
        for key, value in tables.items()
        if value is not None
    }


def parse_value(text: str) -> Any:
    """The value of `key=text` on the command line: TOML if it is TOML, else the bare string."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text.strip()


def set_key(tables: dict[str, Any], key: str, value: Any) -> dict[str, Any]:
    """A copy of `tables` with the dotted `key` set; tables on the way are made."""
    head, _, rest = key.partition(".")
    copy = dict(tables)
    if rest:
        inner = copy.get(head, {})
        if not isinstance(inner, Mapping):
            raise ScenarioError(f"{key}: {head} is a value, not a table")
        copy[head] = set_key(dict(inner), rest, value)
    else:
        copy[head] = value
    return copy


def line_of(text: str, key: Sequence[str]) -> int | None:
    """The line (from 1) of a TOML text on which a key is set, or the nearest table around it."""
    section: tuple[str, ...] = ()
    best: tuple[int, int] | None = None
    for number, line in enumerate(text.splitlines(), 1):
        if table := re.match(r"\s*\[([^\[\]]+)\]", line):
            section = _dotted(table[1])
            here = section
        elif entry := re.match(r"\s*([\w.\-\"' ]+?)\s*=", line):
            here = (*section, *_dotted(entry[1]))
        else:
            continue
        if here == tuple(key[: len(here)]) and (best is None or len(here) > best[0]):
            best = (len(here), number)
    return best[1] if best else None


def _dotted(key: str) -> tuple[str, ...]:
    return tuple(part.strip().strip("\"'") for part in key.split("."))


def explain(error: ValidationError, model: type[BaseModel]) -> str:
    """The first thing that a validation found, as one line: key, value, what was expected."""
    problems = error.errors(include_url=False)
    # A misspelt key also makes the right one missing: the misspelling is the cause.
    first = next((p for p in problems if p["type"] == "extra_forbidden"), problems[0])
    path = [str(part) for part in first["loc"]]
    name = ".".join(path)
    if first["type"] == "extra_forbidden":
        return f"{name}: unknown key{unknown(path[-1], _fields_at(model, path[:-1]))}"
    if first["type"] == "missing":
        return f"{name}: missing"
    said = first["msg"].removeprefix("Value error, ").replace("Input should be", "expected")
    if first["type"] in ("model_type", "dataclass_type", "dict_type"):
        said = "expected a table of keys"
    return f"{name} = {first['input']!r}: {said}"


def located(error: ValueError, source: Path | str, text: str) -> ScenarioError:
    """The same error with the file, and the line of the key that its message begins with."""
    found = re.match(r"[\w.-]+", str(error))
    line = line_of(text, found[0].split(".")) if found else None
    return ScenarioError(f"{source}{f' line {line}' if line else ''}: {error}")


def _fields_at(model: type[BaseModel], path: Sequence[str]) -> list[str]:
    for part in path:
        field = model.model_fields.get(part)
        inner = field.annotation if field else None
        if not (isinstance(inner, type) and issubclass(inner, BaseModel)):
            return []
        model = inner
    return list(model.model_fields)
