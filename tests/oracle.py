"""Replay runs of vLLM's own scheduler through our engine and compare every decision.

    python tests/oracle.py DIR [--naive]

Every `*.json.gz` under DIR is replayed by arrival steps; the first difference of each file is
printed in words, and `equal: n of m` at the end. `--naive` replays through
`benchmarks/naive.py` instead of `simulator/`. The format is told in shared/data/README.md.
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
from collections.abc import Callable, Mapping
from collections.abc import Sequence as SequenceOf
from pathlib import Path
from typing import Any, Protocol, cast

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.naive import NaiveSequence, NaiveStep
from policies.base import Policy, Step
from policies.chunked import Chunked
from simulator.engine import Engine
from simulator.sequence import Sequence
from simulator.step import StepBuilder
from traces.seeds import stream
from traces.trace import Segment, Trace

Config = Mapping[str, Any]
Decisions = dict[str, Any]

STEP_PS = 1_000_000
"""One step on our clock: long enough to give all arrivals of a step times of their own."""

SCHEDULED = ("scheduled", "admitted", "preempted", "free_blocks_after_schedule")
QUEUES = ("running", "waiting")
UPDATED = ("sampled", "finished", "free_blocks_after_update")
NOTHING: Decisions = {"scheduled": [], "admitted": [], "sampled": [], "finished": []}
"""What a step did that is left out. (It may have preempted somebody and fed nobody.)"""


class Replica(Protocol):
    """An engine that is driven schedule by schedule. Requests go by their row of the trace."""

    def arrive(self, row: int) -> None: ...

    def schedule(self, now: int, more_to_come: bool) -> Decisions:
        """The decisions of one step, in the oracle's form (`SCHEDULED`, `QUEUES`)."""
        ...

    def update(self, now: int) -> Decisions:
        """The step is over: `UPDATED`."""
        ...


class NaiveReplica:
    """`benchmarks/naive.py`, driven by hand."""

    def __init__(self, trace: Trace, policy: Policy, engine: Engine) -> None:
        self.requests = list(trace.requests())
        self.policy = policy
        self.step = NaiveStep(policy, engine, engine.max_model_len)

    def arrive(self, row: int) -> None:
        request = self.requests[row]
        seq = NaiveSequence(request, request.arrival, self.policy.lane(request))
        seq.end = min(seq.end, self.step.max_model_len)
        self.step.enqueue(seq)

    def schedule(self, now: int, more_to_come: bool) -> Decisions:
        step = self.step
        step.begin(now, more_to_come)
        self.policy.schedule(step)
        return {
            "scheduled": [[s.index, s.now, s.computed] for s in step.fed],
            "admitted": [s.index for s in step.admitted],
            "preempted": [[out.seq.index, *out[1:]] for out in step.preempted],
            "free_blocks_after_schedule": step.free_blocks,
            "running": [s.index for s in step.running],
            "waiting": [s.index for s in step.waiting()],
        }

    def update(self, now: int) -> Decisions:
        sampled, finished = self.step.end(now)
        return {
            "sampled": [s.index for s in sampled],
            "finished": [s.index for s in finished],
            "free_blocks_after_update": self.step.free_blocks,
        }


class FastReplica:
    """The engine of `simulator/`: its step, pool and queue, without the clock."""

    def __init__(self, trace: Trace, policy: Policy, engine: Engine) -> None:
        self.requests = list(trace.requests())
        self.policy = policy
        self.max_model_len = engine.max_model_len
        self.step = StepBuilder(engine, policy, engine.max_model_len, stream(0, "victims", "0"))
        self.sampled: list[int] = []

    def arrive(self, row: int) -> None:
        request = self.requests[row]
        goal = min(request.output, self.max_model_len - request.prompt)
        lane = self.policy.lane(request)
        self.step.arrive(Sequence(request, declared=request.output, goal=goal, lane=lane))

    def schedule(self, now: int, more_to_come: bool) -> Decisions:
        step = self.step
        step.open(now, more_to_come)
        self.policy.schedule(cast(Step, step))
        step.close()
        rows = step.rows()
        known = {seq.index: seq.known for seq in step.running}
        self.sampled = [row.request for row in rows if row.first + row.tokens == known[row.request]]
        return {
            "scheduled": [[row.request, row.tokens, row.first] for row in rows],
            "admitted": [seq.index for seq in step.admitted],
            "preempted": [[seq.index, *held] for seq, *held in step.preempted],
            "free_blocks_after_schedule": step.free_blocks,
            "running": [seq.index for seq in step.running],
            "waiting": [seq.index for seq in step.waiting()],
        }

    def update(self, now: int) -> Decisions:
        finished = self.step.apply(1, now, now)
        return {
            "sampled": self.sampled,
            "finished": [seq.index for seq in finished],
            "free_blocks_after_update": self.step.free_blocks,
        }


def policy_of(config: Config) -> Policy:
    """The chunked policy with the settings of a vLLM configuration."""
    return Chunked(
        token_budget=config["max_num_batched_tokens"],
        chunks=config["enable_chunked_prefill"],
        long_prefill=config["long_prefill_token_threshold"],
        adaptive=config["long_prefill_token_threshold_adaptive"],
        order="priority" if config["policy"] == "priority" else "fcfs",
        victim="priority" if config["policy"] == "priority" else "last-in",
    )


