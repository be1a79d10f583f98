"""The mock server: the simulator's own loop behind HTTP. On a virtual clock, but for one test."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from array import array
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import uvicorn
from virtual import InProcess, virtually

from calibration.profile import load_profile
from calibration.raw import shape_of
from simulator.cli import run as batchlab
from simulator.columns import Columns
from simulator.faults import Faults
from simulator.run import simulate
from simulator.scenario import Scenario
from simulator.serve import Api, Settings, create, watch_lateness
from traces.trace import PS_PER_S, Trace

TINY = Scenario.of({"engine": {"kv_tokens": 20_000, "max_model_len": 4096, "max_running": 64}})


@dataclass
class Client:
    """A server, and somebody who talks to it."""

    api: Api
    http: httpx.AsyncClient

    @property
    def now(self) -> float:
        return asyncio.get_running_loop().time()

    async def post(self, path: str = "/v1/completions", **body: Any) -> httpx.Response:
        return await self.http.post(path, json=body)

    async def stream(self, path: str = "/v1/completions", **body: Any) -> Heard:
        heard = Heard(self.now)
        body = {"prompt": [1] * 100, "max_tokens": 4, "stream": True, **body}
        async with self.http.stream("POST", path, json=body) as response:
            heard.status = response.status_code
            async for line in response.aiter_lines():
                if line.startswith("data: {"):
                    heard.chunks.append((self.now, json.loads(line[6:])))
                elif line == "data: [DONE]":
                    heard.done = True
        return heard


@dataclass
class Heard:
    sent: float
    status: int = 0
    chunks: list[tuple[float, dict[str, Any]]] = field(default_factory=list)
    done: bool = False

    @property
    def times(self) -> list[float]:
        """When tokens came, from the sending."""
        return [at - self.sent for at, chunk in self.chunks if chunk.get("choices")]

    @property
    def reasons(self) -> list[str]:
        choices = [choice for _, chunk in self.chunks for choice in chunk.get("choices", [])]
        return [choice["finish_reason"] for choice in choices if choice["finish_reason"]]


@asynccontextmanager
async def serving(
    scenario: Scenario = TINY, *misbehave: str, key: str = "", output: int = 256
) -> AsyncIterator[Client]:
    api = create(scenario, Settings(key=key, output=output, faults=Faults.parse(misbehave)))
    task = asyncio.create_task(api.live.run())
    transport = InProcess(api.app())
    async with httpx.AsyncClient(transport=transport, base_url="http://mock") as http:
        yield Client(api, http)
    task.cancel()


def ask(
    question: Callable[[Client], Awaitable[Any]],
    *misbehave: str,
    scenario: Scenario = TINY,
    **settings: Any,
) -> Any:
    async def main() -> Any:
        async with serving(scenario, *misbehave, **settings) as client:
            return await question(client)

    return virtually(main())


# Tokens come when the engine's steps end


def test_tokens_come_at_the_ends_of_the_profiles_steps() -> None:
    step_time = load_profile(TINY.profile_name).step_time()
    fed = [[(100, 0)], [(1, 100)], [(1, 101)], [(1, 102)]]
    ends = np.cumsum([step_time.price(shape_of(rows)) / PS_PER_S for rows in fed])
    heard = ask(lambda client: client.stream())
    assert heard.times == pytest.approx(ends.tolist(), abs=1e-8)
    assert heard.reasons == ["length"]
    assert heard.done


@pytest.mark.parametrize("policy", ["chunked", "continuous", "fast-lane"])
def test_poisson_load_gets_what_simulate_says(policy: str) -> None:
    """Every first and last token, to the resolution of the loop's clock."""
    load = {"rate": 30.0, "requests": 120}
    lengths = {
        "prompt": {"kind": "uniform", "min": 50, "max": 900},
        "output": {"kind": "uniform", "min": 1, "max": 60},
    }
    scenario = Scenario.of(
        {"trace": load | lengths, "policy": {"kind": policy}, "engine": {"kv_tokens": 8_000}}
    )
    trace = scenario.build().trace
    requests = scenario.run().requests

    async def load_it(client: Client) -> list[Heard]:
        async def one(arrival: int, prompt: int, output: int) -> Heard:
            await asyncio.sleep(arrival / PS_PER_S)
            return await client.stream(prompt=[1] * prompt, max_tokens=output)

        rows = zip(trace.arrival, trace.prompt, trace.output, strict=True)
        return await asyncio.gather(*(one(int(a), int(p), int(o)) for a, p, o in rows))

    heard = ask(load_it, scenario=scenario)
    first = (requests["first_token"] - requests["arrival"]).to_numpy() / PS_PER_S
    last = (requests["last_token"] - requests["arrival"]).to_numpy() / PS_PER_S
    assert [one.times[0] for one in heard] == pytest.approx(first.tolist(), abs=1e-6)
    assert [one.times[-1] for one in heard] == pytest.approx(last.tolist(), abs=1e-6)
    assert [len(one.times) for one in heard] == trace.output.tolist()


