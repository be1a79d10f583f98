"""What is written reads back as the same rows."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from traces.readers import read_trace
from traces.synthesize import Workload, synthesize
from traces.trace import PS_PER_S, Segment, Trace
from traces.write import seconds_text, write_trace

SHARED = Path(__file__).parent.parent.parent / "shared" / "data" / "traces"


def there_and_back(trace: Trace, ending: str) -> Trace:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / f"trace{ending}"
        write_trace(trace, file)
        return read_trace(file)


texts = st.text(st.characters(codec="utf-8", exclude_characters="\0\r"), max_size=5).filter(
    lambda text: text == text.strip()
)
row = st.fixed_dictionaries(
    {
        "gap": st.integers(0, 10**15),
        "prompt": st.integers(1, 10**8),
        "output": st.integers(1, 10**8),
        "declared": st.integers(0, 10**8),
        "priority": st.integers(-3, 3),
        "tenant": texts,
        "session": st.integers(-1, 5),
        "label": texts,
        "after": st.booleans(),
    }
)
segment = st.builds(Segment, st.integers(0, 9), st.integers(0, 10**6), st.integers(1, 10**4))


def trace_of(rows: list[dict[str, Any]], content: list[tuple[Segment, ...]] | None) -> Trace:
    tenants = tuple(dict.fromkeys(one["tenant"] for one in rows))
    labels = tuple(one["label"] for one in rows)
    arrival, after, now = [], [], 0
    for index, one in enumerate(rows):
        follows = one["after"] and index > 0
        after.append(index - 1 if follows else -1)
        now += 0 if follows else one["gap"]
        arrival.append(one["gap"] if follows else now)
    return Trace.of(
        arrival,
        *([one[name] for one in rows] for name in ("prompt", "output", "declared")),
        priority=[one["priority"] for one in rows],
        session=[one["session"] for one in rows],
        tenant=[tenants.index(one["tenant"]) for one in rows],
        tenants=tenants,
        after=after,
        labels=labels if any(labels) else (),
        content=content,
    )


@settings(max_examples=60, deadline=None)
@given(st.lists(row, min_size=1, max_size=8))
def test_csv_round_trip(rows: list[dict[str, Any]]) -> None:
    trace = trace_of(rows, None)
    again = there_and_back(trace, ".csv")
    assert list(again.requests()) == list(trace.requests())
    assert again.labels == trace.labels


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(row, st.lists(segment, max_size=3)), min_size=1, max_size=8))
def test_jsonl_round_trip(rows: list[tuple[dict[str, Any], list[Segment]]]) -> None:
    trace = trace_of([one for one, _ in rows], [tuple(parts) for _, parts in rows])
    again = there_and_back(trace, ".jsonl")
    assert list(again.requests()) == list(trace.requests())
    assert again.labels == trace.labels


@pytest.mark.parametrize("preset", ["chat", "doc-qa", "multi-tenant"])
def test_synthetic_load_reads_back_identically(preset: str) -> None:
    trace = synthesize(Workload.from_table({"preset": preset, "requests": 300}), 2)
    assert list(there_and_back(trace, ".jsonl").requests()) == list(trace.requests())


def test_csv_says_that_it_does_not_hold_prefixes(tmp_path: Path) -> None:
    trace = Trace.of(0, 5, 1, content=[(Segment(0, 0, 5),)])
    assert "does not hold which prompts share a prefix" in write_trace(trace, tmp_path / "t.csv")[0]
    assert write_trace(trace, tmp_path / "t.jsonl") == ()


def test_only_the_columns_that_say_something_are_written(tmp_path: Path) -> None:
    write_trace(Trace.of([0, 1500 * 10**9], [3, 4], 5), tmp_path / "t.csv")
    assert (tmp_path / "t.csv").read_text() == "arrival,prompt,output\n0,3,5\n1.5,4,5\n"


def test_other_endings_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"t\.parquet: expected a name that ends in \.csv or"):
        write_trace(Trace.of(0, 1, 1), tmp_path / "t.parquet")


@given(st.integers(0, 9 * 10**18))
def test_seconds_are_written_exactly(ps: int) -> None:
    whole, _, rest = seconds_text(ps).partition(".")
    assert int(whole) * PS_PER_S + int((rest + "0" * 12)[:12]) == ps


@pytest.mark.skipif(not SHARED.exists(), reason="../shared is not here")
@pytest.mark.parametrize(
    "name",
    ["azure/AzureLLMInferenceTrace_conv.head1000.csv", "mooncake/synthetic_trace.head500.jsonl"],
)
def test_a_converted_recording_is_the_recording(name: str) -> None:
    trace = read_trace(SHARED / name)
    again = there_and_back(trace, ".jsonl" if name.endswith("l") else ".csv")
    assert list(again.requests()) == list(trace.requests())
