"""Reads the manual's fenced blocks: which commands a page prints, and what it says they do.

A page is a story: its commands run from top to bottom in one folder of their own.

    ```console exit=2          the last command of the block must exit with 2 (0 where none is said)
    ```console varies          its output depends on the machine, so it is not compared
    ```console slow            takes more than about ten seconds
    ```console needs=cuda      runs only where `nvidia-smi` does
    ```console run-by=a.md     that page (from the root) prints and runs the same commands
    ```toml file=chat.toml     the block is written to that file first

In a `console` block commands stand after `$ `, and the lines after them are their standard
output, where `...` stands for anything. In a `bash` block every line is a command.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

FENCE = re.compile(r"^( *)```([^`]*)$")


@dataclass(frozen=True, kw_only=True)
class Block:
    """One fenced block: `line` is that of its first line of text, counted from 1."""

    language: str
    words: frozenset[str]
    options: dict[str, str]
    line: int
    lines: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Command:
    """A command that a page prints; `output` is None where the page quotes none."""

    line: int
    text: str
    output: str | None = None
    exit_code: int = 0
    slow: bool = False
    needs: str = ""
    run_by: str = ""


@dataclass(frozen=True, kw_only=True)
class File:
    """A file that a page shows, for its commands to use."""

    line: int
    name: str
    text: str


def blocks(page: Path) -> Iterator[Block]:
    """The page's fenced blocks in order; ValueError where one is never closed."""
    opened: tuple[int, str, int] | None = None  # line, info string, indent
    body: list[str] = []
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
        fence = FENCE.match(line)
        if opened is None:
            if fence:
                opened, body = (number, fence[2], len(fence[1])), []
        elif fence and not fence[2].strip():
            language, *rest = shlex.split(opened[1]) or [""]
            yield Block(
                language=language,
                words=frozenset(word for word in rest if "=" not in word),
                options=dict(word.split("=", 1) for word in rest if "=" in word),
                line=opened[0] + 1,
                lines=tuple(body),
            )
            opened = None
        else:
            body.append(line[min(opened[2], len(line) - len(line.lstrip())) :])
    if opened is not None:
        raise ValueError(f"{page}, line {opened[0]}: this block is never closed")


def story(page: Path) -> Iterator[Command | File]:
    """What the page shows, in order: files to write and commands to run."""
    for block in blocks(page):
        if "file" in block.options:
            text = "".join(line + "\n" for line in block.lines)
            yield File(line=block.line, name=block.options["file"], text=text)
        elif block.language in ("bash", "console"):
            yield from _commands(block)


def _commands(block: Block) -> Iterator[Command]:
    found: list[tuple[int, str, list[str]]] = []
    goes_on = False
    for number, line in enumerate(block.lines, block.line):
        prompt = block.language == "bash" or line.startswith("$ ")
        if goes_on:
            at, text, output = found[-1]
            found[-1] = at, text + "\n" + line, output
        elif prompt and line.strip() and not line.startswith("#"):
            found.append((number, line.removeprefix("$ "), []))
        elif block.language == "console" and found:
            found[-1][2].append(line)
            continue
        goes_on = bool(found) and line.endswith("\\")
    for at, text, output in found:
        yield Command(
            line=at,
            text=text,
            output="\n".join(output) if output and "varies" not in block.words else None,
            exit_code=int(block.options.get("exit", 0)) if at == found[-1][0] else 0,
            slow="slow" in block.words,
            needs=block.options.get("needs", ""),
            run_by=block.options.get("run-by", ""),
        )


def agrees(quoted: str, printed: str) -> bool:
    """Whether the output is as the page quotes it: `...` is anything; trailing blanks are not."""
    pattern = ".*".join(re.escape(_trimmed(part)) for part in quoted.split("..."))
    return re.fullmatch(r"\s*" + pattern + r"\s*", _trimmed(printed), re.DOTALL) is not None


def _trimmed(text: str) -> str:
    return "\n".join(line.rstrip() for line in text.split("\n"))
