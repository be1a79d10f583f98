"""`batchlab profile validate`: simulated against really executed, or against recorded, runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .options import FormatOption, count_option
from .printing import Format, command_line, note, progress, show

if TYPE_CHECKING:
    from calibration.profile import Profile
    from reports.validation import Shown
    from simulator.recorded import Recorded


def validate(
    profile: Annotated[
        str | None,
        typer.Option(
            help="By name, or a file [default: measured between the runs].", show_default=False
        ),
    ] = None,
    against: Annotated[
        list[Path] | None,
        typer.Option(
            help="A recorded run of a real engine, or the result file of a load generator, in "
            "place of executed ones; may be repeated.",
            show_default=False,
        ),
    ] = None,
    device: Annotated[str, typer.Option(help="Where steps are executed: cpu or cuda.")] = "cpu",
    model: Annotated[str, typer.Option(help="Whose shapes to run, with random weights.")] = "tiny",
    load: Annotated[
        list[str] | None,
        typer.Option(
            help="light, knee or preemption; may be repeated [default: all].", show_default=False
        ),
    ] = None,
    requests: Annotated[int, count_option(least=2, help="Of each executed run.")] = 120,
    repeats: Annotated[int, typer.Option(min=1, help="Executed runs of each load.")] = 3,
    passes: Annotated[
        int, typer.Option(min=2, help="Over the grid, where no profile is given.")
    ] = 3,
    seed: Annotated[int, count_option(least=0, help="Of requests, weights and order.")] = 0,
    gate: Annotated[
        bool | None,
        typer.Option(
            "--gate/--no-gate", help="Of a recorded engine [default: as recorded, else on]."
        ),
    ] = None,
    prefix_cache: Annotated[
        bool | None,
        typer.Option(
            "--prefix-cache/--no-prefix-cache",
            help="Of a recorded engine [default: as recorded, else off].",
        ),
    ] = None,
    kv_tokens: Annotated[
        int | None,
        count_option(
            least=1, help="Of a recorded engine [default: as recorded, else the profile's]."
        ),
    ] = None,
    token_budget: Annotated[
        int | None,
        count_option(least=1, help="Of a recorded engine [default: as recorded, else 2048]."),
    ] = None,
    max_running: Annotated[
        int | None,
        count_option(least=1, help="Of a recorded engine [default: as recorded, else 256]."),
    ] = None,
    prompt: Annotated[
        int | None,
        count_option(least=1, help="Prompt tokens, where a result file does not record them."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", "-o", help="Folder for page, picture, errors and profile.", show_default=False
        ),
    ] = None,
    format_: FormatOption = Format.table,
) -> None:
    """How far simulated latencies are from real ones, beside what real runs differ by.

    Every step of a run is really executed on this machine, and the same requests are simulated;
    or, with --against, they are those of a recorded run.
    """
    from calibration.profile import load_profile

    given = load_profile(profile) if profile else None
    if against:
        if given is None:
            raise ValueError("--profile is needed with --against: the engine's, by name or a file")
        settings = {
            "gate": gate,
            "prefix_cache": prefix_cache,
            "kv_tokens": kv_tokens,
            "max_running": max_running,
        }
        runs = [run for path in against for run in _runs(path, token_budget, prompt)]
        shown, notes = _recorded(runs, given, settings)
        title = f"{given.name} against recorded runs"
    else:
        shown, notes, used = _executed(
            given, device, model, load or [], requests, repeats, passes, seed
        )
        title = f"{used.name} against executed steps"
        if out and given is None:
            from calibration.profile import save_profile

            out.mkdir(parents=True, exist_ok=True)
            save_profile(used, out / "profile.json")
    _print(shown, notes, format_)
    if out:
        from reports.validation import write_validation

        write_validation(shown, out, title=title, notes=notes, command=command_line())
        note(f"wrote {out / 'validation.html'}")


def _runs(path: Path, token_budget: int | None, prompt: int | None) -> list[Recorded]:
    """The recorded run of a file or folder, or every run of a load generator's result file."""
    from simulator.recorded import read_recorded
    from simulator.recorded_bench import recorded_of
    from traces.benchmarks import is_benchmark, read_benchmarks

    if not path.is_dir() and is_benchmark(path):
        runs = [recorded_of(run, prompt=prompt) for run in read_benchmarks(path)]
    else:
        runs = [read_recorded(path)]
    if token_budget is None:
        return runs
    return [replace(run, settings=replace(run.settings, token_budget=token_budget)) for run in runs]


def _recorded(
    runs: Sequence[Recorded], profile: Profile, overrides: dict[str, Any]
) -> tuple[list[Shown], list[str]]:
    from reports.validation import Shown
    from simulator.against import distributions, replay, with_noise

    given = {name: value for name, value in overrides.items() if value is not None}
    replays = []
    with progress("simulating recorded runs") as update:
        for i, run in enumerate(runs):
            update(i / len(runs))
            replays.append(replay(run, profile, **given))
    shown = [
        Shown(
            name=one.recorded.name,
            about=one.about,
            lines=one.lines,
            simulated={
                metric: known
                for metric, known in distributions(one.simulated, one.judged).items()
                if metric in one.recorded.distributions(one.judged)
            },
            real={"recorded": one.recorded.distributions(one.judged)},
            steps=one.steps,
            parts=one.parts(),
            causes=one.causes(),
        )
        for one in with_noise(replays)
    ]
    notes = dict.fromkeys(text for run in runs for text in run.trace.notes)
    return shown, [f"profile {profile.name} ({profile.source})", *notes]


def _executed(
    given: Profile | None,
    device: str,
    model: str,
    loads: Sequence[str],
    requests: int,
    repeats: int,
    passes: int,
    seed: int,
) -> tuple[list[Shown], list[str], Profile]:
    from calibration.measure import Measurement
    from simulator.exercise import LOADS, Exercise, loads_of
    from simulator.validate import Validation

    exercise = Exercise(requests=requests, repeats=repeats, seed=seed)
    measurement = Measurement(
        model=model, device=device, passes=passes, seed=seed, limits=exercise.limits()
    )
    with progress(f"running {model} on {device}") as update:
        done = Validation(exercise, measurement, given, loads_of(loads) or LOADS).run(update)
    return done.shown(), done.notes(), done.profile


def _print(shown: Sequence[Shown], notes: Sequence[str], format_: Format) -> None:
    from reports.tables import to_json
    from reports.validation import lines_table, steps_table, verdict

    lines = [line for one in shown for line in one.lines]
    steps = [error for one in shown for error in one.steps]
    if format_ is Format.json:
        rows = {"errors": [x.row() for x in lines], "steps": [x._asdict() for x in steps]}
        typer.echo(to_json(rows | {"notes": list(notes)}), nl=False)
        return
    if format_ is Format.csv:
        import pandas as pd

        typer.echo(pd.DataFrame([x.row() for x in lines]).to_csv(index=False), nl=False)
        return
    show(lines_table(lines), whole=True)
    if steps:
        typer.echo()
        show(steps_table(steps), whole=True)
    typer.echo(f"\n{verdict(lines)}")
    for one in shown:
        typer.echo(f"{one.name}: {one.about}")
    for sentence in notes:
        typer.echo(sentence)