def test_a_closed_loop_gets_what_simulate_says() -> None:
    """Eight clients, each sending its next request a moment after its last one has ended."""
    scenario = Scenario.of({"engine": {"kv_tokens": 8_000}})

    async def load_it(client: Client) -> list[float]:
        async def one(number: int) -> list[float]:
            ends = []
            for turn in range(5):
                await asyncio.sleep(0.003 if turn else 0.003 * number)
                heard = await client.stream(prompt=[1] * 300, max_tokens=20)
                ends.append(heard.times[-1])
            return ends

        chains = await asyncio.gather(*(one(number) for number in range(8)))
        return [ends for turn in zip(*chains, strict=True) for ends in turn]

    built = scenario.build()
    pause = 3 * PS_PER_S // 1000
    arrival = [pause * row if row < 8 else pause for row in range(40)]
    after = [row - 8 if row >= 8 else -1 for row in range(40)]
    trace = Trace.of(arrival, 300, 20, 20, after=after)
    requests = simulate(trace, built.policy, built.engine, built.executor).requests
    simulated = (requests["last_token"] - requests["arrival"]).to_numpy() / PS_PER_S
    assert ask(load_it, scenario=scenario) == pytest.approx(simulated.tolist(), abs=1e-6)


def test_overload_queues_as_the_engine_does() -> None:
    """Two seats: the third request waits for one of the first two."""
    scenario = TINY.with_values({"engine.max_running": 2})

    async def three(client: Client) -> tuple[list[Heard], str]:
        streams = [asyncio.create_task(client.stream(max_tokens=20)) for _ in range(3)]
        await asyncio.sleep(0.05)
        metrics = (await client.http.get("/metrics")).text
        return [await stream for stream in streams], metrics

    (first, _, third), metrics = ask(three, scenario=scenario)
    assert third.times[0] > first.times[-1]
    assert 'vllm:num_requests_running{engine="0",model_name="mock"} 2' in metrics
    assert 'vllm:num_requests_waiting{engine="0",model_name="mock"} 1' in metrics


def test_a_full_door_answers_503_and_a_rate_limit_429() -> None:
    door = {"max_in_flight": 1, "when_full": "reject"}
    full = Scenario.of(TINY.tables() | {"door": door})
    fast = Scenario.of(TINY.tables() | {"door": {"max_rate": 1.0, "when_fast": "reject"}})

    async def two(client: Client) -> list[int]:
        return [one.status for one in await asyncio.gather(client.stream(), client.stream())]

    assert ask(two, scenario=full) == [200, 503]
    assert ask(two, scenario=fast) == [200, 429]


def test_replicas_share_the_load() -> None:
    scenario = TINY.with_values({"engine.max_running": 1, "fleet.replicas": 2})

    async def two(client: Client) -> list[float]:
        both = await asyncio.gather(client.stream(), client.stream())
        return [one.times[-1] for one in both]

    first, second = ask(two, scenario=scenario)
    assert first == pytest.approx(second, abs=1e-8)


