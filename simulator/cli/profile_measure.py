"""`batchlab profile measure`: time real steps on this machine's CPU or GPU, or of a server."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from simulator.cli import profile_server as of_server
from simulator.cli.options import FormatOption
from simulator.cli.printing import Format, note, progress


def measure(
    device: Annotated[
        str | None,
        typer.Option(
            help="cpu or cuda [default: cpu]; of a server what it runs on, such as h100-sxm."
        ),
    ] = None,
    model: Annotated[str, typer.Option(help="Whose shapes to run, with random weights.")] = "tiny",
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="The raw table [default: <device>_<model>.raw.csv]."),
    ] = None,
    block_size: Annotated[
        list[int] | None, typer.Option(help="Tokens a block; may be repeated [default: 16].")
    ] = None,
    dtype: Annotated[
        str | None, typer.Option(help="fp64, fp32, bf16 or fp16 [default: fp32 on cpu, else bf16].")
    ] = None,
    threads: Annotated[int, typer.Option(min=1, help="Threads that torch may use on cpu.")] = 1,
    clock: Annotated[
        str, typer.Option(help="On cpu: cpu (time of the one thread) or wall.")
    ] = "cpu",
    passes: Annotated[
        int | None,
        typer.Option(
            min=1, help="Times each step of the grid is timed [default: 4; of a server: 2]."
        ),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="A third of the grid, 2 passes.")] = False,
    eager: Annotated[bool, typer.Option("--eager", help="On cuda: capture no graphs.")] = False,
    seed: Annotated[int, typer.Option(min=0, help="Of weights, random mixes and order.")] = 0,
    server: of_server.ServerOption = None,
    endpoint: of_server.EndpointOption = "completions",
    api_key: of_server.KeyOption = "",
    concurrency: of_server.ConcurrencyOption = 32,
    longest: of_server.LongestOption = 4096,
    token_budget: of_server.BudgetOption = None,
    of: of_server.OfOption = None,
    kv_tokens: of_server.PoolOption = None,
    max_model_len: of_server.LengthOption = None,
    max_requests: of_server.RequestsOption = 1500,
    rest: of_server.RestOption = 0.2,
    timeout: of_server.TimeoutOption = 60.0,
    dry_run: of_server.DryOption = False,
    format: FormatOption = Format.table,
) -> None:
    """Time decode, prefill and mixed steps of a real decoder over a grid; save the raw table.

    Stop it at any time: run again, it goes on where it stopped. `batchlab profile fit` makes the
    table a profile. With --server the steps are those of a live OpenAI-compatible server,
    measured from outside by what it answers; its load is bounded by --concurrency and
    --max-requests.
    """
    if server is None and dry_run:
        raise ValueError("--dry-run: is for --server")
    if server is not None:
        from calibration.hardware import model_from
        from calibration.server import ServerMeasurement

        wanted = ServerMeasurement(
            device=device or "server",
            dtype=dtype or "unknown",
            shape=model_from(of) if of else None,
            concurrency=concurrency,
            longest=longest,
            token_budget=token_budget,
            kv_tokens=kv_tokens,
            max_model_len=max_model_len,
            passes=passes or (1 if quick else 2),
            max_requests=max_requests,
            rest_s=rest,
        )
        if dry_run:
            of_server.show_plan(wanted, format)
            return
        name = model.rpartition("/")[2]
        of_server.measure_server(
            of_server.Server(
                url=server,
                model=model,
                endpoint=of_server.endpoint_of(endpoint),
                key=api_key,
                timeout_s=timeout,
            ),
            wanted,
            out or Path(f"{device or 'server'}_{name}.raw.csv"),
        )
        return
    device = device or "cpu"
    passes = passes or 4
    from calibration.measure import Measurement, measure  # torch takes seconds to import

    path = out or Path(f"{device}_{model}.raw.csv")
    settings = Measurement(
        model=model,
        device=device,
        dtype=dtype,
        block_sizes=tuple(dict.fromkeys(block_size or [16])),
        passes=min(passes, 2) if quick else passes,
        quick=quick,
        threads=threads,
        clock=clock,
        eager=eager,
        seed=seed,
    )
    try:
        with progress(f"measuring {model} on {device}") as update:
            drift = measure(settings, path, update)
    except KeyboardInterrupt:
        note(f"stopped; {path} keeps what is measured: run the same command again to go on")
        raise typer.Exit(130) from None
    note(
        f"the same step took {drift.change:+.1%} at the end against the beginning, "
        f"and spread by {drift.spread:.1%} (P10 to P90)"
    )
    typer.echo(path)
