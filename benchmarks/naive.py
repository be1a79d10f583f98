"""The readable truth: the engine as a plain loop over lists, without SimPy and without tricks.

Every step it asks the policy, walks the running batch sequence by sequence, and notes the time
of every token. It is written apart from `simulator/`, so that two implementations of the same
rules can be compared; and it is the yardstick that `benchmarks/speed.py` measures against.
One replica; the steps are priced by `StepTime.price`.
"""

from __future__ import annotations

import heapq
from bisect import insort
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple, cast

import pandas as pd

from calibration.step_time import StepShape, StepTime
from policies.base import ALL, Answer, Policy, View
from simulator.engine import Engine
from traces.records import REQUEST_COLUMNS, STEP_COLUMNS, WAITS
from traces.trace import Request, Trace


class NaiveSequence:
    """The progress of one request; what a policy may see of it is `View`."""

    __slots__ = (
        "admitted_at", "arrival", "block_ids", "computed", "fed_tokens", "finished",
        "first_scheduled", "fresh", "furthest", "hit", "index", "key", "known", "lane", "limit",
        "names", "passed_over", "peak", "preemptions", "queued_at", "reason", "recomputed",
        "replica", "request", "resumed_hit", "stalled", "token_times", "waited", "waits",
    )  # fmt: skip

    def __init__(self, request: Request, arrival: int, lane: str) -> None:
        self.request = request
        self.index = request.index
        self.arrival = self.queued_at = arrival
        self.lane = lane
        self.key: tuple[int, ...] = ()
        self.known = request.prompt
        self.computed = 0
        self.block_ids: list[int] = []
        self.names: list[int] = []
        """Identities of its full blocks, as far as they were needed."""
        self.limit = request.output
        self.waited = self.stalled = self.preemptions = self.passed_over = 0
        self.admitted_at = self.first_scheduled = self.finished = self.replica = -1
        self.fresh = True
        self.furthest = self.fed_tokens = self.recomputed = self.peak = 0
        self.hit = self.resumed_hit = 0
        self.reason = ""
        self.token_times: list[int] = []
        self.waits = dict.fromkeys(WAITS, 0)

    @property
    def prompt(self) -> int:
        return self.request.prompt

    @property
    def declared(self) -> int:
        return self.request.declared

    @property
    def priority(self) -> int:
        return self.request.priority

    @property
    def tenant(self) -> str:
        return self.request.tenant

    @property
    def todo(self) -> int:
        return self.known - self.computed

    @property
    def blocks(self) -> int:
        return len(self.block_ids)


