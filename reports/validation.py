"""What a validation prints and shows: every error beside its noise, and both distributions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
from rich.table import Table

from reports.agreement import Cause, Part
from reports.charts import percentile_chart
from reports.fidelity import (
    BEYOND,
    NOT_JUDGED,
    NOT_MEASURED,
    STEP_BAR,
    TOO_NOISY,
    WITHIN,
    Line,
    judged,
)
from reports.page import render
from reports.percentiles import Distribution
from reports.units import NONE, seconds
from reports.write import prepare, write_bytes, write_frame, write_text

SHOWN = {"ttft": "TTFT", "itl": "ITL", "tpot": "TPOT", "e2e": "E2E", "queue": "queue"}
"""Latencies by what they are called, in the order of the page."""


class StepError(NamedTuple):
    """Priced against executed time of the very same steps, by class; medians over the runs."""

    load: str
    kind: str
    steps: int
    bias: float
    """Σ priced / Σ executed − 1."""
    residual: float
    """Mean of |priced / executed − 1|."""
    noise: float | None
    """Of Σ executed over Σ priced, largest − smallest over the runs."""
    share: float
    """Of the executed time."""

    @property
    def verdict(self) -> str:
        """Of all steps of a load: their sum is what a profile must get right."""
        return judged(self.bias, self.noise, STEP_BAR) if self.kind == "all" else NOT_JUDGED


@dataclass(frozen=True, kw_only=True)
class Shown:
    """One load or recorded run."""

    name: str
    about: str
    """How it was run and what was fitted, in a sentence."""
    lines: list[Line]
    simulated: Mapping[str, Distribution]
    """By latency, in picoseconds; of the requests that are judged."""
    real: Mapping[str, Mapping[str, Distribution]]
    """The same by run."""
    steps: Sequence[StepError] = ()
    parts: Sequence[Part] = ()
    """The error over time."""
    causes: Sequence[Cause] = ()
    """Where E2E went, in both."""


def verdict(lines: Sequence[Line]) -> str:
    """How many lines came out how, in a sentence."""
    counts = Counter(line.verdict for line in lines)
    every = sum(counts[one] for one in (WITHIN, BEYOND, NOT_MEASURED))
    said = f"{counts[WITHIN]} of {every} judged errors within their bars, {counts[BEYOND]} beyond"
    if counts[NOT_MEASURED]:
        said += f", {counts[NOT_MEASURED]} not measured (noise above {TOO_NOISY:.0%})"
    return said


def lines_table(lines: Sequence[Line]) -> Table:
    """A row per load and latency statistic."""
    fitted = any(line.before is not None for line in lines)
    heads = ["load", "latency", "", "real", "simulated", "off", "error"]
    heads += ["unfitted"] * fitted + ["noise", "bar", "verdict"]
    table = _table(heads, left=("load", "latency", "", "verdict"))
    last = ""
    for line in lines:
        if last and line.load != last:
            table.add_section()
        last = line.load
        cells = [line.load, SHOWN[line.metric], line.statistic.replace("p", "P")]
        cells += [seconds(line.real), seconds(line.simulated), _signed_s(line.off)]
        cells += [signed(line.error)] + [signed(line.error_before)] * fitted
        cells += [_share(line.noise), _share(line.bar), line.verdict]
        table.add_row(*cells)
    return table


def steps_table(errors: Sequence[StepError]) -> Table:
    """A row per load and class of step."""
    table = _table(
        ["load", "steps", "number", "time", "sum off", "residual", "noise", "verdict"],
        left=("load", "steps", "verdict"),
    )
    last = ""
    for one in errors:
        if last and one.load != last:
            table.add_section()
        last = one.load
        table.add_row(
            one.load, one.kind, f"{one.steps:,}", f"{one.share:.0%}", signed(one.bias),
            _share(one.residual), _share(one.noise), one.verdict,
        )  # fmt: skip
    return table


def write_validation(
    shown: Sequence[Shown], out_dir: Path | str, *, title: str, notes: Sequence[str], command: str
) -> None:
    """errors.csv, steps.csv where steps were compared, validation.html and figures/validation.png.

    Raises OSError, naming the path, where the folder cannot be written.
    """
    from reports.figures.validation import validation_figure

    out = prepare(out_dir)
    write_frame(out / "errors.csv", pd.DataFrame([x.row() for one in shown for x in one.lines]))
    if steps := [error._asdict() for one in shown for error in one.steps]:
        write_frame(out / "steps.csv", pd.DataFrame(steps))
    write_text(out / "validation.html", page(shown, title=title, notes=notes, command=command))
    prepare(out / "figures")
    pairs = {one.name: (one.simulated, one.real) for one in shown}
    write_bytes(out / "figures" / "validation.png", validation_figure(pairs))


def page(shown: Sequence[Shown], *, title: str, notes: Sequence[str], command: str) -> str:
    """Both distributions over each other, latency by latency, with every error."""
    charts = []
    for at, one in enumerate(shown):
        for metric, ours in one.simulated.items():
            known = {"simulated": ours}
            known |= {name: run[metric] for name, run in one.real.items() if metric in run}
            if len(known) > 1:
                heading = f"{one.name}: {SHOWN[metric]}"
                charts.append(percentile_chart(f"{at}-{metric}", heading, SHOWN[metric], known))
        if one.parts:
            charts.append(_over_time(f"{at}-time", one))
    lines = [line for one in shown for line in one.lines]
    beyond = any(line.verdict == BEYOND for line in lines)
    return render(
        "validation.html.j2",
        title=title,
        verdict={"kind": "bad" if beyond else "good", "text": verdict(lines)},
        shown=shown,
        notes=notes,
        command=command,
        names=SHOWN,
        signed=signed,
        data={"charts": charts, "slots": None},
    )


def _over_time(id: str, one: Shown) -> dict[str, Any]:
    """The signed error of each part's mean, in per cent, over the time of arrival."""
    metrics = [metric for metric in SHOWN if any(metric in part.errors for part in one.parts)]
    series = [
        {
            "label": SHOWN[metric],
            "values": [_percent(part.errors.get(metric)) for part in one.parts],
            "colour": at,
            "dash": at,
        }
        for at, metric in enumerate(metrics)
    ]
    title = f"{one.name}: error over time"
    said = ", ".join(
        f"{SHOWN[metric]} from {signed(one.parts[0].errors.get(metric))} to "
        f"{signed(one.parts[-1].errors.get(metric))}"
        for metric in metrics
    )
    return {
        "id": id,
        "title": title,
        "alt": f"{title}, means of {len(one.parts)} parts of the requests: {said}.",
        "x": [round(part.until_s, 3) for part in one.parts],
        "xkind": "time",
        "xlabel": "time of arrival (s)",
        "ykind": "number",
        "ylabel": "simulated against real (%)",
        "series": series,
    }


def _percent(share: float | None) -> float | None:
    return None if share is None else round(share * 100, 2)


def signed(share: float | None) -> str:
    """+1.2 %."""
    return NONE if share is None else f"{share * 100:+.1f} %"


def _signed_s(value: float) -> str:
    return ("+" if value >= 0 else "−") + seconds(abs(value))


def _share(value: float | None) -> str:
    return NONE if value is None else f"{value * 100:.1f} %"


def _table(heads: Sequence[str], left: Sequence[str]) -> Table:
    table = Table(box=None, pad_edge=False)
    for head in heads:
        table.add_column(head, justify="left" if head in left else "right", no_wrap=True)
    return table
