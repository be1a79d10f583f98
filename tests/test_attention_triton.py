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

from calibration.attention.check import CASES

if importlib.util.find_spec("triton") is None:
    pytest.skip("triton is not installed here", allow_module_level=True)

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
