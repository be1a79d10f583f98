"""The mock server: the simulator in real time behind an OpenAI endpoint (extra `serve`).

`create` makes the app over a `Live` fleet; `serve` runs it with uvicorn until interrupted. What
answers say means nothing: every token is the word " a".
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import socket
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from calibration.profile import load_profile
from calibration.step_time import Predicted
from simulator.exposition import Exposition
from simulator.faults import STATUSES, Faults
from simulator.live import Answered, Live
from simulator.scenario import Scenario, prefills_whole, refuse_impossible
from traces.trace import Segment, Trace

VOCABULARY = 32_000
WORD = re.compile(r"\w+|[^\w\s]")
CHAT_TOKENS = 4
"""Tokens that the chat template adds to a message."""
OPENAI = {
    "model", "prompt", "messages", "max_tokens", "max_completion_tokens", "stream",
    "stream_options", "temperature", "top_p", "n", "seed", "stop", "user", "logprobs", "echo",
    "presence_penalty", "frequency_penalty", "best_of", "logit_bias", "suffix",
}  # fmt: skip
BEHIND_S = 0.05
"""Events that are later than this are worth a word."""
EVERY_S = 10.0
"""How often it is said."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What the server says of itself, and how it misbehaves."""

    model: str = "mock"
    key: str = ""
    """What clients must send as their bearer token; "" = nothing."""
    output: int = 256
    """Tokens of an answer to a request that states no maximum."""
    faults: Faults = field(default_factory=Faults)


