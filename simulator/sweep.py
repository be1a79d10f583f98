"""Many scenarios: every cell of a grid, in parallel, each run once and kept.

A cell's result is stored the moment it is there, under a key made of everything that it depends
on: the resolved settings, the bytes of profile, trace and policy file, and our own sources. So a
sweep that was killed goes on where it was, and what changed is run again. Cells share nothing
but immutable inputs: results do not depend on the number of workers or on their order.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from simulator.pool import Local, Pool
from simulator.scenario import Scenario
from simulator.settings_file import one_line, parse_value
from simulator.store import Outcome, Store, key_of
from traces.seeds import stream


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One point of the grid: the keys that vary, in the grid's order, and what came of it."""

    values: Mapping[str, Any]
    outcome: Outcome


def parse_grid(texts: Sequence[str]) -> dict[str, list[Any]]:
    """`key=v1,v2,…` texts to axes, in the order given. Raises ValueError where one is not that."""
    axes: dict[str, list[Any]] = {}
    for text in texts:
        key, equals, values = text.partition("=")
        key = key.strip()
        if not equals or not key or not all(v.strip() for v in values.split(",")):
            raise ValueError(f"--grid {text}: expected key=value,value,…")
        if key in axes:
            raise ValueError(f"--grid {text}: {key} is an axis already")
        axes[key] = [parse_value(value) for value in values.split(",")]
        if len({repr(value) for value in axes[key]}) < len(axes[key]):
            raise ValueError(f"--grid {text}: a value is given twice")
    return axes


def points(
    grid: Mapping[str, Sequence[Any]], *, sample: int | None = None, seed: int = 0
) -> list[dict[str, Any]]:
    """Every combination, the last axis varying fastest; or `sample` of them, drawn by the seed.

    A larger sample of the same seed holds the smaller one.
    """
    whole = math.prod(len(values) for values in grid.values())
    chosen: Iterable[int] = range(whole)
    if sample is not None and sample < whole:
        chosen = sorted(stream(seed, "sample").permutation(whole)[:sample].tolist())
    return [_combination(grid, number) for number in chosen]


def _combination(grid: Mapping[str, Sequence[Any]], number: int) -> dict[str, Any]:
    at: dict[str, Any] = {}
    for key in reversed(list(grid)):
        number, which = divmod(number, len(grid[key]))
        at[key] = grid[key][which]
    return {key: at[key] for key in grid}


def run_cell(scenario: Scenario) -> Outcome:
    """Run one scenario to its summary; whatever goes wrong becomes its outcome."""
    from reports.metrics import summarize

    try:
        return Outcome(status="done", summary=summarize(scenario.run(), scenario.objectives()))
    except (ValueError, OSError) as error:
        return Outcome(status="invalid", error=one_line(error))
    except Exception as error:  # one broken cell must not cost the others
        return Outcome(status="failed", error=f"{type(error).__name__}: {error}")


def sweep(
    base: Scenario,
    grid: Mapping[str, Sequence[Any]],
    store: Store,
    *,
    pool: Pool | None = None,
    sample: int | None = None,
    retry_failed: bool = False,
    on_cell: Callable[[int, int], None] | None = None,
) -> list[Cell]:
    """All cells of the grid over `base`, in the grid's order; runs only what the store lacks.

    `sample`: only so many of them, drawn at random by the seed of `base`.

    `pool` is where they run: by default one process a core. `on_cell(settled, all)` is called
    for each one as it is finished or found. Interrupted, it leaves the finished cells in the
    store.
    """
    values = points(grid, sample=sample, seed=base.seed)
    outcomes: dict[int, Outcome] = {}
    todo: dict[int, tuple[str, Scenario]] = {}

    def settle(index: int, outcome: Outcome) -> None:
        outcomes[index] = outcome
        if on_cell:
            on_cell(len(outcomes), len(values))

    for index, changes in enumerate(values):
        try:
            scenario = base.with_values(changes)
            key = key_of(scenario)
        except (ValueError, OSError) as error:
            if "unknown key" in str(error):  # a slip of the hand, the same in every cell
                raise
            settle(index, Outcome(status="invalid", error=one_line(error)))
            continue
        known = store.get(key)
        if known is None or (retry_failed and known.status == "failed"):
            todo[index] = key, scenario
        else:
            settle(index, known)
    cells = {index: scenario for index, (_, scenario) in todo.items()}
    for index, outcome in (pool or Local()).each(run_cell, cells, died=_killed):
        key, scenario = todo[index]
        store.put(key, scenario.dump(), outcome)
        settle(index, outcome)
    return [Cell(values=at, outcome=outcomes[index]) for index, at in enumerate(values)]


def _killed(_: Scenario) -> Outcome:
    return Outcome(status="failed", error="the process that ran it was killed, twice")
