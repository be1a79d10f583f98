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
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, cast

import pandas as pd

from calibration.step_time import StepShape, StepTime
from policies.base import ALL, Answer, Policy, View
from simulator.engine import Engine
from traces.records import REQUEST_COLUMNS, STEP_COLUMNS, WAITS
from traces.seeds import stream
from traces.trace import PS_PER_S, Request, Trace


class NaiveSequence:
    """The progress of one request; what a policy may see of it is `View`."""

    __slots__ = (
        "admitted_at", "arrival", "block_ids", "cached", "computed", "declared", "end",
        "evicted_step", "fed_tokens", "finished", "first_scheduled", "first_stalled", "fresh",
        "furthest", "hit", "index", "key", "known", "lane", "names", "now", "passed_over", "peak",
        "preemptions", "queued_at", "reason", "recomputed", "replica", "request", "resumed_hit",
        "runs", "slots", "stalled", "swapped", "token_times", "waited", "waits",
    )  # fmt: skip

    def __init__(self, request: Request, arrival: int, lane: str) -> None:
        self.request = request
        self.index = request.index
        self.arrival = self.queued_at = arrival
        self.lane = lane
        self.declared = request.declared or request.output
        """The maximum of its client, less where the engine will never give as much."""
        self.key: tuple[int, ...] = ()
        self.known = request.prompt
        self.computed = 0
        self.block_ids: list[int] = []
        self.names: list[int] = []
        """Identities of its full blocks, as far as they were needed."""
        self.end = request.prompt + request.output
        """Known tokens at which it ends."""
        self.now = 0
        """Tokens it is fed in the step under construction."""
        self.slots = 0
        """Tokens that its blocks can hold."""
        self.swapped = 0
        """Blocks of it that wait on the host."""
        self.cached = 0
        """Of its computed tokens, those that were hits."""
        self.waited = self.stalled = self.preemptions = self.passed_over = 0
        self.admitted_at = self.first_scheduled = self.finished = self.replica = -1
        self.evicted_step = -1
        self.fresh = True
        """Not scheduled yet."""
        self.runs = False
        self.first_stalled = 0
        """What it had been stalled by its first token."""
        self.furthest = self.fed_tokens = self.recomputed = self.peak = 0
        self.hit = self.resumed_hit = 0
        self.reason = ""
        self.token_times: list[int] = []
        self.waits = dict.fromkeys(WAITS, 0)

    def note_computed(self) -> None:
        """Count what was computed since its admission, before its blocks go."""
        self.peak = max(self.peak, len(self.block_ids))
        self.fed_tokens += self.computed - self.cached
        self.furthest = max(self.furthest, self.computed)

    @property
    def prompt(self) -> int:
        return self.request.prompt

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

    Blocks without a name are taken first, then the named one that was freed longest ago. A
    named block at reference zero is free and can be hit; taken for new use it loses its name.
    """

    def __init__(self, blocks: int, block_size: int) -> None:
        self.block_size = block_size
        self.nameless = list(range(blocks))
        self.idle: OrderedDict[int, None] = OrderedDict()
        """Named blocks without a reference, in the order in which they were freed."""
        self.references = [0] * blocks
        self.turned = 0
        """Blocks ever given to sequences and ever given back."""
        self.name_of: dict[int, int] = {}
        self.named: dict[int, dict[int, None]] = {}
        """Copies of each name, oldest first."""
        self._names: dict[tuple[int, tuple[tuple[int, int], ...]], int] = {}

    @property
    def free(self) -> int:
        return len(self.nameless) + len(self.idle)

    def fits(self, count: int) -> bool:
        return count <= self.free

    def take(self, count: int) -> list[int]:
        self.turned += count
        taken = []
        for _ in range(count):
            if self.nameless:
                block = self.nameless.pop()
            else:
                block, _ = self.idle.popitem(last=False)
                del self.named[self.name_of.pop(block)][block]
            self.references[block] = 1
            taken.append(block)
        return taken

    def share(self, blocks: list[int]) -> None:
        self.turned += len(blocks)
        for block in blocks:
            if not self.references[block]:
                del self.idle[block]
            self.references[block] += 1

    def release(self, blocks: list[int]) -> None:
        self.turned += len(blocks)
        for block in reversed(blocks):
            self.references[block] -= 1
            if not self.references[block]:
                if block in self.name_of:
                    self.idle[block] = None
                else:
                    self.nameless.append(block)

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


class OnePiecePool(NaivePool):
    """A sequence's blocks lie side by side, in the first gap that is long enough."""

    def fits(self, count: int) -> bool:
        return count <= self.free and self._gap(count) is not None

    def take(self, count: int) -> list[int]:
        self.turned += count
        first = self._gap(count)
        assert first is not None
        taken = list(range(first, first + count))
        self.nameless = [block for block in self.nameless if block not in taken]
        for block in taken:
            self.references[block] = 1
        return taken

    def _gap(self, count: int) -> int | None:
        free = set(self.nameless)
        for first in range(len(self.references) - count + 1):
            if all(block in free for block in range(first, first + count)):
                return first
        return None


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


