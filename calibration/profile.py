"""The profile file: what a step costs on one device, and where the numbers come from.

A JSON file of schema 1, times in seconds. `Cost` is the form of `step_time.py` in seconds;
`Profile` adds device, model, provenance, measured ranges, errors and the KV pool. Every field is
checked on load: a negative, NaN or falling value, an unknown or missing field is a `ProfileError`
of one line that names file, field, value and what was expected.

The form sees sums: 32 sequences of 2,000 tokens of context cost what 31 of 100 and one of 60,900
do.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from calibration.step_time import StepShape, StepTime
from calibration.step_time import Table as PicosecondTable

SCHEMA = 1
PROFILES = Path(__file__).parent / "profiles"
PICOSECONDS = 10**12
FLAT_LIST = re.compile(r"\[[^\[\]{}]*\]")

Seconds = Annotated[float, Field(ge=0, le=1e7, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Signed = Annotated[float, Field(allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1, strict=True)]
Range = tuple[Annotated[int, Field(ge=0, strict=True)], Annotated[int, Field(ge=0, strict=True)]]
Known = Literal["measured", "interpolated", "modelled", "missing"]


class ProfileError(ValueError):
    """A profile that cannot be used, in one line."""


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Table(_Part):
    """Seconds over a count: knots ascending from 1 up, seconds never falling."""

    knots: tuple[Count, ...]
    seconds: tuple[Seconds, ...]

    @model_validator(mode="after")
    def _check(self) -> Table:
        if not self.knots or len(self.knots) != len(self.seconds):
            raise ValueError(
                f"{len(self.knots)} knots and {len(self.seconds)} seconds|"
                "as many of one as of the other, and at least one"
            )
        for name, values, strict in ("knots", self.knots, 1), ("seconds", self.seconds, 0):
            for i in range(1, len(values)):
                before, here = values[i - 1], values[i]
                if here < before or (strict and here == before):
                    more = "more than" if strict else "at least"
                    raise ValueError(f"{name}[{i}] {here}|{more} the value before, {before}")
        return self

    def picoseconds(self) -> PicosecondTable:
        return self.knots, tuple(whole(s) for s in self.seconds)


class Decode(_Part):
    """Seconds of the decode side: per step, per decoding sequence, per cached token."""

    d0: Seconds = 0.0
    dD: Seconds = 0.0
    dK: Seconds = 0.0

    def picoseconds(self) -> tuple[int, int, int]:
        return whole(self.d0), whole(self.dD), whole(self.dK)


class Cost(_Part):
    """The cost form of `step_time.py` in seconds. `mixed` is None where it was not measured."""

    t0: Seconds = 0.0
    tS: Seconds = 0.0
    tB: Seconds = 0.0
    tM: Seconds = 0.0
    g: Table = Table(knots=(1,), seconds=(0.0,))
    h: Table = Table(knots=(1,), seconds=(0.0,))
    p0: Seconds = 0.0
    pA: Seconds = 0.0
    pP: Seconds = 0.0
    pF: Seconds = 0.0
    pH: Seconds = 0.0
    decode: Decode = Decode()
    mixed: Decode | None = None
    captured: tuple[Count, ...] = ()

    def step_time(self) -> StepTime:
        """The form in whole picoseconds, each coefficient rounded once."""
        return StepTime(
            t0=whole(self.t0),
            tS=whole(self.tS),
            tB=whole(self.tB),
            tM=whole(self.tM),
            g=self.g.picoseconds(),
            h=self.h.picoseconds(),
            p0=whole(self.p0),
            pA2=whole(self.pA / 2),
            pP=whole(self.pP),
            pF=whole(self.pF),
            pH=whole(self.pH),
            decode=self.decode.picoseconds(),
            mixed=self.mixed.picoseconds() if self.mixed else None,
            padded=self.captured,
        )

    def scaled(self, factor: float) -> Cost:
        """The same form with every coefficient times `factor`."""
        return Cost.model_validate(
            _scale(self.model_dump(exclude={"captured"}), factor)
        ).model_copy(update={"captured": self.captured})


class Error(_Part):
    """Predicted against measured step time, as shares of the measured one.

    `bias` is of the sum: Σ predicted / Σ measured − 1. None: the source does not say.
    """

    points: int | None = None
    mape: Share
    p95: Share | None = None
    max: Share | None = None
    bias: Signed | None = None


class ClassErrors(_Part):
    """Errors by class of step; `all` where the source gives no classes."""

    decode: Error | None = None
    prefill: Error | None = None
    mixed: Error | None = None
    all: Error | None = None


class Errors(_Part):
    """Of the fit on its own data, and on data held out: at random, and the largest sizes."""

    fit: ClassErrors = ClassErrors()
    held_out_random: ClassErrors | None = None
    held_out_largest: ClassErrors | None = None
    note: str = ""


class Measured(_Part):
    """Lowest and highest values measured; None: not recorded, so never called outside."""

    tokens: Range
    """N of a step."""
    sequences: Range
    """S of a step."""
    decode_context: Range | None = None
    """K of a step."""
    attended: Range | None = None
    """A of a step."""
    context: Range | None = None
    """Tokens of one sequence, cached and new."""
    block_size: Range | None = None


class Parts(_Part):
    """What each part of the form rests on."""

    host: Known
    projections: Known
    head: Known
    prefill_attention: Known
    decode_attention: Known
    mixed: Known
    transfers: Known = "missing"


class Grid(NamedTuple):
    """The upper ends of the measured ranges, for a test on every step."""

    tokens: int
    sequences: int
    decode_context: int
    area2: int
    context: int

    def outside(self, shape: StepShape) -> bool:
        """Whether the step lies beyond what was measured.

        The context of one sequence is seen only as a mean over the step's chunks or decodes.
        """
        p, f, d, area2, reach, context, _, _, _, _ = shape
        return (
            p + d > self.tokens
            or f + d > self.sequences
            or context > self.decode_context
            or area2 > self.area2
            or reach > f * self.context
            or context > d * self.context
        )


class Profile(_Part):
    """A cost curve with its provenance."""

    schema_version: Literal[1] = Field(alias="schema")
    units: Literal["seconds"]
    name: str
    device: str
    model: str
    dtype: str
    """Of the weights."""
    kv_dtype: str
    tp: Count = 1
    engine: str
    engine_version: str
    source: str
    licence: str
    date: str
    """Of the measurement, else of the source."""
    machine: str
    form: Literal["table", "smooth"] = "table"
    """How g was fitted: as a table, or c·(n0^r + N^r)^(1/r) written out as one."""
    kv_bytes_per_token: Count
    """On each of the tp devices."""
    pool_tokens: Count
    pool_rule: str
    """Recorded, or the formula that gave it."""
    max_model_len: Count
    measured: Measured
    parts: Parts
    missing: tuple[str, ...] = ()
    note: str = ""
    errors: Errors
    cost: Cost

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)

    def step_time(self) -> StepTime:
        """The cost form in whole picoseconds."""
        return self.cost.step_time()

    def grid(self) -> Grid:
        """The measured ranges' upper ends; what is not recorded has no end."""
        m, endless = self.measured, 2**63
        return Grid(
            m.tokens[1],
            m.sequences[1],
            m.decode_context[1] if m.decode_context else endless,
            2 * m.attended[1] if m.attended else endless,
            m.context[1] if m.context else endless,
        )

    def outside(self, shape: StepShape) -> bool:
        """Whether the step lies beyond the measured ranges (`grid()` for many steps)."""
        return self.grid().outside(shape)


