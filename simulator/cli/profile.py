"""`batchlab profile …`: see, fit and import what a step costs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from simulator.cli.options import FormatOption, count_option
from simulator.cli.printing import Format, note
from simulator.cli.profile_bench import fit_to_benchmarks
from simulator.cli.profile_import import app as importers
from simulator.cli.profile_measure import measure
from simulator.cli.profile_print import facts_of, percent, print_errors, print_rows
from simulator.cli.profile_validate import validate

app = typer.Typer(no_args_is_help=True, help="Cost curves: see, measure, fit and import them.")
app.command("measure")(measure)
app.command("validate")(validate)
app.add_typer(importers, name="import")

OutOption = Annotated[
    Path | None, typer.Option("--out", "-o", help="Where to write the profile.", show_default=False)
]


@app.command("list")
def list_(format_: FormatOption = Format.table) -> None:
    """The profiles that ship, with what they are of and how far off they are."""
    from calibration.profile import list_profiles, load_profile

    columns = ["name", "KV tokens", "decode", "prefill", "mixed", "lacks"]
    rows = []
    for profile in map(load_profile, list_profiles()):
        fit = profile.errors.fit
        classes = (one or fit.all for one in (fit.decode, fit.prefill, fit.mixed))
        lacks = [
            part
            for part, how in profile.parts
            if how in ("missing", "modelled") and part != "transfers"
        ]
        rows.append(
            [
                profile.name,
                f"{profile.pool_tokens:,}",
                *(percent(one.mape if one else None) for one in classes),
                ", ".join(lacks) or "–",
            ]
        )
    print_rows(columns, rows, format_, left=(0, 5))
    note("decode, prefill, mixed: mean error of the form; lacks: not measured (profile show NAME)")


@app.command("show")
def show(
    name: Annotated[str, typer.Argument(help="A shipped profile by name, or a file.")],
    plot: Annotated[
        Path | None, typer.Option(help="Draw the curves into this PNG.", show_default=False)
    ] = None,
    format_: FormatOption = Format.table,
) -> None:
    """One profile: facts, measured ranges, errors, what is missing, and its curves."""
    from calibration.curves import curves_of
    from calibration.profile import load_profile

    profile = load_profile(name)
    curves = curves_of(profile)
    if plot:
        from reports.figures.profile import profile_figure

        plot.write_bytes(profile_figure(curves, profile.name))
        note(f"wrote {plot}")
    if format_ is Format.json:
        typer.echo(json.dumps(profile.model_dump(mode="json", by_alias=True), indent=1))
        return
    points = [
        [
            curve.label,
            f"{x:,}",
            f"{s * 1e3:.3f}",
            f"{s / n * 1e6:,.1f}",
            "" if inside else "outside",
        ]
        for curve in curves
        for x, n, s, inside in curve.points
    ]
    columns = ["curve", "tokens", "step ms", "µs a token", "measured"]
    if format_ is Format.csv:
        print_rows(columns, points, format_)
        return
    facts = [[key, value] for key, value in facts_of(profile)]
    print_rows(["", profile.name], facts, format_, left=(0, 1))
    print_errors(profile.errors)
    print_rows(columns, points, format_, left=(0, 4))


@app.command("fit")
def fit(
    raw: Annotated[
        Path | None,
        typer.Argument(help="A raw table of `profile measure`.", show_default=False),
    ] = None,
    step_log: Annotated[
        Path | None,
        typer.Option(help="A log of steps (JSON or CSV) in its place.", show_default=False),
    ] = None,
    out: OutOption = None,
    name: Annotated[
        str | None, typer.Option(help="The profile's name [default: from what was measured].")
    ] = None,
    form: Annotated[
        str | None,
        typer.Option(help="table or smooth [default: by the amount of data; smooth of a log]."),
    ] = None,
    clock: Annotated[
        str, typer.Option(help="Of a step log: step, or wall or cpu of the forward pass.")
    ] = "step",
    device: Annotated[str, typer.Option(help="Of a step log: where it ran.")] = "cpu",
    model: Annotated[
        str | None,
        typer.Option(help="Of a step log: a known model, or its config.json.", show_default=False),
    ] = None,
    dtype: Annotated[str, typer.Option(help="Of a step log.")] = "bf16",
    engine: Annotated[str, typer.Option(help="Of a step log: engine and version.")] = "vllm",
    kv_tokens: Annotated[
        int | None,
        count_option(least=1, help="The KV pool [default: as recorded].", show_default=False),
    ] = None,
    bench: Annotated[
        list[Path] | None,
        typer.Option(help="In its place, the result file of a load generator; may be repeated."),
    ] = None,
    base: Annotated[
        str | None,
        typer.Option(help="With --bench: the profile to correct.", show_default=False),
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="With --bench: how the engine was set, such as policy.token_budget=8192.",
        ),
    ] = None,
) -> None:
    """Turn measured steps into a profile; print its error on steps it has not seen.

    From a raw table of `profile measure`, a log of steps, or, with --bench, from what load
    generators measured: then a shipped profile's scale and host overhead are corrected.
    """
    if bench:
        if raw is not None or step_log is not None:
            raise ValueError("give a raw table, --step-log, or --bench, and one of them")
        fit_to_benchmarks(bench, base, set_ or (), kv_tokens, out, name)
        return
    if base is not None or set_:
        raise ValueError("--base and --set: are for --bench")
    from calibration.fit import ENGINE_CLOCK, fit_steps, fitted_profile
    from calibration.hardware import model_from
    from calibration.profile import profile_name, save_profile
    from calibration.raw import RawHeader, read_raw
    from calibration.solve import form_of
    from calibration.steplog import read_step_log

    if (raw is None) == (step_log is None):
        raise ValueError("give a raw table, --step-log, or --bench, and one of them")
    chosen = form_of(form) if form else None
    if raw is not None:
        table = read_raw(raw)
        header, rows = table.header, table.rows
    else:
        assert step_log is not None
        log = read_step_log(step_log, clock)
        # A log dwells where its engine did: a table would bend after the noise there.
        chosen = chosen or "smooth"
        if model is None:
            raise ValueError("--model is needed with --step-log: a known model or its config.json")
        shape = model_from(model)
        pool = kv_tokens or log.pool_tokens
        if pool is None:
            raise ValueError(f"{step_log}: no KV pool recorded, expected --kv-tokens")
        rows = log.rows
        header = RawHeader(
            device=device,
            model=shape.name,
            dtype=dtype,
            engine=engine.partition(" ")[0],
            engine_version=engine.partition(" ")[2] or "unknown",
            date="unknown",
            machine="unknown",
            clock=ENGINE_CLOCK if clock == "step" else f"{clock} time of the forward pass",
            kv_bytes_per_token=shape.kv_bytes_per_token(dtype),
            pool_tokens=pool,
            max_model_len=log.max_model_len or shape.max_model_len,
            source=f"step log {step_log.name}",
            licence="unknown",
        )
    fitted = fit_steps(rows, form=chosen, captured=header.captured)
    title = name or (out.stem if out else None)
    title = (
        title or profile_name(header.device, header.model, header.dtype, header.tp) + "_measured"
    )
    profile = fitted_profile(header, fitted, title)
    print_errors(profile.errors)
    note(f"g as a {fitted.form}: {fitted.points} shapes in {fitted.steps} steps")
    path = out or Path(f"{title}.json")
    save_profile(profile, path)
    typer.echo(path)
