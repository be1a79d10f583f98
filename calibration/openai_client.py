"""A client of OpenAI-compatible servers that notes when each token came (extra `serve`).

Every failure is a `ServerError` of one line; those that may pass by themselves are `Transient`.
Times are seconds of the running asyncio loop's clock.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import httpx

Endpoint = Literal["completions", "chat"]
PATHS = {"completions": "/v1/completions", "chat": "/v1/chat/completions"}
BUSY = (408, 429, 500, 502, 503, 504)
CACHE = re.compile(r"^vllm:cache_config_info\{(.*)\}", re.MULTILINE)
LABEL = re.compile(r'(\w+)="([^"]*)"')


class ServerError(ValueError):
    """What the server did wrong, or would not do, in one line."""


class Transient(ServerError):
    """A failure that may not come again: busy, timed out, broken off."""

    def __init__(self, message: str, after_s: float | None = None) -> None:
        super().__init__(message)
        self.after_s = after_s
        """How long the server asks to wait."""


class Unsupported(ServerError):
    """The server does not take a request of this form."""


@dataclass(kw_only=True)
class Answer:
    """One streamed answer: when it was sent, and how many tokens were there when."""

    sent_s: float
    asked: int
    """Tokens asked for."""
    prompt: int
    """Prompt tokens, as the server counts them; as sent, where it does not say."""
    times_s: list[float] = field(default_factory=list)
    """When chunks with tokens came."""
    tokens: list[int] = field(default_factory=list)
    """Tokens so far, chunk by chunk."""
    finish: str = ""

    @property
    def ttft_s(self) -> float:
        return self.times_s[0] - self.sent_s


@dataclass(frozen=True)
class Description:
    """What a server says of itself; None = it does not."""

    models: tuple[str, ...]
    max_model_len: int | None
    block_size: int | None
    kv_tokens: int | None
    prefix_cache: bool | None


class Client:
    """Talks to one model of one server. Counts its requests, and stops at `most` of them."""

    def __init__(
        self,
        url: str,
        model: str,
        *,
        endpoint: Endpoint = "completions",
        key: str = "",
        timeout_s: float = 60.0,
        most: int = 1500,
        connections: int = 64,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self.url = url.rstrip("/").removesuffix("/v1")
        if not self.url.startswith(("http://", "https://")):
            raise ServerError(f"server {url!r}: expected an address such as http://127.0.0.1:8000")
        self.model = model
        self.endpoint: Endpoint = endpoint
        self.requests = 0
        self.extra: dict[str, Any] = {"ignore_eos": True}
        """Parameters beyond OpenAI's: dropped where the server refuses them."""
        self.running_usage = True
        """Whether to ask for the count with every chunk (vLLM)."""
        self._most = most
        self._timeout_s = timeout_s
        self._http = httpx.AsyncClient(
            base_url=self.url,
            headers={"authorization": f"Bearer {key}"} if key else {},
            timeout=timeout_s,
            limits=httpx.Limits(max_connections=connections, max_keepalive_connections=connections),
            transport=transport,
            trust_env=False,
        )

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.aclose()

    async def describe(self) -> Description:
        """Ask for the models and, where there are any, vLLM's metrics.

        Raises ServerError where the server cannot be reached, or has not the model.
        """
        found = await self._get("/v1/models")
        self._check(found)
        try:
            cards = found.json()["data"]
            models = tuple(str(card["id"]) for card in cards)
        except (ValueError, KeyError, TypeError):
            raise ServerError(
                f"{self.url}/v1/models: {_short(found.text)}, expected a list of models"
            ) from None
        if self.model not in models:
            raise ServerError(
                f"{self.url} has no model {self.model!r}, expected {' or '.join(models) or 'any'}"
            )
        card = cards[models.index(self.model)]
        metrics = await self._get("/metrics")
        labels = dict[str, str]()
        if metrics.status_code == 200 and (info := CACHE.search(metrics.text)):
            labels = dict(LABEL.findall(info[1]))
        size, blocks = labels.get("block_size", ""), labels.get("num_gpu_blocks", "")
        known = size.isdigit() and blocks.isdigit()
        most = card.get("max_model_len")
        return Description(
            models=models,
            max_model_len=most if isinstance(most, int) else None,
            block_size=int(size) if size.isdigit() else None,
            # vLLM keeps its first block for itself.
            kv_tokens=(int(blocks) - 1) * int(size) if known else None,
            prefix_cache=labels["enable_prefix_caching"] == "True"
            if "enable_prefix_caching" in labels
            else None,
        )

    async def delay_s(self, times: int = 16) -> float:
        """The least time of a request that computes nothing: client, network, HTTP.

        The least, for what is more is a busy client's, and is in some first tokens and not in
        others.
        """
        taken = []
        now = asyncio.get_running_loop().time
        for _ in range(times):
            begin = now()
            self._check(await self._get("/v1/models"))
            taken.append(now() - begin)
        return min(taken)

    async def count(self, text: str) -> int | None:
        """Tokens of a prompt by the server's /tokenize; None where it has none."""
        prompt: dict[str, Any] = {"prompt": text}
        if self.endpoint == "chat":
            prompt = {"messages": [{"role": "user", "content": text}]}
        try:
            found = await self._http.post("/tokenize", json={"model": self.model, **prompt})
            return int(found.json()["count"]) if found.status_code == 200 else None
        except (httpx.HTTPError, ValueError, KeyError, TypeError):
            return None

    async def ask(self, prompt: list[int] | str, tokens: int, length: int) -> Answer:
        """Stream `tokens` tokens after a prompt that is meant to be `length` tokens long.

        Raises Transient for what may pass, Unsupported where the form is refused, and
        ServerError for the rest.
        """
        if self.requests >= self._most:
            raise ServerError(f"{self.url}: --max-requests {self._most} are sent")
        self.requests += 1
        options: dict[str, Any] = {"include_usage": True}
        if self.running_usage:
            options["continuous_usage_stats"] = True
        body: dict[str, Any] = {
            "model": self.model,
            "max_tokens": tokens,
            "temperature": 0.0,
            "stream": True,
            "stream_options": options,
            **self.extra,
        }
        if self.endpoint == "chat":
            body["messages"] = [{"role": "user", "content": prompt}]
        else:
            body["prompt"] = prompt
        content = json.dumps(body).encode()  # before the clock runs
        answer = Answer(sent_s=asyncio.get_running_loop().time(), asked=tokens, prompt=length)
        headers = {"content-type": "application/json"}
        with self._said():
            async with self._http.stream(
                "POST", PATHS[self.endpoint], content=content, headers=headers
            ) as response:
                if response.status_code != 200:
                    await response.aread()
                    self._check(response)
                await self._read(response, answer)
        return answer

    async def _read(self, response: httpx.Response, answer: Answer) -> None:
        now = asyncio.get_running_loop().time
        counts: list[int | None] = []
        total = None
        done = False
        async for line in response.aiter_lines():
            if not line.startswith("data:"):
                continue
            data = line[5:].strip()
            if data == "[DONE]":
                done = True
                break
            try:
                chunk = json.loads(data)
            except ValueError:
                raise Transient(f"{self.url}: {_short(data)} in the stream, no JSON") from None
            if "error" in chunk:
                said = chunk["error"]
                text = said.get("message", said) if isinstance(said, dict) else said
                raise Transient(f"{self.url}: an error in the stream: {_short(str(text))}")
            usage = chunk.get("usage") or {}
            if usage:
                answer.prompt = int(usage.get("prompt_tokens") or answer.prompt)
                total = int(usage.get("completion_tokens") or 0)
            for choice in chunk.get("choices") or []:
                text = choice.get("text") or (choice.get("delta") or {}).get("content")
                so_far = total if usage else None
                if text or (so_far and so_far > (counts[-1] if counts and counts[-1] else 0)):
                    answer.times_s.append(now())
                    counts.append(so_far)
                answer.finish = choice.get("finish_reason") or answer.finish
        if not (done or answer.finish) or not answer.times_s:
            raise Transient(
                f"{self.url}: the stream ended after {len(answer.times_s)} chunks of the "
                f"{answer.asked} tokens asked for, without a word"
            )
        answer.tokens = _counted(counts, total, answer)

    async def _get(self, path: str) -> httpx.Response:
        with self._said():
            return await self._http.get(path)

    def _check(self, response: httpx.Response) -> None:
        """Raise for a status that is not 200."""
        status = response.status_code
        if status == 200:
            return
        said = _reason(response)
        where = f"{self.url}: {status}"
        if status in (401, 403):
            raise ServerError(f"{where}: the server wants another key, expected --api-key ({said})")
        if status in BUSY:
            wait = response.headers.get("retry-after", "")
            after = float(wait) if wait.replace(".", "", 1).isdigit() else None
            raise Transient(f"{where}: the server is busy ({said})", after)
        if status in (400, 404, 405, 422):
            raise Unsupported(f"{where}: {said}")
        raise ServerError(f"{where}: {said}")

    def _said(self) -> _Words:
        return _Words(self.url, self._timeout_s)


