"""What is kept of a run so that any SLA can be asked of it later, without running it again.

Per request the time of every metric, and of its own gaps every statistic; of all gaps their
distribution, for everybody and by class. Values are single floats, and gaps within 0.1 % of one
another count as the larger one: answers are those of `reports.attainment` to 0.1 %.

The ends of a run are cut by arrival, by one stated rule (`steady`): without the requests that
found the server filling, or left it draining.
"""

from __future__ import annotations

import io
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reports.avalanche import avalanche
from reports.confidence import stationarity
from reports.gaps import column
from reports.latencies import Latencies
from reports.metrics import summarize
from reports.parts import bands
from reports.percentiles import Distribution, nearest_rank
from traces.records import Records
from traces.sla import Sla, Term
from traces.trace import PS_PER_S

Floats = NDArray[np.float32]
Bools = NDArray[np.bool_]

GAP_STATISTICS = ("p50", "p90", "p95", "p99", "max")
COLUMNS = ("queue", "ttft", "tpot", "e2e", *(f"itl_{name}" for name in GAP_STATISTICS))
GRAIN = 0.001
CUT_FIRST, CUT_FIRST_MOST, CUT_LAST_MOST = 0.1, 0.33, 0.1
CLASSES_KEPT = 20
ROUNDING = 1 + 1e-6
"""A single float of exactly the bound may lie this much above it."""


