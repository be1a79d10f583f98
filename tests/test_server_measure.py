"""Measuring a live server from outside: the mock server on a virtual clock."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from virtual import InProcess, virtually

from calibration.errors import predicted_seconds
from calibration.fit import fit_steps, fitted_profile
from calibration.openai_client import Client, ServerError
from calibration.profile import load_profile, save_profile
from calibration.raw import read_raw, shape_of
from calibration.server import Report, ServerMeasurement, ServerMeter
from calibration.server_plan import Limits, Point, cost, plan, points, within
from calibration.step_time import StepTime
from simulator.cli import run as batchlab
from simulator.faults import Faults
from simulator.scenario import Scenario
from simulator.serve import Settings, create

H100 = Scenario()
SMALL = ServerMeasurement(concurrency=4, longest=512, passes=1, seed=1, rest_s=0.0)
"""Quick: few streams, short prompts."""


def measure(
    path: Path,
    *misbehave: str,
    settings: ServerMeasurement = SMALL,
    scenario: Scenario = H100,
    latency_s: float = 0.002,
    wanted: str = "",
    on_progress: Callable[[float], None] = lambda share: None,
    **client: Any,
) -> Report:
    """Measure a mock server that is `latency_s` away."""

    async def main() -> Report:
        faults = Faults.parse(misbehave)
        api = create(scenario, Settings(key=wanted, faults=faults))
        live = asyncio.create_task(api.live.run())
        wire = InProcess(api.app(), latency_s)
        given = {"model": "mock", "transport": wire, "most": settings.max_requests} | client
        async with Client("http://mock", **given) as to:
            report = await ServerMeter(to, settings).measure(path, on_progress)
        live.cancel()
        return report

    return virtually(main())


def truth(scenario: Scenario = H100) -> StepTime:
    return load_profile(scenario.profile_name).step_time()


def off(path: Path, kind: str) -> float:
    """The largest error of the measured steps of a kind, against the profile served."""
    rows = read_raw(path).rows
    some = rows[rows["kind"] == kind]
    assert len(some) > 0
    return float(abs(predicted_seconds(truth(), some) / some["seconds"].to_numpy() - 1).max())


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Report]:
    """One measurement as the command makes it, but for the rest."""
    path = tmp_path_factory.mktemp("server") / "mock.raw.csv"
    return path, measure(path, settings=replace(SMALL, concurrency=32, longest=4096))


# The profile comes back


@pytest.mark.parametrize("kind", ["prefill", "decode", "mixed"])
def test_each_step_is_measured_as_it_was(whole: tuple[Path, Report], kind: str) -> None:
    assert off(whole[0], kind) < 2e-4


def test_a_fit_recovers_the_profile_within_three_per_cent(whole: tuple[Path, Report]) -> None:
    """Prefill per token, decode per step, overhead: each against the profile served."""
    table = read_raw(whole[0])
    fitted = fit_steps(table.rows)
    found, real = fitted.cost.step_time(), truth()

    def of(price: StepTime, *rows: tuple[int, int]) -> int:
        return price.price(shape_of(rows, 16))

    def per_prompt_token(price: StepTime) -> float:
        return (of(price, (2000, 0)) - of(price, (200, 0))) / 1800

    assert per_prompt_token(found) == pytest.approx(per_prompt_token(real), rel=0.03)
    for streams in (1, 3, 8, 20, 32):
        step = [(1, 700)] * streams
        assert of(found, *step) == pytest.approx(of(real, *step), rel=0.03)
    assert of(found, (16, 0)) == pytest.approx(of(real, (16, 0)), rel=0.03)
    errors = fitted.errors.held_out_random
    assert errors is not None
    assert errors.prefill is not None
    assert errors.prefill.mape < 0.03


def test_the_profile_says_that_it_was_measured_from_outside(
    whole: tuple[Path, Report], tmp_path: Path
) -> None:
    table = read_raw(whole[0])
    profile = fitted_profile(table.header, fit_steps(table.rows), "mock")
    save_profile(profile, tmp_path / "mock.json")
    loaded = load_profile(tmp_path / "mock.json")
    assert loaded.source.startswith("measured from outside: http://mock, completions, token ids")
    assert loaded.machine.startswith("from outside; 2.000 ms of client and network subtracted")
    assert loaded.pool_tokens == 27779 * 16
    assert loaded.max_model_len == 131072
    assert "host overhead" not in loaded.missing


def test_the_token_budget_is_found_from_outside(whole: tuple[Path, Report]) -> None:
    assert whole[1].token_budget == 2048


@pytest.mark.parametrize("budget", [256, 512, 8192])
def test_other_token_budgets_are_found(tmp_path: Path, budget: int) -> None:
    scenario = Scenario.of({"policy": {"token_budget": budget}})
    report = measure(tmp_path / "raw.csv", scenario=scenario)
    assert report.token_budget == budget


def test_the_clients_delay_is_subtracted(tmp_path: Path) -> None:
    report = measure(tmp_path / "raw.csv", latency_s=0.080)
    assert report.delay_s == pytest.approx(0.080)
    assert off(tmp_path / "raw.csv", "prefill") < 1e-6


def test_prompts_are_never_hit_in_a_prefix_cache(tmp_path: Path) -> None:
    scenario = Scenario.of({"engine": {"prefix_cache": True}})
    report = measure(tmp_path / "raw.csv", scenario=scenario)
    assert off(tmp_path / "raw.csv", "prefill") < 1e-6
    assert any("caches prefixes" in note for note in report.notes)


# What servers differ in


def test_several_tokens_a_chunk_are_counted(tmp_path: Path) -> None:
    measure(tmp_path / "raw.csv", "chunk=3")
    assert off(tmp_path / "raw.csv", "decode") < 0.01
    assert off(tmp_path / "raw.csv", "mixed") < 0.03


@pytest.mark.parametrize(
    ("misbehave", "prompts"),
    [
        (("no-token-ids",), "tokenized text"),
        (("no-token-ids", "no-tokenize"), "text"),
        (("no-completions", "no-tokenize"), "text"),
        (("no-completions",), "tokenized text"),
        (("strict",), "token ids"),
        (("no-usage",), "token ids"),
    ],
)
def test_other_servers_are_measured_as_well(
    tmp_path: Path, misbehave: tuple[str, ...], prompts: str
) -> None:
    """Without token ids, /tokenize, /v1/completions, ignore_eos or usage."""
    report = measure(tmp_path / "raw.csv", *misbehave)
    assert report.prompts == prompts
    assert off(tmp_path / "raw.csv", "prefill") < 1e-6
    assert off(tmp_path / "raw.csv", "decode") < 1e-3


def test_where_lengths_cannot_be_known_it_says_so(tmp_path: Path) -> None:
    with pytest.raises(ServerError, match="the length of a prompt cannot be known"):
        measure(tmp_path / "raw.csv", "no-token-ids", "no-tokenize", "no-usage")


def test_without_metrics_the_pool_must_be_named(tmp_path: Path) -> None:
    with pytest.raises(ServerError, match="expected --kv-tokens"):
        measure(tmp_path / "raw.csv", "no-metrics")
    settings = replace(SMALL, kv_tokens=50_000)
    measure(tmp_path / "raw.csv", "no-metrics", settings=settings)
    assert read_raw(tmp_path / "raw.csv").header.pool_tokens == 50_000


def test_answers_that_end_early_are_measured_again(tmp_path: Path) -> None:
    report = measure(tmp_path / "raw.csv", "stop-early=9")
    assert off(tmp_path / "raw.csv", "decode") < 1e-3
    assert report.retries >= 0


# What goes wrong


@pytest.mark.parametrize(
    ("misbehave", "client", "said"),
    [
        (("401",), {}, "401: the server wants another key, expected --api-key"),
        (("429",), {}, "429: the server is busy .Rate limit reached.; 4 times in a row"),
        (("503",), {}, "503: the server is busy .The server is overloaded.; 4 times in a row"),
        (("truncate",), {}, "the stream ended after 2 chunks of the 4 tokens asked for"),
        (("drop",), {}, "the connection broke .peer closed connection"),
        ((), {"model": "gpt-5"}, "has no model 'gpt-5', expected mock"),
    ],
)
def test_failures_are_said_in_one_line(
    tmp_path: Path, misbehave: tuple[str, ...], client: dict[str, Any], said: str
) -> None:
    with pytest.raises(ServerError, match=said) as error:
        measure(tmp_path / "raw.csv", *misbehave, **client)
    assert "\n" not in str(error.value)


def test_a_key_is_sent(tmp_path: Path) -> None:
    with pytest.raises(ServerError, match="expected --api-key"):
        measure(tmp_path / "raw.csv", wanted="sesame")
    assert measure(tmp_path / "raw.csv", wanted="sesame", key="sesame").retries == 0


@pytest.mark.parametrize("fault", ["503=40", "429=40", "truncate=60", "drop=60"])
def test_what_passes_by_itself_is_tried_again(tmp_path: Path, fault: str) -> None:
    report = measure(tmp_path / "raw.csv", fault)
    assert report.retries > 0
    assert off(tmp_path / "raw.csv", "prefill") < 1e-6


class Broken(httpx.AsyncBaseTransport):
    """Every request fails in the same way."""

    def __init__(self, error: type[httpx.TransportError] | str) -> None:
        self.error = error

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        if isinstance(self.error, str):
            return httpx.Response(200, text=self.error)
        raise self.error("it does")


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (httpx.ConnectError, "nobody answers there .it does.: is the server running"),
        (httpx.ReadTimeout, "no answer within 60 s"),
        (httpx.ReadError, "the connection broke .it does."),
        ("<html>", "expected a list of models"),
        ('{"data": []}', "has no model 'mock'"),
    ],
)
def test_a_server_that_does_not_answer_is_named(
    tmp_path: Path, error: type[httpx.TransportError] | str, said: str
) -> None:
    with pytest.raises(ServerError, match=said):
        measure(tmp_path / "raw.csv", transport=Broken(error))


def test_a_slow_server_times_out(tmp_path: Path) -> None:
    class Slow(InProcess):
        async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
            if request.method == "POST":
                raise httpx.ReadTimeout("")
            return await super().handle_async_request(request)

    async def main() -> None:
        api = create(H100, Settings())
        async with Client("http://mock", "mock", transport=Slow(api.app()), timeout_s=3) as to:
            await ServerMeter(to, SMALL).measure(tmp_path / "raw.csv")

    with pytest.raises(ServerError, match="no answer within 3 s; 4 times in a row"):
        virtually(main())


def test_an_address_without_a_scheme_is_refused() -> None:
    with pytest.raises(ServerError, match="expected an address such as http"):
        Client("127.0.0.1:8000", "mock")


def test_too_few_seats_are_said(tmp_path: Path) -> None:
    scenario = Scenario.of({"engine": {"max_running": 2}})
    with pytest.raises(ServerError, match=r"4 streams never decoded at once .*lower --concurrency"):
        measure(tmp_path / "raw.csv", scenario=scenario)


# Bounded, kept, taken up again


def test_it_stops_at_the_most_requests_and_goes_on_later(tmp_path: Path) -> None:
    """What is measured is kept; the second go measures the rest and gives the same table."""
    path, other = tmp_path / "raw.csv", tmp_path / "other.csv"
    with pytest.raises(ServerError, match="--max-requests 150 are sent"):
        measure(path, most=150)
    kept = len(read_raw(path).rows)
    assert 0 < kept < len(plan_rows())
    shares: list[float] = []
    measure(path, on_progress=shares.append)
    measure(other)
    assert read_raw(path).rows["kind"].tolist() == read_raw(other).rows["kind"].tolist()
    assert shares == sorted(shares)
    assert shares[-1] == 1.0


def plan_rows() -> list[Point]:
    limits = Limits(concurrency=4, longest=512)
    return [point for _, point in plan(limits, 1) for _ in range(point.rows)]


def test_a_finished_measurement_asks_nothing_more(tmp_path: Path) -> None:
    measure(tmp_path / "raw.csv")
    before = (tmp_path / "raw.csv").read_text()
    assert measure(tmp_path / "raw.csv").requests < 20
    assert (tmp_path / "raw.csv").read_text() == before


def test_another_measurement_is_not_continued(tmp_path: Path) -> None:
    measure(tmp_path / "raw.csv")
    with pytest.raises(ValueError, match=r"another measurement, its source is .*256 tokens"):
        measure(tmp_path / "raw.csv", settings=replace(SMALL, longest=256))


def test_a_table_that_ends_within_a_point_is_not_continued(tmp_path: Path) -> None:
    path = tmp_path / "raw.csv"
    measure(path)
    lines = path.read_text().splitlines(keepends=True)
    rows = plan_rows()
    end = max(at for at, point in enumerate(rows) if point.kind == "mixed")
    path.write_text("".join(lines[: 2 + end]))
    with pytest.raises(ValueError, match="ends within a point: remove its last 6 rows"):
        measure(path)


# The plan


def test_the_plan_keeps_its_limits() -> None:
    limits = Limits(concurrency=16, longest=1000, token_budget=512, max_model_len=2048)
    for point in points(limits):
        assert point.streams <= 16
        assert max(point.prompts) <= min(1000, 512 if point.kind != "decode" else 1000)
        assert max(point.prompts) + point.tokens <= 2048


def test_a_small_pool_leaves_out_what_does_not_fit() -> None:
    for point in points(Limits(kv_tokens=5000)):
        if point.kind == "decode":
            assert point.streams * (point.prompts[0] + point.tokens) <= 5000


def test_fewer_requests_mean_fewer_streams_at_once() -> None:
    limits = Limits(concurrency=64)
    less = within(limits, 2, 900)
    assert less.concurrency < 64
    assert cost(plan(less, 2)).requests <= 900
    with pytest.raises(ValueError, match="--max-requests 10: expected at least"):
        within(limits, 2, 10)


def test_passes_visit_the_same_points_in_orders_of_their_own() -> None:
    first, second = ([p for n, p in plan(Limits(), 2) if n == number] for number in (0, 1))
    assert first != second
    assert sorted(first) == sorted(second)


# The command


def test_a_dry_run_prints_the_plan_and_sends_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["profile", "measure", "--server", "http://127.0.0.1:9", "--model", "m", "--dry-run"]
    assert batchlab(words) == 0
    said = capsys.readouterr()
    assert "prefill" in said.out
    assert "nothing was sent" in said.err
    assert batchlab([*words, "--format", "csv"]) == 0
    assert capsys.readouterr().out.splitlines()[0].startswith("kind,points,requests,prompt_tokens")


def test_nobody_there_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["profile", "measure", "--server", "http://127.0.0.1:9", "--model", "m"]
    assert batchlab(words) == 2
    said = capsys.readouterr().err
    assert "nobody answers there" in said
    assert "Traceback" not in said
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--server", "http://127.0.0.1:9", "--endpoint", "chats"], "completions or chat"),
        (["--server", "localhost:9"], "expected an address such as http"),
        (["--dry-run"], "--dry-run: is for --server"),
        (["--server", "http://127.0.0.1:9", "--of", "llama"], "unknown model 'llama'"),
    ],
)
def test_wrong_options_are_refused(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert batchlab(["profile", "measure", *words]) == 2
    assert said in capsys.readouterr().err
