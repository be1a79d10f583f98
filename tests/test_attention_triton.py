"""The Triton kernels against the float64 reference: interpreted on a CPU, compiled on a GPU.

Whether a kernel is interpreted is settled when its module is imported, so each way has a process
of its own.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from calibration.attention import Batch
from calibration.attention.check import CASES

if importlib.util.find_spec("triton") is None:
    pytest.skip("triton is not installed here", allow_module_level=True)

from calibration.attention import triton_launch

REPOSITORY = Path(__file__).parents[1]


@pytest.mark.parametrize(("device", "interpret"), [("cpu", "1"), ("cuda", "0")])
def test_triton_equals_the_reference(device: str, interpret: str) -> None:
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("no GPU here")
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", "calibration.attention.check", "triton", device],
        env=dict(os.environ, TRITON_INTERPRET=interpret),
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    verdicts = [json.loads(line) for line in done.stdout.splitlines()]
    assert [verdict["case"] for verdict in verdicts] == [case.name for case in CASES]
    # Asked this way round, a NaN is wrong too.
    assert [v for v in verdicts if not v["error"] <= v["tolerance"]] == []


@settings(max_examples=60, deadline=None)
@given(
    lengths=st.lists(
        st.tuples(st.integers(0, 20_000), st.one_of(st.just(1), st.integers(1, 300))),
        min_size=1,
        max_size=40,
    ),
    items=st.sampled_from([1, 132, 1056]),
    piece=st.sampled_from([None, 512]),
)
def test_the_host_launches_enough_programs_without_knowing_the_contexts(
    lengths: list[tuple[int, int]], items: int, piece: int | None
) -> None:
    """Every piece of every context has a program, and one that is not split needs no reduction."""
    queries = [new for _, new in lengths]
    contexts = [cached + new for cached, new in lengths]
    tables = [range(-(-context // 16)) for context in contexts]
    batch = Batch.build(queries, contexts, tables, 16)
    plan = triton_launch._plan(batch, piece, items, 64, 32)
    cut = int(plan.piece)
    pieces = [-(-c // cut) if q == 1 else 0 for q, c in zip(queries, contexts, strict=True)]
    tiles = [-(-q // 32) if q > 1 else 0 for q in queries]
    assert cut % 64 == 0
    assert plan.piece_offset.diff().tolist() == pieces
    assert plan.tile_offset.diff().tolist() == tiles
    for owners, counts in ((plan.piece_owner, pieces), (plan.tile_owner, tiles)):
        expected = [s for s, count in enumerate(counts) for _ in range(count)]
        assert owners.tolist()[: sum(counts)] == expected
        assert all(owner == batch.sequences for owner in owners.tolist()[sum(counts) :])
    assert batch.max_context > plan.least_piece or max(pieces) <= 1