def test_equal_beginnings_hit_the_prefix_cache() -> None:
    scenario = TINY.with_values({"engine.prefix_cache": True})

    async def twice(client: Client) -> tuple[float, float, str]:
        ids = list(range(2000))
        first = await client.stream(prompt=ids)
        second = await client.stream(prompt=ids)
        return first.times[0], second.times[0], (await client.http.get("/metrics")).text

    cold, warm, metrics = ask(twice, scenario=scenario)
    assert warm < cold / 2
    assert 'prefix_cache_hits_total{engine="0",model_name="mock"} 1984' in metrics


def test_a_client_that_hangs_up_frees_its_seat() -> None:
    async def leave(client: Client) -> tuple[int, int]:
        running = asyncio.create_task(client.stream(max_tokens=1000))
        await asyncio.sleep(0.1)
        before = client.api.live.running
        running.cancel()
        await asyncio.sleep(0.1)
        return before, client.api.live.running

    assert ask(leave) == (1, 0)


def test_a_client_that_hangs_up_leaves_the_queue() -> None:
    async def leave(client: Client) -> tuple[int, int, list[str]]:
        first = asyncio.create_task(client.stream(max_tokens=50))
        await asyncio.sleep(0.01)
        second = asyncio.create_task(client.stream())
        await asyncio.sleep(0.01)
        before = client.api.live.waiting
        second.cancel()
        await asyncio.sleep(0.01)
        return before, client.api.live.waiting, (await first).reasons

    scenario = TINY.with_values({"engine.max_running": 1})
    assert ask(leave, scenario=scenario) == (1, 0, ["length"])


def test_nothing_is_kept_of_the_past() -> None:
    async def sizes(client: Client) -> list[int]:
        found = []
        for _ in range(2):
            await asyncio.gather(*(client.stream(max_tokens=300) for _ in range(2)))
            columns = vars(client.api.live.replicas[0].log).values()
            found.append(sum(len(kept) for kept in columns if isinstance(kept, array | Columns)))
        return found

    after_300, after_600 = ask(sizes)
    assert 0 < after_600 < after_300


# The interface


def test_usage_is_stated_as_asked_for() -> None:
    async def streams(client: Client) -> list[Heard]:
        options = [{}, {"include_usage": True}]
        options.append({"include_usage": True, "continuous_usage_stats": True})
        return [await client.stream(stream_options=one) for one in options]

    plain, at_end, running = ask(streams)
    assert not any("usage" in chunk for _, chunk in plain.chunks)
    assert at_end.chunks[-1][1]["usage"] == {
        "prompt_tokens": 100,
        "completion_tokens": 4,
        "total_tokens": 104,
    }
    counts = [chunk["usage"]["completion_tokens"] for _, chunk in running.chunks]
    assert counts == [1, 2, 3, 4, 4]


def test_chat_counts_its_template_and_says_who_speaks() -> None:
    async def chat(client: Client) -> tuple[dict[str, Any], Heard]:
        body = {"messages": [{"role": "user", "content": "one two three"}], "max_tokens": 3}
        path = "/v1/chat/completions"
        return (await client.post(path, **body)).json(), await client.stream(path, **body)

    whole, streamed = ask(chat)
    assert whole["usage"]["prompt_tokens"] == 7
    assert whole["choices"][0]["message"] == {"role": "assistant", "content": " a a a"}
    assert whole["choices"][0]["finish_reason"] == "length"
    assert streamed.chunks[0][1]["choices"][0]["delta"]["role"] == "assistant"


def test_tokenize_counts_as_completions_do() -> None:
    async def count(client: Client) -> tuple[int, int, int]:
        counted = (await client.post("/tokenize", prompt="Wait, what? 3")).json()
        answer = (await client.post(prompt="Wait, what? 3", max_tokens=1)).json()
        again = (await client.post(prompt=counted["tokens"], max_tokens=1)).json()
        usage = answer["usage"]["prompt_tokens"], again["usage"]["prompt_tokens"]
        return counted["count"], *usage

    assert ask(count) == (5, 5, 5)


def test_an_answer_without_a_maximum_has_the_servers_own_length() -> None:
    assert len(ask(lambda client: client.stream(max_tokens=None), output=7).times) == 7


