"""Recorded traces: every dialect, every manner of writing it, and every way to be wrong."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from traces.readers import NAMES, read_trace
from traces.statistics import describe
from traces.trace import PS_PER_S, Segment, Trace

SHARED = Path(__file__).parent.parent.parent / "shared" / "data" / "traces"
needs_shared = pytest.mark.skipif(not SHARED.exists(), reason="../shared is not here")

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write(text: str | bytes, name: str = "trace.csv") -> Path:
        path = tmp_path / name
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        return path

    return write


def seconds(trace: Trace) -> list[float]:
    return [arrival / PS_PER_S for arrival in trace.arrival.tolist()]


def refused(path: Path, said: str, **options: Any) -> None:
    with pytest.raises(ValueError, match=re.escape(said)) as caught:
        read_trace(path, **options)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


AZURE = (
    "TIMESTAMP,ContextTokens,GeneratedTokens\r\n"
    "2023-11-16 18:15:46.6805900,374,44\r\n"
    "2023-11-16 18:15:50.9951690,396,109\r\n"
    "2023-11-16 18:15:51.2224670,879,55"
)
ROWS = [(0, 374, 44), (4314579000000, 396, 109), (4541877000000, 879, 55)]


def rows(trace: Trace) -> list[tuple[int, int, int]]:
    return [(row.arrival, row.prompt, row.output) for row in trace.requests()]


# F1: dialects


def test_azure_2023_to_the_last_of_seven_decimals(write: Write) -> None:
    trace = read_trace(write(AZURE.replace("50.9951690", "50.9951691")))
    assert trace.arrival.tolist() == [0, 4314579100000, 4541877000000]
    assert trace.notes == ()


def test_azure_2024_with_a_zone_and_rows_without_a_fraction(write: Write) -> None:
    trace = read_trace(
        write(
            "TIMESTAMP,ContextTokens,GeneratedTokens\n"
            "2024-05-12 00:00:00+00:00,1452,3\n"
            "2024-05-12 00:00:00.041683+00:00,584,3\n"
            "2024-05-12 02:00:01+02:00,9,9\n"
        )
    )
    assert trace.arrival.tolist() == [0, 41683 * 10**6, 10**12]


def test_azure_2025_with_images_between_the_columns(write: Write) -> None:
    trace = read_trace(
        write(
            "TIMESTAMP,NumImages,ContextTokens,GeneratedTokens\n"
            "2024-10-15T12:00:00.269Z,0,770,491\n"
            "2024-10-15T12:00:05.819Z,1,949,126\n"
        )
    )
    assert rows(trace) == [(0, 770, 491), (5_550_000_000_000, 949, 126)]
    assert "images" in trace.notes[0]


BURST = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"


def test_burstgpt_whole_seconds_ties_and_failures(write: Write) -> None:
    file = write(BURST + "5,GPT,4,2,6,API\n5,GPT,3,1,4,API\n9,GPT,0,0,0,API\n11,GPT,7,0,7,API\n")
    refused(file, "line 4: Request tokens 0, expected a whole number of tokens from 1")
    trace = read_trace(file, drop_invalid=True)
    assert rows(trace) == [(0, 4, 2), (0, 3, 1)]
    assert trace.notes[0].startswith("2 of 4 rows dropped as invalid (first: line 4: Request")


def test_burstgpt_with_sessions_and_float_seconds(write: Write) -> None:
    trace = read_trace(
        write(
            "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,"
            "Log Type\n19440110.0,aa,43,G,906,446,1352,C\n19440161.5,,2,G,36,29,65,A\n"
            "19440162.0,bb,2,G,36,29,65,C\n19440163.0,aa,2,G,36,29,65,C\n"
        )
    )
    assert seconds(trace) == [0, 51.5, 52, 53]
    assert trace.session.tolist() == [0, -1, 1, 0]


def mooncake(*entries: tuple[int, int, list[int]]) -> str:
    return "".join(
        json.dumps({"timestamp": t, "input_length": n, "output_length": 5, "hash_ids": ids}) + "\n"
        for t, n, ids in entries
    )


def test_mooncake_ids_become_runs_of_positions(write: Write) -> None:
    text = mooncake((0, 1200, [0, 14, 15]), (3000, 1024, [0, 14]), (6000, 512, [9]))
    trace = read_trace(write(text, "m.jsonl"))
    assert seconds(trace) == [0, 3, 6]
    assert trace.content(0) == (Segment(0, 0, 512), Segment(0, 14 * 512, 688))
    assert trace.content(1) == (Segment(0, 0, 512), Segment(0, 14 * 512, 512))
    assert trace.content(2) == (Segment(0, 9 * 512, 512),)


def test_d6_an_id_too_few_or_too_many_is_an_error_with_its_line(write: Write) -> None:
    text = mooncake((0, 512, [0]), (1, 513, [0]), (2, 512, [0, 1]))
    file = write(text, "m.jsonl")
    refused(file, "line 2: hash_ids of 1 ids, expected one for 512 tokens each, 2 for 513 tokens")
    assert len(read_trace(file, drop_invalid=True)) == 1


def test_ids_that_are_hashes_are_counted_through(write: Write) -> None:
    text = mooncake((0, 1024, [2**63 + 5, 7]), (1, 1024, [2**63 + 5, 9]))
    trace = read_trace(write(text, "m.jsonl"))
    assert trace.content(0) == (Segment(0, 0, 1024),)
    assert trace.content(1) == (Segment(0, 0, 512), Segment(0, 1024, 512))


def test_mooncake_ticks_warn_and_spread_only_on_request(write: Write) -> None:
    text = mooncake(*((3000 * (k // 5), 512, [k]) for k in range(50)))
    file = write(text, "m.jsonl")
    raw = read_trace(file)
    assert "100% of the arrivals share their time stamp" in raw.notes[0]
    spread = read_trace(file, spread_ticks=True, seed=4)
    assert "spread at random over ticks of 3 s (seed 4)" in spread.notes[0]
    assert (spread.arrival // (3 * PS_PER_S)).tolist() == (raw.arrival // (3 * PS_PER_S)).tolist()
    assert len(set(spread.arrival.tolist())) == 50
    assert sorted(spread.arrival.tolist()) == spread.arrival.tolist()
    again = read_trace(file, spread_ticks=True, seed=4)
    assert again.arrival.tolist() == spread.arrival.tolist()
    assert read_trace(file, spread_ticks=True, seed=5).arrival.tolist() != spread.arrival.tolist()


def test_bailian_chats_become_sessions(write: Write) -> None:
    def turn(chat: int, parent: int, time: float, n: int) -> str:
        ids = list(range(-(-n // 16)))
        entry = {"chat_id": chat, "parent_chat_id": parent, "timestamp": time, "input_length": n}
        return json.dumps(entry | {"output_length": 9, "type": "text", "turn": 1, "hash_ids": ids})

    text = "\n".join([turn(0, -1, 0.0, 20), turn(1, -1, 0.125, 40), turn(2, 0, 61.5, 50)])
    trace = read_trace(write(text, "q.jsonl"))
    assert trace.source == "q.jsonl (bailian)"
    assert seconds(trace) == [0, 0.125, 61.5]
    assert trace.session.tolist() == [0, 1, 0]
    assert trace.content(0) == (Segment(0, 0, 20),)
    assert trace.labels == ("0", "1", "2")


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        (
            "splitwise",
            "request_id,request_type,application_id,arrival_timestamp,batch_size,prompt_size,"
            "token_size\n0,2,0,1,1,4096,32\n1,2,0,3.5,1,2048,8\n",
            [(0.0, 4096, 32), (2.5, 2048, 8)],
        ),
        (
            "vidur",
            "arrived_at,num_prefill_tokens,num_decode_tokens\n0.25,100,7\n1.5,20,9\n",
            [(0.0, 100, 7), (1.25, 20, 9)],
        ),
        (
            "vidur",
            ",num_prefill_tokens,num_decode_tokens,pd_ratio\n0,100,7,14.2\n1,20,9,2.2\n",
            [(0.0, 100, 7), (0.0, 20, 9)],
        ),
        (
            "plain",
            "Arrival;Prompt;Output\n0.5;3;4\n",
            [(0.5, 3, 4)],
        ),
        (
            "mooncake",
            "timestamp_ms,input_length,output_length,n_hash_ids\n500,3,4,1\n2000,3,4,1\n",
            [(0.0, 3, 4), (1.5, 3, 4)],
        ),
        (
            "sharegpt-lengths",
            '{"prompt_len": 3, "output_len": 4}\n{"prompt_len": 30, "output_len": 40}\n',
            [(0.0, 3, 4), (0.0, 30, 40)],
        ),
        (
            "llmservingsim",
            '{"input_toks":2,"output_toks":3,"arrival_time_ns":46926808}\n'
            '{"input_toks":4,"output_toks":5,"arrival_time_ns":46926809}\n',
            [(0.0, 2, 3), (1e-9, 4, 5)],
        ),
        (
            "inference-perf",
            '[{"start_time": 7.5, "end_time": 9, "info": {"input_tokens": 8, "response_metrics": '
            '{"output_token_times": [1.0, 2.0]}}}]',
            [(0.0, 8, 2)],
        ),
    ],
)
def test_further_dialects(
    write: Write, name: str, text: str, expected: list[tuple[float, int, int]]
) -> None:
    file = write(text, "trace.any")
    trace = read_trace(file)
    assert trace.source == f"trace.any ({name})"
    assert [(a / PS_PER_S, p, o) for a, p, o in rows(trace)] == expected
    assert rows(read_trace(file, name)) == rows(trace)


def test_llmservingsim_token_ids_share_as_far_as_they_agree(write: Write) -> None:
    def line(*ids: int) -> str:
        entry = {"input_toks": len(ids), "output_toks": 1, "arrival_time_ns": 0}
        return json.dumps(entry | {"input_tok_ids": ids}) + "\n"

    trace = read_trace(write(line(5, 6, 7) + line(5, 6, 8) + line(6, 7), "l.jsonl"))
    assert trace.content(0) == (Segment(0, 0, 3),)
    assert trace.content(1) == (Segment(0, 0, 2), Segment(0, 3, 1))
    # The same tokens after another beginning are not the same prefix.
    assert trace.content(2) == (Segment(0, 4, 2),)


# F2: manners of writing


MANNERS: dict[str, Callable[[str], str | bytes]] = {
    "lf": lambda text: text.replace("\r\n", "\n"),
    "final newline": lambda text: text + "\r\n",
    "bom": lambda text: b"\xef\xbb\xbf" + text.encode(),
    "utf-16": lambda text: text.encode("utf-16"),
    "semicolons": lambda text: text.replace(",", ";"),
    "tabs": lambda text: text.replace(",", "\t"),
    "quotes": lambda text: re.sub(r"([^,\r\n]+)", r'"\1"', text),
    "extra columns": lambda text: re.sub(r"(?<=\d)(?=\r\n|$)", ',"a, ""b"""', text).replace(
        "\r\n", ",Remark\r\n", 1
    ),
    "trailing commas": lambda text: text.replace("\r\n", ",\r\n") + ",",
    "blank lines": lambda text: "\r\n\r\n" + text.replace("\r\n", "\r\n\r\n") + "\r\n  \r\n,,\r\n",
    "gzip": lambda text: gzip.compress(text.encode(), mtime=0),
    "padding": lambda text: text.replace(",", " , "),
}


