"""What is installed is ours, and what is built is whole."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ("traces", "calibration", "policies", "simulator", "reports")


@pytest.fixture(scope="module")
def wheel_files(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """The names in a wheel built from the working tree."""
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


@pytest.mark.parametrize("name", PACKAGES)
def test_each_import_name_is_ours_from_anywhere(name: str, tmp_path: Path) -> None:
    where = subprocess.run(
        [sys.executable, "-c", f"import {name}; print({name}.__file__)"],
        cwd=tmp_path,
        env={key: value for key, value in os.environ.items() if key != "PYTHONPATH"},
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    assert Path(where) == ROOT / name / "__init__.py"


@pytest.mark.parametrize("folder", ["calibration/profiles", "reports/templates"])
def test_the_wheel_carries_the_data_files(folder: str, wheel_files: set[str]) -> None:
    in_tree = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    }
    assert in_tree, f"{folder} is empty"
    assert in_tree <= wheel_files


def test_the_wheel_carries_nothing_but_the_five_packages(wheel_files: set[str]) -> None:
    tops = {name.split("/")[0] for name in wheel_files if ".dist-info/" not in name}
    assert tops == set(PACKAGES)


def test_the_command_states_its_version() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    command = Path(sys.executable).with_name("batchlab")
    done = subprocess.run([command, "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"batchlab {version}\n"
