"""`batchlab profile measure`: time real steps on this machine's CPU or GPU."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .printing import note, progress


def measure(
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
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
    passes: Annotated[int, typer.Option(min=1, help="Times each step of the grid is timed.")] = 4,
    quick: Annotated[bool, typer.Option("--quick", help="A third of the grid, 2 passes.")] = False,
    eager: Annotated[bool, typer.Option("--eager", help="On cuda: capture no graphs.")] = False,
    seed: Annotated[int, typer.Option(min=0, help="Of weights, random mixes and order.")] = 0,
) -> None:
    """Time decode, prefill and mixed steps of a real decoder over a grid; save the raw table.

    Stop it at any time: run again, it goes on where it stopped. `batchlab profile fit` makes the
    table a profile.
    """
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
