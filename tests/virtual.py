"""Asyncio on a virtual clock, and HTTP to an app in this process: time passes without waiting.

`VirtualLoop` jumps to the next timer whenever nothing else is left to do, so that seconds of
sleep cost nothing and are exact. `InProcess` is an httpx transport to an ASGI app that streams.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import AsyncIterator, Coroutine
from typing import Any, TypeVar

import httpx

T = TypeVar("T")


class _Jump(selectors.SelectSelector):
    """Instead of waiting, moves the loop's clock on."""

    loop: VirtualLoop

    def select(self, timeout: float | None = None) -> list[Any]:
        found = super().select(0)
        if found:
            return found
        if timeout is None:
            raise RuntimeError("everybody waits for something that nobody will do")
        self.loop.passed += timeout
        return found


class VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self.passed = 0.0
        selector = _Jump()
        selector.loop = self
        super().__init__(selector)

    def time(self) -> float:
        return self.passed


def virtually(main: Coroutine[Any, Any, T]) -> T:
    """Run `main` to its end on a virtual clock."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main)


Messages = asyncio.Queue[tuple[float, dict[str, Any] | None]]
"""What the app sent, and when it gets to the client."""


async def _arrived(messages: Messages) -> dict[str, Any] | None:
    at, message = await messages.get()
    await asyncio.sleep(max(0.0, at - asyncio.get_running_loop().time()))
    return message


class _Body(httpx.AsyncByteStream):
    def __init__(self, messages: Messages, app: asyncio.Task[None]) -> None:
        self._messages = messages
        self._app = app

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while (message := await _arrived(self._messages)) is not None:
            if body := message.get("body", b""):
                yield body
            if not message.get("more_body", False):
                return
        raise httpx.RemoteProtocolError("peer closed connection without sending complete body")

    async def aclose(self) -> None:
        self._app.cancel()


class InProcess(httpx.AsyncBaseTransport):
    """Requests to `app`; `latency_s` passes on the way there and back."""

    def __init__(self, app: Any, latency_s: float = 0.0) -> None:
        self._app = app
        self._latency_s = latency_s

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        await asyncio.sleep(self._latency_s / 2)
        body = await request.aread()
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": request.method,
            "scheme": "http",
            "path": request.url.path,
            "raw_path": request.url.raw_path,
            "query_string": request.url.query,
            "root_path": "",
            "headers": [(key.lower(), value) for key, value in request.headers.raw],
            "server": ("127.0.0.1", 80),
            "client": ("127.0.0.1", 1),
        }
        sent = False
        messages: Messages = asyncio.Queue()
        now = asyncio.get_running_loop().time

        async def receive() -> dict[str, Any]:
            nonlocal sent
            if sent:
                await asyncio.Event().wait()
            sent = True
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message: dict[str, Any]) -> None:
            await messages.put((now() + self._latency_s / 2, message))

        async def call() -> None:
            try:
                await self._app(scope, receive, send)
            finally:
                await messages.put((now() + self._latency_s / 2, None))

        task = asyncio.create_task(call())
        start = await _arrived(messages)
        if start is None:
            await task
            raise httpx.RemoteProtocolError("Server disconnected without sending a response.")
        return httpx.Response(
            start["status"], headers=start["headers"], stream=_Body(messages, task)
        )
