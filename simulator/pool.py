"""Where independent runs are made: on the cores of this machine, or on a Ray cluster.

A function is called once for each item; results come as they are ready. A worker that is killed
costs its item another try, and nobody else anything.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from simulator.parallel import spread

Item = TypeVar("Item")
Result = TypeVar("Result")


class Pool(Protocol):
    """Calls a function for every item, somewhere."""

    def each(
        self,
        function: Callable[[Item], Result],
        items: Mapping[int, Item],
        *,
        died: Callable[[Item], Result],
    ) -> Iterator[tuple[int, Result]]:
        """(key, result) as they come; `died` of an item whose worker was killed again and again."""
        ...


@dataclass(frozen=True, kw_only=True)
class Local:
    """Processes of this machine."""

    workers: int = -1
    """-1 = one a core, 1 = in this process."""

    def each(
        self,
        function: Callable[[Item], Result],
        items: Mapping[int, Item],
        *,
        died: Callable[[Item], Result],
    ) -> Iterator[tuple[int, Result]]:
        return spread(function, items, workers=self.workers, died=died)


@dataclass(frozen=True, kw_only=True)
class Ray:
    """A Ray cluster (extra `ray`): one made on this machine, or the one at `address`."""

    address: str | None = None
    workers: int = -1
    """Processes of a cluster made here; -1 = one a core."""

    def each(
        self,
        function: Callable[[Item], Result],
        items: Mapping[int, Item],
        *,
        died: Callable[[Item], Result],
    ) -> Iterator[tuple[int, Result]]:
        """Raises ValueError where Ray is not installed, or no cluster answers."""
        ray = self._connected()
        # Exceptions of the function are raised as they are, and are no reason to try again.
        task = ray.remote(max_retries=1, retry_exceptions=False)(function)
        waiting = {task.remote(item): key for key, item in items.items()}
        while waiting:
            (done, *_), _ = ray.wait(list(waiting), num_returns=1)
            key = waiting.pop(done)
            try:
                yield key, ray.get(done)
            except ray.exceptions.WorkerCrashedError:
                yield key, died(items[key])
            except ray.exceptions.RayTaskError as error:
                raise error.cause from None

    def _connected(self) -> Any:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # runs here are nobody's business
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        try:
            import ray
        except ModuleNotFoundError:
            raise ValueError("--pool ray needs Ray: pip install 'batchlab[ray]'") from None
        if ray.is_initialized():
            return ray
        quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
        try:
            if self.address is None:
                cores = self.workers if self.workers > 0 else os.cpu_count()
                ray.init(address="local", num_cpus=cores, include_dashboard=False, **quiet)
            else:
                ray.init(address=self.address, **quiet)
        except (ConnectionError, RuntimeError, ValueError) as error:
            at = self.address or "this machine"
            raise ValueError(f"no Ray cluster at {at}: {error}") from None
        return ray


def pool_of(name: str, *, workers: int = -1, address: str | None = None) -> Pool:
    """The pool that the command line names. Raises ValueError for what does not fit together."""
    if name == "ray":
        return Ray(address=address, workers=workers)
    if name != "local":
        raise ValueError(f"--pool {name}: expected local or ray")
    if address is not None:
        raise ValueError(f"--ray-address {address}: needs --pool ray")
    return Local(workers=workers)
