"""`batchlab profile import …`: public measured tables become profiles."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from simulator.cli.printing import note, progress

if TYPE_CHECKING:
    from calibration.profile import Profile

app = typer.Typer(no_args_is_help=True, help="Public measured tables become profiles.")

OutOption = Annotated[
    Path, typer.Option("--out", "-o", help="The folder for profiles, each NAME.json.")
]


@app.command("presets")
def presets(
    file: Annotated[Path, typer.Argument(help="presets.json.")],
    out: OutOption = Path("."),
) -> None:
    """Configurations fitted to aiconfigurator's tables: the profiles that ship."""
    from calibration.importers.presets import read_presets

    for profile in read_presets(file):
        _save(profile, out, errors=False)


@app.command("aiconfigurator")
def aiconfigurator(
    grid: Annotated[
        str | None,
        typer.Argument(
            help="Recorded tables: STEM of STEM_decode.csv and its siblings [default: the wheel].",
            show_default=False,
        ),
    ] = None,
    system: Annotated[str | None, typer.Option(help="Such as h200_sxm.")] = None,
    model: Annotated[str, typer.Option(help="Such as llama-3.1-8b.")] = "llama-3.1-8b",
    tp: Annotated[int, typer.Option(min=1, help="Tensor parallel size.")] = 1,
    dtype: Annotated[str, typer.Option(help="bf16 or fp8.")] = "bf16",
    version: Annotated[str, typer.Option(help="Of vLLM, or current, previous, next.")] = "current",
    out: OutOption = Path("."),
) -> None:
    """NVIDIA's step times, composed from its measured kernels (extra: aiconfigurator)."""
    from calibration.importers.aiconfigurator import grid_profile, read_grid
    from calibration.importers.composed import Configuration

    if (grid is None) == (system is None):
        raise ValueError("give the STEM of recorded tables, or --system, and not both")
    if grid is not None:
        of = Configuration.parse(Path(grid).name)
        tables = read_grid(grid)
    else:
        from calibration.importers.aiconfigurator_wheel import query

        assert system is not None
        with progress(f"asking aiconfigurator for {system}"):
            tables, of = query(system, model, tp, dtype, version)
    _save(grid_profile(tables, of), out)


@app.command("llmservingsim")
def llmservingsim(
    stem: Annotated[str, typer.Argument(help="STEM of STEM__dense.csv and its siblings.")],
    out: OutOption = Path("."),
) -> None:
    """Kernels timed layer by layer, mixed steps among them."""
    from calibration.importers.layers import LLMSERVINGSIM, layer_profile, read_llmservingsim

    times, of = read_llmservingsim(stem)
    _save(layer_profile(times, of, LLMSERVINGSIM), out)


@app.command("vidur")
def vidur(
    folder: Annotated[Path, typer.Argument(help="With mlp.csv and attention.csv.")],
    gpu: Annotated[str, typer.Option(help="Such as a100-sxm.")],
    model: Annotated[str, typer.Option(help="Such as llama-3.1-8b.")],
    tp: Annotated[int, typer.Option(min=1, help="Tensor parallel size.")] = 1,
    block_size: Annotated[int, typer.Option(min=1, help="Of the attention rows taken.")] = 16,
    out: OutOption = Path("."),
) -> None:
    """Kernels timed layer by layer; no LM head, no mixed steps."""
    from calibration.importers.layers import VIDUR, layer_profile, read_vidur

    times, of = read_vidur(folder, gpu=gpu, model=model, tp=tp, block_size=block_size)
    _save(layer_profile(times, of, VIDUR), out)


def _save(profile: Profile, folder: Path, errors: bool = True) -> None:
    from calibration.profile import save_profile
    from simulator.cli.profile_print import print_errors

    path = folder / f"{profile.name}.json"
    save_profile(profile, path)
    if errors:
        print_errors(profile.errors)
    if profile.missing:
        note(f"not included: {', '.join(profile.missing)}")
    typer.echo(path)
