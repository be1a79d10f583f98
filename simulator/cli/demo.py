"""`batchlab demo`: the story in one minute."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from simulator.cli.compare import ALL, run_comparison
from simulator.cli.options import FormatOption
from simulator.cli.printing import Format

SCENARIO = Path(__file__).with_suffix(".toml")


def demo(
    out: Annotated[
        Path, typer.Option("-o", "--out", help="Folder for files, page and pictures.")
    ] = Path("demo"),
    format: FormatOption = Format.table,
) -> None:
    """Static, continuous, chunked and fast lane on one chat workload: a table, a page, pictures."""
    from simulator.scenario import Scenario

    run_comparison(Scenario.load(SCENARIO), ALL.split(","), out, format)
