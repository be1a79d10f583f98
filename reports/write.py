"""Reports on disk: CSV, JSON, pictures and a page in one folder.

Files are written beside their place and moved there, so that a reader never sees half of one.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

import pandas as pd

from reports.frames import requests_frame, steps_frame
from reports.latencies import Latencies
from reports.metrics import compare, summarize, with_same_lanes
from reports.tables import to_csv, to_json
from traces.records import Records
from traces.sla import Sla


def write_run(
    records: Records,
    out_dir: Path | str,
    *,
    sla: Sla | None = None,
    metrics: str = "batchlab",
    command: str = "",
    steps: bool = True,
) -> dict[str, Any]:
    """One run into `out_dir`, made if need be; returns its summary.

    Writes requests.csv, steps.csv (unless `steps` is false: millions of rows take minutes),
    summary.json, figures/*.png and report.html. `command` is what repeats the run. Raises OSError,
    naming the path, where the folder cannot be written.
    """
    from reports.figures import run_figures
    from reports.page import run_page

    run = Latencies(records)
    summary = summarize(run, sla, metrics=metrics)
    out = prepare(out_dir)
    write_frame(out / "requests.csv", requests_frame(run))
    if steps:
        write_frame(out / "steps.csv", steps_frame(run))
    write_text(out / "summary.json", to_json(summary))
    pictures = run_figures(run, sla)
    _write_figures(out, pictures)
    write_text(out / "report.html", run_page(run, summary, sla=sla, command=command))
    return summary


def write_comparison(
    runs: Mapping[str, Records],
    out_dir: Path | str,
    *,
    sla: Sla | None = None,
    metrics: str = "batchlab",
    command: str = "",
) -> dict[str, dict[str, Any]]:
    """Runs of the same requests into one folder; returns their summaries by name.

    Writes summary.json, summary.csv, figures/*.png and report.html. Raises as `write_run`.
    """
    from reports.figures import comparison_figures
    from reports.page import comparison_page

    measured = with_same_lanes(runs)
    summaries = compare(measured, sla, metrics=metrics)
    out = prepare(out_dir)
    write_text(out / "summary.json", to_json({"schema": 1, "runs": summaries}))
    write_text(out / "summary.csv", to_csv(summaries))
    _write_figures(out, comparison_figures(measured, sla))
    write_text(out / "report.html", comparison_page(measured, summaries, sla=sla, command=command))
    return summaries


def prepare(out_dir: Path | str) -> Path:
    """The folder, made if need be. Raises OSError, with its path, where it cannot be written."""
    out = Path(out_dir)
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OSError(f"{out}: cannot make the folder: {_why(error)}") from None
    if not os.access(out, os.W_OK | os.X_OK):
        raise PermissionError(f"{out}: cannot write to the folder: permission denied")
    return out


def write_text(path: Path, text: str) -> None:
    """UTF-8, atomically."""
    _atomically(path, lambda file: file.write(text.encode()))


def write_bytes(path: Path, content: bytes) -> None:
    """Atomically."""
    _atomically(path, lambda file: file.write(content))


def write_frame(path: Path, frame: pd.DataFrame) -> None:
    """CSV, atomically: shortest exact decimals, LF, empty where undefined."""
    _atomically(path, lambda file: frame.to_csv(file, index=False, lineterminator="\n"))


def write_parquet(path: Path, frame: pd.DataFrame) -> None:
    """Parquet, atomically. Raises ValueError where pyarrow is not installed."""
    try:
        _atomically(path, lambda file: frame.to_parquet(file, index=False, engine="pyarrow"))
    except ImportError:
        raise ValueError(
            f"{path}: Parquet needs pyarrow: pip install 'batchlab[parquet]'"
        ) from None


def _write_figures(out: Path, pictures: Mapping[str, bytes]) -> None:
    folder = prepare(out / "figures")
    for name, content in pictures.items():
        write_bytes(folder / f"{name}.png", content)


def _atomically(path: Path, write: Callable[[IO[bytes]], Any]) -> None:
    beside = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with open(beside, "wb") as file:
            write(file)
        os.replace(beside, path)
    except OSError as error:
        raise OSError(f"{path}: cannot write: {_why(error)}") from None
    finally:
        with suppress(OSError):
            beside.unlink()


def _why(error: OSError) -> str:
    return (error.strerror or str(error)).lower()