class Refused(Exception):
    """A request that gets an error: its status, and why."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status

    def response(self) -> JSONResponse:
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        error = {"message": str(self), "type": kind, "param": None, "code": self.status}
        return JSONResponse({"error": error}, self.status)


def token_ids(text: str) -> list[int]:
    """A token a word or sign."""
    return [zlib.crc32(word.encode()) % VOCABULARY for word in WORD.findall(text)]


class Api:
    """The endpoints."""

    def __init__(self, live: Live, settings: Settings, longest: int | None = None) -> None:
        """`longest` is the longest prompt that the policy can run; None = any."""
        self.live = live
        self._longest = longest
        self.settings = settings
        self.metrics = Exposition(settings.model, live)
        live.on_end = self.metrics.ended
        self._asked = 0

    def app(self) -> Starlette:
        routes = [
            Route("/health", self._health),
            Route("/v1/models", self._models),
            Route("/v1/completions", self._completions, methods=["POST"]),
            Route("/v1/chat/completions", self._chat, methods=["POST"]),
            Route("/tokenize", self._tokenize, methods=["POST"]),
            Route("/metrics", self._metrics),
        ]
        return Starlette(routes=routes)

    # Endpoints

    async def _health(self, request: Request) -> Response:
        return Response()

    async def _models(self, request: Request) -> Response:
        try:
            self._check_key(request)
        except Refused as refused:
            return refused.response()
        card = {
            "id": self.settings.model,
            "object": "model",
            "owned_by": "batchlab",
            "max_model_len": self.live.max_model_len,
        }
        return JSONResponse({"object": "list", "data": [card]})

    async def _metrics(self, request: Request) -> Response:
        if "no-metrics" in self.settings.faults:
            return Refused(404, "Not Found").response()
        return PlainTextResponse(self.metrics.text())

    async def _tokenize(self, request: Request) -> Response:
        if "no-tokenize" in self.settings.faults:
            return Refused(404, "Not Found").response()
        try:
            body = await self._body(request)
            tokens = _chat_ids(body) if "messages" in body else _prompt_ids(body)
        except Refused as refused:
            return refused.response()
        most = self.live.max_model_len
        return JSONResponse({"count": len(tokens), "max_model_len": most, "tokens": tokens})

    async def _completions(self, request: Request) -> Response:
        if "no-completions" in self.settings.faults:
            return Refused(404, "Not Found").response()
        return await self._generate(request, chat=False)

    async def _chat(self, request: Request) -> Response:
        return await self._generate(request, chat=True)

    async def _generate(self, request: Request, *, chat: bool) -> Response:
        faults = self.settings.faults
        try:
            self._asked += 1
            number = self._asked
            if (status := faults.status(number)) is not None:
                raise Refused(status, STATUSES[status])
            body = await self._body(request)
            self._check_model(body)
            if faults.slow_s:
                await asyncio.sleep(faults.slow_s)
            tokens = _chat_ids(body) if chat else _prompt_ids(body, self._refuse_ids)
            answer = self._submit(body, tokens, number)
        except Refused as refused:
            return refused.response()
        form = Form(body, self.settings, len(tokens), number, chat=chat)
        if body.get("stream"):
            cut = next((kind for kind in ("truncate", "drop") if faults.hits(kind, number)), None)
            return Stream(self.live, answer, form, cut)
        await answer.more(1 << 60)
        if answer.reason not in ("stop", "length"):
            return Refused(503, answer.reason or "").response()
        return JSONResponse(form.whole(answer))

    # Parts

    def _check_key(self, request: Request) -> None:
        wanted = self.settings.key
        if wanted and request.headers.get("authorization") != f"Bearer {wanted}":
            raise Refused(401, STATUSES[401])

    async def _body(self, request: Request) -> dict[str, Any]:
        self._check_key(request)
        try:
            body = await request.json()
        except (json.JSONDecodeError, UnicodeDecodeError):
            raise Refused(400, "the body is not JSON") from None
        if not isinstance(body, dict):
            raise Refused(400, "the body is no JSON object")
        unknown = sorted(set(body) - OPENAI)
        if unknown and "strict" in self.settings.faults:
            raise Refused(400, f"Unrecognized request argument supplied: {unknown[0]}")
        return body

    def _check_model(self, body: dict[str, Any]) -> None:
        model = body.get("model") or self.settings.model
        if model != self.settings.model:
            raise Refused(404, f"The model `{model}` does not exist.")
        if body.get("n", 1) != 1:
            raise Refused(400, "n: expected 1")

    def _refuse_ids(self) -> None:
        if "no-token-ids" in self.settings.faults:
            raise Refused(400, "prompt: expected a string")

    def _submit(self, body: dict[str, Any], tokens: list[int], number: int) -> Answered:
        most = body.get("max_completion_tokens") or body.get("max_tokens") or self.settings.output
        if not isinstance(most, int) or most < 1:
            raise Refused(400, f"max_tokens: {most!r}, expected a whole number of 1 or more")
        if not tokens:
            raise Refused(400, "prompt: empty")
        if len(tokens) + most > self.live.max_model_len:
            raise Refused(
                400,
                f"This model's maximum context length is {self.live.max_model_len} tokens. "
                f"However, you requested {len(tokens)} prompt tokens and {most} output tokens.",
            )
        if self._longest is not None and len(tokens) > self._longest:
            raise Refused(
                400,
                f"{len(tokens)} prompt tokens, expected at most a token budget: {self._longest}",
            )
        early = self.settings.faults.hits("stop-early", number)
        priority = body.get("priority", 0)
        answer = self.live.submit(
            len(tokens),
            max(1, most // 2) if early else most,
            most,
            priority=priority if isinstance(priority, int) else 0,
            tenant=str(body.get("user") or ""),
            content=self._identity(tokens),
        )
        if answer.reason is not None:  # the door turned it away
            raise Refused(429 if "rate" in answer.reason else 503, answer.reason)
        return answer

    def _identity(self, tokens: list[int]) -> tuple[Segment, ...]:
        """Full blocks named by all tokens up to their end: equal beginnings, equal names."""
        if not self.live.engine.prefix_cache:
            return ()
        size = self.live.engine.block_size
        name = 0
        segments = []
        for end in range(size, len(tokens) + 1, size):
            name = hash((name, *tokens[end - size : end])) & ((1 << 62) - 1)
            segments.append(Segment(name, 0, size))
        return tuple(segments)


def _prompt_ids(body: dict[str, Any], refuse_ids: Callable[[], None] = lambda: None) -> list[int]:
    """The prompt's tokens: of a text, of ids, or of a list with one of either."""
    prompt = body.get("prompt")
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str | list):
        prompt = prompt[0]
    if isinstance(prompt, str):
        return token_ids(prompt)
    if isinstance(prompt, list) and all(isinstance(token, int) for token in prompt):
        refuse_ids()
        return prompt
    raise Refused(400, "prompt: expected a text, or a list of token ids")