@dataclass(frozen=True)
class Evidence:
    """A run by what can be asked of it. Seconds; inf = never came, NaN = has none."""

    requests: Floats
    """Rows: the requests that count, by arrival. Columns: `COLUMNS`."""
    classes: Mapping[str, tuple[str, ...]]
    """Names of the lanes and of the tenants, where there are several."""
    members: Mapping[str, NDArray[np.int16]]
    """By `lane` or `tenant`: which name each request has."""
    gaps: Mapping[str, Distribution]
    """Of all requests (""), and of each class ("tenant=a")."""
    facts: Mapping[str, Any]
    """What else there is to say of the whole run; `facts["summary"]` is its summary."""

    @classmethod
    def of(cls, records: Records, *, stretches: int = 0) -> Evidence:
        """Measure a run.

        `stretches`: keep also what everybody but each of so many stretches, by arrival, saw: how
        sure a figure is where the run cannot be drawn again.
        """
        run = Latencies(records)
        kept, rule = steady(run)
        frame = run.records.requests
        classes, members = {}, {}
        gaps = {"": _grained(run.gaps.pooled(_mask(run, kept)))}
        for name in ("lane", "tenant"):
            values = frame[name].astype("category").cat
            keys = [str(key) for key in values.categories]
            if not 1 < len(keys) <= CLASSES_KEPT:
                continue
            codes = values.codes.to_numpy()[kept].astype(np.int16)
            classes[name], members[name] = tuple(keys), codes
            for code, key in enumerate(keys):
                gaps[f"{name}={key}"] = _grained(run.gaps.pooled(_mask(run, kept[codes == code])))
        for at, part in enumerate(np.array_split(np.arange(len(kept)), stretches or 1)):
            if stretches:
                gaps[f"without={at}/{stretches}"] = _grained(
                    run.gaps.pooled(_mask(run, np.delete(kept, part)))
                )
        summary = summarize(run)
        del summary["scenario"], summary["classes"]
        facts = {
            "summary": summary,
            "cut": rule,
            "offered_per_s": _offered(run),
            "service_per_s": _service(run),
            "stationary": _stationary(run),
            "concurrency": _concurrency(run),
            "slow": {
                name: band[-1].parts for name in ("ttft", "e2e") if (band := bands(run, name))
            },
            "slow_gaps": _slow_gaps(run),
            "room": _room(run),
            "mixed": _mixed(run),
            "memory": _memory(run),
            "avalanche": (found := avalanche(run)) and asdict(found),
        }
        return cls(_table(run, kept), classes, members, gaps, facts)

    # Questions

    def values(self, term: Term, of: str = "") -> float:
        """The statistic of the run in seconds; inf where it is never, NaN where nobody has it."""
        if term.metric == "itl":
            found = self.gaps[of].statistic(term.statistic)
        else:
            every = self.requests[self._of(of), COLUMNS.index(term.metric)].astype(np.float64)
            found = Distribution(every[~np.isnan(every)]).statistic(term.statistic)
        return math.nan if found is None else found

    def meeting(self, sla: Sla) -> Bools:
        """The requests that finished and met every term, each by its own values."""
        met = np.isfinite(self.requests[:, COLUMNS.index("e2e")])
        for term in sla:
            name = term.metric
            if name == "itl":
                name = "tpot" if term.statistic == "mean" else f"itl_{term.statistic}"
            own = self.requests[:, COLUMNS.index(name)]
            met &= np.isnan(own) | (own <= term.bound_s * ROUNDING)
        return met

    def margins(
        self,
        sla: Sla,
        *,
        attainment: float | None = None,
        by: str | None = None,
        without: str | None = None,
    ) -> dict[str, float]:
        """log(value / bound) by term, and by class where asked: above 0 the level is missed.

        With `attainment` the one margin (of each class) is that of the share of requests that
        miss it: log(missed share / allowed share). `without` = "2/10": of all requests but those
        of the third of ten stretches (which `of` was told to keep).
        """
        found = {}
        groups = self._groups(by) if without is None else [(f"without={without}", "")]
        for of, said in groups:
            if attainment is not None:
                met = self.meeting(sla)[self._of(of)]
                # Half a request more than missed: nobody missing is no proof of no misses.
                missed = (len(met) - int(met.sum()) + 0.5) / (len(met) + 1)
                found[f"{attainment:.6g} of requests meet all{said}"] = math.log(
                    missed / max(1 - attainment, 0.5 / (len(met) + 1))
                )
                continue
            for term in sla:
                value = self.values(term, of)
                if math.isnan(value):
                    margin = -math.inf
                else:
                    margin = math.log(max(value, 1e-12) / (term.bound_s * ROUNDING))
                found[f"{term}{said}"] = margin
        return found

    def goodput_share(self, sla: Sla, of: str = "") -> float:
        """Share of the requests that finished and met every term."""
        met = self.meeting(sla)[self._of(of)]
        return float(met.mean()) if len(met) else 0.0

    def _groups(self, by: str | None) -> Iterator[tuple[str, str]]:
        if by is None or by not in self.classes:
            yield "", ""
            return
        for key in self.classes[by]:
            yield f"{by}={key}", f" ({by} {key})"

    def _of(self, of: str) -> Any:
        if not of:
            return slice(None)
        name, _, key = of.partition("=")
        if name == "without":
            at, stretches = map(int, key.split("/"))
            rows = np.ones(len(self.requests), dtype=bool)
            rows[np.array_split(np.arange(len(rows)), stretches)[at]] = False
            return rows
        return self.members[name] == self.classes[name].index(key)

    # On disk

    def to_bytes(self) -> bytes:
        arrays: dict[str, NDArray[Any]] = {"requests": self.requests}
        arrays |= {f"of_{name}": codes for name, codes in self.members.items()}
        for at, known in enumerate(self.gaps.values()):
            arrays[f"gaps_{at}"] = known.values.astype(np.float32)
            arrays[f"ranks_{at}"] = known.ranks.astype(np.int64)
        head = {"classes": self.classes, "gaps": list(self.gaps), "facts": self.facts}
        arrays["head"] = np.frombuffer(json.dumps(head).encode(), dtype=np.uint8)
        out = io.BytesIO()
        np.savez_compressed(out, **arrays)  # type: ignore[arg-type]
        return out.getvalue()

    @classmethod
    def from_bytes(cls, content: bytes) -> Evidence:
        """Raises ValueError for bytes that are no evidence."""
        try:
            with np.load(io.BytesIO(content)) as arrays:
                head = json.loads(arrays["head"].tobytes())
                gaps = {
                    name: _known(arrays[f"gaps_{at}"], arrays[f"ranks_{at}"])
                    for at, name in enumerate(head["gaps"])
                }
                members = {name: arrays[f"of_{name}"] for name in head["classes"]}
                requests = arrays["requests"]
        except (KeyError, OSError, ValueError, EOFError) as error:
            raise ValueError(f"what is kept of a run is damaged: {error}") from None
        classes = {name: tuple(keys) for name, keys in head["classes"].items()}
        return cls(requests, classes, members, gaps, head["facts"])


