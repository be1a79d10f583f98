"""Work spread over processes, whose deaths cost nothing but time."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

Key = TypeVar("Key")
Item = TypeVar("Item")
Result = TypeVar("Result")


class WorkerDied(ValueError):
    """The process that worked on an item was killed, and again when it was tried alone."""


def spread(
    function: Callable[[Item], Result],
    items: Mapping[Key, Item],
    *,
    workers: int = -1,
    died: Callable[[Item], Result] | None = None,
) -> Iterator[tuple[Key, Result]]:
    """`function` of every item, by key, in the order in which they are done.

    `workers`: -1 = one process a core, 1 = in this process. What was lost with a killed process
    is done again; an item whose process is killed even alone yields `died` of it, or raises
    `WorkerDied`. Exceptions of `function` are raised here. Ctrl-C interrupts this process alone.
    """
    if workers == 1 or len(items) < 2:
        yield from ((key, function(item)) for key, item in items.items())
        return
    from joblib.externals.loky.process_executor import TerminatedWorkerError

    left = dict(items)
    try:
        for key, result in _pool(function, items, workers):
            del left[key]
            yield key, result
    except TerminatedWorkerError:
        # Who was to blame cannot be told, so each that is left has processes of its own.
        for key, item in left.items():
            try:
                yield from _pool(function, {key: item}, 2)
            except TerminatedWorkerError:
                if died is None:
                    raise WorkerDied(f"{key}: its process was killed, twice") from None
                yield key, died(item)


def _pool(
    function: Callable[[Item], Result], items: Mapping[Key, Item], workers: int
) -> Iterator[tuple[Key, Result]]:
    from joblib import Parallel, delayed

    pool = Parallel(n_jobs=workers, return_as="generator_unordered", batch_size=1)
    work = [delayed(_one)(os.getpid(), function, key, item) for key, item in items.items()]
    yield from pool(work)


def _one(parent: int, function: Callable[[Any], Any], key: Any, item: Any) -> tuple[Any, Any]:
    if os.getpid() != parent:
        # Ctrl-C reaches the whole process group; the parent alone decides what it means.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    return key, function(item)