def _chat_ids(body: dict[str, Any]) -> list[int]:
    messages = body.get("messages")
    if not isinstance(messages, list) or not all(isinstance(m, dict) for m in messages):
        raise Refused(400, "messages: expected a list of messages")
    tokens: list[int] = []
    for message in messages:
        content = message.get("content")
        if isinstance(content, list):
            content = " ".join(str(part.get("text", "")) for part in content)
        tokens += [*range(CHAT_TOKENS), *token_ids(str(content or ""))]
    return tokens


class Form:
    """How one answer is written, whole or chunk by chunk."""

    def __init__(
        self, body: dict[str, Any], settings: Settings, prompt: int, number: int, *, chat: bool
    ) -> None:
        options = body.get("stream_options") or {}
        self.usage = bool(options.get("include_usage")) and "no-usage" not in settings.faults
        self.running_usage = self.usage and bool(options.get("continuous_usage_stats"))
        self.least = settings.faults.chunk
        self._alike: dict[int, bytes] = {}
        """Chunks that say nothing but so many tokens."""
        self._states_usage = "no-usage" not in settings.faults
        self._prompt = prompt
        self._chat = chat
        self._head = {
            "id": f"{'chatcmpl' if chat else 'cmpl'}-{number}",
            "object": "chat.completion.chunk" if chat else "text_completion",
            "created": int(time.time()),
            "model": settings.model,
        }

    def _usage(self, tokens: int) -> dict[str, Any]:
        prompt = self._prompt
        return {
            "prompt_tokens": prompt,
            "completion_tokens": tokens,
            "total_tokens": prompt + tokens,
        }

    def chunk(self, new: int, tokens: int, reason: str | None = None) -> bytes:
        """`new` tokens, `tokens` in all so far."""
        alike = reason is None and not self.running_usage and new < tokens
        if alike and new in self._alike:
            return self._alike[new]
        text = " a" * new
        part: dict[str, Any] = {"delta": {"content": text}} if self._chat else {"text": text}
        if self._chat and new == tokens:
            part["delta"]["role"] = "assistant"
        choice = {"index": 0, **part, "logprobs": None, "finish_reason": reason}
        more = {"usage": self._usage(tokens)} if self.running_usage else {}
        event = _event({**self._head, "choices": [choice], **more})
        if alike:
            self._alike[new] = event
        return event

    def last(self, tokens: int) -> bytes:
        """What follows the last token."""
        used = _event({**self._head, "choices": [], "usage": self._usage(tokens)})
        return (used if self.usage else b"") + b"data: [DONE]\n\n"

    def whole(self, answer: Answered) -> dict[str, Any]:
        text = " a" * answer.produced
        said = {"role": "assistant", "content": text}
        part: dict[str, Any] = {"message": said} if self._chat else {"text": text}
        choice = {"index": 0, **part, "logprobs": None, "finish_reason": finish(answer)}
        usage = {"usage": self._usage(answer.produced)} if self._states_usage else {}
        whole = {**self._head, "choices": [choice], **usage}
        return {**whole, "object": "chat.completion"} if self._chat else whole


def finish(answer: Answered) -> str:
    """OpenAI's reason; ours is "stop" also where the answer is as long as its maximum."""
    return "length" if answer.produced == answer.request.declared else answer.reason or ""