def whole(seconds: float) -> int:
    """Whole picoseconds, rounded half to even."""
    return round(seconds * PICOSECONDS)


def profile_name(device: str, model: str, dtype: str, tp: int = 1) -> str:
    """`<gpu>_<model>_<dtype>[_tp<n>]`, the model in its short form `llama3.1-8b`."""
    short = model.replace("llama-", "llama")
    return f"{device}_{short}_{dtype}" + (f"_tp{tp}" if tp > 1 else "")


def list_profiles() -> list[str]:
    """Names of the profiles that ship."""
    return sorted(path.stem for path in PROFILES.glob("*.json"))


def load_profile(name_or_path: str | Path) -> Profile:
    """A shipped profile by name, or any by path (has a slash, or ends in .json).

    Raises ProfileError, naming the nearest shipped profile for an unknown name.
    """
    text = str(name_or_path)
    if "/" in text or text.endswith(".json"):
        return _read(Path(text))
    names = list_profiles()
    if text not in names:
        near = get_close_matches(text, names, n=1)
        hint = f"did you mean {near[0]!r}?" if near else "see `batchlab profile list`"
        raise ProfileError(f"unknown profile {text!r}: {hint}")
    return _read(PROFILES / f"{text}.json")


def save_profile(profile: Profile, path: Path | str) -> None:
    """Write the file; loading it gives the same profile but for the digits of its errors."""
    values = profile.model_dump(mode="json", by_alias=True, exclude_none=True)
    values["errors"] = _rounded(values["errors"])
    text = json.dumps(values, indent=1, ensure_ascii=False, allow_nan=False)
    text = FLAT_LIST.sub(lambda found: " ".join(found[0].split()), text)
    Path(path).write_text(text + "\n", encoding="utf-8")


