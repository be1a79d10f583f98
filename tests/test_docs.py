"""Every command that the README and the manual print is run, and does what they say.

`manual.py` says how a page marks a command that fails on purpose, or is slow.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from manual import Command, File, agrees, blocks, story

ROOT = Path(__file__).parent.parent
SHARED = ROOT.parent / "shared"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
LINK = re.compile(r"!?\[[^\]]*\]\(([^)#\s]+)(?:#[^)\s]*)?\)")


def commands(page: Path) -> list[Command]:
    return [part for part in story(page) if isinstance(part, Command)]


def marked(page: Path) -> object:
    slow = any(command.slow for command in commands(page))
    marks = [pytest.mark.slow, pytest.mark.timeout(600)] if slow else []
    return pytest.param(page, id=page.relative_to(ROOT).as_posix(), marks=marks)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder that looks to a command like a fresh checkout beside `shared`."""
    work = tmp_path / "batchlab"
    work.mkdir()
    for name in ("benchmarks", "tests"):
        (work / name).symlink_to(ROOT / name)
    if SHARED.exists():
        (tmp_path / "shared").symlink_to(SHARED)
    return work


def run(command: Command, folder: Path) -> subprocess.CompletedProcess[str]:
    env = os.environ | {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "COLUMNS": "100",
        "NO_COLOR": "1",
        "TERM": "dumb",
    }
    return subprocess.run(
        ["bash", "-c", command.text],
        cwd=folder,
        env=env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )


def why_not(command: Command) -> str:
    """Why a command cannot be run here; "" where it can."""
    if command.text.split()[0] == "make":
        return "make runs these very tests"
    if "../shared" in command.text and not SHARED.exists():
        return "../shared is not here"
    if command.needs == "cuda" and not shutil.which("nvidia-smi"):
        return "needs a GPU"
    return ""


@pytest.mark.parametrize("page", [marked(page) for page in PAGES if commands(page)])
def test_the_commands_of_a_page_do_what_it_says(page: Path, folder: Path) -> None:
    seen: set[str] = set()
    left_out: list[str] = []
    for part in story(page):
        if isinstance(part, File):
            (folder / part.name).write_text(part.text, encoding="utf-8")
            continue
        if part.text in seen:
            continue
        seen.add(part.text)
        if part.run_by:
            texts = {command.text for command in commands(ROOT / part.run_by)}
            assert part.text in texts, f"{part.run_by} does not print: {part.text}"
            continue
        if reason := why_not(part):
            left_out.append(reason)
            continue
        where = f"{page.relative_to(ROOT)}, line {part.line}: {part.text}"
        done = run(part, folder)
        if left_out and done.returncode != part.exit_code and "No such file" in done.stderr:
            left_out.append(f"{part.text}: needs what a command left out would have made")
            continue
        assert done.returncode == part.exit_code, f"{where}\n{done.stdout}{done.stderr}"
        assert "Traceback" not in done.stderr, f"{where}\n{done.stderr}"
        if part.output is not None and not agrees(part.output, done.stdout):
            pytest.fail(f"{where}\nquoted:\n{part.output}\nprinted:\n{done.stdout}", pytrace=False)
    if left_out and len(left_out) == len(seen):
        pytest.skip("; ".join(sorted(set(left_out))))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    for target in LINK.findall(page.read_text(encoding="utf-8")):
        if "://" not in target and not target.startswith("mailto:"):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_the_readme_links_every_page() -> None:
    linked = set(LINK.findall((ROOT / "README.md").read_text(encoding="utf-8")))
    pages = {page.relative_to(ROOT).as_posix() for page in (ROOT / "docs").glob("*.md")}
    assert pages <= linked


def test_every_command_of_the_tool_has_a_page() -> None:
    from typer.main import get_command

    from simulator.cli import app

    for name in get_command(app).commands:  # type: ignore[attr-defined]
        assert (ROOT / "docs" / f"{name}.md").exists(), f"docs/{name}.md is missing"


@pytest.mark.parametrize("folder", ["traces", "policies", "calibration", "simulator", "reports"])
def test_the_map_has_a_line_for_every_file(folder: str) -> None:
    named = set(re.findall(r"`([^`]+)`", (ROOT / "docs/architecture.md").read_text()))
    files = {p.relative_to(ROOT / folder).as_posix() for p in (ROOT / folder).rglob("[!_]*.py")}
    assert files <= named, "docs/architecture.md wants a line for these"


def test_a_block_is_read_as_the_reader_sees_it(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "```console exit=2\n$ echo one \\\n    two\none two\n$ false\n```\n"
        "```bash slow\n# a remark\necho three\n```\n"
        "```toml file=a.toml\nseed = 1\n```\n"
    )
    assert list(story(page)) == [
        Command(line=2, text="echo one \\\n    two", output="one two"),
        Command(line=5, text="false", exit_code=2),
        Command(line=9, text="echo three", slow=True),
        File(line=12, name="a.toml", text="seed = 1\n"),
    ]


def test_a_block_that_is_never_closed_is_an_error(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("```console\n$ true\n")
    with pytest.raises(ValueError, match=r"page\.md, line 1: this block is never closed"):
        list(blocks(page))


@pytest.mark.parametrize(
    ("quoted", "printed", "same"),
    [
        ("a\nb", "a  \nb\n", True),
        ("a\n...\nz", "a\nb\nc\nz\n", True),
        ("took ... s", "took 1.25 s", True),
        ("a", "a\nb", False),
        ("a.c", "abc", False),
    ],
)
def test_quoted_output_agrees_with_printed(quoted: str, printed: str, same: bool) -> None:
    assert agrees(quoted, printed) is same
