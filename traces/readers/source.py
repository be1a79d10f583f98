"""A trace file on disk -> its text: gzip, byte order marks, and files that are none."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path

_LFS = b"version https://git-lfs.github.com/spec/"


def read_text(path: Path) -> str:
    """The text of a file, unpacked where it is gzipped, without a byte order mark.

    Raises ValueError where it is a Git LFS pointer, broken, binary or empty, and OSError where
    it cannot be read.
    """
    raw = path.read_bytes()
    packed = raw[:2] == b"\x1f\x8b"
    if packed:
        try:
            raw = gzip.decompress(raw)
        except (OSError, EOFError, zlib.error) as error:
            raise ValueError(f"{path}: a damaged gzip file ({error})") from None
    if raw.startswith(_LFS):
        raise ValueError(
            f"{path}: a Git LFS pointer, not the data itself; fetch it with: git lfs pull"
        )
    if raw and path.suffix == ".gz" and not packed:
        raise ValueError(
            f"{path}: not a gzip file, though its name ends in .gz; where it is plain text, take "
            "that off"
        )
    encoding = "utf-16" if raw[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
    try:
        text = raw.decode(encoding)
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        raise ValueError(f"{path} line {line}: not text in UTF-8") from None
    if "\0" in text[:4096]:
        raise ValueError(f"{path}: a binary file, expected CSV or JSON")
    if not text.strip():
        raise ValueError(f"{path}: empty, expected CSV with a header or lines of JSON")
    return text
