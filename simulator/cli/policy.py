"""`batchlab policy`: the policies that can be named, and their settings."""

from __future__ import annotations

import typer

from simulator.cli.options import FormatOption
from simulator.cli.printing import Format, show, show_rows

app = typer.Typer(no_args_is_help=True, help="The policies known, and their settings.")


@app.callback()
def _policy() -> None:
    """The policies known, and their settings."""


@app.command("list")
def list_policies(format: FormatOption = Format.table) -> None:
    """Every policy by name, with what it does and its settings."""
    from simulator.policy_names import described

    rows = described()
    if format is Format.table:
        from rich.console import Group
        from rich.text import Text

        show(
            Group(
                *(
                    Text.assemble((row["name"], "bold"), f"  {row['says']}\n  {row['settings']}\n")
                    for row in rows
                )
            )
        )
    else:
        show_rows(rows, format)
