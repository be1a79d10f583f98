"""Everything that needs the card, in one go and under 8 minutes.

    python benchmarks/gpu.py --out out/
    python benchmarks/gpu.py --device cpu --quick --out out/     # the same code, anywhere

1. check: the attention kernels against the float64 reference;
2. kernels: their bandwidth and FLOPs against a measured copy and a measured matrix product, and
   other tile shapes for decode than the chosen ones;
3. measure, fit: step times of Llama-3.1-8B bf16 at block sizes 16 and 32 → raw table, profile;
4. validate: runs with every step really executed, against the simulator with that profile.

Each part has its share of the time and keeps what it has when that is over; a part that fails is
reported, the others go on, and the exit code is 1. Writes in `--out`: `check.csv`, `kernels.csv`,
`tuning.csv`, `<profile>.raw.csv`, `<profile>.json`, `validation.csv`, `validation_steps.csv` and
`summary.json`; prints tables and, last, `summary.json` in one line.

Runs without network, under torch 2.11 with triton 3.6 as under the project's own versions. Where
torch (with jinja2), triton, numpy, scipy, pandas, typer (with rich) and sortedcontainers are there,
these wheels are wanted beside them: this project's (`pip wheel --no-deps .`), simpy, pydantic,
pydantic-core, annotated-types, typing-inspection.

Has not run on a GPU yet: no card was to be had when it was written.
"""

from __future__ import annotations

import gc
import json
import sys
import time
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, TypeVar

import pandas as pd
import torch
import typer
from kernels import QUICK, Bench, Stage, check

from calibration.fit import fit_steps, fitted_profile
from calibration.grid import Limits
from calibration.measure import Measurement, measure
from calibration.profile import load_profile, profile_name, save_profile
from calibration.raw import read_raw
from simulator.exercise import Exercise
from simulator.validate import Validation
from traces.lengths import Lognormal

Row = dict[str, Any]
T = TypeVar("T")

SHARES = {"check": 0.13, "kernels": 0.12, "tuning": 0.08, "measure": 0.42, "validate": 0.22}
"""Of the time in all; what a part leaves over goes to the later ones."""
BAR = 0.85
"""Of the measured copy, which decode at a batch of at least 64 should reach."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What to run, by device."""

    stage: Stage
    measurement: Measurement
    exercise: Exercise


GPU = Plan(
    stage=Stage(),
    measurement=Measurement(model="llama-3.1-8b", device="cuda", block_sizes=(16, 32)),
    exercise=Exercise(
        requests=240,
        prompt=Lognormal(mean=800, p99=3200, max=6000),
        output=Lognormal(mean=100, p99=400, max=600),
        token_budget=2048,
        seats=64,
        repeats=3,
    ),
)
CPU = Plan(
    stage=QUICK,
    measurement=Measurement(
        block_sizes=(16, 32),
        passes=1,
        quick=True,
        limits=Limits(sequences=16, tokens=128, context=256, held=2048),
    ),
    exercise=Exercise(
        requests=30,
        prompt=Lognormal(mean=40, p99=160, max=200),
        output=Lognormal(mean=8, p99=32, max=48),
        token_budget=128,
        seats=12,
        repeats=1,
    ),
)


@dataclass
class Session:
    """The time there is, and what came of it."""

    seconds: float
    out: Path
    began: float = field(default_factory=time.monotonic)
    ends: float = 0.0
    """When the part now running should stop (monotonic seconds)."""
    summary: Row = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)

    def part(self, name: str, work: Callable[[], T]) -> T | None:
        """Run one part within its share; a failure is reported and gives None."""
        parts = list(SHARES)
        share = sum(SHARES[part] for part in parts[: parts.index(name) + 1])
        self.ends = self.began + share * self.seconds
        begin = time.monotonic()
        try:
            return work()
        except Exception:
            traceback.print_exc()
            self.failed.append(name)
            return None
        finally:
            spent = self.summary.setdefault("seconds", {})
            spent[name] = spent.get(name, 0.0) + time.monotonic() - begin
            # A failed part's frames would keep its gigabytes on the card.
            gc.collect()
            if torch.cuda.is_available():
                torch.cuda.empty_cache()

    @property
    def late(self) -> bool:
        return time.monotonic() > self.ends

    def in_time(self, rows: Iterable[Row]) -> list[Row]:
        """As many rows as the part's share allows, at least one."""
        kept = []
        for row in rows:
            kept.append(row)
            if self.late:
                break
        return kept

    def table(self, name: str, rows: list[Row]) -> None:
        frame = pd.DataFrame(rows)
        frame.to_csv(self.out / f"{name}.csv", index=False)
        print(f"\n{name}\n{frame.to_string(index=False, float_format='{:.4g}'.format)}", flush=True)


class OutOfTime(Exception):
    """Ends a measurement; its raw table keeps what is measured."""


