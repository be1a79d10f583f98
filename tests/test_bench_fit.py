"""A profile corrected to benchmark files: what was changed on purpose is found again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from calibration.bench_fit import Columns, Run, fit_bench
from calibration.profile import Cost, load_profile
from calibration.step_time import Predicted
from reports.latencies import Latencies
from simulator.cli import run as batchlab
from simulator.run import simulate
from simulator.scenario import Scenario
from traces.trace import PS_PER_S

BASE = "a100-sxm_llama3.1-8b_bf16"


def benchmark(
    path: Path, *, scale: float, host_s: float, front_s: float, rate: float, seed: int = 0
) -> Path:
    """A vLLM result file of a server whose steps cost `scale` and `host_s` more than the base."""
    scenario = Scenario.of(
        {
            "seed": seed,
            "trace": {
                "rate": rate,
                "requests": 60,
                "prompt": {"kind": "lognormal", "mean": 600, "p99": 3000, "max": 4000},
                "output": {"kind": "lognormal", "mean": 60, "p99": 250, "max": 300},
            },
            "engine": {"profile": BASE},
        }
    )
    built = scenario.build()
    cost = load_profile(BASE).cost.scaled(scale)
    cost = cost.model_copy(update={"t0": cost.t0 + host_s})
    run = Latencies(simulate(built.trace, built.policy, built.engine, Predicted(cost.step_time())))
    ttft, e2e = run.ttft / PS_PER_S + front_s, run.e2e / PS_PER_S + front_s
    outputs = built.trace.output.tolist()
    result = {
        "num_prompts": 60,
        "request_rate": rate,
        "total_input_tokens": int(built.trace.prompt.sum()),
        "duration": 10.0,
        "input_lens": built.trace.prompt.tolist(),
        "output_lens": outputs,
        "ttfts": ttft.tolist(),
        "itls": [
            [(last - first) / max(1, n - 1)] * (n - 1)
            for first, last, n in zip(ttft.tolist(), e2e.tolist(), outputs, strict=True)
        ],
        "start_times": (built.trace.arrival / PS_PER_S + 1000).tolist(),
    }
    path.write_text(json.dumps(result))
    return path


def fit(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    code = batchlab(["profile", "fit", *map(str, words)])
    said = capsys.readouterr()
    return code, said.out, said.err


def test_scale_and_overhead_are_found_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    truth = {"scale": 1.2, "host_s": 0.004, "front_s": 0.03}
    files = [
        benchmark(tmp_path / f"{rate}.json", rate=rate, seed=int(rate), **truth)
        for rate in (1.0, 6.0)
    ]
    path = tmp_path / "mine.json"
    words = [word for file in files for word in ("--bench", file)]
    code, out, err = fit(capsys, *words, "--base", BASE, "-o", path)
    assert code == 0, err
    profile, base = load_profile(str(path)), load_profile(BASE)
    assert profile.cost.decode.dK / base.cost.decode.dK == pytest.approx(1.2, rel=0.02)
    assert profile.cost.t0 - 1.2 * base.cost.t0 == pytest.approx(0.004, rel=0.1)
    assert "front end, ms a request" in out
    assert "1.0.json" in out  # each file was held out once
    assert "6.0.json" in out
    assert "no part of a step" in err
    assert "prefill, decode, context and mixed steps keep the shares" in profile.note
    assert profile.parts.host == "modelled"


def test_a_single_file_is_judged_on_its_second_half(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = benchmark(tmp_path / "run.json", scale=1.1, host_s=0.002, front_s=0.0, rate=4.0)
    code, _, err = fit(capsys, "--bench", file, "--base", BASE, "-o", tmp_path / "mine.json")
    assert code == 0
    assert "the second half of the requests, fitted on the first" in err
    profile = load_profile(str(tmp_path / "mine.json"))
    assert "Held out" in profile.note


def linear(prompts: Any) -> Any:
    """A server that serves one request at a time: TTFT and TPOT are one step each."""

    def simulated(cost: Cost) -> Columns:
        step = cost.t0 + cost.decode.d0
        ones = np.ones(len(prompts))
        return Columns(step * ones, step * ones, 11 * step * ones)

    return simulated


def test_what_cannot_be_told_apart_is_said() -> None:
    """All steps alike: twice the scale, or as much more overhead, is the same to everybody."""
    base = load_profile("cpu-tiny").cost.scaled(0.0)
    base = base.model_copy(
        update={"t0": 0.0, "decode": base.decode.model_copy(update={"d0": 0.010})}
    )
    ones = np.ones(20)
    run = Run(
        name="alike",
        measured=Columns(0.015 * ones, 0.015 * ones, 0.165 * ones),
        simulate=linear(ones),
    )
    found = fit_bench([run], base).corrected
    assert found.scale == 1.0
    assert np.isnan(found.unsure[0])
    assert found.host_s == pytest.approx(0.005, rel=0.02)
    assert "cannot be told apart" in found.notes[0]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--bench", "x.json"], "expected --base too"),
        (["--bench", "x.json", "raw.csv", "--base", BASE], "and one of them"),
        (["raw.csv", "--base", BASE], "are for --bench"),
        ([], "give a raw table, --step-log, or --bench"),
        (["--bench", "none.json", "--base", BASE], "none.json: No such file"),
        (["--bench", "x.json", "--base", "a100"], "unknown profile 'a100'"),
    ],
)
def test_wrong_options_are_refused(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = fit(capsys, *words)
    assert (code, said in err) == (2, True)


def test_a_file_without_latencies_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "batch.jsonl"
    usage = {"prompt_tokens": 10, "completion_tokens": 5}
    row = {"custom_id": "a", "response": {"status_code": 200, "body": {"usage": usage}}}
    file.write_text(json.dumps(row))
    code, _, err = fit(capsys, "--bench", file, "--base", BASE)
    assert (code, "is not recorded" in err) == (2, True)
