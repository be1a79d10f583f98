"""What the profile commands print: rows, facts and errors."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

import typer
from rich.console import Console
from rich.table import Table

from simulator.cli.printing import Format

if TYPE_CHECKING:
    from calibration.profile import Errors, Profile


def print_errors(errors: Errors) -> None:
    """Errors by class as a table: of the fit, and on what was held out."""
    rows = []
    for label, classes in (
        ("fit", errors.fit),
        ("held out, random", errors.held_out_random),
        ("held out, largest", errors.held_out_largest),
    ):
        for kind, one in classes or ():
            if one:
                shares = (one.mape, one.p95, one.max, one.bias)
                points = str(one.points) if one.points else "–"
                rows.append([label, kind, points, *map(percent, shares)])
    columns = ["error", "class", "points", "mean", "P95", "max", "sum"]
    print_rows(columns, rows, Format.table, left=(0, 1))
    if errors.note:
        Console(soft_wrap=False).print(errors.note, style="dim", highlight=False)


def facts_of(profile: Profile) -> list[tuple[str, str]]:
    measured = profile.measured
    spans = {
        "tokens a step": measured.tokens,
        "sequences": measured.sequences,
        "cached tokens of decodes": measured.decode_context,
        "attended positions": measured.attended,
        "tokens of a sequence": measured.context,
        "block size": measured.block_size,
    }
    tp = f", {profile.tp} devices" if profile.tp > 1 else ""
    return [
        ("of", f"{profile.model} {profile.dtype} on {profile.device}{tp}"),
        ("engine", f"{profile.engine} {profile.engine_version}"),
        ("source", f"{profile.source} ({profile.licence}, {profile.date})"),
        ("machine", profile.machine),
        ("KV", f"{profile.pool_tokens:,} tokens of {profile.kv_bytes_per_token:,} bytes a device"),
        ("pool by", profile.pool_rule),
        ("longest sequence", f"{profile.max_model_len:,} tokens"),
        *((f"measured {what}", f"{a:,} to {b:,}") for what, (a, b) in _known(spans)),
        ("rests on", ", ".join(f"{part.replace('_', ' ')} {how}" for part, how in profile.parts)),
        ("missing", ", ".join(profile.missing) or "nothing"),
        ("note", profile.note or "–"),
    ]


def _known(
    spans: dict[str, tuple[int, int] | None],
) -> list[tuple[str, tuple[int, int]]]:
    return [(what, span) for what, span in spans.items() if span]


def percent(share: float | None) -> str:
    return "–" if share is None else f"{share * 100:.1f} %"


def print_rows(
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    format_: Format,
    left: Collection[int] = (0,),
) -> None:
    if format_ is Format.json:
        typer.echo(json.dumps([dict(zip(columns, row, strict=True)) for row in rows], indent=1))
        return
    if format_ is Format.csv:
        csv.writer(sys.stdout, lineterminator="\n").writerows([columns, *rows])
        return
    table = Table(box=None, pad_edge=False)
    for i, column in enumerate(columns):
        justify = "left" if i in left else "right"
        table.add_column(column, justify=justify, overflow="fold")  # type: ignore[arg-type]
    for row in rows:
        table.add_row(*row)
    Console().print(table, highlight=False)
    typer.echo()
