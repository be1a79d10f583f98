"""`presets.json`: the cost form fitted to aiconfigurator-core's grids → the profiles that ship.

`batchlab profile import presets FILE -o DIR` makes `calibration/profiles/*.json` again. The
recorded tables dip in places; here they are made monotone by an isotonic fit, and errors restated
on the recorded grids (`aiconfigurator/` beside the file) where the configuration has one, else
the preset's own with the change of the tables named.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from calibration.errors import errors_by_class, predicted_seconds
from calibration.importers.aiconfigurator import read_grid
from calibration.importers.composed import Configuration, composed_profile, monotone, moved
from calibration.profile import (
    ClassErrors,
    Cost,
    Decode,
    Error,
    Errors,
    Measured,
    Profile,
    ProfileError,
)

GRID_CONTEXT = 65536
"""The recorded prefill grids reach 32,768 new tokens on 32,768 cached ones."""


def read_presets(path: Path | str) -> list[Profile]:
    """One profile for each configuration in the file. Raises ProfileError in one line."""
    path = Path(path)
    try:
        presets = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ProfileError(f"{path}: cannot be read as JSON: {error}") from None
    if not isinstance(presets, dict) or not presets:
        raise ProfileError(f"{path}: expected a JSON object of presets by name")
    profiles = []
    for key, preset in presets.items():
        try:
            profiles.append(_profile(key, preset, path.parent))
        except KeyError as error:
            raise ProfileError(f"{path}: preset {key!r}: field {error} is missing") from None
        except (ValueError, TypeError) as error:
            raise ProfileError(f"{path}: preset {key!r}: {error}") from None
    return profiles


def _profile(key: str, preset: dict[str, Any], folder: Path) -> Profile:
    of = Configuration.parse(key)
    if preset["units"] != "ms":
        raise ValueError(f"units {preset['units']!r}, expected 'ms'")
    p, d = preset["prefill"], preset["decode"]
    knots = {"g": preset["g"]["N"], "h": preset["h"]["S"]}
    raw = {name: np.array(preset[name]["ms"]) * 1e-3 for name in knots}
    tables = {name: monotone(knots[name], raw[name]) for name in knots}
    cost = Cost(
        g=tables["g"],
        h=tables["h"],
        p0=p["p0"] * 1e-3,
        pA=p["pA"] * 1e-3,
        pP=p["pP"] * 1e-3,
        pF=p["pChunk"] * 1e-3,
        decode=Decode(d0=d["d0"] * 1e-3, dD=d["dD"] * 1e-3, dK=d["dK"] * 1e-3),
    )
    change = moved(g=(tables["g"], raw["g"]), h=(tables["h"], raw["h"]))
    stem = folder / "aiconfigurator" / key
    if Path(f"{stem}_decode.csv").exists():
        rows = read_grid(stem).rows
        fit = errors_by_class(rows, predicted_seconds(cost.step_time(), rows))
        errors = Errors(
            fit=fit,
            note=f"{change}; errors of that form on this configuration's recorded grids",
        )
    else:
        own = preset["fit"]
        every = {
            "mape": own["mape"], "p95": own["p95"], "max": own["mx"], "bias": own["bias"],
        }  # fmt: skip
        fit = ClassErrors(
            all=Error(**{name: percent / 100 for name, percent in every.items()}),
            decode=Error(mape=own["dec"] / 100),
        )
        errors = Errors(fit=fit, note=f"{change}; errors as the preset states them, before that")
    measured = Measured(
        tokens=(knots["g"][0], knots["g"][-1]),
        sequences=(knots["h"][0], knots["h"][-1]),
        context=(1, GRID_CONTEXT),
    )
    return composed_profile(of, cost, measured, errors)