@pytest.mark.parametrize("manner", MANNERS)
def test_f2_the_same_rows_in_any_manner(write: Write, manner: str) -> None:
    assert rows(read_trace(write(MANNERS[manner](AZURE)))) == ROWS


def test_f2_a_gzipped_jsonl(write: Write) -> None:
    text = mooncake((0, 512, [0]), (1, 512, [1]))
    assert len(read_trace(write(gzip.compress(text.encode(), mtime=0), "m.jsonl.gz"))) == 2


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "empty"),
        (" \r\n\n", "empty"),
        (b"\xef\xbb\xbf", "empty"),
        (gzip.compress(b"", mtime=0), "empty"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\r\n", "a header and no rows"),
        ("arrival,prompt,output", "a header and no rows"),
        (gzip.compress(AZURE.encode(), mtime=0)[:40], "a damaged gzip file"),
        (b"arrival,prompt,output\n0,\xff\xfe,3\n", "line 2: not text in UTF-8"),
        (b"PK\x03\x04\x00\x00\x00\x00", "a binary file"),
        ("arrival,prompt,output\n0,1\n", "line 2: 2 fields, expected 3 (output is missing)"),
        ("arrival,prompt,output\n\n0,1,2\n0,1,2,3\n", "line 4: 4 fields, expected 3"),
        ('{"timestamp": 0,\n', "line 1: broken JSON"),
        ('{"arrival": 0, "prompt": 1, "output": 1}\n[1]\n', "line 2: expected a JSON object"),
        ("[1, 2]", "entry 1: expected a JSON object"),
        ('{\n"a": 1,\n"b": 2\n}', "one JSON document"),
        ("a,b\n1,2\n", "no known format has the columns a, b; expected plain (arrival, prompt,"),
        ('[{"id": "x", "conversations": []}]', "ShareGPT with its texts"),
        ('{"ttfts": [], "itls": []}', "a benchmark result"),
    ],
)
def test_f2_files_that_hold_no_rows_are_refused_in_words(
    write: Write, content: str | bytes, said: str
) -> None:
    refused(write(content), said)