def engine_of(config: Config) -> Engine:
    """The pool of a vLLM configuration: block 0 is a null block, but the watermark counts it."""
    usable = config["num_gpu_blocks"] - 1
    kept = int(config["watermark"] * config["num_gpu_blocks"])
    return Engine(
        kv_tokens=usable * config["block_size"],
        block_size=config["block_size"],
        max_running=config["max_num_seqs"],
        max_model_len=config["max_model_len"],
        # Half a block more than `kept`, so that the share of our smaller pool rounds down to it.
        reserve=(kept + 0.5) / usable if kept else 0.0,
        gate=config["scheduler_reserve_full_isl"],
        prefix_cache=config["enable_prefix_caching"],
    )


def trace_of(requests: SequenceOf[Mapping[str, Any]]) -> Trace:
    """Rows by arrival step, equal steps in list order; in a step each arrives a moment later."""
    ordered = sorted(requests, key=lambda r: r["arrival_step"])
    streams = {f"out:{r['id']}": -(row + 1) for row, r in enumerate(ordered)}
    named = {name for r in ordered for name, _, _ in r["prompt"] if name not in streams}
    streams |= {name: number for number, name in enumerate(sorted(named))}
    return Trace.of(
        arrival=[r["arrival_step"] * STEP_PS + row for row, r in enumerate(ordered)],
        prompt=[sum(tokens for _, _, tokens in r["prompt"]) for r in ordered],
        output=[r["output_len"] for r in ordered],
        priority=[r.get("priority", 0) for r in ordered],
        content=[
            tuple(Segment(streams[name], start, tokens) for name, start, tokens in r["prompt"])
            for r in ordered
        ],
        labels=tuple(r["id"] for r in ordered),
    )


def first_difference(
    run: Mapping[str, Any], build: Callable[[Trace, Policy, Engine], Replica]
) -> str:
    """Replay one run; "" if every decision is equal, else the first difference in words."""
    config = run["config"]
    trace = trace_of(run["requests"])
    replica = build(trace, policy_of(config), engine_of(config))
    expected = {step["step"]: step for step in run["steps"]}
    arrivals = [arrival // STEP_PS for arrival in trace.arrival.tolist()]
    arrived = done = 0
    for at in range(max(*expected, *arrivals) + 1):
        while arrived < len(arrivals) and arrivals[arrived] <= at:
            replica.arrive(arrived)
            arrived += 1
        wanted = expected.get(at, NOTHING)
        if done == arrived and at not in expected:
            continue
        got = named(replica.schedule((at + 1) * STEP_PS - 1, arrived < len(arrivals)), trace)
        for key in SCHEDULED + QUEUES:
            if key in wanted and got[key] != wanted[key]:
                return f"step {at}: {told(key, wanted[key], got[key])}"
        got = named(replica.update((at + 1) * STEP_PS), trace)
        done += len(got["finished"])
        for key in UPDATED:
            if key in wanted and got[key] != wanted[key]:
                return f"step {at}: {told(key, wanted[key], got[key])}"
    if done != len(arrivals):
        return f"after the last step: {done} of {len(arrivals)} requests have finished"
    return ""


def named(decisions: Decisions, trace: Trace) -> Decisions:
    """Rows of the trace replaced by the oracle's ids."""

    def name(value: Any) -> Any:
        return (
            [trace.labels[value[0]], *value[1:]] if isinstance(value, list) else trace.labels[value]
        )

    return {
        key: [name(value) for value in values] if isinstance(values, list) else values
        for key, values in decisions.items()
    }


def told(key: str, wanted: Any, got: Any) -> str:
    """What differs, as a sentence."""
    what = key.replace("_", " ")
    if not isinstance(wanted, list):
        return f"{what}: vLLM has {wanted}, we have {got}"
    for place, (theirs, ours) in enumerate(zip(wanted, got, strict=False)):
        if theirs != ours:
            return f"{what}, entry {place}: vLLM has {theirs}, we have {ours}"
    if len(wanted) > len(got):
        return f"{what}: vLLM also has {wanted[len(got) :]}"
    return f"{what}: we also have {got[len(wanted) :]}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--naive", action="store_true", help="replay through benchmarks/naive.py")
    options = parser.parse_args()
    files = sorted(options.folder.rglob("*.json.gz"))
    if not files:
        print(f"{options.folder}: no *.json.gz in it", file=sys.stderr)
        return 2
    replica = NaiveReplica if options.naive else FastReplica
    equal = 0
    for file in files:
        with gzip.open(file, "rt", encoding="utf-8") as text:
            difference = first_difference(json.load(text), replica)
        if difference:
            print(f"{file.relative_to(options.folder)}: {difference}")
        equal += not difference
    print(f"equal: {equal} of {len(files)}")
    return 0 if equal == len(files) else 1


if __name__ == "__main__":
    sys.exit(main())
