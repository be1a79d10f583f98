"""Measure a live OpenAI-compatible server from outside: a raw table, as `measure.py` makes one.

A step cannot be seen from outside, but some are known by what comes out: the first token of a
prompt alone is one prefill step, a gap while D streams decode is a decode step, a gap that ends
with a newcomer's first token is a mixed step. The time of a request that computes nothing (the
client's own, the network's, HTTP's) is subtracted from first tokens; gaps do not contain it.
"""

from __future__ import annotations

import asyncio
import math
import secrets
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from datetime import date
from pathlib import Path
from statistics import median

import numpy as np

from calibration.fit import ENGINE_CLOCK
from calibration.hardware import ModelShape, find_model
from calibration.openai_client import (
    Answer,
    Client,
    Description,
    ServerError,
    Transient,
    Unsupported,
    streams,
)
from calibration.raw import RawHeader, RawRow, append_raw, read_raw, shape_of, write_raw
from calibration.server_plan import APART, SHORT, TIMES, WINDOW, Limits, Point, plan, within

TRIES = 4
"""Times that a point is measured until it is given up."""
LEAST_GAPS = 4
HALTED = 1.15
"""Of a usual gap: what is longer held a part of a prompt."""
JITTER = 0.3
"""Of a usual gap: so much earlier than it should may a chunk come."""
FIRST_ID, LAST_ID = 1000, 30_000
"""Token ids that any vocabulary has, and that are not special."""
WORDS = ("time", "year", "people", "way", "day", "man", "thing", "woman", "life", "child", "world")
PROBE = 12_000
"""Tokens of the prompt that shows the budget: no round number of them is a multiple of one."""
PROBED = (256, 512, 1024, 2048, 4096, 8192, 16384, 32768)
"""Token budgets that servers are run with."""


@dataclass(frozen=True, kw_only=True)
class ServerMeasurement:
    """What to measure of which server; the same settings plan the same points."""

    device: str = "server"
    """What it runs on, for the profile's name."""
    dtype: str = "unknown"
    shape: ModelShape | None = None
    """The model's shape, for KV bytes; looked up by the server's name for it where None."""
    concurrency: int = 32
    longest: int = 4096
    token_budget: int | None = None
    """Tokens a step; None = found out from outside."""
    kv_tokens: int | None = None
    """Where the server does not say."""
    max_model_len: int | None = None
    """Where the server does not say."""
    passes: int = 2
    max_requests: int = 1500
    rest_s: float = 0.2
    """Between two points."""
    seed: int | None = None
    """Of the prompts; None = new ones every time, which no prefix cache has seen."""


@dataclass(frozen=True)
class Report:
    """How a measurement went."""

    delay_s: float
    token_budget: int
    prompts: str
    """How prompts were made: token ids, tokenized text, or text."""
    requests: int
    retries: int
    notes: tuple[str, ...]