def _read(path: Path) -> Profile:
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not text"
        raise ProfileError(f"{path}: cannot be read: {reason}") from None
    except json.JSONDecodeError as error:
        raise ProfileError(
            f"{path}, line {error.lineno}: not JSON ({error.msg}), expected a whole profile"
        ) from None
    if not isinstance(values, dict):
        raise ProfileError(f"{path}: {type(values).__name__}, expected a JSON object")
    if values.get("schema") != SCHEMA:
        raise ProfileError(f"{path}: schema {values.get('schema')!r}, expected {SCHEMA}")
    try:
        profile = Profile.model_validate(values)
    except ValidationError as error:
        raise ProfileError(f"{path}: {_complaint(error)}") from None
    step = profile.step_time()
    for what, least in (("decode", StepShape(decodes=1)), ("prefill", StepShape(2, 1, area2=4))):
        if step.price(least) <= 0:
            raise ProfileError(f"{path}: cost: the least {what} step takes 0 s, expected more")
    return profile


def _complaint(error: ValidationError) -> str:
    """The first error in our words: field, value, expected."""
    first = error.errors()[0]
    place = "".join(f"[{x}]" if isinstance(x, int) else f".{x}" for x in first["loc"])[1:]
    value, kind = first["input"], first["type"]
    if kind == "extra_forbidden":
        near = get_close_matches(str(first["loc"][-1]), _fields(first["loc"][:-1]), n=1)
        return f"unknown field {place!r}" + (f", did you mean {near[0]!r}?" if near else "")
    if kind == "missing":
        return f"field {place!r} is missing"
    if kind == "value_error":
        found, _, expected = str(first["ctx"]["error"]).partition("|")
        return f"{place}.{found}, expected {expected}"
    expected = first["msg"].removeprefix("Input should be ")
    return f"{place} {value!r}, expected {expected}"


def _fields(place: tuple[int | str, ...]) -> list[str]:
    """The fields a section has."""
    part: Any = Profile
    for key in place:
        kinds = part.model_fields[str(key)].annotation
        options = (kinds, *getattr(kinds, "__args__", ()))
        part = next(x for x in options if isinstance(x, type) and issubclass(x, BaseModel))
    return [field.alias or name for name, field in part.model_fields.items()]


def _scale(values: Any, factor: float, key: str = "") -> Any:
    if isinstance(values, Mapping):
        return {k: _scale(v, factor, k) for k, v in values.items()}
    if values is None or key == "knots":
        return values
    if isinstance(values, tuple | list):
        return [v * factor for v in values]
    return values * factor


def _rounded(values: Any) -> Any:
    """Five decimals: a thousandth of a percent."""
    if isinstance(values, dict):
        return {key: _rounded(value) for key, value in values.items()}
    return round(values, 5) if isinstance(values, float) else values
