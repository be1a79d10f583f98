"""What a load generator measured: `Outcome`, one request; `Benchmark`, one run of it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from traces.arrivals import Poisson
from traces.seeds import stream
from traces.trace import Trace, to_ps

LATE_S = 0.01
"""A request sent this much after its schedule is worth a word."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """One request as its client saw it; None where the tool did not write it down."""

    label: str = ""
    """The tool's own id."""
    sent_s: float | None = None
    """When it was sent, on the run's clock: latencies count from here."""
    scheduled_s: float | None = None
    """When it was meant to be sent, on the same clock."""
    prompt: int | None = None
    output: int | None = None
    ttft_s: float | None = None
    e2e_s: float | None = None
    gaps_s: tuple[float, ...] = ()
    """Between chunks, which may carry several tokens each: at most output - 1 of them."""
    error: str = ""
    """Why it failed; "" = it did not."""

    @property
    def ended_s(self) -> float | None:
        """The end of the answer, from its sending."""
        if self.e2e_s is not None:
            return self.e2e_s
        if self.ttft_s is None or not (self.gaps_s or self.output == 1):
            return None
        return self.ttft_s + math.fsum(self.gaps_s)

    @property
    def tpot_s(self) -> float | None:
        """(E2E - TTFT) / (n - 1) of two tokens or more."""
        ended = self.ended_s
        if ended is None or self.ttft_s is None or self.output is None or self.output < 2:
            return None
        return (ended - self.ttft_s) / (self.output - 1)


@dataclass(frozen=True, kw_only=True)
class Benchmark:
    """One run, its requests in the order they were sent (where that is known)."""

    source: str
    """The file, and which run in it where there are several."""
    tool: str
    """The format's name: `vllm`, `guidellm`, …"""
    outcomes: tuple[Outcome, ...]
    model: str = ""
    rate: float | None = None
    """Requests per second that were asked for; inf = all at once."""
    concurrency: int | None = None
    """Most requests at once that were asked for."""
    duration_s: float | None = None
    notes: tuple[str, ...] = ()
    """What was missing, odd or repaired: one sentence each, for people."""

    @property
    def done(self) -> tuple[Outcome, ...]:
        """The requests that did not fail."""
        return tuple(one for one in self.outcomes if not one.error)

    @property
    def failed(self) -> int:
        return len(self.outcomes) - len(self.done)

    @property
    def timed(self) -> bool:
        """Whether the file says when each request was sent."""
        return bool(self.outcomes) and all(one.sent_s is not None for one in self.done)

    def missing(self) -> list[str]:
        """What the file does not say of its requests, for people."""
        wanted: dict[str, list[float | None] | list[int | None]] = {
            "arrivals": [one.sent_s for one in self.done],
            "prompt lengths": [one.prompt for one in self.done],
            "output lengths": [one.output for one in self.done],
            "TTFT": [one.ttft_s for one in self.done],
            "E2E": [one.ended_s for one in self.done],
        }
        lacks = [name for name, values in wanted.items() if any(v is None for v in values)]
        several = [one for one in self.done if one.output is None or one.output > 1]
        if several and not any(one.gaps_s for one in several):
            lacks.append("gaps between tokens")
        return lacks

    def requests(self) -> tuple[Outcome, ...]:
        """Those that a simulator can replay: done, with both lengths, at least one token each."""
        return tuple(one for one in self.done if (one.prompt or 0) > 0 and (one.output or 0) > 0)

    def trace(
        self, *, rate: float | None = None, prompt: int | None = None, seed: int = 0
    ) -> Trace:
        """The load of the run, requests that failed left out and counted in a note.

        Where arrivals were not recorded: Poisson at `rate` (inf = all at time 0); without it,
        what the run itself was asked for, if that settles it. `prompt` stands in for prompt
        lengths that were not recorded. Raises ValueError, in words, where the load stays unknown.
        """
        run = self
        notes = list(self.notes)
        if prompt is not None and (unknown := sum(one.prompt is None for one in self.done)):
            filled = [
                replace(o, prompt=prompt if o.prompt is None else o.prompt) for o in self.done
            ]
            run = replace(self, outcomes=tuple(filled))
            notes.append(f"{unknown} prompt lengths are not recorded: {prompt} tokens assumed")
        rows = run.requests()
        if not rows:
            raise ValueError(f"{self.source}: {run._why_none()}")
        if self.failed:
            notes.append(f"{self.failed} requests failed and are left out: {self._errors()}")
        if left := len(run.done) - len(rows):
            notes.append(f"{left} requests without both lengths are left out")
        after: object = -1
        if self.timed:
            begin = min(one.sent_s for one in rows if one.sent_s is not None)
            arrival = [to_ps((one.sent_s or 0.0) - begin) for one in rows]
        else:
            arrival, after = self._assumed(len(rows), rate, seed, notes)
        labels = tuple(one.label for one in rows) if any(one.label for one in rows) else ()
        return Trace.of(
            arrival,
            [one.prompt for one in rows],
            [one.output for one in rows],
            after=after,
            labels=labels,
            source=f"{self.source} ({self.tool})",
            notes=tuple(notes),
        )

    def _assumed(
        self, rows: int, rate: float | None, seed: int, notes: list[str]
    ) -> tuple[list[int], object]:
        """Arrivals, and whom each waits for, where none are recorded."""
        if rate is None and self.concurrency:
            if self.rate is None or self.rate == math.inf:
                notes.append(
                    f"arrivals are not recorded: {self.concurrency} clients assumed, each sending "
                    "its next request when its last one ends, as the run was asked to"
                )
                first = min(self.concurrency, rows)
                after = np.concatenate([np.full(first, -1), np.arange(rows - first)])
                return [0] * rows, after
        elif rate is None and self.rate == math.inf:
            notes.append("arrivals are not recorded: all at time 0, as the run was asked to")
            return [0] * rows, -1
        if rate is None:
            asked = f" (the run asked for {self.rate:g}/s)" if self.rate else ""
            raise ValueError(
                f"{self.source}: when requests were sent is not recorded{asked}; expected --rate: "
                "Poisson arrivals at so many per second, or inf for all at once"
            )
        if rate == math.inf:
            notes.append("arrivals are not recorded: all at time 0 assumed")
            return [0] * rows, -1
        notes.append(f"arrivals are not recorded: Poisson at {rate:g}/s assumed, seed {seed}")
        times = Poisson().times(rate, stream(seed, "arrivals"), count=rows)
        return times.tolist(), -1

    def _why_none(self) -> str:
        if not self.outcomes:
            return "no requests in it"
        if not self.done:
            return f"all {self.failed} requests failed: {self._errors()}"
        lacks = [name for name in self.missing() if name.endswith("lengths")]
        hint = "; expected --prompt with a length to assume" if "prompt lengths" in lacks else ""
        return f"no request has both lengths ({' and '.join(lacks) or 'they are 0'}){hint}"

    def _errors(self) -> str:
        """The most frequent reasons."""
        counts: dict[str, int] = {}
        for one in self.outcomes:
            if one.error:
                counts[one.error] = counts.get(one.error, 0) + 1
        most = sorted(counts, key=lambda text: -counts[text])[:3]
        return ", ".join(f"{text} ({counts[text]})" for text in most)