def test_models_and_the_cache_are_described() -> None:
    async def look(client: Client) -> tuple[dict[str, Any], str, int]:
        models = (await client.http.get("/v1/models")).json()["data"][0]
        health = (await client.http.get("/health")).status_code
        return models, (await client.http.get("/metrics")).text, health

    model, metrics, health = ask(look)
    assert (model["id"], model["max_model_len"], health) == ("mock", 4096, 200)
    assert 'cache_config_info{block_size="16",num_gpu_blocks="1251"' in metrics


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        ({"prompt": [1] * 4090, "max_tokens": 10}, 400, "maximum context length is 4096"),
        ({"prompt": ""}, 400, "prompt: empty"),
        ({"prompt": {"a": 1}}, 400, "expected a text, or a list of token ids"),
        ({"prompt": ["a", "b"]}, 400, "expected a text, or a list of token ids"),
        ({"prompt": "a", "max_tokens": "many"}, 400, "expected a whole number"),
        ({"prompt": "a", "model": "gpt-5"}, 404, "`gpt-5` does not exist"),
        ({"prompt": "a", "n": 2}, 400, "n: expected 1"),
    ],
)
def test_wrong_requests_are_refused_in_words(body: dict[str, Any], status: int, said: str) -> None:
    response = ask(lambda client: client.post(**body))
    assert (response.status_code, said in response.json()["error"]["message"]) == (status, True)


def test_a_body_that_is_no_json_is_refused() -> None:
    response = ask(lambda client: client.http.post("/v1/completions", content=b"{"))
    assert response.status_code == 400


def test_a_prompt_that_the_policy_can_never_run_is_refused() -> None:
    scenario = Scenario.of(TINY.tables() | {"policy": {"kind": "continuous", "token_budget": 512}})
    response = ask(lambda client: client.post(prompt=[1] * 600), scenario=scenario)
    assert (response.status_code, "budget" in response.text) == (400, True)


# Misbehaving on demand


@pytest.mark.parametrize("status", [401, 429, 500, 503])
def test_every_nth_request_gets_an_error(status: int) -> None:
    async def four(client: Client) -> list[int]:
        return [(await client.stream()).status for _ in range(4)]

    assert ask(four, f"{status}=2") == [200, status, 200, status]


def test_a_key_is_wanted() -> None:
    async def both(client: Client) -> list[int]:
        without = (await client.post(prompt="a", max_tokens=1)).status_code
        client.http.headers["authorization"] = "Bearer sesame"
        return [without, (await client.post(prompt="a", max_tokens=1)).status_code]

    assert ask(both, key="sesame") == [401, 200]


def test_a_truncated_stream_ends_early_and_cleanly() -> None:
    heard = ask(lambda client: client.stream(max_tokens=10), "truncate")
    assert (len(heard.times), heard.done, heard.reasons) == (5, False, [])


def test_a_dropped_connection_breaks() -> None:
    with pytest.raises(httpx.RemoteProtocolError):
        ask(lambda client: client.stream(max_tokens=10), "drop")


def test_chunks_carry_several_tokens() -> None:
    heard = ask(lambda client: client.stream(max_tokens=10), "chunk=4")
    assert len(heard.times) == 3


def test_answers_stop_early() -> None:
    heard = ask(lambda client: client.stream(max_tokens=10), "stop-early")
    assert (len(heard.times), heard.reasons) == (5, ["stop"])


def test_answers_are_slow() -> None:
    assert ask(lambda client: client.stream(), "slow=2.5").times[0] > 2.5


@pytest.mark.parametrize(
    ("fault", "path", "body", "status"),
    [
        ("strict", "/v1/completions", {"prompt": "a", "ignore_eos": True}, 400),
        ("no-token-ids", "/v1/completions", {"prompt": [1, 2]}, 400),
        ("no-tokenize", "/tokenize", {"prompt": "a"}, 404),
        ("no-completions", "/v1/completions", {"prompt": "a"}, 404),
    ],
)
def test_endpoints_lack_what_they_are_told_to(
    fault: str, path: str, body: dict[str, Any], status: int
) -> None:
    assert ask(lambda client: client.post(path, **body), fault).status_code == status


