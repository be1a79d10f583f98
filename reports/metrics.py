"""Every metric, defined once. Times in seconds, shares between 0 and 1, None = undefined.

Latencies (of a request; a run states mean, P50, P90, P95, P99 and maximum):
  TTFT      first token - arrival [s]; of everyone who got a first token. The arrival is when
            the client meant to send, however late anybody looked.
  queue     first scheduled - arrival [s]; of everyone who was scheduled. TTFT = queue + prefill.
  ITL       each gap between consecutive tokens of one request [s], pooled over all gaps of all
            requests. A stall after a preemption is one gap.
  TPOT      (last token - first token) / (tokens - 1) [s]; of finished requests with two tokens
            or more.
  E2E       last token - arrival [s]; of finished requests.
Percentiles are by nearest rank (`reports.percentiles`): below 100 samples a P99 is the maximum,
and the notes say so.

Requests: arrived = finished (got all tokens, or as many as the output cap lets) + rejected (turned
away or timed out) + unfinished (still there at the horizon).

Rates, over T_wall = time 0 to the last finish (to the horizon, if requests were left unfinished):
  requests_per_s          finished requests / T_wall
  output_tokens_per_s     tokens produced / T_wall
  prompt_tokens_per_s     prompt tokens of requests that got a first token / T_wall
  goodput_per_s           requests that met every SLA term / T_wall
Where a run was cut by arrival (`reports.confidence.without_ends`) they are over the span of the
arrivals that are left.

Preemptions:
  per_request       preemptions / requests arrived (the preemption rate)
  requests_share    requests ever preempted / requests arrived
  recomputed_tokens tokens fed to the model that it had computed before
  recompute_share   recomputed tokens / tokens fed
  needless          victims whose blocks would still have been free at the end of the step

KV pool, of all replicas together; used = not free (cached but unreferenced blocks are free):
  peak_used_share   largest share used after any scheduling, of one replica
  mean_used_share   sum of used blocks · step time / (blocks · T_wall)
  waste_share       allocated but unused token slots / allocated token slots, over time
  idle_held_share   blocks held by sequences that got no token / blocks held, over time

Batch and steps:
  mean_running      sum of running sequences · step time / (replicas · T_wall)
  mean_tokens       tokens fed / steps
  slot_utilisation  sum of running sequences · step time / (slots · T_wall); slots = seats, of a
                    static batch its size. A seat whose request ended counts as idle until it is
                    filled again.
  seats_bound_share share of T_wall in which every slot was taken while somebody waited
  busy_share        sum of step time / (replicas · T_wall)
  mean_s            sum of step time / steps (the mean scheduling interval)
  host_share        step time that the host spends / step time

Prefix cache: queried_tokens = prompt tokens of the requests that were admitted at all; hit_share =
hit_tokens / queried_tokens.

SLA (`attainment`, below): a term binds a metric at a statistic. A *request* meets a term on TTFT,
queue, TPOT or E2E iff its own value is within the bound; a term on ITL iff that statistic of its
own gaps is (nearest rank; one without gaps meets it). One that did not finish meets nothing.
  attainment        requests that met every term / requests arrived
  met               per term: the statistic of the run is within the bound, where a request that
                    never got the token in question counts as infinitely late
  values            per term: that statistic [s]; None where it is infinite or undefined

`stationary`: see `reports.confidence`. None = nothing to judge; only True is sustainable.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from reports.attainment import attainment
from reports.confidence import stationarity
from reports.dialects import METRICS, latency_summaries
from reports.latencies import Latencies
from traces.records import Records
from traces.sla import Sla
from traces.trace import PS_PER_S

SCHEMA = 1
Bools = NDArray[np.bool_]
By = Literal["lane", "tenant", "reason", "replica"]
CLASSES_SHOWN = 20
SEATS_BIND = 0.05
"""Share of the time with every seat taken, and somebody waiting, that is worth a note."""
HOST_BINDS = 0.2
"""Host share of step time that is worth a note."""


def summarize(
    records: Records | Latencies,
    sla: Sla | None = None,
    *,
    metrics: str = "batchlab",
    by: By | None = None,
) -> dict[str, Any]:
    """The content of summary.json, schema 1: plain dicts, lists, strings and numbers.

    `metrics` reports latencies in another tool's definitions (`reports.dialects`). `classes`
    holds the same per class of the column `by`; by default of lanes, tenants and replicas, where
    there are several; per replica also what it did. Raises ValueError for unknown `metrics`, or
    records that do not fit together.
    """
    if metrics not in METRICS:
        raise ValueError(f"metrics: {metrics!r}, expected one of {', '.join(METRICS)}")
    run = records if isinstance(records, Latencies) else Latencies(records)
    about = run.about
    judged = stationarity(run.column("arrival")[run.arrived], _left(run))
    summary: dict[str, Any] = {
        "schema": SCHEMA,
        "metrics": metrics,
        "policy": about.get("policy"),
        "requests": _requests(run, run.arrived),
        "duration_s": run.wall / PS_PER_S,
        "stationary": judged.stationary,
        "throughput": _throughput(run, run.arrived),
        **latency_summaries(run, metrics),
        "preemptions": {
            **_preemptions(run, run.arrived),
            "needless": about.get("needless_evictions"),
        },
        "kv": _kv(run),
        "batch": _batch(run),
        "steps": _steps(run),
        "prefix": _prefix(run),
        "sla": attainment(run, sla) if sla else None,
        "classes": {
            name: {
                str(key): {
                    "requests": _requests(run, chosen),
                    "throughput": _throughput(run, chosen),
                    **latency_summaries(run, metrics, chosen),
                    "preemptions": _preemptions(run, chosen),
                    "sla": attainment(run, sla, chosen) if sla else None,
                    **(_replica(run, int(key)) if name == "replica" else {}),
                }
                for key, chosen in classes_of(run, name)
            }
            for name in _split_by(run, by)
        },
        "profile": {"name": about.get("profile"), "outside_grid_share": _outside(run)},
        "declared": about.get("declared"),
        "seed": about.get("seed"),
        "version": about.get("version"),
        "scenario": _plain(about.get("scenario", {})),
    }
    summary["notes"] = [*about.get("notes", []), *_notes(run, summary, judged.sentence())]
    return summary


def compare(
    runs: Mapping[str, Records | Latencies],
    sla: Sla | None = None,
    *,
    metrics: str = "batchlab",
) -> dict[str, dict[str, Any]]:
    """Summaries of runs of the same requests, by name.

    Where one run has lanes, the requests are split by its lanes in all of them: what a lane gains
    and what the others pay shows only against runs without it.
    """
    measured = with_same_lanes(runs)
    return {name: summarize(run, sla, metrics=metrics) for name, run in measured.items()}


def with_same_lanes(runs: Mapping[str, Records | Latencies]) -> dict[str, Latencies]:
    """The runs, each with the lanes of the first one that has several."""
    measured = {
        name: run if isinstance(run, Latencies) else Latencies(run) for name, run in runs.items()
    }
    for guide in measured.values():
        rows = guide.records.requests
        if rows["lane"].nunique() > 1:
            lanes = pd.Series(rows["lane"].to_numpy(), index=rows["request"].to_numpy())
            return {name: _in_lanes(run, lanes) for name, run in measured.items()}
    return measured


def _in_lanes(run: Latencies, lanes: pd.Series[str]) -> Latencies:
    requests = run.records.requests
    if requests["lane"].nunique() > 1:
        return run
    lane = lanes.reindex(requests["request"].to_numpy()).fillna("").to_numpy()
    return Latencies(replace(run.records, requests=requests.assign(lane=lane)))


def classes_of(run: Latencies, name: str) -> Iterator[tuple[str, Bools]]:
    """The classes of a column with the rows of each that arrived: most requests first, replicas
    by index."""
    values = run.records.requests[name].astype("category")
    codes, keys = values.cat.codes.to_numpy(), values.cat.categories
    sizes = np.bincount(codes[run.arrived], minlength=len(keys))
    largest = sorted(range(len(keys)), key=lambda i: (-sizes[i], str(keys[i])))[:CLASSES_SHOWN]
    for code in sorted(largest) if name == "replica" else largest:
        if sizes[code]:
            yield str(keys[code]), run.arrived & (codes == code)


def _split_by(run: Latencies, by: By | None) -> list[str]:
    if by is not None:
        return [by]
    requests = run.records.requests
    several = [name for name in ("lane", "tenant") if requests[name].nunique() > 1]
    return [*several, "replica"] if run.replicas > 1 else several


def _left(run: Latencies) -> NDArray[np.int64]:
    ended = run.column("finished")[run.arrived]
    return ended[ended >= 0]


def _requests(run: Latencies, chosen: Bools) -> dict[str, Any]:
    arrived = int(chosen.sum())
    finished = int((chosen & run.finished).sum())
    unfinished = int((chosen & run.unfinished).sum())
    reasons = run.records.requests["reason"][chosen]
    counted = reasons[reasons != ""].astype(str).value_counts()
    return {
        "arrived": arrived,
        "finished": finished,
        "rejected": arrived - finished - unfinished,
        "unfinished": unfinished,
        "by_reason": {str(key): int(counted[key]) for key in sorted(counted.index)},
    }


def _throughput(run: Latencies, chosen: Bools) -> dict[str, float | None]:
    started = chosen & (run.ttft >= 0)
    seconds = run.span / PS_PER_S
    return {
        "requests_per_s": _ratio(int((chosen & run.finished).sum()), seconds),
        "output_tokens_per_s": _ratio(int(run.column("produced")[chosen].sum()), seconds),
        "prompt_tokens_per_s": _ratio(int(run.column("prompt")[started].sum()), seconds),
    }


def _preemptions(run: Latencies, chosen: Bools) -> dict[str, Any]:
    preempted = run.column("preemptions")[chosen]
    recomputed = int(run.column("recomputed")[chosen].sum())
    return {
        "count": int(preempted.sum()),
        "per_request": _ratio(int(preempted.sum()), len(preempted)),
        "requests_share": _ratio(int((preempted > 0).sum()), len(preempted)),
        "recomputed_tokens": recomputed,
        "recompute_share": _ratio(recomputed, int(run.column("computed")[chosen].sum())),
    }


def _kv(run: Latencies) -> dict[str, Any]:
    blocks, steps = run.about.get("blocks"), run.steps
    used: dict[str, float | None] = {"peak_used_share": None, "mean_used_share": None}
    if blocks and steps.least_free is not None:
        used = {
            "peak_used_share": 1 - steps.least_free / blocks,
            "mean_used_share": _ratio(steps.used, float(blocks) * run.replicas * run.wall),
        }
    return {
        "blocks": blocks,
        **used,
        "waste_share": run.about.get("waste_share"),
        "idle_held_share": run.about.get("idle_held_share"),
    }


def _batch(run: Latencies) -> dict[str, float | None]:
    steps = run.steps
    found: dict[str, float | None] = {
        "mean_running": _ratio(steps.running, float(run.replicas * run.wall)),
        "mean_tokens": _ratio(steps.tokens, steps.count),
        "slot_utilisation": None,
        "seats_bound_share": None,
    }
    if run.slots:
        found["slot_utilisation"] = _ratio(steps.running, float(run.slots * run.wall))
        found["seats_bound_share"] = _ratio(steps.full, float(run.replicas * run.wall))
    return found


def _steps(run: Latencies) -> dict[str, Any]:
    steps = run.steps
    return {
        "count": steps.count,
        "busy_share": _ratio(steps.time, run.replicas * run.wall),
        "mean_s": _ratio(steps.time / PS_PER_S, steps.count),
        "host_share": _ratio(steps.host, steps.time),
    }


def _prefix(run: Latencies) -> dict[str, Any]:
    engine = run.about.get("scenario", {}).get("engine", {})
    looked_up = (run.queue >= 0) & bool(engine.get("prefix_cache", False))
    queried = int(run.column("prompt")[looked_up].sum())
    hit = int(run.column("hit")[run.arrived].sum())
    return {
        "queried_tokens": queried,
        "hit_tokens": hit,
        "hit_share": _ratio(hit, queried),
        "resumed_hit_tokens": int(run.column("resumed_hit")[run.arrived].sum()),
    }


def _replica(run: Latencies, replica: int) -> dict[str, Any]:
    """What one replica did over the T_wall of the run; -1, no replica, did nothing."""
    steps = run.records.steps
    mine = replace(
        run.records,
        steps=steps[steps["replica"] == replica],
        about=run.about | {"replicas": 1, "waste_share": None, "idle_held_share": None},
    )
    one = Latencies(mine)
    return {"kv": _kv(one), "batch": _batch(one), "steps": _steps(one)}


def _outside(run: Latencies) -> float | None:
    """Share of step time whose shape lies outside the grid of the profile."""
    return _ratio(run.steps.outside, run.steps.time)


def _notes(run: Latencies, summary: dict[str, Any], judged: str) -> list[str]:
    """What a reader of the numbers must know, one sentence each."""
    counts = summary["requests"]
    notes = [judged[0].upper() + judged[1:] + "."]
    for key in ("rejected", "unfinished"):
        if counts[key]:
            notes.append(
                f"{counts[key]:,} of {counts['arrived']:,} requests {key}: "
                "they meet no SLA, and latencies do not show them."
            )
    if not counts["finished"] and counts["rejected"]:
        notes = [f"Nobody was served: {max(counts['by_reason'], key=counts['by_reason'].get)}."]
    cut = counts["by_reason"].get("length", 0)
    if cut:
        notes.append(
            f"{cut:,} answers were cut short, by the declared maximum, the output cap or "
            "max_model_len: latencies are those of the shorter answers."
        )
    if 0 < counts["finished"] < 100:
        notes.append(
            f"Only {counts['finished']} requests finished: a P99 of fewer than 100 samples is "
            "their maximum."
        )
    outside = summary["profile"]["outside_grid_share"]
    if outside:
        notes.append(
            f"{outside:.1%} of step time lies outside the grid on which the profile was measured."
        )
    notes += _limits(summary)
    for name in summary["classes"]:
        if (found := run.records.requests[name].nunique()) > CLASSES_SHOWN:
            notes.append(f"{found:,} values of {name}: the {CLASSES_SHOWN} largest are shown.")
    return notes


def _limits(summary: dict[str, Any]) -> list[str]:
    """Limits other than the device that hold the run back."""
    notes = []
    bound = summary["batch"]["seats_bound_share"] or 0.0
    if bound > SEATS_BIND:
        notes.append(
            f"All seats were taken while somebody waited for {bound:.1%} of the time: a limit that "
            "should not be the bottleneck; raise engine.max_running (policy.batch)."
        )
    host = summary["steps"]["host_share"] or 0.0
    if host > HOST_BINDS:
        notes.append(
            f"The host takes {host:.1%} of step time: halving it would make steps "
            f"{1 / (1 - host / 2):.2f} times as fast."
        )
    prefix = summary["prefix"]
    if prefix["queried_tokens"] and not prefix["hit_tokens"]:
        notes.append(
            "Prefix sharing is on and nothing was hit: no two prompts begin with a full block of "
            "the same tokens (engine.block_size), or what they share was evicted before."
        )
    return notes


def _plain(value: Any) -> Any:
    """Settings as JSON has them: a rate of inf becomes the text "inf"."""
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole else None