class NaiveQueue(list[NaiveSequence]):
    """The waiting sequences of one lane, in order."""

    def __iter__(self) -> Iterator[NaiveSequence]:
        refused = 0
        while refused < len(self):
            seq = self[refused]
            yield seq
            # Admitted meanwhile: the next one has moved up to its place.
            if refused < len(self) and self[refused] is seq:
                refused += 1


class Eviction(NamedTuple):
    """A preempted sequence, with what it held just before."""

    seq: NaiveSequence
    computed: int
    known: int
    blocks: int


class NaiveStep:
    """The verbs of `policies.base.Step`, each written out over plain lists."""

    def __init__(self, policy: Policy, engine: Engine, max_model_len: int, seed: int = 0) -> None:
        self.policy = policy
        self.engine = engine
        self.max_model_len = max_model_len
        pool = OnePiecePool if engine.contiguous else NaivePool
        self.pool = pool(engine.blocks, engine.block_size)
        self.turned = 0
        """`pool.turned` as far as steps have paid for it."""
        self.swap_free = engine.swap_tokens // engine.block_size
        self.moved = 0
        """Bytes between host and device since the last step that ran."""
        self.reserve = int(engine.reserve * engine.blocks)
        self.running: list[NaiveSequence] = []
        self.lanes: dict[str, NaiveQueue] = {}
        self.now = 0
        self.more_to_come = True
        self.number = 0
        self.evictions_in_a_row = 0
        self.preempted: list[Eviction] = []
        self._pause_until = 0
        """Free blocks at which paused admissions go on."""
        self._service: dict[str, int] = {}
        self._returned: set[str] = set()
        """Lanes that an arrival found with nobody waiting or running."""
        self._victims = stream(seed, "victims", "0")
        self.begin(0, True)

    def begin(self, now: int, more_to_come: bool) -> None:
        self.evictions_in_a_row = self.evictions_in_a_row + 1 if self.preempted else 0
        if self._returned:
            self._lift()
        self.now = now
        self.more_to_come = more_to_come
        self.tokens = 0
        self.fed: list[NaiveSequence] = []
        """In the order in which they were scheduled."""
        self.admitted: list[NaiveSequence] = []
        self.preempted = []
        self.answers: dict[str, Answer] = {}
        """What the first sequence of each lane that was not admitted was told."""
        self._starved: NaiveSequence | None = None
        self._amount = 0

    @property
    def tokens_left(self) -> int:
        return self.policy.token_budget - self.tokens

    @property
    def seats_left(self) -> int:
        return self.engine.max_running - len(self.running)

    def waiting_count(self) -> int:
        return sum(len(queue) for queue in self.lanes.values())

    @property
    def free_blocks(self) -> int:
        return self.pool.free

    @property
    def pool_blocks(self) -> int:
        return self.engine.blocks

    @property
    def prefilling(self) -> list[NaiveSequence]:
        return [seq for seq in self.running if seq.todo > 1]

    @property
    def unfinished(self) -> int:
        return sum(seq.todo > max(seq.now, 1) for seq in self.running)

    @property
    def paused(self) -> bool:
        if self.free_blocks >= self._pause_until or not self.running:
            self._pause_until = 0
        return self._pause_until > 0

    def pause(self, share: float) -> None:
        self._pause_until = max(1, int(share * self.engine.blocks))

    def draw(self, n: int) -> int:
        return int(self._victims.integers(n))

    def served(self, lane: str) -> int:
        return self._service.get(lane, 0)

    def shortage(self, most: int = ALL) -> int:
        left, need = self.tokens_left, 0
        for seq in self.running:
            if not seq.now:
                tokens = self._least(seq, most, left)
                left -= tokens
                blocks = -(-(seq.computed + tokens) // self.pool.block_size)
                need += max(0, blocks - len(seq.block_ids))
        return max(0, need - self.free_blocks)

    def _least(self, seq: NaiveSequence, most: int, left: int) -> int:
        """What a running sequence gets of `left` tokens (rule A1)."""
        tokens = seq.known - seq.computed
        if tokens > 1 and tokens > most:
            tokens = most
        if tokens > left:
            tokens = left
        if seq.computed + tokens >= self.max_model_len:
            tokens = self.max_model_len - seq.computed - 1
        return tokens

    def arrive(self, seq: NaiveSequence) -> None:
        self.waiting(seq.lane)
        if not self._busy(seq.lane):
            self._returned.add(seq.lane)
        self.enqueue(seq)

    def _busy(self, lane: str) -> bool:
        return bool(self.lanes[lane]) or any(seq.lane == lane for seq in self.running)

    def _lift(self) -> None:
        """Lanes back from idleness start at the least service of those that were not idle."""
        busy = [lane for lane in self.lanes if lane not in self._returned and self._busy(lane)]
        least = min((self.served(lane) for lane in busy), default=0)
        for lane in self._returned:
            self._service[lane] = max(self.served(lane), least)
        self._returned = set()

    def waiting(self, lane: str | None = None) -> NaiveQueue:
        if lane is not None:
            return self.lanes.setdefault(lane, NaiveQueue())
        if len(self.lanes) == 1:
            return next(iter(self.lanes.values()))
        everyone = (seq for queue in self.lanes.values() for seq in queue)
        return NaiveQueue(sorted(everyone, key=lambda seq: (seq.queued_at, seq.index)))

    def wanted(self, lane: str, most: int = ALL) -> int:
        mine = [s for s in self.running if s.lane == lane and s.todo > 1 and not s.now]
        total = sum(min(seq.todo, most) for seq in mine)
        if self.preempted:
            return min(total, self.tokens_left)
        for seq in self.waiting(lane)[: self.seats_left]:
            hits = self._hits(seq)
            tokens = min(seq.known - self._cached(seq, hits), most)
            left = self.tokens_left - total
            if left <= 0 or not self._room(seq, hits, min(tokens, left), 0):
                break
            total += tokens
        return min(total, self.tokens_left)

    def feed_running(
        self, most: int = ALL, lane: str | None = None, within: int = ALL
    ) -> NaiveSequence | None:
        left = before = min(within, self.tokens_left)
        naming = self.engine.prefix_cache
        fed = self.fed
        again, self._starved = self._starved, None
        if again not in self.running:
            again = None
        for seq in self.running:
            if again is not None:
                if seq is not again:
                    continue
                again = None
                tokens = self._amount
            elif seq.now or (lane is not None and seq.lane != lane):
                continue
            else:
                tokens = self._least(seq, most, left)
                if tokens <= 0:
                    continue
            if seq.computed + tokens > seq.slots and not self._grow(seq, tokens):
                self._starved, self._amount = seq, tokens
                break
            seq.now = tokens
            fed.append(seq)
            left -= tokens
            if naming:
                self._name_blocks(seq)
        self.tokens += before - left
        return self._starved

    def feed(self, seq: View, tokens: int) -> Answer:
        mine = self._checked(seq, running=True)
        if mine.now:
            raise ValueError(f"request {mine.index} is fed twice in one step")
        tokens = min(tokens, mine.todo, self.tokens_left, self.max_model_len - mine.computed - 1)
        if tokens <= 0:
            return Answer.TOKENS
        if mine.computed + tokens > mine.slots and not self._grow(mine, tokens):
            return Answer.BLOCKS
        self._feed(mine, tokens)
        return Answer.OK

    def _grow(self, seq: NaiveSequence, tokens: int) -> bool:
        """Take the blocks that `seq` lacks for `tokens` more, if they can be had."""
        missing = -(-(seq.computed + tokens) // self.pool.block_size) - len(seq.block_ids)
        if missing > self.pool.free:
            return False
        seq.block_ids += self.pool.take(missing)
        seq.slots = len(seq.block_ids) * self.pool.block_size
        return True

    def _feed(self, seq: NaiveSequence, tokens: int) -> None:
        seq.now = tokens
        self.fed.append(seq)
        self.tokens += tokens
        if self.engine.prefix_cache:
            self._name_blocks(seq)

    def _name_blocks(self, seq: NaiveSequence) -> None:
        """Blocks that this step fills can be hit from now on (rule A13)."""
        full = (seq.computed + seq.now) // self.pool.block_size
        first = seq.computed // self.pool.block_size
        for block, name in zip(
            seq.block_ids[first:full], self.pool.names(seq, full)[first:], strict=True
        ):
            self.pool.name(block, name)

    def _let_go(self, seq: NaiveSequence) -> None:
        """Its blocks go back; what was computed for it is counted."""
        seq.note_computed()
        self.pool.release(seq.block_ids)
        seq.block_ids = []
        seq.slots = seq.computed = seq.cached = 0

    def admit(
        self, seq: View, most: int = ALL, *, within: int = ALL, whole: bool = False, hold: int = 0
    ) -> Answer:
        mine = self._checked(seq, running=False)
        answer = self._admit(mine, most, within, whole, hold)
        if not answer:
            self.answers.setdefault(mine.lane, answer)
        return answer

    def _admit(self, seq: NaiveSequence, most: int, within: int, whole: bool, hold: int) -> Answer:
        if self.preempted:
            return Answer.BLOCKS
        if self.tokens_left <= 0:
            return Answer.TOKENS
        if min(within, most) <= 0:
            return Answer.LANE
        if self.seats_left <= 0:
            return Answer.SEATS
        hits = self._hits(seq)
        size = self.pool.block_size
        cached = self._cached(seq, hits)
        wish = min(seq.known - cached, most)
        tokens = min(wish, within, self.tokens_left)
        if whole and tokens < wish <= self.policy.token_budget:
            return Answer.TOKENS if wish > self.tokens_left else Answer.LANE
        answer = self._room(seq, hits, tokens, hold)
        if not answer:
            return answer

        queue = self.lanes[seq.lane]
        if queue[0] is not seq:
            queue[0].passed_over += 1
        queue.remove(seq)
        self.running.append(seq)
        seq.runs = True
        self.admitted.append(seq)
        if seq.swapped:
            self.swap_free += seq.swapped
            self._move(seq.swapped)
            seq.swapped = 0
        self.pool.share(hits)
        seq.block_ids = hits + self.pool.take(-(-max(cached + tokens, hold) // size) - len(hits))
        seq.slots = len(seq.block_ids) * size
        seq.computed = seq.cached = cached
        if seq.fresh:
            seq.first_scheduled = self.now
            seq.hit = cached
            # Whatever it did not wait for by itself it waited for those ahead of it.
            seq.waits["behind"] = self.now - seq.arrival - sum(seq.waits.values())
        else:
            seq.stalled += self.now - seq.queued_at
            seq.resumed_hit += len(hits) * size
        seq.fresh = False
        seq.waited += self.now - seq.queued_at
        seq.admitted_at = self.now
        self._feed(seq, tokens)
        return Answer.OK

    def _hits(self, seq: NaiveSequence) -> list[int]:
        return self.pool.hits(seq) if self.engine.prefix_cache and not seq.swapped else []

    def _cached(self, seq: NaiveSequence, hits: list[int]) -> int:
        """Tokens whose KV need not be computed: hits, or what waits on the host."""
        return seq.computed + len(hits) * self.pool.block_size

    def _move(self, blocks: int) -> None:
        self.moved += blocks * self.pool.block_size * self.engine.kv_bytes_per_token

    def _room(self, seq: NaiveSequence, hits: list[int], tokens: int, hold: int) -> Answer:
        """The gate (rule A6) and the reserve (rule A7)."""
        size = self.pool.block_size
        chunk = self._cached(seq, hits) + tokens
        must_fit = max(seq.known if self.engine.gate else chunk, hold)
        on_free_list = sum(not self.pool.references[block] for block in hits)
        need = -(-must_fit // size) - len(hits) + on_free_list
        if not self.pool.fits(need):
            return Answer.BLOCKS
        if self.running and need + self.reserve > self.free_blocks:
            return Answer.RESERVE
        return Answer.OK

    def preempt(self, seq: View) -> None:
        mine = self._checked(seq, running=True)
        self.running.remove(mine)
        mine.runs = False
        if mine.now:
            self.fed.remove(mine)
            self.tokens -= mine.now
            mine.now = 0
        self.preempted.append(Eviction(mine, mine.computed, mine.known, mine.blocks))
        kept, blocks = mine.computed, -(-mine.computed // self.pool.block_size)
        self._let_go(mine)
        if 0 < blocks <= self.swap_free:
            self.swap_free -= blocks
            self._move(blocks)
            mine.swapped = blocks
            mine.computed = mine.cached = kept
        mine.preemptions += 1
        mine.evicted_step = self.number
        mine.queued_at = self.now
        self.enqueue(mine, at_head=getattr(self.policy, "reentry", "head") == "head")

    def wait(self, seq: View, why: Answer) -> None:
        self.answers.setdefault(self._checked(seq, running=False).lane, why)

    def enqueue(self, seq: NaiveSequence, at_head: bool = False) -> None:
        queue = self.waiting(seq.lane)
        key = self.policy.queue_key(seq)
        if key is not None:
            seq.key = (*key, seq.index)
            insort(queue, seq, key=lambda other: other.key)
        elif at_head:
            queue.insert(0, seq)
        else:
            queue.append(seq)

    def _checked(self, seq: View, running: bool) -> NaiveSequence:
        mine = cast(NaiveSequence, seq)
        if mine.runs is not running or mine.reason:
            raise ValueError(f"request {mine.index} is not {'running' if running else 'waiting'}")
        return mine

    def shape(self) -> StepShape:
        prefill = chunks = decodes = area2 = reach = context = table = 0
        for seq in self.fed:
            tokens, computed = seq.now, seq.computed
            if tokens == 1:
                decodes += 1
                context += computed
            else:
                chunks += 1
                prefill += tokens
                area2 += tokens * (2 * computed + tokens)
                reach += computed + tokens
            table += len(seq.block_ids)
        turned, self.turned = self.pool.turned - self.turned, self.pool.turned
        moved, self.moved = self.moved, 0
        size = self.pool.block_size
        filled = 0
        if self.engine.prefix_cache:
            filled = sum((s.computed + s.now) // size - s.computed // size for s in self.fed)
        return StepShape(
            prefill, chunks, decodes, area2, reach, context, table, moved, turned, filled
        )

    def refusals(self) -> dict[NaiveSequence, str]:
        """What the head of each lane waits for now. Those behind it wait for the head."""
        causes: dict[NaiveSequence, str] = {}
        for queue in self.lanes.values():
            if not queue:
                continue
            answer = self.answers.get(queue[0].lane)
            if answer is not None:
                causes[queue[0]] = answer.name.lower()
            elif self.preempted or (self.tokens_left > 0 and self.seats_left > 0):
                causes[queue[0]] = "blocks"
            else:
                causes[queue[0]] = "seats" if self.tokens_left > 0 else "tokens"
        return causes

    def end(self, now: int) -> tuple[list[NaiveSequence], list[NaiveSequence]]:
        """The step is over: (who got a token, who finished with it)."""
        sampled, finished = [], []
        self.number += 1
        for seq in self.fed:
            self._service[seq.lane] = self.served(seq.lane) + seq.now
            last = seq.computed + seq.now
            if seq.computed < seq.furthest:
                seq.recomputed += min(last, seq.furthest) - seq.computed
            seq.computed = last
            seq.now = 0
            if last < seq.known:
                continue
            seq.known += 1
            if not seq.token_times:
                seq.first_stalled = seq.stalled
            seq.token_times.append(now)
            sampled.append(seq)
            if seq.known == seq.end:
                finished.append(seq)
        for seq in finished:
            seq.reason = "stop" if len(seq.token_times) == seq.request.output else "length"
            seq.finished = now
            self._let_go(seq)
        if finished:
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
    trace: Trace,
    policy: Policy,
    engine: Engine,
    step_time: StepTime,
    horizon: int | None = None,
    seed: int = 0,
) -> NaiveRun:
    """Run `trace` on one replica until all have ended, or until `horizon` (ps)."""
    max_model_len = min(engine.max_model_len, engine.blocks * engine.block_size)
    if engine.swap_tokens and not step_time.tM:
        step_time = replace(step_time, tM=round(PS_PER_S / engine.swap_bandwidth))
    step = NaiveStep(policy, engine, max_model_len, seed)
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
    clock = carried = 0

    def ended(seq: NaiveSequence) -> None:
        for request in later.pop(seq.index, ()):
            heapq.heappush(arrivals, (seq.finished + request.arrival, request.index))

    def deliver(until: int) -> None:
        """Requests sent by `until`, which is also when the next schedule will see them."""
        while arrivals and arrivals[0][0] <= until:
            at, index = heapq.heappop(arrivals)
            request = requests[index]
            seq = everyone[index] = NaiveSequence(request, at, policy.lane(request))
            seq.reason = enter(seq, engine)
            if seq.reason:
                seq.finished = at
                ended(seq)
                continue
            seq.replica = 0
            seq.waits["boundary"] = until - at
            step.arrive(seq)

    while True:
        deliver(clock)
        if not step.running and not step.waiting_count():
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
            # Everything is different now: ask again at once.
            next_schedule = clock
            carried += len(step.preempted)
        else:
            wakes = [at for at, _ in arrivals[:1]]
            if stable is not None and stable.until is not None:
                wakes.append(stable.until)
            if not wakes:
                raise ValueError(f"{policy}: feeds nobody at {clock} ps and waits for nothing")
            next_schedule = min(wakes)
        if horizon is not None and next_schedule > horizon:
            deliver(horizon)
            break
        for seq, cause in step.refusals().items():
            if seq.fresh:
                seq.waits[cause] += next_schedule - clock
        if step.fed:
            row = dict.fromkeys(STEP_COLUMNS, 0) | {
                "start": clock,
                "duration": next_schedule - clock,
                "host": step_time.host(shape),
                "interference": beyond_decodes(step_time, shape),
                "prefill_tokens": shape.prefill_tokens,
                "chunks": shape.chunks,
                "decodes": shape.decodes,
                "decode_context": shape.context,
                "running": len(step.running),
                "waiting": step.waiting_count(),
                "free_blocks": step.free_blocks,
                "admitted": len(step.admitted),
                "preempted": len(step.preempted) + carried,
                "tick": -1,
            }
            carried = 0
            deliver(next_schedule)
            _, finished = step.end(next_schedule)
            row["finished"] = len(finished)
            rows.append(row)
            free_after.append(step.free_blocks)
            for seq in finished:
                ended(seq)
        clock = next_schedule

    for seq in everyone.values():
        if seq.fresh:
            seq.waits = dict.fromkeys(WAITS, 0)  # they add up to a queue time that never was
    for seq in step.running:
        seq.note_computed()
    return NaiveRun(
        requests=pd.DataFrame([_request_row(everyone[i]) for i in sorted(everyone)]),
        steps=pd.DataFrame(rows, columns=list(STEP_COLUMNS)),
        token_times=[
            everyone[r.index].token_times if r.index in everyone else [] for r in requests
        ],
        preemptions=preemptions,
        free_after=free_after,
    )


def beyond_decodes(step_time: StepTime, shape: StepShape) -> int:
    """What the step costs more than its decodes alone, with the same blocks."""
    if not shape.decodes:
        return 0
    alone = shape._replace(prefill_tokens=0, chunks=0, area2=0, reach=0, moved=0)
    return max(step_time.price(shape) - step_time.price(alone), 0)


def enter(seq: NaiveSequence, engine: Engine) -> str:
    """Cut what it declares and will get to what the engine can give; or why it never can (B1)."""
    slots = engine.blocks * engine.block_size
    room = engine.max_model_len - seq.prompt
    if room < 1:
        return "rejected: prompt reaches max_model_len"
    cap = room if engine.output_cap is None else engine.output_cap
    seq.declared = min(seq.declared, room, cap)
    # The last token is never fed (rule A5); at least one more must fit, for the model's limit
    # is no more than the pool.
    if seq.prompt + max(seq.declared - 1, 1) > slots:
        return "rejected: prompt and declared maximum exceed the pool"
    seq.end = seq.prompt + min(seq.declared, seq.request.output, slots - seq.prompt)
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
        "declared": seq.declared,
        "priority": request.priority,
        "session": request.session,
        "preemptions": seq.preemptions,
        "computed": seq.fed_tokens,
        "recomputed": seq.recomputed,
        "hit": seq.hit,
        "resumed_hit": seq.resumed_hit,
        "blocks_peak": seq.peak,
        "stalled": seq.stalled,
        "stalled_first": seq.first_stalled,
        "retries": 0,
        **{f"wait_{name}": seq.waits[name] for name in WAITS},
    }
    assert row.keys() == REQUEST_COLUMNS.keys()
    return row | {"reason": seq.reason, "tenant": request.tenant, "lane": seq.lane}
