"""What runs come to, for whoever asks many: from the store where it is known, else made and kept.

`together` lets many studies that each ask in their turn share the pool: in every round all of
them ask, the runs of all are made at once, and each is told its own.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple, TypeVar

from reports.evidence import Evidence
from simulator.pool import Local, Pool
from simulator.scenario import Scenario
from simulator.settings_file import one_line
from simulator.store import Store, StoreError, key_of

T = TypeVar("T")
Key = TypeVar("Key")


class Wanted(NamedTuple):
    """What a study asks for."""

    scenarios: Sequence[Scenario]
    about: str
    """What is being looked at, for people: the bracket."""


Study = Generator[Wanted, list[Evidence], T]
"""Asks for runs of scenarios, is sent what they came to, ends in a T."""
OnRound = Callable[[int, int, int, Sequence[str]], None]
"""Called as runs end: (of this round, all of this round, studies that go on, what about)."""


class RunFailed(ValueError):
    """A run that a study needs cannot be made: one line that says why."""


class _Made(NamedTuple):
    """A run as it comes from a worker: evidence as bytes, or an error."""

    content: bytes
    error: str = ""
    broken: bool = False


class _Item(NamedTuple):
    scenario: Scenario
    stretches: int


@dataclass
class Runs:
    """Evidence of scenarios. Equal scenarios are run once."""

    store: Store | None = None
    pool: Pool = field(default_factory=Local)
    stretches: int = 0
    """Kept of each run, for loads that cannot be drawn again (`Evidence.of`)."""
    made: int = 0
    """Runs made so far."""
    found: int = 0
    """Runs that the store knew."""

    def of(
        self, scenarios: Sequence[Scenario], on_run: Callable[[int, int], None] | None = None
    ) -> list[Evidence | RunFailed]:
        """One for each, in order. Each is in the store as soon as it is done."""
        keys: list[str] = []
        wanted: dict[str, Scenario] = {}
        results: dict[str, Evidence | RunFailed] = {}
        for scenario in scenarios:
            try:
                key = f"{key_of(scenario)}/{self.stretches}"
            except (ValueError, OSError) as error:
                key = f"! {one_line(error)}"
                results[key] = RunFailed(one_line(error))
            keys.append(key)
            wanted.setdefault(key, scenario)
        if self.store is not None:
            for key, content in self.store.runs(wanted).items():
                results[key] = self._read(content)
                self.found += 1
        todo = [key for key in wanted if key not in results]
        items = {at: _Item(wanted[key], self.stretches) for at, key in enumerate(todo)}
        for count, (at, made) in enumerate(self.pool.each(_make, items, died=_died), 1):
            if made.error:
                results[todo[at]] = RunFailed(made.error)
            else:
                if self.store is not None:
                    self.store.put_run(todo[at], made.content)
                results[todo[at]] = Evidence.from_bytes(made.content)
                self.made += 1
            if on_run:
                on_run(count, len(items))
        return [results[key] for key in keys]

    def _read(self, content: bytes) -> Evidence:
        try:
            return Evidence.from_bytes(content)
        except ValueError as error:
            assert self.store is not None
            raise StoreError(f"{self.store.path}: {error}; take another file") from None


def together(
    studies: Mapping[Key, Study[T]], runs: Runs, on_round: OnRound | None = None
) -> dict[Key, T | RunFailed]:
    """What each study ends in, or why it could not go on."""
    ended: dict[Key, T | RunFailed] = {}
    asked: dict[Key, Wanted] = {}

    def go_on(key: Key, told: list[Evidence] | None) -> None:
        try:
            asked[key] = studies[key].send(told) if told is not None else next(studies[key])
        except StopIteration as end:
            ended[key] = end.value
        except (RunFailed, OSError) as error:
            ended[key] = RunFailed(str(error))

    for key in studies:
        go_on(key, None)
    while asked:
        about = [wanted.about for wanted in asked.values()]
        flat = [scenario for wanted in asked.values() for scenario in wanted.scenarios]
        came = iter(runs.of(flat, on_round and partial(_told, on_round, about)))
        shares = {key: [next(came) for _ in wanted.scenarios] for key, wanted in asked.items()}
        asked.clear()
        for key, share in shares.items():
            failed = next((one for one in share if isinstance(one, RunFailed)), None)
            if failed is not None:
                ended[key] = failed
            else:
                go_on(key, [one for one in share if isinstance(one, Evidence)])
    return {key: ended[key] for key in studies}


def _told(on_round: OnRound, about: Sequence[str], done: int, all: int) -> None:
    on_round(done, all, len(about), about)


def _make(item: _Item) -> _Made:
    try:
        evidence = Evidence.of(item.scenario.run(), stretches=item.stretches)
    except (ValueError, OSError) as error:
        return _Made(b"", one_line(error))
    except Exception as error:  # one broken run must not cost the others
        return _Made(b"", f"{type(error).__name__}: {error}", broken=True)
    return _Made(evidence.to_bytes())


def _died(_: _Item) -> _Made:
    return _Made(b"", "the process that ran it was killed, twice", broken=True)