# F3: broken rows


def plain(*lines: str) -> str:
    return "\n".join(["arrival,prompt,output", *lines]) + "\n"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("-1,10,10", "line 3: arrival -1, expected seconds of at least 0"),
        ("1e18,10,10", "line 3: arrival 1e18, expected seconds of at least 0 and at most 104 days"),
        (",10,10", "line 3: arrival missing, expected seconds"),
        ("NaN,10,10", "line 3: arrival NaN, expected seconds"),
        ("inf,10,10", "line 3: arrival inf, expected seconds"),
        ("noon,10,10", "line 3: arrival noon, expected seconds"),
        ("1,-1,10", "line 3: prompt -1, expected a whole number of tokens from 1 to 100,000,000"),
        ("1,12.5,10", "line 3: prompt 12.5, expected a whole number"),
        ("1,1e18,10", "line 3: prompt 1e18, expected a whole number"),
        ("1,99999999999999999999,10", "line 3: prompt 99999999999999999999, expected"),
        ('1,"1,024",10', "line 3: prompt 1,024, expected a whole number"),
        ("1,1_024,10", "line 3: prompt 1_024, expected a whole number"),
        ("1,True,10", "line 3: prompt True, expected a whole number"),
        ("1,10,", "line 3: output missing, expected a whole number"),
        ("1,10,NaN", "line 3: output NaN, expected a whole number"),
        ("1,0,10", "line 3: prompt 0, expected a whole number"),
        ("1,10,0", "line 3: output 0, expected a whole number"),
    ],
)
def test_f3_a_broken_value_is_refused_with_line_and_field_or_dropped(
    write: Write, line: str, said: str
) -> None:
    file = write(plain("0,5,5", line, "2,6,6"))
    refused(file, said)
    trace = read_trace(file, drop_invalid=True)
    assert rows(trace) == [(0, 5, 5), (2 * PS_PER_S, 6, 6)]
    assert trace.notes[0].startswith("1 of 3 rows dropped as invalid (first: line 3:")


