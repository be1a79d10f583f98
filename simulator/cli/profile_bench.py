"""`batchlab profile fit --bench`: correct a profile to what load generators measured."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import typer

from simulator.cli.printing import Format, note, progress, show_rows


def fit_to_benchmarks(
    files: Sequence[Path],
    base: str | None,
    settings: Sequence[str],
    kv_tokens: int | None,
    out: Path | None,
    name: str | None,
) -> None:
    """Fit, print what was found and how it does on what it has not seen, save the profile."""
    from calibration.bench_fit import bench_profile, fit_bench
    from calibration.profile import load_profile, save_profile
    from simulator.bench_runs import run_of
    from simulator.scenario import Scenario
    from traces.benchmarks import read_benchmarks

    if base is None:
        raise ValueError("--bench: expected --base too, the profile to correct (profile list)")
    profile = load_profile(base)
    scenario = Scenario().with_values({"engine.profile": base}).with_set(*settings)
    if kv_tokens is not None:
        scenario = scenario.with_values({"engine.kv_tokens": kv_tokens})
    benchmarks = [one for file in files for one in read_benchmarks(file)]
    runs = [run_of(one, scenario) for one in benchmarks]
    with progress("fitting to benchmarks") as update:
        fit = fit_bench(runs, profile.cost, update)
    found = fit.corrected
    rows = []
    for what, value, unsure in (
        ("scale of step times", f"{found.scale:.4f}", found.unsure[0]),
        ("host overhead, ms a step", f"{found.host_s * 1e3:.3f}", found.unsure[1] * 1e3),
        ("front end, ms a request", f"{found.front_s * 1e3:.2f}", found.unsure[2] * 1e3),
    ):
        error = "not fitted" if math.isnan(unsure) else f"{unsure:.3g}"
        rows.append({"fitted": what, "value": value, "standard error": error})
    show_rows(rows, Format.table)
    show_rows(
        [
            {
                "held out": now.name,
                "TTFT": _percent(now.ttft),
                "TPOT": _percent(now.tpot),
                "E2E": _percent(now.e2e),
                "TTFT before": _percent(before.ttft),
                "TPOT before": _percent(before.tpot),
                "E2E before": _percent(before.e2e),
            }
            for now, before in zip(fit.held_out, fit.before, strict=True)
        ],
        Format.table,
    )
    note(f"errors of the means on requests not fitted on ({fit.how}); before: {base} as it is")
    note("the front end's delay is no part of a step: it is not in the profile")
    for text in dict.fromkeys((*(t for one in benchmarks for t in one.notes), *found.notes)):
        note(f"note: {text}")
    title = name or (out.stem if out else f"{profile.name}_bench")
    path = out or Path(f"{title}.json")
    save_profile(bench_profile(profile, fit, title, [file.name for file in files]), path)
    typer.echo(path)


def _percent(share: float) -> str:
    return "–" if math.isnan(share) else f"{share:+.1%}"
