"""Results to stdout, everything else to stderr."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import StrEnum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import RenderableType

    from reports.latencies import Latencies


FAILED = 1
WRONG_INPUT = 2
INTERRUPTED = 130
"""Exit codes; 0 = done."""
FITS = 80
"""Columns that tables are made for."""


class Format(StrEnum):
    """How results are printed."""

    table = "table"
    json = "json"
    csv = "csv"


def complain(message: str) -> None:
    """One line on stderr: what is wrong."""
    print(f"batchlab: {message}", file=sys.stderr)


def note(message: str) -> None:
    """One line on stderr: what to know."""
    print(message, file=sys.stderr)


def command_line() -> str:
    """What was typed, for people to type again."""
    return shlex.join(["batchlab", *sys.argv[1:]])


def columns() -> int:
    """Columns of the terminal, or those that tables are made for where it has fewer."""
    from rich.console import Console

    return max(Console().width, FITS)  # a figure that is cut reads as another one


def show(result: RenderableType, *, whole: bool = False) -> None:
    """A table on stdout. `whole`: wider than the terminal rather than cut."""
    from rich.console import Console

    console = Console(highlight=False)
    console.width = columns()
    if whole:
        endless = console.options.update(max_width=10_000)
        console.width = max(console.width, console.measure(result, options=endless).maximum)
    console.print(result)


def show_run(run: Latencies, summary: Mapping[str, Any], format: Format) -> None:
    """One run on stdout."""
    from reports.tables import run_table, to_csv, to_json
    from reports.timelines import timeline

    if format is Format.table:
        show(run_table(summary, timeline(run)))
    elif format is Format.csv:
        sys.stdout.write(to_csv({"run": summary}))
    else:
        sys.stdout.write(to_json(summary))


def show_comparison(summaries: Mapping[str, Mapping[str, Any]], format: Format) -> None:
    """Several runs, by name, on stdout."""
    from reports.tables import comparison_table, to_csv, to_json

    if format is Format.table:
        show(comparison_table(summaries))
    elif format is Format.csv:
        sys.stdout.write(to_csv(summaries))
    else:
        sys.stdout.write(to_json({"schema": 1, "runs": summaries}))


def show_rows(rows: Sequence[Mapping[str, Any]], format: Format) -> None:
    """Rows of equal keys on stdout."""
    from reports.tables import to_json
    from reports.units import NONE

    if format is Format.json:
        sys.stdout.write(to_json(list(rows)))
    elif format is Format.csv:
        import csv

        writer = csv.DictWriter(sys.stdout, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    else:
        import textwrap

        from rich import box
        from rich.table import Table

        table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
        for name in rows[0]:
            cells = [str(row[name]) for row in rows]
            # A head wraps between words; what stands below it never does.
            words = str(name).replace("_", " ")
            width = max(len(text) for text in [*cells, *words.split()])
            head = "\n".join(textwrap.wrap(words, width))
            right = all(text[:1].isdigit() or text == NONE for text in cells)
            table.add_column(head, justify="right" if right else "left", no_wrap=True)
        for row in rows:
            table.add_row(*map(str, row.values()))
        show(table, whole=True)


@contextmanager
def progress(what: str, after_s: float = 1.0) -> Iterator[Callable[[float], None]]:
    """A bar on stderr for work that takes longer than `after_s`; call it with the share done.

    It moves on a terminal and vanishes at the end; elsewhere nothing is printed.
    """
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn
    from rich.progress import TimeRemainingColumn as Remaining

    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda share: None
        return
    began = time.monotonic()
    columns = TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), Remaining()
    bar = Progress(*columns, console=console, transient=True)
    task = bar.add_task(what, total=1.0)

    def update(share: float) -> None:
        if not bar.live.is_started and time.monotonic() - began > after_s:
            bar.start()
        bar.update(task, completed=share)

    try:
        yield update
    finally:
        if bar.live.is_started:
            bar.stop()


@contextmanager
def status(what: str) -> Iterator[Callable[[str], None]]:
    """A line on stderr that says what is being looked at; call it with the text.

    It moves on a terminal and vanishes at the end; elsewhere nothing is printed.
    """
    from rich.console import Console

    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda text: None
        return
    with console.status(what) as line:
        yield lambda text: line.update(f"{what}: {text}"[: console.width - 4])
