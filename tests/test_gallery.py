"""The pictures of the manual: there, small, made by the page's own commands; quotes agree."""

from __future__ import annotations

from pathlib import Path

import pytest
from gallery import DOCS, Picture, pictures
from manual import Command, story

ROOT = DOCS.parent
PAGES = sorted(DOCS.glob("*.md"))
DRAWN = [(page, picture) for page in PAGES for picture in pictures(page)]


@pytest.mark.parametrize(("page", "picture"), DRAWN, ids=[picture.file for _, picture in DRAWN])
def test_a_picture_is_small_and_comes_from_a_folder_that_a_command_writes(
    page: Path, picture: Picture
) -> None:
    stored = page.parent / picture.file
    assert stored.is_file(), "make gallery draws it"
    assert stored.stat().st_size < 150_000
    folder = picture.source.split("/")[0]
    texts = [part.text for part in story(page) if isinstance(part, Command) and not part.slow]
    assert any(f"-o {folder}" in text for text in texts), f"no command writes {folder}/"


def test_every_stored_picture_is_drawn_by_a_page() -> None:
    stored = {f"images/{file.name}" for file in (DOCS / "images").iterdir()}
    assert stored == {picture.file for _, picture in DRAWN}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_quote_of_another_page_says_what_that_page_says(page: Path) -> None:
    """Its command is run there, not here: the lines quoted here must be among those."""
    for part in story(page):
        if isinstance(part, Command) and part.run_by and part.output:
            there = [
                other.output or ""
                for other in story(ROOT / part.run_by)
                if isinstance(other, Command) and other.text == part.text
            ]
            lines = {line.rstrip() for quoted in there for line in quoted.splitlines()}
            here = [line.rstrip() for line in part.output.splitlines() if line.strip() != "..."]
            assert [line for line in here if line and line not in lines] == [], part.text
