"""Result files of load generators against the simulator: `profile validate --against`."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_bench_fit import BASE, benchmark
from test_server_measure import SMALL, measure
from virtual import InProcess, virtually

from calibration.fit import fit_steps, fitted_profile
from calibration.openai_client import Client
from calibration.profile import save_profile
from calibration.raw import read_raw
from reports.agreement import causes, over_time, saturated
from simulator.cli import run as batchlab
from simulator.recorded_bench import recorded_of
from simulator.scenario import Scenario
from simulator.serve import Settings, create
from traces.benchmarks import Benchmark, Outcome, is_benchmark

SHARED = Path(__file__).parent.parent.parent / "shared" / "data" / "traces" / "bench-formats"


def validate(capsys: pytest.CaptureFixture[str], *words: object) -> dict[str, Any]:
    words = ("profile", "validate", "--format", "json", *words)
    assert batchlab([*map(str, words)]) == 0, capsys.readouterr().err
    said: dict[str, Any] = json.loads(capsys.readouterr().out)
    return said


def exact(path: Path, **changed: float) -> Path:
    """A file that the base profile explains to the last digit."""
    return benchmark(path, **{"scale": 1.0, "host_s": 0.0, "front_s": 0.0, "rate": 4.0} | changed)


def test_a_run_that_the_profile_explains_has_no_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = exact(tmp_path / "run.json")
    found = validate(capsys, "--profile", BASE, "--against", file, "-o", tmp_path / "out")
    assert {row["metric"] for row in found["errors"]} >= {"ttft", "tpot", "e2e"}
    for row in found["errors"]:
        if row["metric"] != "itl":  # the file has a mean in place of each gap
            assert abs(row["error"]) < 1e-6
    page = (tmp_path / "out" / "validation.html").read_text()
    assert "error over time" in page
    assert "Mean E2E by cause" in page
    assert "requests/s recorded" in page


def test_every_run_of_a_file_is_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one, two = (exact(tmp_path / f"{rate}.json", rate=rate) for rate in (2.0, 5.0))
    both = tmp_path / "both.json"
    both.write_text(one.read_text() + "\n" + two.read_text())
    found = validate(capsys, "--profile", BASE, "--against", both)
    assert len({row["load"] for row in found["errors"]}) == 2


def test_the_engines_settings_can_be_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = exact(tmp_path / "run.json", rate=20.0)
    words = ["--profile", BASE, "--against", file]
    plain = validate(capsys, *words)["errors"]
    tight = validate(capsys, *words, "--max-running", 2, "--token-budget", 256)["errors"]
    assert tight[0]["simulated_s"] > 2 * plain[0]["simulated_s"]


def test_a_measured_server_is_explained_by_its_own_profile(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Measure the mock server, fit, load it over HTTP, validate: every mean within 3 %."""
    raw = tmp_path / "raw.csv"
    measure(raw, settings=replace(SMALL, concurrency=16, longest=2048))
    table = read_raw(raw)
    save_profile(
        fitted_profile(table.header, fit_steps(table.rows), "mock"), tmp_path / "mock.json"
    )
    file = tmp_path / "run.json"
    file.write_text(json.dumps(virtually(loaded(rate=12.0, requests=80))))
    words = ["--profile", tmp_path / "mock.json", "--against", file, "-o", tmp_path / "out"]
    found = validate(capsys, *words)["errors"]
    for row in found:
        if row["statistic"] in ("mean", "p50"):
            assert abs(row["error"]) < 0.03, row
    assert (tmp_path / "out" / "validation.html").exists()


async def loaded(rate: float, requests: int) -> dict[str, Any]:
    """What `vllm bench serve --save-detailed` would write of Poisson load on the mock server."""
    rng = np.random.default_rng(3)
    sent = np.cumsum(rng.exponential(1 / rate, requests)).tolist()
    prompts = rng.integers(50, 1500, requests).tolist()
    outputs = rng.integers(2, 80, requests).tolist()
    api = create(Scenario(), Settings())
    live = asyncio.create_task(api.live.run())
    async with Client("http://mock", "mock", transport=InProcess(api.app())) as client:

        async def one(at: float, prompt: int, output: int) -> Any:
            await asyncio.sleep(at)
            return await client.ask([1] * prompt, output, prompt)

        answers = await asyncio.gather(*map(one, sent, prompts, outputs))
    live.cancel()
    return {
        "num_prompts": requests,
        "request_rate": rate,
        "total_input_tokens": sum(prompts),
        "duration": max(answer.times_s[-1] for answer in answers),
        "input_lens": prompts,
        "output_lens": outputs,
        "ttfts": [answer.ttft_s for answer in answers],
        "itls": [np.diff(answer.times_s).tolist() for answer in answers],
        "start_times": [answer.sent_s for answer in answers],
    }