def check_kernels(session: Session, plan: Plan) -> None:
    rows = session.in_time(check(plan.stage.device))
    session.table("check", rows)
    session.summary["kernels_right"] = all(row["right"] for row in rows)


def time_kernels(session: Session, bench: Bench) -> None:
    rows = session.in_time(bench.rows())
    session.table("kernels", rows)
    large = [
        row["copy_share"]
        for row in rows
        if row["kernel"].startswith("decode") and int(row["kernel"].split()[1]) >= 64
    ]
    session.summary["ceilings"] = bench.ceilings
    session.summary["decode_copy_share"] = {
        "least": min(large, default=None),
        "most": max(large, default=None),
        "bar": BAR,
        "reached": min(large) >= BAR if large else None,
    }


def tune(session: Session, bench: Bench) -> None:
    rows = session.in_time(bench.tuning())
    session.table("tuning", sorted(rows, key=lambda row: row["us"]))


def measure_steps(session: Session, plan: Plan) -> Path:
    """The raw table. Passes over the grid go on until the time is over."""
    raw = session.out / "steps.raw.csv"

    def on_progress(share: float) -> None:
        if session.late:
            raise OutOfTime

    raw.unlink(missing_ok=True)
    try:
        drift = measure(plan.measurement, raw, on_progress)
        session.summary["drift"] = drift._asdict()
    except OutOfTime:
        print(f"\nmeasuring: out of time, {raw} keeps what there is", flush=True)
    return raw


def fit(session: Session, raw: Path) -> Path:
    """The profile, beside its raw table of the same name."""
    table = read_raw(raw)
    header = table.header
    fitted = fit_steps(table.rows, captured=header.captured)
    name = profile_name(header.device, header.model, header.dtype) + "_measured"
    path = session.out / f"{name}.json"
    save_profile(fitted_profile(header, fitted, name), path)
    raw.rename(session.out / f"{name}.raw.csv")
    session.summary["profile"] = {
        "name": name,
        "form": fitted.form,
        "steps": fitted.steps,
        "points": fitted.points,
        "errors": fitted.errors.model_dump(mode="json"),
    }
    return path


def validate(session: Session, plan: Plan, path: Path) -> None:
    validation = Validation(plan.exercise, plan.measurement, load_profile(path))
    done = validation.run(late=lambda: session.late)
    shown = done.shown()
    session.table("validation", [line.row() for one in shown for line in one.lines])
    session.table("validation_steps", [each._asdict() for one in shown for each in one.steps])
    print("\n" + "\n".join([one.about for one in shown] + done.notes()), flush=True)
    session.summary["validation"] = {
        one.name: {
            f"{line.metric} {line.statistic}": round(line.error, 4)
            for line in one.lines
            if line.error is not None
        }
        | {f"step time, {each.kind}": round(each.bias, 4) for each in one.steps}
        for one in shown
    }


def main(
    out: Annotated[Path, typer.Option(help="Folder for tables and profile.")],
    device: Annotated[str, typer.Option(help="cuda or cpu.")] = "cuda",
    quick: Annotated[bool, typer.Option("--quick", help="Under a minute in all.")] = False,
    seconds: Annotated[float | None, typer.Option(help="In all [default: 450, quick: 45].")] = None,
) -> None:
    """Check, time, measure, fit and validate on one device."""
    if device not in ("cuda", "cpu"):
        raise typer.BadParameter(f"{device!r}, expected cuda or cpu", param_hint="--device")
    if device == "cuda" and not torch.cuda.is_available():
        raise typer.BadParameter("torch finds no CUDA device here", param_hint="--device")
    plan = GPU if device == "cuda" else CPU
    out.mkdir(parents=True, exist_ok=True)
    session = Session(seconds or (45.0 if quick else 450.0), out)
    cuda = device == "cuda"
    session.summary |= {
        "benchmark": "gpu",
        "date": datetime.now(UTC).date().isoformat(),
        "device": torch.cuda.get_device_name() if cuda else "cpu",
        "torch": torch.__version__,
        "failed": session.failed,
    }
    if not cuda:
        torch.set_num_threads(1)
    session.part("check", lambda: check_kernels(session, plan))
    bench = session.part("kernels", lambda: Bench(plan.stage))
    if bench:
        session.part("kernels", lambda: time_kernels(session, bench))
        if cuda:
            session.part("tuning", lambda: tune(session, bench))
        del bench
    raw = session.part("measure", lambda: measure_steps(session, plan))
    path = session.part("measure", lambda: fit(session, raw)) if raw else None
    if path:
        session.part("validate", lambda: validate(session, plan, path))
    session.summary["seconds"]["all"] = time.monotonic() - session.began
    line = json.dumps(session.summary)
    (out / "summary.json").write_text(line + "\n", encoding="utf-8")
    print(f"\n{line}")
    if session.failed:
        sys.exit(1)


if __name__ == "__main__":
    typer.run(main)