def _event(values: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(values, separators=(",", ":")).encode() + b"\n\n"


class Stream(Response):
    """Sends tokens as they appear. One that is told to be cut ends after half of them."""

    def __init__(self, live: Live, answer: Answered, form: Form, cut: str | None) -> None:
        super().__init__(media_type="text/event-stream")
        del self.headers["content-length"]
        self._live = live
        self._answer = answer
        self._form = form
        self._cut = cut

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        start = {"status": self.status_code, "headers": self.raw_headers}
        await send({"type": "http.response.start", **start})
        watch = asyncio.create_task(self._watch(receive))
        try:
            if not await self._tokens(send):
                return
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            watch.cancel()
            self._live.hang_up(self._answer)

    async def _tokens(self, send: Send) -> bool:
        """Send them; False if the connection is to break."""
        answer, form = self._answer, self._form
        half = answer.request.output // 2 if self._cut else 1 << 60
        sent = 0
        while True:
            produced = await answer.more(sent + form.least - 1)
            if sent >= half:
                return self._cut == "truncate"
            ended = answer.reason is not None
            if ended and answer.reason not in ("stop", "length"):
                error = Refused(503, answer.reason or "").response().body
                body = b"data: " + bytes(error) + b"\n\n"
                await send({"type": "http.response.body", "body": body, "more_body": True})
                return True
            body = form.chunk(produced - sent, produced, finish(answer) if ended else None)
            if ended:
                body += form.last(produced)
            await send({"type": "http.response.body", "body": body, "more_body": True})
            sent = produced
            if ended:
                return True

    async def _watch(self, receive: Receive) -> None:
        """The client may hang up."""
        while (await receive())["type"] != "http.disconnect":
            pass
        self._live.hang_up(self._answer)


async def watch_lateness(live: Live, say: Callable[[str], None]) -> None:
    """Say so, now and then, while tokens go out late."""
    while True:
        live.lately_behind_s = 0.0
        await asyncio.sleep(EVERY_S)
        if live.lately_behind_s > BEHIND_S:
            say(
                f"up to {live.lately_behind_s * 1e3:.0f} ms behind in the last {EVERY_S:.0f} s, "
                f"{live.running} running now: this machine is too slow to stream them on time"
            )


def create(scenario: Scenario, settings: Settings) -> Api:
    """The server of a scenario's engine, policy, door and fleet, in the running asyncio loop."""
    if scenario.executor.kind == "measured":
        raise ValueError("executor.kind = 'measured': expected 'predicted', steps by price")
    if scenario.engine.pinned_tokens:
        raise ValueError(
            f"engine.pinned_tokens = {scenario.engine.pinned_tokens}: expected 0, for a server "
            "does not know beforehand which beginning its requests will share"
        )
    profile = load_profile(scenario.profile_name)
    engine = scenario.engine_limits(profile)
    policy = scenario.policy.build()
    refuse_impossible(policy, engine, Trace.of([], [], []))
    live = Live(
        engine,
        policy,
        Predicted(scenario.host.added_to(profile.step_time())),
        door=scenario.door,
        fleet=scenario.fleet,
        seed=scenario.seed,
    )
    longest = policy.token_budget if prefills_whole(policy) else None
    return Api(live, settings, longest)


def serve(
    scenario: Scenario,
    settings: Settings,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    say: Callable[[str], None] = lambda text: None,
) -> None:
    """Serve until interrupted. Raises ValueError where the address cannot be had."""
    try:
        listening = socket.create_server((host, port))
    except OSError as error:
        why = os.strerror(error.errno) if error.errno else str(error)
        raise ValueError(f"cannot listen on {host}:{port}: {why}") from None

    async def main() -> None:
        api = create(scenario, settings)
        driver = asyncio.create_task(api.live.run())
        watcher = asyncio.create_task(watch_lateness(api.live, say))
        say(f"serving {settings.model} on http://{host}:{listening.getsockname()[1]}")
        config = uvicorn.Config(
            api.app(), log_level="critical", lifespan="off", timeout_graceful_shutdown=1
        )
        server = uvicorn.Server(config)
        # A driver that fails (a policy that breaks a law) must not leave clients waiting.
        driver.add_done_callback(lambda _: setattr(server, "should_exit", True))
        try:
            await server.serve(sockets=[listening])
            if driver.done():
                driver.result()
        finally:
            driver.cancel()
            watcher.cancel()
            say(
                f"served {api.metrics.served:,} requests; tokens went out at most "
                f"{api.live.worst_behind_s * 1e3:.1f} ms late"
            )

    with listening, contextlib.suppress(KeyboardInterrupt):
        asyncio.run(main())
