"""Named random streams from one seed: one stream per purpose, independent of all others."""

from __future__ import annotations

import hashlib

import numpy as np


def stream(seed: int, *purpose: str) -> np.random.Generator:
    """The random stream of `purpose` under `seed`: the same numbers on every machine and run.

    Streams of different purposes or seeds are independent, so that drawing more from one
    (or changing what is drawn) leaves the others as they were.
    """
    if seed < 0:
        raise ValueError(f"seed: {seed}, expected a whole number of at least 0")
    # Not hash(): that differs from process to process (PYTHONHASHSEED).
    digest = hashlib.blake2b("\0".join(purpose).encode(), digest_size=16).digest()
    key = np.frombuffer(digest, dtype="<u4").tolist()
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(seed, spawn_key=key)))