def steady(run: Latencies) -> tuple[NDArray[np.int64], str]:
    """The rows that count, by arrival, and the rule in words.

    Left out are the first tenth of the requests, or as many as arrive within two mean E2E if
    these are more (a third at most), and at the end those that arrive within one mean E2E of the
    last (a tenth at most). Where all arrive at once nobody is left out.
    """
    arrival = run.column("arrival")
    order = np.argsort(arrival, kind="stable")
    order = order[arrival[order] >= 0]
    times, count = arrival[order], len(order)
    if count < 10 or times[0] == times[-1]:
        return order, "all requests count: they come at once, or are few"
    ended = run.e2e[run.e2e >= 0]
    typical = int(ended.mean()) if len(ended) else 0
    fill = int(np.searchsorted(times, times[0] + 2 * typical))
    first = min(max(fill, math.ceil(CUT_FIRST * count)), int(CUT_FIRST_MOST * count))
    drain = count - int(np.searchsorted(times, times[-1] - typical))
    last = min(drain, int(CUT_LAST_MOST * count))
    said = (
        f"without the first {first:,} and the last {last:,} of {count:,} requests by arrival "
        f"(the server fills and drains)"
    )
    return order[first : count - last], said


def _table(run: Latencies, kept: NDArray[np.int64]) -> Floats:
    table = np.full((len(kept), len(COLUMNS)), np.nan, dtype=np.float32)
    finished = run.finished[kept]
    for at, name in enumerate(("queue", "ttft", "tpot", "e2e")):
        own = run.of(name)[kept].astype(np.float64) / PS_PER_S
        never = ~finished if name == "tpot" else np.ones(len(kept), dtype=bool)
        table[:, at] = np.where(own >= 0, own, np.where(never, np.inf, np.nan))
    place = np.full(run.gaps.rows, -1)
    place[kept] = np.arange(len(kept))
    for row, gaps in _own_gaps(run):
        if (at := place[row]) >= 0:
            ranks = [-(-share * len(gaps) // 100) - 1 for share in (50, 90, 95, 99, 100)]
            table[at, 4:] = np.sort(gaps)[ranks] / PS_PER_S
    return table


def _own_gaps(run: Latencies) -> Iterator[tuple[int, NDArray[np.int64]]]:
    """The gaps of each request that has any."""
    gaps = run.gaps
    rows = np.concatenate([gaps.spell_row, gaps.stall_row])
    spells = len(gaps.spell_row)
    order = np.argsort(rows, kind="stable")
    first, last, stall = gaps.first.tolist(), gaps.last.tolist(), gaps.stall
    cuts = np.flatnonzero(np.diff(rows[order], prepend=-1, append=-1))
    bounds = cuts.tolist()
    parts = order.tolist()
    for low, high in pairwise(bounds):
        pieces = [
            gaps.gap[first[at] : last[at] + 1] if at < spells else stall[at - spells, None]
            for at in parts[low:high]
        ]
        yield int(rows[parts[low]]), pieces[0] if len(pieces) == 1 else np.concatenate(pieces)


def _mask(run: Latencies, kept: NDArray[np.int64]) -> Bools:
    mask = np.zeros(run.gaps.rows, dtype=bool)
    mask[kept] = True
    return mask


def _grained(known: Distribution) -> Distribution:
    """The same in seconds, values within 0.1 % of each other as the largest of them."""
    if not known.count:
        return known
    values = known.values / PS_PER_S
    grain = np.floor(np.log(np.maximum(values, 1e-12)) / math.log1p(GRAIN)).astype(np.int64)
    ends = np.flatnonzero(np.diff(grain, append=grain[-1] + 1))
    return _known(values[ends].astype(np.float32), known.ranks[ends])


def _known(values: NDArray[Any], ranks: NDArray[Any]) -> Distribution:
    return Distribution(values.astype(np.float64), np.diff(ranks, prepend=0))


def _offered(run: Latencies) -> float | None:
    """Requests per second that were sent; None where all come at once."""
    arrival = run.column("arrival")[run.arrived]
    span = int(arrival.max() - arrival.min()) if len(arrival) else 0
    return (len(arrival) - 1) / (span / PS_PER_S) if span else None


def _service(run: Latencies) -> float | None:
    """Requests finished per second from when a fifth is done to when four fifths are."""
    ends = np.sort(run.column("finished")[run.finished])
    if len(ends) < 10:
        return None
    low, high = len(ends) // 5, len(ends) * 4 // 5
    span = int(ends[high] - ends[low])
    return (high - low) / (span / PS_PER_S) if span else None


def _stationary(run: Latencies) -> bool | None:
    ended = run.column("finished")[run.arrived]
    return stationarity(run.column("arrival")[run.arrived], ended[ended >= 0]).stationary


def _concurrency(run: Latencies) -> float | None:
    """Requests in the system on average (Little's law over the arrivals)."""
    offered, ended = _offered(run), run.e2e[run.e2e >= 0]
    return offered * float(ended.mean()) / PS_PER_S if offered and len(ended) else None


def _slow_gaps(run: Latencies) -> dict[str, float]:
    """What the slowest 1 % of gaps held: others' prefill, a preemption, or decoding alone."""
    gaps, steps = run.gaps, run.records.steps
    pooled = run.pooled_gaps
    if not pooled.count:
        return {}
    edge = pooled.at(nearest_rank(99, pooled.count))
    ticks = len(gaps.gap)
    began = np.bincount(gaps.first, minlength=ticks + 1)
    ended = np.bincount(gaps.last + 1, minlength=ticks + 1)
    seen = np.cumsum((began - ended)[:ticks])
    prefill = np.cumsum(column(steps, "prefill_tokens"))[column(steps, "tick") >= 0]
    mixed = np.diff(prefill, prepend=prefill[:1]) > 0
    slow = gaps.gap >= edge
    evicted = run.column("preemptions")[gaps.stall_row] > 0
    late = gaps.stall >= edge
    counts = {
        "prefill": int(seen[slow & mixed].sum()) + int((late & ~evicted).sum()),
        "decode": int(seen[slow & ~mixed].sum()),
        "preemption": int((late & evicted).sum()),
    }
    total = sum(counts.values())
    return {name: count / total for name, count in counts.items() if count}


def _room(run: Latencies) -> dict[str, int]:
    """What tells whether another block size would have changed anything (`same_in_blocks`)."""
    steps, about = run.records.steps, run.about
    free = int(column(steps, "free_blocks").min(initial=about.get("blocks", 0)))
    rejected = int((run.arrived & ~run.finished & ~run.unfinished).sum())
    held = run.column("wait_blocks").sum() + run.column("wait_reserve").sum()
    return {
        "slots": (about.get("blocks", 0) - free) * about.get("block_size", 1),
        "running": int(column(steps, "running").max(initial=0)),
        "longest": int((run.column("prompt") + run.column("declared")).max(initial=0)),
        "bound": int(run.column("preemptions").sum()) + rejected + int(held > 0),
    }


def _memory(run: Latencies) -> dict[str, float]:
    """Who holds the pool: the largest share of one request, and lengths that caps go by."""
    pool = run.about.get("blocks", 0)
    produced = run.column("produced")[run.finished]
    tokens = (run.column("prompt") + run.column("produced"))[run.finished]
    none = not len(produced)
    return {
        "largest_share": int(run.column("blocks_peak").max(initial=0)) / pool if pool else 0.0,
        "output_p99": 0.0 if none else float(np.quantile(produced, 0.99, method="inverted_cdf")),
        "tokens_mean": 0.0 if none else float(tokens.mean()),
    }


def _mixed(run: Latencies) -> dict[str, int]:
    """What steps that prefill and decode came to: sums that price a penalty on them."""
    steps = run.records.steps
    decodes = column(steps, "decodes")
    both = (column(steps, "prefill_tokens") > 0) & (decodes > 0)
    return {
        "steps": int(both.sum()),
        "decodes": int(decodes[both].sum()),
        "context": int(column(steps, "decode_context")[both].sum()),
    }


def same_in_blocks(
    room: Mapping[str, int], *, block_size: int, blocks: int, reserve: float
) -> bool:
    """Whether the run would have gone the same with blocks of another size.

    True only where it is certain: nobody was refused, held back or preempted for memory, and
    even if every sequence wasted one more block, what ran and the longest request on top of it
    would fit above the reserve. Holds where steps do not cost by blocks and none are shared.
    """
    if room["bound"]:
        return False
    held = -(-room["slots"] // block_size) + room["running"]
    longest = -(-room["longest"] // block_size)
    return held + longest + int(reserve * blocks) < blocks
