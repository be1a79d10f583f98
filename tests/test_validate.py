"""Validation: errors and their verdicts, runs really executed, and recorded runs."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from calibration.grid import Limits
from calibration.measure import Measurement
from calibration.profile import load_profile
from calibration.step_time import Predicted
from policies.chunked import Chunked
from reports.fidelity import BARS, Line, compare
from reports.latencies import Latencies
from reports.percentiles import Distribution
from reports.validation import verdict, write_validation
from simulator.against import distributions, machine_speed, replay, with_noise
from simulator.cli import run as batchlab
from simulator.engine import Engine
from simulator.exercise import LOADS, Exercise, choose, loads_of
from simulator.recorded import Recorded, read_recorded
from simulator.run import simulate
from simulator.validate import Validated, Validation, step_errors
from traces.lengths import Lognormal
from traces.trace import PS_PER_S

MEASURED = Path(__file__).parents[2] / "shared" / "data" / "measured"
needs_recordings = pytest.mark.skipif(
    not MEASURED.exists(), reason="../shared/data/measured is not here"
)
PROFILE = load_profile("cpu-tiny")
SMALL = Exercise(
    requests=12,
    prompt=Lognormal(mean=20, p99=60, max=64),
    output=Lognormal(mean=6, p99=16, max=16),
    token_budget=64,
    seats=6,
    repeats=2,
)


def of(*seconds: float) -> dict[str, Distribution]:
    return {"ttft": Distribution(np.array(seconds) * PS_PER_S)}


def line(real: float, simulated: float, noise: float | None, bar: float = 0.05) -> Line:
    return Line(
        load="",
        metric="ttft",
        statistic="p50",
        real=real,
        simulated=simulated,
        noise=noise,
        bar=bar,
    )


def test_a_run_against_itself_has_no_error():
    lines = compare("self", of(1, 2, 3), [of(1, 2, 3)], {"ttft": BARS})
    assert [one.error for one in lines] == [0.0] * 4
    assert {one.verdict for one in lines} == {"within"}


def test_repeats_give_a_median_and_a_noise():
    (mean, *_) = compare("x", of(11.0), [of(10.0), of(9.5), of(10.4)], {"ttft": BARS})
    assert mean.real == 10.0
    assert mean.error == pytest.approx(0.10)
    assert mean.off == pytest.approx(1.0)
    assert mean.noise == pytest.approx(0.09)


@pytest.mark.parametrize(
    ("simulated", "noise", "expected"),
    [
        (10.4, None, "within"),
        (10.6, None, "beyond"),
        (10.6, 0.07, "within"),  # no further off than repeats are from one another
        (10.8, 0.07, "beyond"),
        (10.0, 0.09, "not measured"),  # too noisy to say anything, even where it agrees
    ],
)
def test_an_error_is_judged_by_its_bar_or_by_the_noise(simulated, noise, expected):
    assert line(10.0, simulated, noise).verdict == expected


def test_the_verdict_counts_what_was_judged():
    lines = [line(10.0, 10.0, None), line(10.0, 12.0, None), line(10.0, 10.0, 0.2)]
    assert verdict(lines) == (
        "1 of 3 judged errors within their bars, 1 beyond, 1 not measured (noise above 8%)"
    )


def test_a_dearer_profile_shows_as_step_bias():
    predicted = Predicted(PROFILE.step_time())
    engine = Engine(kv_tokens=4096, max_running=6, max_model_len=4096)
    steps = _steps_of(SMALL, engine, predicted)
    dearer = PROFILE.cost.scaled(1.1).step_time().price
    errors = step_errors("x", [steps, steps], dearer)
    assert {one.kind for one in errors} >= {"decode", "mixed", "all"}
    for one in errors:
        assert one.bias == pytest.approx(0.1, abs=1e-4)
        assert one.residual == pytest.approx(0.1, abs=1e-4)
        assert one.noise == 0.0
    assert {one.verdict for one in errors if one.kind == "all"} == {"beyond"}


def _steps_of(exercise, engine, predicted):
    class Logging:
        ahead = False
        log: list = []  # noqa: RUF012

        def run(self, shape, rows):
            done = predicted.run(shape, rows)
            self.log.append((shape, done.duration, 0))
            return done

        def forget(self, request):
            pass

    executor = Logging()
    simulate(exercise.trace(5.0), Chunked(token_budget=64), engine, executor)
    return executor.log


def test_loads_go_by_what_a_saturated_run_can_do():
    exercise = Exercise(requests=60, seats=8)
    engine = Engine(kv_tokens=exercise.pool, max_running=8, max_model_len=exercise.pool)
    policy, predicted = Chunked(token_budget=256), Predicted(PROFILE.step_time())
    light, knee, heavy = (choose(x, exercise, engine, policy, predicted) for x in LOADS)
    assert light.rate == pytest.approx(knee.rate / 2)
    assert heavy.rate == knee.rate

    def preemptions(setting):
        run = simulate(setting.trace, policy, setting.engine, predicted)
        return int(run.requests["preemptions"].sum())

    assert preemptions(light) == preemptions(knee) == 0
    assert preemptions(heavy) > 0


def test_an_unknown_load_is_refused():
    with pytest.raises(ValueError, match="load 'heavy', expected one of light, knee, preemption"):
        loads_of(["heavy"])


@pytest.fixture(scope="module")
def validated() -> Validated:
    limits = Limits(sequences=6, tokens=64, context=96, held=1024)
    measurement = Measurement(quick=True, passes=2, limits=limits)
    return Validation(SMALL, measurement, PROFILE, loads_of(["light", "preemption"])).run()


def test_every_request_is_really_executed_and_simulated(validated):
    for load in validated.loads:
        assert len(load.runs) == len(load.logs) == SMALL.repeats
        for run, log in zip(load.runs, load.logs, strict=True):
            assert run.finished.all()
            assert len(run.records.steps) == len(log)
            assert run.column("produced").tolist() == load.simulated.column("produced").tolist()
    assert validated.speed is not None
    assert 0.05 < validated.speed < 20
    assert validated.profile.cost.t0 == pytest.approx(PROFILE.cost.t0 * validated.speed)


def test_a_validation_is_written_as_page_picture_and_tables(validated, tmp_path):
    shown = validated.shown()
    write_validation(shown, tmp_path, title="A & B", notes=validated.notes(), command="x")
    page = (tmp_path / "validation.html").read_text()
    assert "A &amp; B" in page
    assert all(f"{load}: TTFT" in page for load in ("light", "preemption"))
    assert (tmp_path / "figures" / "validation.png").read_bytes().startswith(b"\x89PNG")
    rows = (tmp_path / "errors.csv").read_text().splitlines()
    assert len(rows) == 1 + 2 * 4 * 4


@needs_recordings
@pytest.mark.parametrize(
    ("path", "requests", "gaps"),
    [
        ("vllm032-cpu/tight_kv_rep0.json.gz", 120, True),
        ("vllm019-gpu/RTX4090_Llama-3.1-8B", 300, False),
    ],
)
def test_a_recorded_run_is_read_whole(path, requests, gaps):
    run = read_recorded(MEASURED / path)
    assert len(run.trace) == len(run.ttft) == len(run.e2e) == requests
    assert (run.gaps is not None) is gaps
    if run.gaps is not None:
        assert [len(one) for one in run.gaps] == (run.trace.output - 1).tolist()
        assert [one.sum() for one in run.gaps] == pytest.approx((run.e2e - run.ttft).tolist())
    assert run.settings.kv_tokens == {120: 60 * 32, 300: 2587 * 16}[requests]


@needs_recordings
@pytest.mark.parametrize(
    ("card", "profile"), [("RTX4090", "rtx-4090"), ("RTXPRO6000", "rtx-pro-6000")]
)
def test_a_real_card_is_met_with_one_host_overhead(card, profile):
    recorded = read_recorded(MEASURED / f"vllm019-gpu/{card}_Llama-3.1-8B")
    done = replay(recorded, load_profile(f"{profile}_llama3.1-8b_bf16"))
    assert done.judged == slice(100, None)
    judged = [one for one in done.lines if one.bar]
    assert len(judged) == 12
    assert {one.verdict for one in judged} == {"within"}


@needs_recordings
def test_a_run_of_which_the_profile_knows_the_speed_is_scaled_by_it():
    recorded = read_recorded(MEASURED / "vllm032-cpu/long_b256_rep0.json.gz")
    speed = machine_speed(recorded, PROFILE)
    scaled = PROFILE.model_copy(update={"cost": PROFILE.cost.scaled(speed)})
    assert machine_speed(recorded, scaled) == pytest.approx(1.0, rel=1e-6)


def test_repeats_of_recorded_requests_are_each_others_noise(tmp_path):
    first = read_recorded(_recording(tmp_path / "a.jsonl", slower=1.0))
    again = read_recorded(_recording(tmp_path / "b.jsonl", slower=1.05))
    done = with_noise([replay(one, PROFILE) for one in (first, again)])
    for one in done:
        by = {(x.metric, x.statistic): x.noise for x in one.lines}
        assert by["e2e", "p50"] == pytest.approx(0.05, rel=0.05)


def test_the_simulator_against_its_own_recording_has_no_error(tmp_path):
    policy, engine = Chunked(token_budget=2048), Engine(kv_tokens=32768, max_running=8)
    trace = SMALL.trace(20.0)
    run = Latencies(simulate(trace, policy, engine, Predicted(PROFILE.step_time())))
    own = distributions(run)
    recorded = Recorded(
        name="own",
        trace=trace,
        ttft=run.ttft / PS_PER_S,
        e2e=run.e2e / PS_PER_S,
        queue=run.queue / PS_PER_S,
    )
    real = recorded.distributions()
    lines = compare("own", {m: own[m] for m in real}, [real], {})
    assert [one.error for one in lines if one.real] == pytest.approx([0.0] * 16, abs=1e-9)


def _recording(path: Path, slower: float) -> Path:
    rows = [
        {
            "request_id": f"r{i}",
            "input_toks": 10,
            "output_toks": 5,
            "queued_ts": 100.0 + i,
            "scheduled_ts": 100.0 + i,
            "first_token_ts": 100.0 + i + 0.02 * slower,
            "last_token_ts": 100.0 + i + 0.1 * slower,
        }
        for i in range(6)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no JSON object, expected a recorded run"),
        ('{"a": 1}', "keys a, expected those of a recorded run: vLLM with its steps logged"),
        ('{"a": 1}\n{"b', "line 2: not JSON"),
    ],
)
def test_what_is_no_recorded_run_is_refused_in_one_line(text, said, tmp_path, capsys):
    path = tmp_path / "run.jsonl"
    path.write_text(text)
    assert batchlab(["profile", "validate", "--profile", "cpu-tiny", "--against", str(path)]) == 2
    complaint = capsys.readouterr().err
    assert said in complaint
    assert str(path) in complaint
    assert complaint.count("\n") == 1


def test_stamps_that_run_backwards_are_refused_with_their_line(tmp_path):
    path = _recording(tmp_path / "a.jsonl", slower=-1.0)
    with pytest.raises(ValueError, match=r"a\.jsonl, line 1: queued_ts, scheduled_ts"):
        read_recorded(path)


def test_against_needs_a_profile(tmp_path, capsys):
    path = _recording(tmp_path / "a.jsonl", slower=1.0)
    assert batchlab(["profile", "validate", "--against", str(path)]) == 2
    assert "--profile is needed with --against" in capsys.readouterr().err
