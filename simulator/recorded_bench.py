"""Result files of load generators as recorded runs."""

from __future__ import annotations

import numpy as np

from simulator.recorded import Recorded
from traces.benchmarks import Benchmark


def recorded_of(run: Benchmark, *, prompt: int | None = None) -> Recorded:
    """A benchmark's run, to be simulated. Raises ValueError, in words, for what it lacks.

    Gaps count where each is between two tokens: where chunks carry several, there are none.
    """
    trace = run.trace(prompt=prompt)
    rows = [one for one in run.done if (one.output or 0) > 0 and (one.prompt or prompt or 0) > 0]
    ttft = [one.ttft_s for one in rows]
    e2e = [one.ended_s for one in rows]
    for name, values in (("TTFT", ttft), ("E2E", e2e)):
        if missing := sum(value is None for value in values):
            raise ValueError(
                f"{run.source}: {missing} of {len(rows)} requests have no {name}, expected one of "
                "each"
            )
    whole = all(len(one.gaps_s) == (one.output or 0) - 1 for one in rows)
    return Recorded(
        name=run.source.rpartition("/")[2],
        trace=trace,
        ttft=np.array(ttft, dtype=np.float64),
        e2e=np.array(e2e, dtype=np.float64),
        gaps=tuple(np.array(one.gaps_s) for one in rows) if whole else None,
    )
