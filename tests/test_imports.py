"""Import rules that import-linter cannot state: what a plain run really loads.

The rules it can state are in pyproject.toml, under `[tool.importlinter]`.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import grimp
import pytest

ROOT = Path(__file__).parent.parent
RUNS_STEPS_TOO = {"simulator.validate"}
"""Outside of calibration: what holds a simulated run against a really executed one."""
PACKAGES = ("traces", "calibration", "policies", "simulator", "reports")
BLOCK_TORCH = "import sys; sys.modules['torch'] = sys.modules['triton'] = None; "


def modules() -> Iterator[str]:
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            yield ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def runs_a_model() -> set[str]:
    """The modules of calibration that torch is behind, at whatever distance."""
    graph = grimp.build_graph("calibration", include_external_packages=True)
    return graph.find_downstream_modules("torch") | graph.find_downstream_modules("triton")


def python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)


def test_everything_but_the_real_model_imports_without_torch() -> None:
    behind = runs_a_model()
    assert "calibration.transformer" in behind
    assert "calibration.profile" not in behind
    plain = [name for name in modules() if name not in behind | RUNS_STEPS_TOO]
    done = python(BLOCK_TORCH + "import " + ", ".join(plain))
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("heavy", ["torch", "matplotlib"])
def test_asking_for_help_loads_nothing_heavy(heavy: str) -> None:
    done = python(f"import sys, simulator.cli; print({heavy!r} in sys.modules)")
    assert done.stdout == "False\n", done.stderr