@pytest.mark.skipif(not SHARED.exists(), reason="../shared is not here")
@pytest.mark.parametrize(
    ("name", "words", "said"),
    [
        ("openai_batch_output.constructed.jsonl", [], "when requests were sent is not recorded"),
        ("genai_perf.profile_export.constructed.json", [], "expected --prompt"),
        ("aiperf_0.13.0.profile_export_aiperf.json", [], "statistics only"),
        ("NOTE.md", [], "expected"),
    ],
)
def test_files_that_cannot_be_compared_say_why(
    name: str, words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(SHARED / name)
    assert batchlab(["profile", "validate", "--profile", BASE, "--against", path, *words]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.skipif(not SHARED.exists(), reason="../shared is not here")
def test_assumed_prompts_make_a_run_comparable(capsys: pytest.CaptureFixture[str]) -> None:
    path = SHARED / "genai_perf.profile_export.constructed.json"
    found = validate(capsys, "--profile", BASE, "--against", path, "--prompt", 200)
    assert any("200 tokens assumed" in note for note in found["notes"])


def test_gaps_between_chunks_are_not_taken_for_gaps_between_tokens() -> None:
    def run(gaps: tuple[float, ...]) -> Benchmark:
        outcome = Outcome(sent_s=0.0, prompt=5, output=3, ttft_s=0.1, e2e_s=0.3, gaps_s=gaps)
        return Benchmark(source="x", tool="vllm", outcomes=(outcome,))

    assert recorded_of(run((0.1, 0.1))).gaps is not None
    assert recorded_of(run((0.2,))).gaps is None


def test_a_request_without_a_first_token_is_refused() -> None:
    outcome = Outcome(sent_s=0.0, prompt=5, output=3, e2e_s=0.3)
    run = Benchmark(source="x.json", tool="vllm", outcomes=(outcome,))
    with pytest.raises(ValueError, match=r"x\.json: 1 of 1 requests have no TTFT"):
        recorded_of(run)


def test_a_recorded_run_of_another_kind_is_no_benchmark(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    path.write_text('{"config": {}, "requests": [], "steps": []}')
    assert not is_benchmark(path)


# Agreement


def test_errors_over_time_are_those_of_each_part() -> None:
    arrival = np.arange(20.0)
    real = {"e2e": np.ones(20)}
    simulated = {"e2e": np.where(arrival < 10, 1.0, 1.5)}
    parts = over_time(arrival, simulated, real)
    assert [part.errors["e2e"] for part in parts] == [0.0] * 5 + [0.5] * 5
    assert [part.requests for part in parts] == [2] * 10
    assert parts[-1].until_s == 19.0


def test_causes_add_up_to_e2e() -> None:
    known = {"queue": np.array([1.0]), "ttft": np.array([3.0]), "e2e": np.array([10.0])}
    found = causes(known, known)
    assert [(one.name, one.real_s) for one in found] == [
        ("queue", 1.0),
        ("prefill", 2.0),
        ("decode", 7.0),
    ]
    assert [one.real_share for one in found] == [0.1, 0.2, 0.7]
    without = causes(known, {key: known[key] for key in ("ttft", "e2e")})
    assert [one.name for one in without] == ["queue and prefill", "decode"]


@pytest.mark.parametrize(
    ("gap", "service", "expected"),
    [(1.0, 0.5, False), (0.01, 0.5, True), (0.0, 0.5, True), (1.0, 20.0, False)],
)
def test_saturation_is_seen_where_requests_pile_up(
    gap: float, service: float, expected: bool
) -> None:
    """One at a time, `service` each (20: many at a time); a request a `gap`."""
    arrival = np.arange(100) * gap
    if service > 1:
        e2e = np.full(100, service)
    else:
        end = 0.0
        ends = []
        for at in arrival:
            end = max(end, at) + service
            ends.append(end - at)
        e2e = np.array(ends)
    assert saturated(arrival, e2e) is expected


def test_a_saturated_run_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = exact(tmp_path / "run.json", rate=500.0)
    words = ["profile", "validate", "--profile", BASE, "--against", str(file)]
    assert batchlab(words) == 0
    assert "saturated" in " ".join(capsys.readouterr().out.split())
