"""Draws the pictures of the manual again: `python tests/gallery.py [PAGE...]`, or `make gallery`.

A page says where a picture comes from: `![words](images/storm.png "storm/figures/timeline.png")`
is the file that the page's own commands write. They are run in a folder of their own, but for
slow ones, and the picture is stored with fewer colours, which nobody sees, to keep the repository
small.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from manual import File, story
from PIL import Image

DOCS = Path(__file__).parent.parent / "docs"
COLOURS = 128
PICTURE = re.compile(r'!\[[^\]]*\]\((?P<file>\S+\.png) "(?P<source>[^"]+)"\)')


@dataclass(frozen=True, kw_only=True)
class Picture:
    """A picture that a page shows, and which of the files that its commands write it is."""

    file: str
    source: str


def pictures(page: Path) -> list[Picture]:
    """The pictures that the page's commands make, in order."""
    return [Picture(**match.groupdict()) for match in PICTURE.finditer(page.read_text("utf-8"))]


def draw(page: Path, folder: Path) -> None:
    """Run the page in `folder` and copy its pictures; CalledProcessError where a command fails."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    for part in story(page):
        if isinstance(part, File):
            (folder / part.name).write_text(part.text, encoding="utf-8")
        elif not (part.slow or part.run_by or part.exit_code):
            print(f"{page.name}: {part.text}", flush=True)
            subprocess.run(
                ["bash", "-c", part.text],
                cwd=folder,
                env=os.environ | {"PATH": path},
                stdout=subprocess.DEVNULL,
                check=True,
            )
    for picture in pictures(page):
        target = page.parent / picture.file
        target.parent.mkdir(exist_ok=True)
        drawn = Image.open(folder / picture.source).convert("RGB")
        drawn.quantize(COLOURS).save(target, optimize=True)
        print(f"{page.name}: {picture.file}, {target.stat().st_size // 1000} kB", flush=True)


def main(names: list[str]) -> None:
    pages = [Path(name).resolve() for name in names] or sorted(DOCS.glob("*.md"))
    for page in pages:
        if pictures(page):
            with tempfile.TemporaryDirectory() as folder:
                draw(page, Path(folder))


if __name__ == "__main__":
    main(sys.argv[1:])
