"""One seed, one stream per purpose; the same numbers everywhere."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from traces.seeds import stream


def test_same_seed_and_purpose_give_the_same_numbers() -> None:
    assert stream(7, "arrivals").random(5).tolist() == stream(7, "arrivals").random(5).tolist()


@pytest.mark.parametrize("other", [stream(8, "arrivals"), stream(7, "prompt"), stream(7, "a", "b")])
def test_another_seed_or_purpose_gives_others(other: object) -> None:
    assert stream(7, "arrivals").random() != other.random()  # type: ignore[attr-defined]


def test_parts_of_a_purpose_do_not_run_together() -> None:
    assert stream(7, "a", "b").random() != stream(7, "ab").random()


def test_the_numbers_are_pinned() -> None:
    assert stream(0, "arrivals").integers(0, 10**9, 3).tolist() == [375504544, 572642374, 405876064]


def test_a_negative_seed_is_refused() -> None:
    with pytest.raises(ValueError, match="seed: -1"):
        stream(-1, "arrivals")


WRITE = """
import sys
from traces.synthesize import Workload, synthesize
from traces.write import write_trace
table = {"preset": "multi-tenant", "requests": 300}
write_trace(synthesize(Workload.from_table(table), 5), sys.argv[1])
"""


def test_f8_the_same_bytes_under_any_hash_seed(tmp_path: object) -> None:
    files = []
    for hash_seed in ("0", "1", "4242"):
        file = f"{tmp_path}/{hash_seed}.jsonl"
        env = os.environ | {"PYTHONHASHSEED": hash_seed}
        subprocess.run([sys.executable, "-c", WRITE, file], check=True, env=env)
        with open(file, "rb") as written:
            files.append(written.read())
    assert files[0] == files[1] == files[2]