@pytest.mark.parametrize("value", ["null", "true", '"7 tokens"', "[7]", "7.5", "NaN"])
def test_f3_the_same_in_json(write: Write, value: str) -> None:
    text = '{"arrival": 0, "prompt": 1, "output": 1}\n\n{"arrival": 1, "prompt": %s, "output": 1}\n'
    file = write(text % value, "t.jsonl")
    refused(file, "line 3: prompt")
    assert len(read_trace(file, drop_invalid=True)) == 1


def test_whole_numbers_may_be_written_as_decimals(write: Write) -> None:
    assert rows(read_trace(write(plain("0,12.0,1e2")))) == [(0, 12, 100)]


def test_the_line_counts_from_the_file_not_from_the_rows(write: Write) -> None:
    text = 'arrival,prompt,output,remark\n\n0,1,1,"two\nlines"\n\n1,x,1,\n'
    refused(write(text), "line 6: prompt x")


def test_e5_a_zero_output_is_refused_with_its_line_or_dropped_and_counted(write: Write) -> None:
    file = write(plain("0,5,1", "1,5,1", "2,5,2", "3,5,0"))
    refused(file, "line 5: output 0")
    trace = read_trace(file, drop_invalid=True)
    assert trace.output.tolist() == [1, 1, 2]
    assert "1 of 4 rows dropped" in trace.notes[0]


