"""Every policy keeps the contract, and the suite catches those that do not, each by its law."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import pytest

from calibration.step_time import Predicted
from policies import (
    POLICIES,
    Chunked,
    Continuous,
    FairShare,
    FastLane,
    Policy,
    Stable,
    Static,
    Step,
    View,
    admit_in_order,
    feed_or_evict,
)
from policies.order import ORDERS
from policies.settings import Settings
from policies.victims import VICTIMS
from simulator.cli import run
from simulator.contract import cases, check_policy
from simulator.run import simulate

OPTIONS: list[Policy] = [
    *(Chunked(order=order, token_budget=64) for order in ORDERS),
    *(Chunked(victim=victim) for victim in VICTIMS),
    Chunked(order="priority", victim="priority", aging=5.0),
    Chunked(token_budget=1),
    Chunked(token_budget=6, reentry="tail"),
    Chunked(token_budget=64, long_prefill=16, adaptive=True),
    Chunked(token_budget=400, chunks=False),
    Chunked(token_budget=64, partials=1, skips=3),
    Chunked(check_first=True, cooldown=2),
    Chunked(token_budget=64, patience=0.5, reentry="tail"),
    Continuous(victim="most-blocks", reentry="tail"),
    Static(batch=3, timeout=0.0),
    Static(batch=9, timeout=30.0, order="longest-wait"),
    FastLane(token_budget=64, fast_prompt=20, share=0.1),
    FastLane(fast_prompt=60, fast_output=50, share=0.8),
    FairShare(token_budget=64, victim="random", reentry="tail"),
]


def said(policy: Policy) -> str:
    """The policy and the settings that are not its defaults."""
    changed = {
        f.name: getattr(policy, f.name)
        for f in dataclasses.fields(policy)  # type: ignore[arg-type]
        if getattr(policy, f.name) != f.default
    }
    return f"{type(policy).__name__} {changed or ''}".strip()


@pytest.mark.parametrize("name", POLICIES)
def test_every_registered_policy_keeps_the_contract(name: str) -> None:
    assert check_policy(POLICIES[name]()) == []


@pytest.mark.parametrize("policy", OPTIONS, ids=said)
def test_and_under_every_option(policy: Policy) -> None:
    assert check_policy(policy) == []


def test_the_scenarios_are_worth_trying() -> None:
    """They preempt, share, refuse for memory, cut outputs and queue."""
    policy = Chunked(token_budget=64)
    seen = {}
    for case in cases(policy):
        records = simulate(case.trace, policy, case.engine, Predicted(case.step_time))
        seen[case.name] = records.requests
    assert seen["tight memory"]["preemptions"].sum() > 3
    assert seen["tight memory, no gate"]["preemptions"].sum() > 3
    assert seen["shared prefixes"][["hit", "resumed_hit"]].gt(0).any().all()
    assert seen["all at once"]["wait_reserve"].sum() > 0
    assert seen["one seat"]["wait_seats"].sum() > 0
    assert "length" in set(seen["limits"]["reason"])


@pytest.mark.parametrize(
    "policy",
    [
        Chunked(order="priority"),
        Chunked(order="shortest-prompt"),
        Chunked(patience=0.01, reentry="tail", token_budget=48),
        FastLane(fast_prompt=20),
    ],
    ids=said,
)
def test_an_option_without_a_bound_says_so(policy: Policy, monkeypatch: pytest.MonkeyPatch) -> None:
    """Were they silent about it, the suite would catch them."""
    assert policy.starves  # type: ignore[attr-defined]
    monkeypatch.setattr(type(policy), "starves", "")
    assert {finding.law for finding in check_policy(policy)} == {"end"}


# Policies that break one law each


@dataclass(frozen=True, kw_only=True)
class Right(Settings):
    """The base of those below: nothing wrong with it."""

    def schedule(self, step: Step) -> Stable | None:
        feed_or_evict(step, self.evict)
        admit_in_order(step)
        return Stable()


class Idle(Right):
    """Schedules nobody."""

    def schedule(self, step: Step) -> Stable | None:
        return None


class Later(Right):
    """Schedules nobody and wants to be asked again, for ever."""

    def schedule(self, step: Step) -> Stable | None:
        return Stable(until=step.now + 1)


class Now(Right):
    """Schedules nobody and wants to be asked again at this very moment."""

    def schedule(self, step: Step) -> Stable | None:
        return Stable(until=step.now)


class Sisyphus(Right):
    """Preempts whom it has just admitted."""

    def schedule(self, step: Step) -> Stable | None:
        admit_in_order(step)
        while step.running:
            step.preempt(step.running[-1])
        return Stable()


class Thrash(Right):
    """Preempts everybody at every second step: no prompt is ever done."""

    def schedule(self, step: Step) -> Stable | None:
        while step.number % 2 and step.running:
            step.preempt(step.running[-1])
        feed_or_evict(step, self.evict, most=1)
        admit_in_order(step, most=1)
        return Stable()


class FeedsTwice(Right):
    def schedule(self, step: Step) -> Stable | None:
        feed_or_evict(step, self.evict)
        for seq in step.running:
            step.feed(seq, 1)
        admit_in_order(step)
        return Stable()


class FeedsTheWaiting(Right):
    def schedule(self, step: Step) -> Stable | None:
        for seq in step.waiting():
            step.feed(seq, 1)
        return Stable()


class AdmitsTwice(Right):
    def schedule(self, step: Step) -> Stable | None:
        feed_or_evict(step, self.evict)
        for seq in [*step.waiting(), *step.running]:
            step.admit(seq)
        return Stable()


class PreemptsTheWaiting(Right):
    def schedule(self, step: Step) -> Stable | None:
        step.preempt(step.waiting()[0])
        return Stable()


class Raises(Right):
    def schedule(self, step: Step) -> Stable | None:
        raise KeyError("victim")


class RaisesInKey(Right):
    def queue_key(self, seq: View) -> tuple[int, ...] | None:
        raise IndexError("no such level")


class ReturnsTrue(Right):
    def schedule(self, step: Step) -> Stable | None:
        super().schedule(step)
        return True  # type: ignore[return-value]


class OverBudget(Right):
    """Raises its own budget in mid-step."""

    def schedule(self, step: Step) -> Stable | None:
        feed_or_evict(step, self.evict)
        step.tokens_left += 10_000  # type: ignore[misc]
        admit_in_order(step)
        return Stable()


class Drops(Right):
    """Makes the second in the queue disappear."""

    def schedule(self, step: Step) -> Stable | None:
        queue = step.waiting()
        if len(queue) > 1:
            queue.remove(queue[1])  # type: ignore[attr-defined]
        return super().schedule(step)


class Hoards(Right):
    """Takes blocks for itself."""

    def schedule(self, step: Step) -> Stable | None:
        if step.free_blocks > 50:
            step.pool.take(1)  # type: ignore[attr-defined]
        return super().schedule(step)


class Clairvoyant(Right):
    """Shortest true output first."""

    def queue_key(self, seq: View) -> tuple[int, ...] | None:
        return (seq.output,)  # type: ignore[attr-defined]


class ClairvoyantLane(Right):
    """Serves first what will be short."""

    def lane(self, request) -> str:
        return "short" if request.output < 20 else "long"

    def schedule(self, step: Step) -> Stable | None:
        feed_or_evict(step, self.evict)
        for lane in ("short", "long"):
            admit_in_order(step, lane=lane)
        return Stable()


class Fickle(Right):
    """Says that it is stable, and admits at every seventh step only."""

    def schedule(self, step: Step) -> Stable | None:
        feed_or_evict(step, self.evict)
        if step.number % 7 == 0 or not step.running:
            admit_in_order(step)
        return Stable()


class Moody(Right):
    """Orders the queue by what changes while sequences wait in it."""

    def queue_key(self, seq: View) -> tuple[int, ...] | None:
        return (-seq.passed_over, seq.index)

    def schedule(self, step: Step) -> Stable | None:
        feed_or_evict(step, self.evict)
        for seq in reversed([*step.waiting()]):
            step.admit(seq)
        return Stable()


class Lifo(Right):
    """Last come, first served, and says nothing of it."""

    def queue_key(self, seq: View) -> tuple[int, ...] | None:
        return (-seq.index,)


class Remembers(Right):
    """Counts in a variable of the class how often it was asked."""

    asked: ClassVar[list[int]] = []

    def schedule(self, step: Step) -> Stable | None:
        self.asked.append(step.now)
        feed_or_evict(step, self.evict)
        admit_in_order(step, most=1 + len(self.asked) % 5)
        return None


@dataclass(frozen=True, kw_only=True)
class KeepsNotes(Right):
    """Frozen, but for a list."""

    notes: list[int] = field(default_factory=list)

    def schedule(self, step: Step) -> Stable | None:
        self.notes.append(step.now)
        return super().schedule(step)


@dataclass
class Thawed:
    token_budget: int = 8


@pytest.mark.parametrize(
    ("wrong", "law", "words"),
    [
        (Idle(), "advance", "nobody is fed with 0 running and"),
        (Now(), "advance", "which is not later"),
        (Sisyphus(), "advance", "it preempts and feeds nobody"),
        (Later(), "end", "it has not served everybody"),
        (Thrash(), "end", "it has not served everybody"),
        (Lifo(), "end", "later ones keep coming"),
        (FeedsTwice(), "rules", "is fed twice in one step"),
        (FeedsTheWaiting(), "rules", "is fed, but does not run"),
        (AdmitsTwice(), "rules", "is admitted, but runs already"),
        (PreemptsTheWaiting(), "rules", "is preempted, but does not run"),
        (Raises(), "rules", "it raised KeyError: 'victim'"),
        (RaisesInKey(), "rules", "it raised IndexError: no such level"),
        (ReturnsTrue(), "rules", "it returned True; expected a Stable, or None"),
        (OverBudget(token_budget=30), "conservation", "the token budget is kept"),
        (Drops(), "conservation", "each request ends exactly once"),
        (Hoards(), "conservation", "a block is lost"),
        (Clairvoyant(), "blindness", "output lengths"),
        (ClairvoyantLane(), "blindness", "output lengths"),
        (Fickle(), "leap", "leaping over equal steps"),
        (Moody(), "key", "must not change while a sequence waits"),
        (Remembers(), "determinism", "a second run differs"),
        (KeepsNotes(), "frozen", "running changed its settings"),
        (Thawed(), "frozen", "expected a frozen dataclass"),
    ],
    ids=lambda value: type(value).__name__ if dataclasses.is_dataclass(value) else "",
)
def test_who_breaks_a_law_is_caught_by_its_name(wrong: Policy, law: str, words: str) -> None:
    findings = check_policy(wrong)
    assert law in {finding.law for finding in findings}
    assert any(words in str(finding) for finding in findings)


def test_the_base_of_the_wrong_ones_is_right() -> None:
    assert check_policy(Right()) == []


GREEDY = """
from dataclasses import dataclass
from policies.settings import Settings