class NaivePool:
    """Blocks with reference counts, names and one free list (rules A5, A12-A14).

    The free list is taken from the front. A named block at reference zero is free and can be
    hit; when it is taken for new use it loses its name.
    """

    def __init__(self, blocks: int, block_size: int) -> None:
        self.block_size = block_size
        self.free: OrderedDict[int, None] = OrderedDict.fromkeys(range(blocks))
        self.references = [0] * blocks
        self.name_of: dict[int, int] = {}
        self.named: dict[int, dict[int, None]] = {}
        """Copies of each name, oldest first."""
        self._names: dict[tuple[int, tuple[tuple[int, int], ...]], int] = {}

    def take(self, count: int) -> list[int]:
        taken = []
        for _ in range(count):
            block, _ = self.free.popitem(last=False)
            name = self.name_of.pop(block, None)
            if name is not None:
                del self.named[name][block]
                if not self.named[name]:
                    del self.named[name]
            self.references[block] = 1
            taken.append(block)
        return taken

    def share(self, blocks: list[int]) -> None:
        for block in blocks:
            if not self.references[block]:
                del self.free[block]
            self.references[block] += 1

    def release(self, blocks: list[int]) -> None:
        for block in reversed(blocks):
            self.references[block] -= 1
            if not self.references[block]:
                self.free[block] = None
                if block not in self.name_of:
                    self.free.move_to_end(block, last=False)

    def name(self, block: int, name: int) -> None:
        if block not in self.name_of:
            self.name_of[block] = name
            self.named.setdefault(name, {})[block] = None

    def hits(self, seq: NaiveSequence) -> list[int]:
        """Blocks that hold the longest known prefix of `seq`, never all of it."""
        found = []
        for name in self.names(seq, (seq.known - 1) // self.block_size):
            copies = self.named.get(name)
            if not copies:
                break
            found.append(next(iter(copies)))
        return found

    def names(self, seq: NaiveSequence, count: int) -> list[int]:
        """The chained identities of the first `count` blocks of `seq`."""
        while len(seq.names) < count:
            first = len(seq.names) * self.block_size
            parent = seq.names[-1] if seq.names else -1
            tokens = tuple(identity(seq, at) for at in range(first, first + self.block_size))
            seq.names.append(self._names.setdefault((parent, tokens), len(self._names)))
        return seq.names[:count]


def identity(seq: NaiveSequence, position: int) -> tuple[int, int]:
    """(stream, position in it) of one token; tokens without a stream are the request's own."""
    request = seq.request
    if position >= request.prompt:
        return -(request.index + 1), position - request.prompt
    first = 0
    for segment in request.content:
        if position < first + segment.tokens:
            return segment.stream, segment.start + position - first
        first += segment.tokens
    # Own prompt tokens count backwards from -1, where no segment can reach.
    return -(request.index + 1), position - request.prompt


class NaiveQueue:
    """The waiting sequences of one lane (None: of all), in order."""

    def __init__(self, everyone: list[NaiveSequence], lane: str | None) -> None:
        self._everyone = everyone
        self._lane = lane

    def _mine(self) -> list[NaiveSequence]:
        if self._lane is None:
            return self._everyone
        return [seq for seq in self._everyone if seq.lane == self._lane]

    def __len__(self) -> int:
        return len(self._mine())

    def __getitem__(self, at: int) -> NaiveSequence:
        return self._mine()[at]

    def __iter__(self) -> Iterator[NaiveSequence]:
        refused = 0
        while refused < len(queue := self._mine()):
            seq = queue[refused]
            yield seq
            if refused < len(queue := self._mine()) and queue[refused] is seq:
                refused += 1


class Eviction(NamedTuple):
    """A preempted sequence, with what it held just before."""

    seq: NaiveSequence
    computed: int
    known: int
    blocks: int


class NaiveStep:
    """The verbs of `policies.base.Step`, each written out over plain lists."""

    def __init__(self, policy: Policy, engine: Engine, max_model_len: int) -> None:
        self.policy = policy
        self.engine = engine
        self.max_model_len = max_model_len
        self.pool = NaivePool(engine.blocks, engine.block_size)
        self.reserve = int(engine.reserve * engine.blocks)
        self.running: list[NaiveSequence] = []
        self.queue: list[NaiveSequence] = []
        self.now = 0
        self.more_to_come = True
        self.begin(0, True)

    def begin(self, now: int, more_to_come: bool) -> None:
        self.now = now
        self.more_to_come = more_to_come
        self.tokens = 0
        self.fed: dict[NaiveSequence, int] = {}
        """Tokens of each sequence in this step, in the order in which they were scheduled."""
        self.admitted: list[NaiveSequence] = []
        self.preempted: list[Eviction] = []
        self.answers: dict[NaiveSequence, Answer] = {}
        self._starved: tuple[NaiveSequence, int] | None = None

    @property
    def tokens_left(self) -> int:
        return self.policy.token_budget - self.tokens

    @property
    def seats_left(self) -> int:
        return self.engine.max_running - len(self.running)

    @property
    def free_blocks(self) -> int:
        return len(self.pool.free)

    def waiting(self, lane: str | None = None) -> NaiveQueue:
        return NaiveQueue(self.queue, lane)

    def wanted(self, lane: str, most: int = ALL) -> int:
        running = [s for s in self.running if s.lane == lane and s.todo > 1 and s not in self.fed]
        waiting = [s for s in self.queue if s.lane == lane][: self.seats_left]
        return sum(min(seq.todo, most) for seq in running + waiting)

    def feed_running(
        self, most: int = ALL, lane: str | None = None, within: int = ALL
    ) -> NaiveSequence | None:
        left = min(within, self.tokens_left)
        again, self._starved = self._starved, None
        passing = again is not None and again[0] in self.running
        for seq in self.running:
            if passing:
                assert again is not None
                if seq is not again[0]:
                    continue
                passing = False
                tokens = again[1]
            elif seq in self.fed or (lane is not None and seq.lane != lane):
                continue
            else:
                todo = seq.known - seq.computed
                tokens = todo if todo == 1 else min(todo, most)
                tokens = min(tokens, left, self.max_model_len - seq.computed - 1)
            if tokens <= 0:
                continue
            if not self._grow(seq, tokens):
                self._starved = seq, tokens
                return seq
            left -= tokens
        return None

    def feed(self, seq: View, tokens: int) -> Answer:
        mine = self._known(seq, self.running)
        if mine in self.fed:
            raise ValueError(f"request {mine.index} is fed twice in one step")
        tokens = min(tokens, mine.todo, self.tokens_left, self.max_model_len - mine.computed - 1)
        if tokens <= 0:
            return Answer.TOKENS
        return Answer.OK if self._grow(mine, tokens) else Answer.BLOCKS

    def _grow(self, seq: NaiveSequence, tokens: int) -> bool:
        """Feed `seq` if the blocks for it can be had."""
        size = self.pool.block_size
        missing = -(-(seq.computed + tokens) // size) - len(seq.block_ids)
        if missing > 0:
            if missing > len(self.pool.free):
                return False
            seq.block_ids += self.pool.take(missing)
        self._feed(seq, tokens)
        return True

    def _feed(self, seq: NaiveSequence, tokens: int) -> None:
        self.fed[seq] = tokens
        self.tokens += tokens
        if len(seq.block_ids) > seq.peak:
            seq.peak = len(seq.block_ids)
        if self.engine.prefix_cache:
            full = (seq.computed + tokens) // self.pool.block_size
            first = seq.computed // self.pool.block_size
            for block, name in zip(
                seq.block_ids[first:full], self.pool.names(seq, full)[first:], strict=True
            ):
                self.pool.name(block, name)

    def admit(
        self, seq: View, most: int = ALL, *, within: int = ALL, whole: bool = False, hold: int = 0
    ) -> Answer:
        mine = self._known(seq, self.queue)
        answer = self._admit(mine, most, within, whole, hold)
        self.answers[mine] = answer
        return answer

    def _admit(self, seq: NaiveSequence, most: int, within: int, whole: bool, hold: int) -> Answer:
        if self.preempted:
            return Answer.BLOCKS
        if self.seats_left <= 0:
            return Answer.SEATS
        if self.tokens_left <= 0:
            return Answer.TOKENS
        if within <= 0:
            return Answer.LANE
        hits = self.pool.hits(seq) if self.engine.prefix_cache else []
        size = self.pool.block_size
        cached = len(hits) * size
        wish = min(seq.known - cached, most)
        tokens = min(wish, within, self.tokens_left)
        if tokens <= 0 or (whole and tokens < wish):
            return Answer.TOKENS
        must_fit = max(seq.known if self.engine.gate else cached + tokens, hold)
        on_free_list = sum(not self.pool.references[block] for block in hits)
        need = -(-must_fit // size) - len(hits) + on_free_list
        if need > self.free_blocks:
            return Answer.BLOCKS
        if self.running and need + self.reserve > self.free_blocks:
            return Answer.RESERVE

        for head in self.queue:
            if head.lane == seq.lane:
                if head is not seq:
                    head.passed_over += 1
                break
        self.queue.remove(seq)
        self.running.append(seq)
        self.admitted.append(seq)
        self.pool.share(hits)
        seq.block_ids = hits + self.pool.take(-(-max(cached + tokens, hold) // size) - len(hits))
        seq.computed = cached
        if seq.fresh:
            seq.first_scheduled = self.now
            seq.hit = cached
        else:
            seq.stalled += self.now - seq.queued_at
            seq.resumed_hit += cached
        seq.fresh = False
        seq.waited += self.now - seq.queued_at
        seq.admitted_at = self.now
        self._feed(seq, tokens)
        return Answer.OK

    def preempt(self, seq: View) -> None:
        mine = self._known(seq, self.running)
        self.running.remove(mine)
        self.tokens -= self.fed.pop(mine, 0)
        self.preempted.append(Eviction(mine, mine.computed, mine.known, mine.blocks))
        self.pool.release(mine.block_ids)
        mine.block_ids = []
        mine.computed = 0
        mine.preemptions += 1
        mine.queued_at = self.now
        self.enqueue(mine, at_head=getattr(self.policy, "reentry", "head") == "head")

    def wait(self, seq: View, why: Answer) -> None:
        self.answers[self._known(seq, self.queue)] = why

    def enqueue(self, seq: NaiveSequence, at_head: bool = False) -> None:
        key = self.policy.queue_key(seq)
        if key is not None:
            seq.key = (*key, seq.index)
            insort(self.queue, seq, key=lambda other: other.key)
        elif at_head:
            self.queue.insert(0, seq)
        else:
            self.queue.append(seq)

    def _known(self, seq: View, place: list[NaiveSequence]) -> NaiveSequence:
        if not any(seq is other for other in place):
            raise ValueError(f"request {seq.index} is not there for this verb")
        return cast(NaiveSequence, seq)

    def shape(self) -> StepShape:
        chunks = [(s.computed, n) for s, n in self.fed.items() if n > 1]
        decodes = [s.computed for s, n in self.fed.items() if n == 1]
        return StepShape(
            prefill_tokens=sum(n for _, n in chunks),
            chunks=len(chunks),
            decodes=len(decodes),
            area2=sum(n * (2 * c + n) for c, n in chunks),
            reach=sum(c + n for c, n in chunks),
            context=sum(decodes),
            table=sum(len(s.block_ids) for s in self.fed),
        )

    def refusals(self) -> dict[NaiveSequence, str]:
        """What every waiting sequence waits for now: the heads by answer, others *behind*."""
        causes: dict[NaiveSequence, str] = {}
        lanes: set[str] = set()
        for seq in self.queue:
            if seq.lane in lanes:
                causes[seq] = "behind"
                continue
            lanes.add(seq.lane)
            answer = self.answers.get(seq, Answer.OK)
            if not answer:
                causes[seq] = answer.name.lower()
            elif self.tokens_left <= 0:
                causes[seq] = "tokens"
            elif self.seats_left <= 0:
                causes[seq] = "seats"
            else:
                causes[seq] = "blocks" if self.preempted else "batch"
        return causes

    def end(self, now: int) -> tuple[list[NaiveSequence], list[NaiveSequence]]:
        """The step is over: (who got a token, who finished with it)."""
        sampled, finished = [], []
        for seq, tokens in self.fed.items():
            last = seq.computed + tokens
            seq.fed_tokens += tokens
            if seq.furthest > seq.computed:
                seq.recomputed += min(last, seq.furthest) - seq.computed
            if last > seq.furthest:
                seq.furthest = last
            seq.computed = last
            if last < seq.known:
                continue
            seq.known += 1
            seq.token_times.append(now)
            sampled.append(seq)
            if len(seq.token_times) == seq.limit:
                seq.reason = "stop" if seq.limit == seq.request.output else "length"
                seq.finished = now
                finished.append(seq)
        if finished:
            # In running order: the order of the free list decides what is evicted first.
            for seq in [seq for seq in self.running if seq.reason]:
                self.pool.release(seq.block_ids)
                seq.block_ids = []
            self.running = [seq for seq in self.running if not seq.reason]
        return sampled, finished


@dataclass(frozen=True)
class NaiveRun:
    """What happened, told plainly."""

    requests: pd.DataFrame
    """`traces.records.REQUEST_COLUMNS`, `reason`, `tenant`, `lane`."""
    steps: pd.DataFrame
    """`traces.records.STEP_COLUMNS`, without knowing ticks (-1) or grids (0)."""
    token_times: list[list[int]]
    """Per row of the trace."""
    preemptions: list[tuple[int, int]] = field(default_factory=list)
    """(start of the step, request), in order."""
    free_after: list[int] = field(default_factory=list)
    """Free blocks after each step's end."""


def run(
    trace: Trace, policy: Policy, engine: Engine, step_time: StepTime, horizon: int | None = None
) -> NaiveRun:
    """Run `trace` on one replica until all have ended, or until `horizon` (ps)."""
    max_model_len = min(engine.max_model_len, engine.blocks * engine.block_size)
    step = NaiveStep(policy, engine, max_model_len)
    requests = list(trace.requests())
    everyone: dict[int, NaiveSequence] = {}
    later: dict[int, list[Request]] = {}
    arrivals: list[tuple[int, int]] = []
    for request in requests:
        if request.after < 0:
            heapq.heappush(arrivals, (request.arrival, request.index))
        else:
            later.setdefault(request.after, []).append(request)
    rows: list[dict[str, int]] = []
    preemptions: list[tuple[int, int]] = []
    free_after: list[int] = []
    clock = 0

    def ended(seq: NaiveSequence) -> None:
        for request in later.pop(seq.index, ()):
            heapq.heappush(arrivals, (seq.finished + request.arrival, request.index))

    while True:
        while arrivals and arrivals[0][0] <= clock:
            at, index = heapq.heappop(arrivals)
            request = requests[index]
            seq = everyone[index] = NaiveSequence(request, at, policy.lane(request))
            why = refusal(request, engine, max_model_len)
            if why:
                seq.reason, seq.finished = why, at
                ended(seq)
                continue
            seq.replica = 0
            seq.limit = output_limit(request, engine, max_model_len)
            seq.waits["boundary"] = clock - at
            step.enqueue(seq)
        if not step.running and not step.queue:
            if not arrivals or (horizon is not None and arrivals[0][0] > horizon):
                break
            clock = arrivals[0][0]
            continue

        step.begin(clock, bool(arrivals or later))
        stable = policy.schedule(step)
        preemptions += [(clock, out.seq.index) for out in step.preempted]
        if step.fed:
            shape = step.shape()
            next_schedule = clock + step_time.price(shape)
        elif step.preempted:
            next_schedule = clock
        else:
            wakes = [at for at, _ in arrivals[:1]]
            if stable is not None and stable.until is not None:
                wakes.append(stable.until)
            if not wakes:
                raise ValueError(f"{policy}: feeds nobody at {clock} ps and waits for nothing")
            next_schedule = min(wakes)
        if horizon is not None and next_schedule > horizon:
            break
        for seq, cause in step.refusals().items():
            if seq.fresh:
                seq.waits[cause] += next_schedule - clock
        if step.fed:
            row = dict.fromkeys(STEP_COLUMNS, 0) | {
                "start": clock,
                "duration": next_schedule - clock,
                "host": step_time.host(shape),
                "prefill_tokens": shape.prefill_tokens,
                "chunks": shape.chunks,
                "decodes": shape.decodes,
                "decode_context": shape.context,
                "running": len(step.running),
                "waiting": len(step.queue),
                "free_blocks": step.free_blocks,
                "admitted": len(step.admitted),
                "preempted": len(step.preempted),
                "tick": -1,
            }
            _, finished = step.end(next_schedule)
            row["finished"] = len(finished)
            rows.append(row)
            free_after.append(step.free_blocks)
            for seq in finished:
                ended(seq)
        clock = next_schedule

    return NaiveRun(
        requests=pd.DataFrame([_request_row(everyone[i]) for i in sorted(everyone)]),
        steps=pd.DataFrame(rows, columns=list(STEP_COLUMNS)),
        token_times=[
            everyone[r.index].token_times if r.index in everyone else [] for r in requests
        ],
        preemptions=preemptions,
        free_after=free_after,
    )


def output_limit(request: Request, engine: Engine, max_model_len: int) -> int:
    """Tokens after which the request ends: its own, the declared, the cap, the model's limit."""
    limits = [request.output, max_model_len - request.prompt]
    if request.declared:
        limits.append(request.declared)
    if engine.output_cap is not None:
        limits.append(engine.output_cap)
    return min(limits)


def refusal(request: Request, engine: Engine, max_model_len: int) -> str:
    """Why the request can never run (B1); "" if it can."""
    if request.prompt >= max_model_len:
        return "rejected: prompt"
    longest = min(request.prompt + request.declared, engine.max_model_len)
    if -(-(longest - 1) // engine.block_size) > engine.blocks:
        return "rejected: declared"
    return ""


def _request_row(seq: NaiveSequence) -> dict[str, Any]:
    request = seq.request
    row: dict[str, Any] = {
        "request": request.index,
        "replica": seq.replica,
        "arrival": seq.arrival,
        "first_scheduled": seq.first_scheduled,
        "first_token": seq.token_times[0] if seq.token_times else -1,
        "last_token": seq.token_times[-1] if seq.token_times else -1,
        "finished": seq.finished,
        "prompt": request.prompt,
        "output": request.output,
        "produced": len(seq.token_times),
        "declared": request.declared,
        "priority": request.priority,
        "session": request.session,
        "preemptions": seq.preemptions,
        "computed": seq.fed_tokens,
        "recomputed": seq.recomputed,
        "hit": seq.hit,
        "resumed_hit": seq.resumed_hit,
        "blocks_peak": seq.peak,
        "stalled": seq.stalled,
        **{f"wait_{name}": seq.waits[name] for name in WAITS},
    }
    assert row.keys() == REQUEST_COLUMNS.keys()
    return row | {"reason": seq.reason, "tenant": request.tenant, "lane": seq.lane}