def test_usage_and_metrics_can_be_missing() -> None:
    async def look(client: Client) -> tuple[Heard, int]:
        heard = await client.stream(stream_options={"include_usage": True})
        return heard, (await client.http.get("/metrics")).status_code

    heard, status = ask(look, "no-usage", "no-metrics")
    assert (any("usage" in chunk for _, chunk in heard.chunks), status) == (False, 404)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("truncat", "did you mean 'truncate'"),
        ("503=0", "expected a number above 0"),
        ("chunk=1.5", "expected a number above 0"),
        ("strict=2", "takes no number"),
    ],
)
def test_unknown_misbehaviour_is_refused(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Faults.parse([text])


# Real time


def test_it_says_when_it_falls_behind() -> None:
    said: list[str] = []

    async def stall(client: Client) -> None:
        watch = asyncio.create_task(watch_lateness(client.api.live, said.append))
        running = asyncio.create_task(client.stream(max_tokens=5))
        await asyncio.sleep(0.001)
        asyncio.get_running_loop().passed += 0.5  # type: ignore[attr-defined]
        await running
        await asyncio.sleep(30)
        watch.cancel()

    ask(stall)
    assert len(said) == 1
    assert "too slow to stream them on time" in said[0]


def test_over_a_real_socket_tokens_come_on_time() -> None:
    async def main() -> tuple[Heard, float]:
        api = create(TINY, Settings())
        driver = asyncio.create_task(api.live.run())
        config = uvicorn.Config(api.app(), log_level="critical", lifespan="off")
        server = uvicorn.Server(config)
        with socket.create_server(("127.0.0.1", 0)) as listening:
            serving = asyncio.create_task(server.serve(sockets=[listening]))
            port = listening.getsockname()[1]
            async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as http:
                client = Client(api, http)
                await client.stream()
                heard = await client.stream(max_tokens=40)
            server.should_exit = True
            await serving
        driver.cancel()
        return heard, api.live.worst_behind_s

    heard, behind = asyncio.run(main())
    exact = ask(lambda client: client.stream(max_tokens=40))
    text = "".join(chunk["choices"][0]["text"] for _, chunk in heard.chunks)
    assert text == " a" * 40  # those that are late come together
    # Generous: the machine that runs the tests is shared.
    assert heard.times[-1] == pytest.approx(exact.times[-1], abs=0.2 + 2 * behind)


STUCK = """
from dataclasses import dataclass
from policies import Chunked

@dataclass(frozen=True, kw_only=True)
class Stuck(Chunked):
    def schedule(self, step):
        raise RuntimeError("no idea")
"""


def test_a_policy_that_fails_ends_the_server_and_leaves_nobody_waiting(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "stuck.py").write_text(STUCK)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    words = ["mock-server", "--policy", f"{tmp_path}/stuck.py:Stuck", "--port", str(port)]
    with ThreadPoolExecutor(1) as pool:
        ended = pool.submit(batchlab, words)
        answers = []
        for _ in range(600):
            try:
                url = f"http://127.0.0.1:{port}/v1/completions"
                answers.append(httpx.post(url, json={"prompt": "a"}).status_code)
            except httpx.HTTPError:
                if ended.done():
                    break
                time.sleep(0.05)
        assert ended.result(60) == 1
    assert set(answers) <= {500}
    assert "it raised RuntimeError: no idea" in capsys.readouterr().err


def test_the_command_names_a_wrong_address(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert batchlab(["mock-server", "--port", str(port)]) == 2
    assert f"cannot listen on 127.0.0.1:{port}" in capsys.readouterr().err


def test_the_command_refuses_wrong_settings(capsys: pytest.CaptureFixture[str]) -> None:
    assert batchlab(["mock-server", "--profile", "h100"]) == 2
    assert batchlab(["mock-server", "--misbehave", "sometimes"]) == 2
    assert batchlab(["mock-server", "--set", "executor.kind=measured"]) == 2
    assert "expected 'predicted'" in capsys.readouterr().err
