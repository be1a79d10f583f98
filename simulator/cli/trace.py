"""`batchlab trace`: look at a trace, make one, turn a recorded one into ours."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from simulator.cli.options import FormatOption, count_option
from simulator.cli.printing import Format, command_line, note, show
from simulator.cli.trace_bench import import_bench

if TYPE_CHECKING:
    from rich.console import RenderableType

    from traces.statistics import TraceStatistics
    from traces.trace import Trace

app = typer.Typer(no_args_is_help=True, help="Look at traces, make and convert them.")
app.command("import-bench")(import_bench)

FileArgument = Annotated[Path, typer.Argument(help="A recorded trace, gzipped or not.")]
OutputOption = Annotated[
    Path, typer.Option("--output", "-o", help="File to write: .csv, or .jsonl with prefixes.")
]
SeedOption = Annotated[int, count_option("--seed", least=0, help="Seed of all that is random.")]
DialectOption = Annotated[
    str | None, typer.Option("--dialect", help="Format of the file; found by its columns.")
]
StartOption = Annotated[
    str | None, typer.Option("--start", help='Leave out what arrives before, such as "10min".')
]
DurationOption = Annotated[
    str | None, typer.Option("--duration", help="Only what arrives within this time.")
]
LimitOption = Annotated[int | None, count_option("--limit", help="Only this many requests.")]
ScaleOption = Annotated[
    float, typer.Option("--scale-rate", help="Arrivals this many times as fast.")
]
DropOption = Annotated[
    bool, typer.Option("--drop-invalid", help="Drop and count wrong rows instead of refusing.")
]
UnwrapOption = Annotated[
    bool, typer.Option("--unwrap", help="Let a clock that starts again go on.")
]
SpreadOption = Annotated[
    bool, typer.Option("--spread-ticks", help="Spread arrivals recorded in coarse ticks.")
]
PresetOption = Annotated[
    str | None, typer.Option("--preset", help="A workload with published numbers, such as chat.")
]


@app.command("info")
def info(
    file: FileArgument,
    dialect: DialectOption = None,
    start: StartOption = None,
    duration: DurationOption = None,
    limit: LimitOption = None,
    scale_rate: ScaleOption = 1.0,
    drop_invalid: DropOption = False,
    unwrap: UnwrapOption = False,
    spread_ticks: SpreadOption = False,
    seed: SeedOption = 0,
    format: FormatOption = Format.table,
    html: Annotated[
        Path | None, typer.Option("--html", help="Also write a page with pictures to this file.")
    ] = None,
) -> None:
    """What a trace is like: rate, burstiness, lengths, shared prefixes, and what follows."""
    trace = _read(
        file,
        dialect,
        drop_invalid=drop_invalid,
        unwrap=unwrap,
        spread_ticks=spread_ticks,
        seed=seed,
    )
    part = _part(trace, start, duration, limit, scale_rate)
    _show(part, format)
    if html is not None:
        from reports.trace_page import trace_page
        from reports.write import prepare, write_text

        prepare(html.parent)
        write_text(html, trace_page(part, command=command_line()))
        note(f"written to {html}")


@app.command("make")
def make(
    output: OutputOption,
    scenario: Annotated[
        Path | None, typer.Argument(help="A TOML file with a [trace] table.", show_default=False)
    ] = None,
    preset: PresetOption = None,
    rate: Annotated[float | None, typer.Option("--rate", help="Requests per second.")] = None,
    requests: Annotated[int | None, count_option("--requests", help="How many.")] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", help="Any key of [trace]: prompt.mean=800; repeat it."
        ),
    ] = None,
    seed: SeedOption = 0,
    format: FormatOption = Format.table,
) -> None:
    """Make a synthetic trace and write it to a file."""
    from simulator.settings_file import parse_value, read_toml, set_key
    from traces.synthesize import Workload, synthesize
    from traces.write import write_trace

    table: dict[str, Any] = {}
    if scenario is not None:
        table = dict(read_toml(scenario)[0].get("trace", {}))
        if "file" in table:
            raise ValueError(
                f"{scenario}: trace.file is recorded; for that: batchlab trace convert"
            )
    given = {"preset": preset, "rate": rate, "requests": requests}
    table |= {key: value for key, value in given.items() if value is not None}
    for text in set_ or ():
        key, equals, value = text.partition("=")
        if not equals:
            raise ValueError(f"--set {text}: expected key=value, such as prompt.mean=800")
        table = set_key(table, key.strip().removeprefix("trace."), parse_value(value))
    if not table:
        raise ValueError("trace make: expected a --preset, a scenario file, or --set")
    trace = synthesize(Workload.from_table(table), seed)
    left_out = write_trace(trace, output)
    _show(trace.with_notes(*left_out), format)
    note(f"{len(trace):,} requests written to {output}")


@app.command("convert")
def convert(
    file: FileArgument,
    output: OutputOption,
    dialect: DialectOption = None,
    start: StartOption = None,
    duration: DurationOption = None,
    limit: LimitOption = None,
    scale_rate: ScaleOption = 1.0,
    drop_invalid: DropOption = False,
    unwrap: UnwrapOption = False,
    spread_ticks: SpreadOption = False,
    seed: SeedOption = 0,
) -> None:
    """Turn a recorded trace into our own format, the part of it that is asked for."""
    from traces.write import write_trace

    trace = _read(
        file,
        dialect,
        drop_invalid=drop_invalid,
        unwrap=unwrap,
        spread_ticks=spread_ticks,
        seed=seed,
    )
    trace = _part(trace, start, duration, limit, scale_rate)
    left_out = write_trace(trace, output)
    for text in (*trace.notes, *left_out):
        note(f"note: {text}")
    note(f"{len(trace):,} requests written to {output}")


@app.command("formats")
def formats() -> None:
    """The recorded formats that are known, and the columns that tell them."""
    from rich import box
    from rich.table import Table

    from traces.readers import DIALECTS

    table = Table("format", "what it is", "columns", box=box.SIMPLE_HEAD, pad_edge=False)
    for one in DIALECTS:
        names = (one.arrival, one.prompt, one.output, *one.needs)
        table.add_row(one.name, one.about, ", ".join(name for name in names if name))
    show(table)


def _read(file: Path, dialect: str | None, **repairs: Any) -> Trace:
    from traces.readers import read_trace

    return read_trace(file, dialect, **repairs)


def _part(
    trace: Trace, start: str | None, duration: str | None, limit: int | None, factor: float
) -> Trace:
    from simulator.sections import seconds
    from traces.select import scale_rate, window

    part = window(
        trace,
        start_s=0.0 if start is None else seconds(start),
        duration_s=None if duration is None else seconds(duration),
        limit=limit,
    )
    return scale_rate(part, factor)


def _show(trace: Trace, format: Format) -> None:
    from traces.statistics import describe

    statistics = describe(trace)
    if format is Format.table:
        show(_table(statistics))
        for text in statistics.notes:
            note(f"note: {text}")
        return
    from reports.tables import to_json
    from simulator.cli.printing import show_rows

    values = statistics.as_dict()
    if format is Format.json:
        sys.stdout.write(to_json(values))
    else:
        show_rows([_flat(values)], format)


def _table(about: TraceStatistics) -> RenderableType:
    from rich import box
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    facts = Table.grid(padding=(0, 2))
    for name, value in _facts(about):
        facts.add_row(Text(name, style="dim"), Text(value))
    lengths = Table(
        "tokens",
        *(("mean", "P50", "P95", "P99", "max", "total")),
        box=box.SIMPLE_HEAD,
        pad_edge=False,
    )
    for column in lengths.columns[1:]:
        column.justify = "right"
    for name, of in (("prompt", about.prompt), ("output", about.output)):
        if of is not None:
            whole = (of.p50, of.p95, of.p99, of.max, of.total)
            lengths.add_row(name, f"{of.mean:,.1f}", *(f"{value:,}" for value in whole))
    advice = [Text(f"→ {text}") for text in about.advice]
    return Group(Text(about.source, style="bold"), facts, lengths, *advice)


def _facts(about: TraceStatistics) -> list[tuple[str, str]]:
    facts = [("requests", f"{about.requests:,}"), ("duration", f"{about.duration_s:,.1f} s")]
    if about.rate is not None and about.peak_rate is not None:
        part = f"{about.part_s:,.0f}" if about.part_s >= 10 else f"{about.part_s:.2g}"
        peak = f"{about.peak_rate:.3g}/s in the busiest {part} s"
        facts += [("rate", f"{about.rate:.3g}/s, {peak}"), ("over time", _bars(about.rates))]
    if about.cv is not None:
        facts.append(("burstiness", f"CV of the gaps {about.cv:.2f} (Poisson: 1)"))
    if about.tail is not None:
        facts.append(("outputs", f"P99 is {about.tail:.1f} times the mean"))
    if about.declared_share:
        facts.append(("declared", f"a maximum in {about.declared_share:.0%} of the requests"))
    if about.sessions:
        facts.append(("sessions", f"{about.sessions:,}"))
    if about.closed_loop_share:
        facts.append(("closed loop", f"{about.closed_loop_share:.0%} wait for an earlier answer"))
    if about.tenants != ("",):
        facts.append(("tenants", ", ".join(about.tenants)))
    if about.prefix_coverage is not None and about.prefix_reuse is not None:
        facts += [
            ("same first 128", f"{about.prefix_coverage:.1%} of the requests"),
            ("reusable", f"{about.prefix_reuse:.1%} of the prompt tokens, in an endless cache"),
        ]
    return facts


def _bars(rates: tuple[float, ...]) -> str:
    most = max(rates) or 1.0
    heights = (math.ceil(rate / most * 8) for rate in rates)
    return "".join(" ▁▂▃▄▅▆▇█"[height] for height in heights)


def _flat(values: dict[str, Any]) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, dict):
            flat |= {f"{key}_{inner}": one for inner, one in value.items()}
        elif isinstance(value, (list, tuple)):
            flat[key] = "; ".join(str(one) for one in value)
        else:
            flat[key] = value
    return flat
