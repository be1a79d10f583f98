"""Import rules that import-linter cannot state: what a plain run really loads.

The rules it can state are in pyproject.toml, under `[tool.importlinter]`.
"""

from __future__ import annotations

import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ("traces", "calibration", "policies", "simulator", "reports")
BLOCK_TORCH = "import sys; sys.modules['torch'] = sys.modules['triton'] = None; "


def modules() -> Iterator[str]:
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            yield ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def torch_doors() -> set[str]:
    """The modules, as `package.module`, that import-linter lets import torch, and their user."""
    linter = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    (doors,) = (c["ignore_imports"] for c in linter["contracts"] if "torch" in c["name"])
    return {".".join(door.split(" -> ")[0].split(".")[:2]) for door in doors} | {
        "calibration.executor"
    }


def python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)


def test_everything_but_the_real_model_imports_without_torch() -> None:
    doors = torch_doors()
    plain = [name for name in modules() if ".".join(name.split(".")[:2]) not in doors]
    done = python(BLOCK_TORCH + "import " + ", ".join(plain))
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("heavy", ["torch", "matplotlib"])
def test_asking_for_help_loads_nothing_heavy(heavy: str) -> None:
    done = python(f"import sys, simulator.cli; print({heavy!r} in sys.modules)")
    assert done.stdout == "False\n", done.stderr