class _Words:
    """httpx's errors, in words."""

    def __init__(self, url: str, timeout_s: float) -> None:
        self._url = url
        self._timeout_s = timeout_s

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, _: object) -> None:
        if isinstance(error, httpx.ConnectError):
            raise ServerError(
                f"{self._url}: nobody answers there ({_short(str(error))}): is the server running?"
            ) from None
        if isinstance(error, httpx.TimeoutException):
            raise Transient(f"{self._url}: no answer within {self._timeout_s:g} s") from None
        if isinstance(error, httpx.HTTPError):
            raise Transient(f"{self._url}: the connection broke ({_short(str(error))})") from None


def _counted(counts: list[int | None], total: int | None, answer: Answer) -> list[int]:
    """Tokens so far at each chunk: as stated, else spread evenly over the chunks."""
    if all(count is not None for count in counts):
        return [count for count in counts if count is not None]
    chunks = len(counts)
    if total is None:
        # Nothing is stated: whole answers are as long as was asked, others a token a chunk.
        total = answer.asked if answer.finish == "length" else chunks
    total = max(total, chunks)
    return [round(total * (at + 1) / chunks) for at in range(chunks)]


def _reason(response: httpx.Response) -> str:
    try:
        said = response.json()
        error = said.get("error", said)
        text = error.get("message", error) if isinstance(error, dict) else error
        return _short(str(text))
    except (ValueError, AttributeError):
        return _short(response.text) or response.reason_phrase


def _short(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= 160 else text[:157] + "..."


@asynccontextmanager
async def streams(*answers: Any) -> AsyncIterator[list[asyncio.Task[Answer]]]:
    """Answers as tasks that run at the same time; none is left running."""
    tasks = [asyncio.ensure_future(answer) for answer in answers]
    try:
        yield tasks
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
