"""How far a cost form is off: predicted against measured step times, by class of step."""

from __future__ import annotations

import numpy as np
import pandas as pd

from calibration.profile import ClassErrors, Error
from calibration.raw import shapes_in
from calibration.step_time import StepTime


def predicted_seconds(step_time: StepTime, rows: pd.DataFrame) -> np.ndarray:
    """The price of each row's shape, as the simulator would charge it."""
    return np.array([step_time.price(shape) for shape in shapes_in(rows)]) / 1e12


def error(predicted: np.ndarray, seconds: np.ndarray) -> Error:
    """Of one or more steps."""
    off = np.abs(predicted / seconds - 1)
    return Error(
        points=len(off),
        mape=off.mean(),
        p95=np.quantile(off, 0.95, method="inverted_cdf"),
        max=off.max(),
        bias=predicted.sum() / seconds.sum() - 1,
    )


def errors_by_class(rows: pd.DataFrame, predicted: np.ndarray) -> ClassErrors:
    """Of each class that has rows (`kind` and `seconds` of a raw table)."""
    kind, seconds = rows["kind"].to_numpy(), rows["seconds"].to_numpy(dtype=float)
    return ClassErrors(
        **{
            name: error(predicted[kind == name], seconds[kind == name])
            for name in ("decode", "prefill", "mixed")
            if (kind == name).any()
        }
    )
