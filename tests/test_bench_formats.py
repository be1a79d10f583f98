"""Result files of load generators: every recorded one, and odd ones, or refused in words."""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from simulator.cli import run as batchlab
from traces.benchmarks import Benchmark, Outcome, read_benchmarks
from traces.readers import read_trace

SHARED = Path(__file__).parent.parent.parent / "shared" / "data" / "traces" / "bench-formats"
recorded = pytest.mark.skipif(not SHARED.exists(), reason="../shared is not here")
Write = Callable[[str], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write(text: str) -> Path:
        path = tmp_path / "result.json"
        path.write_text(text)
        return path

    return write


def vllm(**changed: Any) -> dict[str, Any]:
    """A run of three requests; the third failed."""
    run = {
        "num_prompts": 3,
        "request_rate": "inf",
        "max_concurrency": None,
        "total_input_tokens": 60,
        "duration": 2.0,
        "input_lens": [10, 20, 30],
        "output_lens": [3, 3, 0],
        "ttfts": [0.5, 0.25, 0.0],
        "itls": [[0.1, 0.1], [0.2, 0.2], []],
        "errors": ["", "", "Service Unavailable"],
    }
    return {key: value for key, value in (run | changed).items() if value != "gone"}


def sglang(**changed: Any) -> dict[str, Any]:
    return vllm(dataset_name="sharegpt", num_prompts="gone") | changed


def one(path: Path) -> Benchmark:
    (run,) = read_benchmarks(path)
    return run


# Recorded files


@recorded
@pytest.mark.parametrize(
    ("name", "tool", "requests", "failed"),
    [
        ("aiperf_0.13.0.profile_export.jsonl", "aiperf", 40, 3),
        ("genai_perf.profile_export.constructed.json", "genai-perf", 11, 0),
        ("guidellm_0.8.1.benchmarks.json", "guidellm", 40, 3),
        ("inference_perf.per_request_lifecycle_metrics.constructed.json", "inference-perf", 12, 1),
        ("openai_batch_output.constructed.jsonl", "openai-batch", 5, 1),
        ("sglang_bench_serving.output-details.constructed.jsonl", "sglang", 12, 1),
        ("vllm_bench_serve.append-result.constructed.json", "vllm", 12, 1),
        ("vllm_bench_serve.save-detailed.constructed.json", "vllm", 12, 1),
    ],
)
def test_recorded_files_are_read(name: str, tool: str, requests: int, failed: int) -> None:
    run = one(SHARED / name)
    assert (run.tool, len(run.outcomes), run.failed) == (tool, requests, failed)


@recorded
def test_the_same_requests_measure_the_same_in_every_format() -> None:
    """The constructed files hold the numbers of the first requests of the recorded one."""
    measured = {o.ttft_s: o for o in one(SHARED / "aiperf_0.13.0.profile_export.jsonl").done}
    for name in ("vllm_bench_serve.save-detailed", "sglang_bench_serving.output-details"):
        (path,) = SHARED.glob(f"{name}*")
        for outcome in one(path).done:
            same = min(
                measured.values(), key=lambda o: abs((o.ttft_s or 0) - (outcome.ttft_s or 0))
            )
            assert outcome.ttft_s == pytest.approx(same.ttft_s, abs=1e-9)
            assert outcome.gaps_s == pytest.approx(same.gaps_s, abs=1e-9)
            assert outcome.ended_s == pytest.approx(same.ended_s, abs=1e-6)


@recorded
@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("aiperf_0.13.0.profile_export_aiperf.json", "statistics only"),
        ("aiperf_0.13.0.profile_export_aiperf.csv", "CSV, expected JSON"),
        ("NOTE.md", "line 1: not whole JSON"),
    ],
)
def test_files_without_requests_are_refused_in_words(name: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        read_benchmarks(SHARED / name)


@recorded
def test_rows_in_completion_order_are_sorted_by_sending() -> None:
    run = one(SHARED / "aiperf_0.13.0.profile_export.jsonl")
    sent = [o.sent_s for o in run.outcomes]
    assert sent == sorted(sent, key=lambda moment: moment or 0.0)
    assert any("not in the order of sending" in note for note in run.notes)


@recorded
def test_latencies_count_from_sending_not_from_the_schedule() -> None:
    """guidellm's rows have both clocks; its own TTFT counts from the sending."""
    run = one(SHARED / "guidellm_0.8.1.benchmarks.json")
    first = run.outcomes[0]
    assert first.sent_s is not None
    assert first.scheduled_s is not None
    assert first.sent_s - first.scheduled_s == pytest.approx(0.180766, abs=1e-5)
    assert first.ttft_s == pytest.approx(0.027464, abs=1e-5)
    assert any("after its schedule" in note for note in run.notes)


# Odd ones


def test_bare_nan_and_infinity_are_numbers(write: Write) -> None:
    run = one(write(json.dumps(vllm(request_rate=math.inf, ttfts=[math.nan, 0.25, 0.0]))))
    assert run.rate == math.inf
    assert [o.ttft_s for o in run.outcomes] == [None, 0.25, None]
    assert any("TTFT" in note for note in run.notes)


@pytest.mark.parametrize("between", ["\n", "", ",\n", "\x1e"])
def test_several_documents_in_one_file_are_several_runs(write: Write, between: str) -> None:
    runs = read_benchmarks(write(between.join([json.dumps(vllm())] * 3)))
    assert [run.source.rpartition(" ")[2] for run in runs] == ["1", "2", "3"]


def test_a_run_of_totals_beside_others_is_left_out_and_said(write: Write) -> None:
    totals = vllm(input_lens="gone", output_lens="gone", ttfts="gone", itls="gone")
    run = one(write(json.dumps(vllm()) + json.dumps(totals)))
    assert any("left out" in note and "document 2" in note for note in run.notes)
    with pytest.raises(ValueError, match="--save-detailed"):
        read_benchmarks(write(json.dumps(totals)))


def test_fewer_gaps_than_tokens_leave_tpot_right(write: Write) -> None:
    """Five tokens in three chunks: TPOT is (E2E - TTFT) / 4."""
    run = one(write(json.dumps(vllm(output_lens=[5, 3, 0]))))
    assert run.outcomes[0].tpot_s == pytest.approx(0.2 / 4)
    assert any("fewer gaps than tokens - 1" in note for note in run.notes)


def test_more_gaps_than_tokens_are_said(write: Write) -> None:
    run = one(write(json.dumps(vllm(output_lens=[2, 3, 0]))))
    assert any("more gaps than tokens - 1" in note for note in run.notes)


def test_a_single_token_has_no_tpot(write: Write) -> None:
    run = one(write(json.dumps(vllm(output_lens=[1, 3, 0], itls=[[], [0.2, 0.2], []]))))
    assert (run.outcomes[0].ended_s, run.outcomes[0].tpot_s) == (0.5, None)


def test_two_clocks_in_one_row(write: Write) -> None:
    """A schedule by date beside a start by counter is not used; the start is."""
    row = {
        "start_time": 100.0,
        "end_time": 101.0,
        "scheduled_time": 1.8e9,
        "info": {
            "input_tokens": 7,
            "response_metrics": {"output_token_times": [100.25, 100.5]},
        },
        "error": None,
    }
    run = one(write(json.dumps([row])))
    assert run.outcomes[0].scheduled_s is None
    assert (run.outcomes[0].ttft_s, run.outcomes[0].ended_s) == (0.25, 0.5)
    assert any("another clock" in note for note in run.notes)


def test_two_clocks_in_one_column_are_refused(write: Write) -> None:
    with pytest.raises(ValueError, match=r"request 0 .* request 1 .*expected one clock"):
        read_benchmarks(write(json.dumps(vllm(start_times=[5.0, 1.8e9, 6.0]))))


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"output_lens": [3, 3]}, "output_lens has 2 values, expected 3"),
        ({"input_lens": [10, -20, 30]}, "request 1: input_lens -20, expected a whole number"),
        ({"input_lens": [10, 2.5, 30]}, "request 1: input_lens 2.5, expected a whole number"),
        ({"ttfts": [0.5, -1.0, 0.0]}, "request 1: ttfts -1.0, expected a number of at least 0"),
        ({"ttfts": "fast"}, 'ttfts "fast", expected a list'),
        ({"itls": [[0.1, "x"], [], []]}, r'itls\[1\] "x", expected a number'),
        ({"itls": [[0.1, math.nan], [], []]}, r"itls\[1\] NaN, expected a time"),
    ],
)
def test_wrong_values_name_request_and_field(
    write: Write, changed: dict[str, Any], said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        read_benchmarks(write(json.dumps(vllm(**changed))))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "empty"),
        ('{"num_prompts": 3, "total_inp', "ends in the middle"),
        ('{"a": 1}', "unknown format"),
        ("[1, 2]", "unknown format"),
        (json.dumps(vllm()) + json.dumps({"a": 1}), "document 2 of 2 is not of the format vllm"),
        ('{"benchmarks": []}', "benchmarks is empty"),
        ('{"experiments": []}', "experiments is empty"),
    ],
)
def test_other_files_are_refused_in_words(write: Write, text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        read_benchmarks(write(text))


def test_gzipped_files_are_read(tmp_path: Path) -> None:
    path = tmp_path / "result.json.gz"
    path.write_bytes(gzip.compress(json.dumps(vllm()).encode()))
    assert one(path).failed == 1


# The load of a run


def test_the_load_is_that_of_the_requests_that_were_served(write: Write) -> None:
    trace = one(write(json.dumps(vllm(start_times=[7.0, 6.5, 7.5])))).trace()
    assert trace.arrival.tolist() == [0, 500_000_000_000]
    assert trace.prompt.tolist() == [20, 10]
    assert any("1 requests failed" in note and "Service" in note for note in trace.notes)


def test_missing_arrivals_follow_from_what_the_run_was_asked_for(write: Write) -> None:
    at_once = one(write(json.dumps(sglang()))).trace()
    assert at_once.arrival.tolist() == [0, 0]
    assert any("all at time 0, as the run was asked to" in note for note in at_once.notes)
    closed = one(write(json.dumps(sglang(max_concurrency=1)))).trace()
    assert closed.after.tolist() == [-1, 0]


def test_missing_arrivals_are_said_where_nothing_settles_them(write: Write) -> None:
    run = one(write(json.dumps(sglang(request_rate=4.0))))
    assert "arrivals" in run.missing()
    with pytest.raises(
        ValueError, match=r"not recorded \(the run asked for 4/s\); expected --rate"
    ):
        run.trace()
    trace = run.trace(rate=4.0, seed=1)
    assert trace.arrival[0] > 0
    assert trace.arrival.tolist() == run.trace(rate=4.0, seed=1).arrival.tolist()


def test_missing_prompt_lengths_can_be_assumed() -> None:
    run = Benchmark(
        source="x", tool="genai-perf", outcomes=(Outcome(sent_s=0.0, output=3, ttft_s=1.0),)
    )
    with pytest.raises(ValueError, match="expected --prompt"):
        run.trace()
    assert run.trace(prompt=100).prompt.tolist() == [100]


def test_a_run_in_which_all_failed_has_no_load(write: Write) -> None:
    run = one(write(json.dumps(vllm(errors=["503", "503", "429"]))))
    with pytest.raises(ValueError, match=r"all 3 requests failed: 503 \(2\), 429 \(1\)"):
        run.trace()


# The command


def test_import_bench_writes_a_trace_and_what_was_measured(
    write: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = write(json.dumps(vllm(start_times=[7.0, 6.5, 7.5])))
    trace, measured = tmp_path / "trace.csv", tmp_path / "measured.csv"
    words = ["trace", "import-bench", str(source), "-o", str(trace), "--measured", str(measured)]
    assert batchlab(words) == 0
    said = capsys.readouterr()
    assert "3 requests, 1 failed" in said.out
    assert "375.00" in said.out  # the mean TTFT in ms
    assert read_trace(trace).prompt.tolist() == [20, 10]
    assert measured.read_text().splitlines()[0].startswith("sent_s,prompt,output,ttft_s")
    assert len(measured.read_text().splitlines()) == 4


def test_import_bench_wants_to_know_which_of_several_runs(
    write: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = write(json.dumps(vllm()) * 2)
    target = str(tmp_path / "trace.csv")
    assert batchlab(["trace", "import-bench", str(source), "-o", target]) == 2
    assert "has 2 runs, expected --run" in capsys.readouterr().err
    assert batchlab(["trace", "import-bench", str(source), "--run", "2", "-o", target]) == 0
    assert batchlab(["trace", "import-bench", str(source), "--run", "3"]) == 2


@pytest.mark.parametrize("form", ["json", "csv"])
def test_import_bench_prints_for_programs(
    write: Write, capsys: pytest.CaptureFixture[str], form: str
) -> None:
    assert (
        batchlab(["trace", "import-bench", str(write(json.dumps(vllm()))), "--format", form]) == 0
    )
    out = capsys.readouterr().out
    if form == "json":
        (run,) = json.loads(out)["runs"]
        assert run["ttft_s"]["mean"] == pytest.approx(0.375)
        assert run["asked"]["rate"] == "inf"
    else:
        assert out.splitlines()[0] == "metric,mean,p50,p90,p99,max"
