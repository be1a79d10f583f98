"""`benchmarks/gpu.py` end to end on the CPU: the same code that a card is measured with."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from calibration.profile import load_profile

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "gpu.py"


def test_one_command_checks_times_measures_fits_and_validates(tmp_path: Path) -> None:
    command = [sys.executable, SCRIPT, "--device", "cpu", "--quick", "--out", tmp_path]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout.splitlines()[-1])
    assert summary == json.loads((tmp_path / "summary.json").read_text())
    assert summary["failed"] == []
    assert summary["kernels_right"]
    assert set(summary["validation"]) == {"light", "knee", "preemption"}
    name = summary["profile"]["name"]
    assert load_profile(tmp_path / f"{name}.json").name == name
    assert (tmp_path / f"{name}.raw.csv").exists()