def test_nothing_left_is_an_error(write: Write) -> None:
    refused(write(plain("0,0,0")), "no row can be used; line 2: prompt 0", drop_invalid=True)


def test_f3_shuffled_rows_are_sorted_stably_with_a_note(write: Write) -> None:
    trace = read_trace(write(plain("3,1,1", "1,2,1", "3,3,1", "1,4,1")))
    assert trace.prompt.tolist() == [2, 4, 1, 3]
    assert "not in order of arrival" in trace.notes[0]


def test_f3_sorting_keeps_ids_and_labels_with_their_rows(write: Write) -> None:
    text = mooncake((5000, 512, [3]), (0, 700, [0, 1]))
    trace = read_trace(write(text, "m.jsonl"))
    assert trace.prompt.tolist() == [700, 512]
    assert trace.content(0) == (Segment(0, 0, 700),)
    assert trace.content(1) == (Segment(0, 3 * 512, 512),)


def test_f3_a_clock_that_starts_again_is_refused_or_goes_on(write: Write) -> None:
    file = write(BURST + "604450,G,1,1,2,A\n604453,G,1,1,2,A\n0,G,1,1,2,A\n7,G,1,1,2,A\n")
    refused(
        file,
        "line 4: Timestamp drops from 604453 to 0, expected times that go on; it looks like a "
        "clock that starts again after a week: --unwrap lets it go on",
    )
    trace = read_trace(file, unwrap=True)
    assert seconds(trace) == [0, 3, 350, 357]
    assert "starts again 1 times" in trace.notes[0]


def test_f3_a_clock_of_a_day_that_starts_again_twice(write: Write) -> None:
    file = write(plain("86399,1,1", "5,2,1", "86300,3,1", "1,4,1"))
    refused(file, "line 3: arrival drops from 86399 to 5")
    trace = read_trace(file, unwrap=True)
    assert seconds(trace) == [86399, 86405, 172700, 172801]


def test_f3_a_clock_that_starts_again_among_rows_out_of_order(write: Write) -> None:
    file = write(plain("86000,1,1", "85990,2,1", "86399,3,1", "5,4,1", "3,5,1"))
    refused(file, "line 5: arrival drops from 86399 to 5")
    trace = read_trace(file, unwrap=True)
    assert trace.prompt.tolist() == [2, 1, 3, 5, 4]


def test_a_shuffled_day_is_shuffled_and_no_clock_that_starts_again(write: Write) -> None:
    file = write(plain("86399,1,1", "5,2,1", "70000,3,1", "20,4,1"))
    assert read_trace(file).prompt.tolist() == [2, 4, 3, 1]


def test_keys_that_only_later_rows_have_count_too(write: Write) -> None:
    text = (
        '{"arrival": 0, "prompt": 1, "output": 1}\n'
        '{"arrival": 1, "prompt": 1, "output": 1, "priority": 4}\n'
    )
    assert read_trace(write(text, "t.jsonl")).priority.tolist() == [0, 4]


def test_two_columns_of_one_name_are_refused(write: Write) -> None:
    refused(write("arrival,prompt,Prompt,output\n0,1,2,3\n"), "two columns are called Prompt")


# F4, F5, names


def test_f4_a_git_lfs_pointer_is_called_one(write: Write) -> None:
    text = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 52283111\n"
    refused(write(text), "a Git LFS pointer, not the data itself")


def test_f5_duplicate_ids_are_labels(write: Write) -> None:
    trace = read_trace(write("label,arrival,prompt,output\na,0,1,1\na,1,2,1\n,2,3,1\n"))
    assert trace.labels == ("a", "a", "")
    assert [row.index for row in trace.requests()] == [0, 1, 2]


def test_a_named_dialect_says_what_it_lacks(write: Write) -> None:
    file = write(plain("0,1,1"))
    refused(file, "azure needs contexttokens, generatedtokens, timestamp", dialect="azure")
    with pytest.raises(ValueError, match="dialect 'azur' is unknown; did you mean 'azure'"):
        read_trace(file, "azur")