def in_order(outcomes: list[Outcome]) -> tuple[tuple[Outcome, ...], list[str]]:
    """By sending time, and what to say about it; as they are where times are missing."""
    sent = [one.sent_s for one in outcomes]
    if not sent or any(moment is None for moment in sent):
        return tuple(outcomes), []
    ordered = sorted(outcomes, key=lambda one: one.sent_s or 0.0)
    notes = []
    if ordered != outcomes:
        notes.append("rows are not in the order of sending (of completion, say): sorted")
    late = [
        one.sent_s - one.scheduled_s
        for one in ordered
        if one.sent_s is not None and one.scheduled_s is not None
    ]
    if late and max(late) > LATE_S:
        notes.append(
            f"the client sent up to {max(late) * 1e3:,.1f} ms after its schedule (mean "
            f"{sum(late) / len(late) * 1e3:.1f} ms): arrivals here are when requests were sent"
        )
    return tuple(ordered), notes


def oddities(outcomes: tuple[Outcome, ...]) -> Iterator[str]:
    """What is odd about the gaps, in sentences."""
    several = [o for o in outcomes if not o.error and o.gaps_s and o.output]
    fewer = [o for o in several if o.output is not None and len(o.gaps_s) < o.output - 1]
    more = [o for o in several if o.output is not None and len(o.gaps_s) > o.output - 1]
    if fewer:
        yield (
            f"{len(fewer)} of {len(several)} requests have fewer gaps than tokens - 1: several "
            "tokens came in one chunk, and ITL here is between chunks"
        )
    if more:
        yield (
            f"{len(more)} of {len(several)} requests have more gaps than tokens - 1: the tool "
            "counted tokens otherwise than the server sent them"
        )