@dataclass(frozen=True, kw_only=True)
class Greedy(Settings):
    patience: int = 3

    def schedule(self, step):
        for seq in step.running:
            for _ in range(self.patience):
                step.feed(seq, 1)
        for seq in step.waiting():
            step.admit(seq)
"""


@pytest.fixture
def greedy(tmp_path: Path) -> str:
    """A policy in a file that feeds whom it has fed."""
    (tmp_path / "mine.py").write_text(GREEDY)
    return f"{tmp_path}/mine.py:Greedy"


def test_the_command_names_the_law_and_fails(
    greedy: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(["policy", "check", greedy]) == 1
    out, err = capfd.readouterr()
    assert out.startswith("rules, scenario ample memory: policy Greedy, step 3 at ")
    assert "request 0 is fed twice in one step" in out
    assert "breaks 1 of the laws" in err
    assert run(["policy", "check", "chunked:token_budget=64"]) == 0


def test_a_run_is_stopped_with_one_line(greedy: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["simulate", "--preset", "chat", "--limit", "20", "--policy", greedy]) == 1
    out, err = capfd.readouterr()
    assert out == ""
    (line,) = [line for line in err.splitlines() if line.startswith("batchlab: ")]
    assert line.startswith("batchlab: policy Greedy, step 3 at ")
    assert line.endswith("request 0 is fed twice in one step")


def test_what_is_checked_can_be_read_by_a_program(
    greedy: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(["policy", "check", greedy, "--format", "json"]) == 1
    findings = json.loads(capfd.readouterr().out)
    assert {finding["law"] for finding in findings} == {"rules"}
    assert run(["policy", "check", "static", "--format", "json"]) == 0
    assert json.loads(capfd.readouterr().out) == []


def test_a_policy_that_is_not_there_is_wrong_input(capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["policy", "check", "./nothing.py:Mine"]) == 2
    assert run(["policy", "check", "static:batch=0"]) == 2
    assert "Traceback" not in capfd.readouterr().err