def test_a_missing_file_is_an_os_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_trace(tmp_path / "none.csv")


# our own optional columns


def test_plain_takes_what_a_trace_can_hold(write: Write) -> None:
    trace = read_trace(
        write(
            "arrival,prompt,output,declared,priority,tenant,session,after\n"
            "0.000000000001,5,5,10,2,gold,0,\n3,6,6,,,,0,0\n2,7,7,,-1,gold,,-1\n"
        )
    )
    first, second, third = trace.requests()
    assert (first.arrival, first.declared, first.priority, first.tenant) == (1, 10, 2, "gold")
    assert (second.after, second.session, second.tenant) == (0, 0, "")
    assert (third.priority, third.session, third.after) == (-1, -1, -1)


def test_a_row_may_only_follow_an_earlier_one(write: Write) -> None:
    text = "arrival,prompt,output,after\n0,5,5,\n1,5,5,1\n"
    refused(write(text), "line 3: after 1, expected an earlier row, from 0")


def test_a_row_that_follows_a_dropped_one_goes_too(write: Write) -> None:
    text = "arrival,prompt,output,after\n0,5,0,\n1,5,5,0\n1,5,5,1\n2,6,6,\n"
    trace = read_trace(write(text), drop_invalid=True)
    assert trace.prompt.tolist() == [6]
    assert trace.notes[1] == "2 rows left out that follow one of these"


@pytest.mark.parametrize("content", ["5", "[[1, 2]]", '[[1, 2, "3"]]', "[[0, -1, 5]]", "[[0,0,0]]"])
def test_broken_content_is_refused_with_its_line(write: Write, content: str) -> None:
    text = '{"arrival": 0, "prompt": 1, "output": 1, "content": ' + content + "}\n"
    refused(write(text, "t.jsonl"), "line 1: content")


# the recorded ones


def recorded() -> list[Any]:
    if not SHARED.exists():
        return []
    files = sorted(SHARED.glob("*/*.csv")) + sorted(SHARED.glob("*/*.json*"))
    return [pytest.param(path, id=f"{path.parent.name}/{path.name}") for path in files]


@needs_shared
@pytest.mark.parametrize("path", recorded())
def test_every_recorded_file_reads_or_is_refused_in_words(path: Path) -> None:
    if path.parent.name == "bench-formats" and "inference_perf" not in path.name:
        with pytest.raises(ValueError, match=re.escape(str(path))):
            read_trace(path)
        return
    trace = read_trace(path, drop_invalid=True, unwrap=True)
    assert len(trace) > 0
    assert trace.source.split("(")[1].rstrip(")") in NAMES


@needs_shared
def test_azures_hour_of_conversations() -> None:
    trace = read_trace(SHARED / "azure" / "AzureLLMInferenceTrace_conv.csv")
    assert len(trace) == 19_366
    assert int(trace.output.sum()) == 4_088_665
    assert trace.notes == ()
    assert trace.arrival[1] == 4_314_579_000_000


@needs_shared
def test_mooncakes_head_has_the_reuse_that_its_note_states() -> None:
    about = describe(read_trace(SHARED / "mooncake" / "conversation_trace.head600.jsonl"))
    assert about.prefix_reuse == pytest.approx(0.172, abs=0.0005)
    assert about.prefix_coverage == 1.0


@needs_shared
def test_mooncakes_ticks_spread_to_a_poisson_like_trace() -> None:
    file = SHARED / "mooncake" / "conversation_trace.head600.jsonl"
    assert describe(read_trace(file)).cv == pytest.approx(2.82, abs=0.01)
    assert describe(read_trace(file, spread_ticks=True)).cv == pytest.approx(1.0, abs=0.12)


@needs_shared
def test_ragpulses_wrapping_clock() -> None:
    file = SHARED / "other" / "ragpulse.wrap_slice.jsonl"
    refused(file, "line 101: timestamp drops from 604453 to 0")
    trace = read_trace(file, unwrap=True)
    assert len(trace) == 200
    assert seconds(trace)[-1] == 19_237