class ServerMeter:
    """Measures one server; `client` is open."""

    def __init__(self, client: Client, settings: ServerMeasurement) -> None:
        self.client = client
        self.settings = settings
        self.retries = 0
        self.notes: list[str] = []
        self._rng = np.random.default_rng(
            secrets.randbits(64) if settings.seed is None else settings.seed
        )
        self._how = "token ids" if client.endpoint == "completions" else "text"
        self._words = 1.0
        """Words a token, where prompts are texts."""
        self._frame = 0.0
        """Tokens that the server adds to a text."""
        self._delay_s = 0.0
        self._gap_s = 0.0
        """Between tokens of a stream alone, about."""
        self._block_size = 0

    async def measure(
        self, path: Path, on_progress: Callable[[float], None] = lambda share: None
    ) -> Report:
        """Measure what `path` does not hold yet, point by point. Raises ServerError or ValueError;
        what was measured until then is in the file."""
        about = await self.client.describe()
        await self._find_form()
        self._delay_s = await self.client.delay_s()
        alone = await self._patiently(SHORT, WINDOW)
        self._gap_s = max((alone.times_s[-1] - alone.times_s[0]) / (WINDOW - 1), 1e-6)
        limits, notes = self._limits(about)
        self.notes += notes
        budget = self.settings.token_budget or await self._probe_budget(limits)
        limits = within(
            replace(limits, token_budget=budget), self.settings.passes, self.settings.max_requests
        )
        if limits.concurrency < self.settings.concurrency:
            self.notes.append(
                f"at most {limits.concurrency} streams at once, for no more than --max-requests "
                f"{self.settings.max_requests}"
            )
        planned = plan(limits, self.settings.passes)
        header = self._header(about, limits)
        done = _begin(path, header, planned)
        for number, (repeat, point) in enumerate(planned):
            if number >= done:
                rows = await self._try(point, repeat)
                append_raw(path, rows)
                await asyncio.sleep(self.settings.rest_s)
            on_progress((number + 1) / len(planned))
        return Report(
            self._delay_s,
            budget,
            self._how,
            self.client.requests,
            self.retries,
            tuple(self.notes),
        )

    # Before

    def _limits(self, about: Description) -> tuple[Limits, list[str]]:
        settings, notes = self.settings, []
        self._block_size = about.block_size or 0
        kv_tokens = about.kv_tokens or settings.kv_tokens
        if kv_tokens is None:
            raise ServerError(
                f"{self.client.url} does not say how large its KV pool is (no /metrics of vLLM): "
                "expected --kv-tokens"
            )
        shape = self._shape()
        longest = about.max_model_len or settings.max_model_len
        longest = longest or (shape.max_model_len if shape else None)
        if longest is None:
            raise ServerError(
                f"{self.client.url} does not say how long a sequence may be: expected "
                "--max-model-len"
            )
        if about.prefix_cache:
            notes.append("the server caches prefixes: every prompt is new, so that none is hit")
        if shape is None:
            notes.append("KV bytes per token are unknown: expected --of MODEL; 1 is written")
        return (
            Limits(
                concurrency=settings.concurrency,
                longest=settings.longest,
                max_model_len=longest,
                kv_tokens=kv_tokens,
            ),
            notes,
        )

    def _shape(self) -> ModelShape | None:
        if self.settings.shape is not None:
            return self.settings.shape
        try:
            return find_model(self.client.model.removesuffix("-Instruct"))
        except ValueError:
            return None

    async def _find_form(self) -> None:
        """Warm up, and find out what the server takes: parameters, endpoint, kind of prompt."""
        client = self.client
        for _ in range(8):
            try:
                answer = await self._patiently(SHORT, 4)
            except Unsupported as refused:
                said = str(refused)
                if client.extra and "ignore_eos" in said:
                    client.extra = {}
                    self.notes.append("the server takes no ignore_eos: answers may end early")
                elif client.running_usage and "stream_options" in said:
                    client.running_usage = False
                elif client.extra:
                    client.extra = {}
                    self.notes.append(f"without ignore_eos, for the server said {said}")
                elif self._how == "token ids" and client.endpoint == "completions":
                    self._how = "text"
                elif client.endpoint == "completions":
                    client.endpoint = "chat"
                    self._how = "text"
                    self.notes.append("the server has no /v1/completions: chat is measured")
                else:
                    raise
                continue
            if self._how == "text" and await self._calibrate(answer):
                continue
            await self._patiently(SHORT, 4)
            return
        raise ServerError(f"{client.url}: no form of request is taken")

    async def _calibrate(self, answer: Answer) -> bool:
        """Learn how texts are counted; True if a request is to be tried again."""
        if await self.client.count("time") is not None:
            self._how = "tokenized text"
            return False
        if answer.prompt == -1:
            raise ServerError(
                f"{self.client.url} takes no token ids, has no /tokenize and states no usage: the "
                "length of a prompt cannot be known"
            )
        few, many = 50, 500
        first = (await self.client.ask(self._text(few), 1, -1)).prompt
        second = (await self.client.ask(self._text(many), 1, -1)).prompt
        self._words = (many - few) / max(1, second - first)
        self._frame = first - few / self._words
        return False

    async def _probe_budget(self, limits: Limits) -> int:
        """Tokens a step, from how often one long prompt halts a stream that decodes."""
        length = min(PROBE, limits.max_model_len - 64, int(limits.kv_tokens * 0.8))
        prompt = await self._prompt(SHORT, 200)
        async with streams(self.client.ask(*prompt)) as (decoding,):
            await asyncio.sleep(APART * self._gap_s + self._delay_s)
            newcomer = await self._patiently(length, 1)
            stream = await decoding
        first = newcomer.times_s[0] + JITTER * self._gap_s
        gaps, ends = np.diff(stream.times_s), np.array(stream.times_s[1:])
        halted = (ends > newcomer.sent_s) & (ends <= first) & (gaps > HALTED * self._gap_s)
        steps = int(halted.sum())
        if not steps:
            self.notes.append(
                "the token budget cannot be told from outside: 2048 assumed (--token-budget)"
            )
            return 2048
        # The stream's own token is in each of them.
        least, most = length / steps, length / max(1, steps - 1) + 1
        budget = max((b for b in PROBED if least <= b <= most), default=math.ceil(least))
        self.notes.append(
            f"a prompt of {length:,} tokens takes {steps} steps: a token budget of {budget:,} is "
            "taken (--token-budget)"
        )
        return budget

    # Points

    async def _try(self, point: Point, repeat: int) -> list[RawRow]:
        """Measure a point; again after a pause, where what went wrong may pass."""
        for attempt in range(TRIES):
            try:
                if point.kind == "prefill":
                    return [await self._prefill(point, repeat)]
                if point.kind == "decode":
                    return [await self._decode(point, repeat)]
                return await self._mixed(point, repeat)
            except Transient as error:
                if attempt == TRIES - 1:
                    raise ServerError(f"{error}; {TRIES} times in a row") from None
                self.retries += 1
                await asyncio.sleep(2.0**attempt if error.after_s is None else error.after_s)
        raise AssertionError

    async def _patiently(self, length: int, tokens: int) -> Answer:
        """One answer, tried again as points are."""
        for attempt in range(TRIES):
            try:
                return await self.client.ask(*await self._prompt(length, tokens))
            except Transient as error:
                if attempt == TRIES - 1:
                    raise ServerError(f"{error}; {TRIES} times in a row") from None
                self.retries += 1
                await asyncio.sleep(2.0**attempt if error.after_s is None else error.after_s)
        raise AssertionError

    async def _prefill(self, point: Point, repeat: int) -> RawRow:
        answers = [
            await self.client.ask(*await self._prompt(point.prompts[0], 1)) for _ in range(TIMES)
        ]
        answer = sorted(answers, key=lambda one: one.ttft_s)[TIMES // 2]
        seconds = answer.ttft_s - self._delay_s
        if seconds <= 0:
            raise Transient(
                f"{self.client.url}: a first token came within {answer.ttft_s * 1e3:.2f} ms, as "
                f"fast as a request that computes nothing ({self._delay_s * 1e3:.2f} ms)"
            )
        shape = shape_of([(answer.prompt, 0)], self._block_size)
        return RawRow.of(shape, seconds, self._block_size, repeat)

    async def _decode(self, point: Point, repeat: int) -> RawRow:
        prompts = [await self._prompt(point.prompts[0], point.tokens) for _ in range(point.streams)]
        async with streams(*(self.client.ask(*prompt) for prompt in prompts)) as tasks:
            answers = await asyncio.gather(*tasks)
        begin = max(answer.times_s[0] for answer in answers)
        end = min(answer.times_s[-1] for answer in answers)
        gaps: list[float] = []
        fed = []
        for answer in answers:
            inside = [
                at
                for at in range(1, len(answer.times_s))
                if answer.times_s[at - 1] >= begin and answer.times_s[at] <= end
            ][-WINDOW:]
            some = [
                (answer.times_s[at] - answer.times_s[at - 1])
                / max(1, answer.tokens[at] - answer.tokens[at - 1])
                for at in inside
            ]
            if not some:
                continue
            gaps += some
            # Before token i + 1 is made, prompt + i - 1 tokens are cached.
            first, last = answer.tokens[inside[0] - 1], answer.tokens[inside[-1]]
            fed.append((1, answer.prompt + (first + last - 1) // 2 - 1))
        if len(fed) < point.streams or len(gaps) < LEAST_GAPS:
            raise Transient(
                f"{self.client.url}: {point.streams} streams never decoded at once (too few seats, "
                "or answers that end early): expected a lower --concurrency"
            )
        return RawRow.of(shape_of(fed, self._block_size), median(gaps), self._block_size, repeat)

    async def _mixed(self, point: Point, repeat: int) -> list[RawRow]:
        # Each newcomer is on its way for so many steps more.
        late = math.ceil(2 * self._delay_s / self._gap_s) * len(point.prompts)
        prompts = [await self._prompt(SHORT, point.tokens + late) for _ in range(point.streams)]
        comers = [await self._prompt(length, 1) for length in point.prompts]
        came: list[Answer] = []
        async with streams(*(self.client.ask(*prompt) for prompt in prompts)) as tasks:
            for prompt in comers:
                await asyncio.sleep(APART * self._gap_s)
                came.append(await self.client.ask(*prompt))
            answers = await asyncio.gather(*tasks)
        return [self._mixed_row(newcomer, answers, repeat) for newcomer in came]

    def _mixed_row(self, newcomer: Answer, answers: list[Answer], repeat: int) -> RawRow:
        """The step in which the newcomer prefilled: the gap that ends with its first token."""
        first = newcomer.times_s[0]
        gaps = []
        fed = [(newcomer.prompt, 0)]
        for answer in answers:
            times, tokens = np.array(answer.times_s), np.array(answer.tokens)
            usual = float(np.median(np.diff(times) / np.maximum(np.diff(tokens), 1)))
            at = int(np.searchsorted(times, first - JITTER * usual))
            if not 0 < at < len(times):
                raise Transient(
                    f"{self.client.url}: the streams ended before the last of "
                    f"{len(answers)} prompts came beside them"
                )
            # A chunk of several tokens holds usual steps too.
            several = tokens[at] - tokens[at - 1] - 1
            gaps.append(float(times[at] - times[at - 1] - several * usual))
            fed.append((1, int(answer.prompt + tokens[at] - 2)))
        shape = shape_of(fed, self._block_size)
        return RawRow.of(shape, median(gaps), self._block_size, repeat)

    # Prompts

    async def _prompt(self, length: int, tokens: int) -> tuple[list[int] | str, int, int]:
        """A new prompt of `length` tokens, tokens to ask for, and the length it will have."""
        if self._how == "token ids":
            ids = self._rng.integers(FIRST_ID, LAST_ID, length).tolist()
            return ids, tokens, length
        words = max(1, round((length - self._frame) * self._words))
        text = self._text(words)
        if self._how == "tokenized text":
            for _ in range(4):
                count = await self.client.count(text)
                if count is None or count == length:
                    break
                words = max(1, words + round((length - count) * self._words))
                text = self._text(words)
            return text, tokens, length if count is None else count
        return text, tokens, -1

    def _text(self, words: int) -> str:
        return " ".join(self._rng.choice(WORDS, words).tolist())

    def _header(self, about: Description, limits: Limits) -> RawHeader:
        settings = self.settings
        shape = self._shape()
        name = self.client.model.rpartition("/")[2]
        return RawHeader(
            device=settings.device,
            model=shape.name if shape else name,
            dtype=settings.dtype,
            engine="OpenAI-compatible server",
            engine_version="unknown",
            date=date.today().isoformat(),
            machine=f"from outside; {self._delay_s * 1e3:.3f} ms of client and network subtracted",
            clock=ENGINE_CLOCK,
            kv_bytes_per_token=shape.kv_bytes_per_token(settings.dtype)
            if shape and settings.dtype != "unknown"
            else shape.kv_bytes_per_token("bf16")
            if shape
            else 1,
            pool_tokens=limits.kv_tokens,
            max_model_len=limits.max_model_len,
            source=f"measured from outside: {self.client.url}, {self.client.endpoint}, "
            f"{self._how}, token budget {limits.token_budget}, up to {limits.concurrency} streams "
            f"and {limits.longest} tokens of prompt, {settings.passes} passes",
            licence="unknown",
        )


def _begin(path: Path, header: RawHeader, planned: list[tuple[int, Point]]) -> int:
    """Start the table, or find how many of the planned points it holds."""
    if not path.exists():
        write_raw(path, header)
        return 0
    table = read_raw(path)
    theirs, ours = asdict(table.header), asdict(header)
    for name in ours:
        if name not in ("date", "machine") and theirs[name] != ours[name]:
            raise ValueError(
                f"{path}: another measurement, its {name} is {theirs[name]!r}, expected "
                f"{ours[name]!r}: name another file or remove it"
            )
    rows = len(table.rows)
    for done, (_, point) in enumerate(planned):
        if rows < point.rows:
            if rows:
                raise ValueError(f"{path}: ends within a point: remove its last {rows} rows")
            return done
        rows -= point.rows
    return len(planned)
