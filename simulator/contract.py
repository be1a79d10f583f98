"""The contract suite: what must hold of every policy, tried in seeded scenarios.

`check_policy` serves small loads in a few seconds, each in several ways, and says which laws the
policy broke:

  frozen        it is a frozen dataclass of settings, and running leaves it unchanged
  rules         the verbs are used as `policies.base` says, and it raises nothing
  conservation  requests, tokens, blocks and time are conserved; budget and seats are kept
  advance       somebody advances in every step
  key           the key that orders the queue is fixed while a sequence waits
  end           every request ends; nobody waits for ever while others keep coming, unless the
                policy says who may in `starves` (a text; "" or none: nobody)
  determinism   the same load and seed give the same records, in whatever order runs are made
  leap          leaping over equal steps changes nothing
  blindness     output lengths that nobody can know yet change nothing

A policy without a `Stable` passes as well: it is merely asked at every step.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from calibration.step_time import Predicted, StepTime
from policies.base import Policy, Stable, Step, View
from simulator.checks import LawBroken
from simulator.engine import Engine
from simulator.fleet import FleetSettings
from simulator.run import simulate
from traces.records import Records
from traces.seeds import stream
from traces.trace import PS_PER_S, Request, Segment, Trace

MS = PS_PER_S // 1000
STEPS = StepTime(t0=8 * MS, tS=MS // 20, tB=MS // 1000, pP=MS // 100, decode=(0, MS // 50, 900))
OUTPUTS = 40
"""Tokens of an output at most; prompts are up to ten times as long."""
DECLARED = 60
"""Output tokens that a client declares at most."""


WORDS = {
    "advance": "somebody must advance",
    "conservation": ": after the run: ",
    "end": "a request must end",
    "key": "must not change while a sequence waits",
}
"""Laws by words of the messages that say so."""


@dataclass(frozen=True)
class Finding:
    """One law broken in one scenario."""

    law: str
    scenario: str
    says: str

    def __str__(self) -> str:
        return f"{self.law}, scenario {self.scenario}: {self.says}"


@dataclass(frozen=True, kw_only=True)
class Case:
    """A load and a server to try a policy on."""

    name: str
    trace: Trace
    engine: Engine
    step_time: StepTime = STEPS
    replicas: int = 1
    patient: int = 0
    """So many of the first requests must end before the last one arrives."""


def check_policy(
    policy: Policy, *, seed: int = 0, on_case: Callable[[float], None] | None = None
) -> list[Finding]:
    """The laws that `policy` breaks, at most one a scenario; [] if it keeps them all.

    `on_case` is called with the share of scenarios done.
    """
    findings = list(_unfrozen(policy))
    if findings:
        return findings
    before = copy.deepcopy(vars(policy))
    chosen = cases(policy, seed)
    for done, case in enumerate(chosen, 1):
        findings += _try(policy, case)
        if on_case is not None:
            on_case(done / len(chosen))
    if vars(policy) != before:
        findings.append(Finding("frozen", "all", "running changed its settings"))
    return findings


def cases(policy: Policy, seed: int = 0) -> list[Case]:
    """The scenarios, of lengths that fit the policy's token budget."""
    longest = min(policy.token_budget, 10 * OUTPUTS)
    one = longest + DECLARED
    seats = min(6, policy.token_budget)

    def engine(pool: float, block_size: int = 16, **more: Any) -> Engine:
        tokens = max(int(pool * one), one + block_size)
        return Engine(
            **{"kv_tokens": tokens, "block_size": block_size, "max_running": seats} | more
        )

    def load(name: str, rate: float = 40.0, **how: Any) -> Trace:
        return _load(stream(seed, "contract", name), longest, rate, **how)

    ample, burst = load("ample"), load("burst", rate=float("inf"))
    return [
        Case(name="ample memory", trace=ample, engine=engine(100)),
        Case(name="tight memory", trace=load("tight"), engine=engine(1.1, 1)),
        Case(name="tight memory, no gate", trace=burst, engine=engine(1.2, 7, gate=False)),
        Case(name="all at once", trace=burst, engine=engine(1.6, 16, reserve=0.2)),
        Case(name="one seat", trace=ample, engine=engine(2, max_running=1)),
        Case(name="large blocks", trace=load("blocks"), engine=engine(4, 128)),
        Case(
            name="limits",
            trace=load("limits"),
            engine=engine(3, max_model_len=longest + OUTPUTS // 4, output_cap=OUTPUTS // 2),
        ),
        Case(
            name="shared prefixes",
            trace=load("shared", shared=True),
            engine=engine(1.5, 4, prefix_cache=True),
        ),
        Case(name="closed loop", trace=load("closed", follow=True), engine=engine(2)),
        Case(name="three replicas", trace=burst, engine=engine(1.5, 4), replicas=3),
        *_pressed(policy, longest, engine),
    ]


def _load(
    random: np.random.Generator,
    longest: int,
    rate: float,
    *,
    requests: int = 24,
    shared: bool = False,
    follow: bool = False,
) -> Trace:
    gaps = random.exponential(1 / rate, requests) if rate < float("inf") else np.zeros(requests)
    arrival = (np.cumsum(gaps) * PS_PER_S).astype(np.int64)
    prompt = np.minimum(1 + random.geometric(1 / (1 + longest / 4), requests), longest)
    output = random.integers(1, OUTPUTS + 1, requests)
    columns: dict[str, Any] = {}
    if shared:
        streams = random.integers(0, 3, requests).tolist()
        columns["content"] = [
            (Segment(which, 0, 1 + tokens // 2),)
            for which, tokens in zip(streams, prompt.tolist(), strict=True)
        ]
    if follow:
        rows = np.arange(requests)
        columns["after"] = np.where((rows >= 8) & (rows % 3 > 0), rows - 8, -1)
        arrival = np.where(
            columns["after"] >= 0, random.integers(0, 3, requests) * 100 * MS, arrival
        )
    return Trace.of(
        arrival=arrival,
        prompt=prompt,
        output=output,
        declared=random.integers(OUTPUTS + 1, DECLARED + 1, requests),
        priority=random.integers(0, 3, requests),
        tenant=random.integers(0, 3, requests),
        tenants=("one", "two", "three"),
        **columns,
    )


def _pressed(policy: Policy, longest: int, engine: Callable[..., Engine]) -> Iterator[Case]:
    """A stream that is a third more than can be served, with one request unlike the others."""
    if getattr(policy, "starves", ""):
        return
    # A policy that weighs seconds must have time to: the stream is long against its `aging`.
    step = int((1 + getattr(policy, "aging", 0.0)) * PS_PER_S)
    rows, odd = 160, 8
    small = max(longest // 20, 1)
    # Each takes 4 steps of one of 3 seats, or more where the token budget is the limit.
    gap = step * max(1, -(-3 * (small + 3) // (4 * policy.token_budget)))
    neutral = {"prompt": small, "output": 4, "declared": 8, "priority": 0, "tenant": 0}
    oddities: dict[str, dict[str, int]] = {
        "the least urgent": {"priority": 3},
        "the longest prompt": {"prompt": longest},
        "another tenant": {"tenant": 1},
        "the largest declared output": {"declared": OUTPUTS},
        "the longest output": {"declared": OUTPUTS, "output": OUTPUTS},
    }
    for name, facts in oddities.items():
        columns = {key: np.full(rows, value) for key, value in neutral.items()}
        for key, value in facts.items():
            columns[key][odd] = value
        yield Case(
            name=f"pressed, {name}",
            trace=Trace.of(
                arrival=np.arange(rows) * gap,
                **columns,
                tenants=("one", "two"),
            ),
            engine=engine(1.2, 4, max_running=min(3, policy.token_budget)),
            step_time=StepTime.constant(step),
            patient=rows // 4,
        )


def _unfrozen(policy: Policy) -> Iterator[Finding]:
    parameters = getattr(policy, "__dataclass_params__", None)
    if not dataclasses.is_dataclass(policy) or parameters is None or not parameters.frozen:
        yield Finding("frozen", "none", "expected a frozen dataclass of settings")
        return
    budget = policy.token_budget
    if not isinstance(budget, int) or budget < 1:
        yield Finding("rules", "none", f"token_budget = {budget!r}: expected a whole number ≥ 1")


def _try(policy: Policy, case: Case) -> list[Finding]:
    """The first law that the policy breaks in this scenario."""
    try:
        first = _run(policy, case)
        _same(first, _run(policy, case), "determinism", "a second run differs from the first")
        leapt = _run(policy, case, leap=True)
        _same(first, leapt, "leap", "leaping over equal steps differs from asking at each")
        if case.patient:
            _patient(first, case)
        else:
            mirrored = replace(case.trace, output=OUTPUTS + 1 - case.trace.output)
            _blind(first, _run(policy, replace(case, trace=mirrored)))
    except _Broken as broken:
        return [Finding(broken.law, case.name, str(broken))]
    except LawBroken as broken:
        return [Finding(_law(str(broken)), case.name, str(broken))]
    except Exception as error:  # what a policy's `lane` or `queue_key` raised
        return [Finding("rules", case.name, f"it raised {type(error).__name__}: {error}")]
    return []


class _Broken(LawBroken):
    def __init__(self, law: str, says: str) -> None:
        super().__init__(says)
        self.law = law


def _law(message: str) -> str:
    return next((law for law, words in WORDS.items() if words in message), "rules")


def _run(policy: Policy, case: Case, leap: bool = False) -> Records:
    tokens = int((case.trace.prompt + case.trace.output).sum())
    # One token a step is the slowest advance there is; recomputation may double the work.
    watched = _watched(policy, most=2 * tokens + 1000)
    return simulate(
        case.trace,
        watched,
        case.engine,
        Predicted(case.step_time),
        leap=leap,
        fleet=FleetSettings(replicas=case.replicas),
    )


def _watched(policy: Policy, most: int) -> Policy:
    """The policy under its own name, asked at most `most` times, its keys remembered."""

    class Watched:
        def __init__(self) -> None:
            self.asked = 0
            self.keys: dict[tuple[int, int], tuple[int, ...] | None] = {}
            self.reentry = getattr(policy, "reentry", "head")

        @property
        def token_budget(self) -> int:
            return policy.token_budget

        def lane(self, request: Request) -> str:
            return policy.lane(request)

        def queue_key(self, seq: View) -> tuple[int, ...] | None:
            key = policy.queue_key(seq)
            stay = seq.index, seq.preemptions
            if self.keys.setdefault(stay, key) != key:
                raise _Broken(
                    "key",
                    f"the queue_key of request {seq.index} was {self.keys[stay]} and is {key}; it "
                    "must not change while a sequence waits",
                )
            return key

        def schedule(self, step: Step) -> Stable | None:
            self.asked += 1
            if self.asked > most:
                raise _Broken(
                    "end", f"asked {most} times, it has not served everybody; a request must end"
                )
            return policy.schedule(step)

    Watched.__name__ = type(policy).__name__
    return Watched()


def _frames(records: Records) -> Iterator[tuple[str, pd.DataFrame]]:
    for name in ("requests", "steps", "spells", "stalls"):
        frame = getattr(records, name)
        if name == "requests":
            frame = frame.sort_values("request")
        elif name != "steps":
            frame = frame.sort_values(list(frame.columns))
        yield name, frame.reset_index(drop=True)


def _same(one: Records, other: Records, law: str, says: str) -> None:
    for (name, left), (_, right) in zip(_frames(one), _frames(other), strict=True):
        if left.equals(right):
            continue
        if len(left) != len(right):
            raise _Broken(law, f"{says}: {len(left)} {name} against {len(right)}")
        differ = [c for c in left if not left[c].equals(right[c])]
        at = int((left[differ[0]].astype(str) != right[differ[0]].astype(str)).to_numpy().argmax())
        row = f"request {left['request'][at]}" if "request" in left else f"step {at}"
        raise _Broken(law, f"{says}, first in {differ[0]} of {row}")


def _blind(one: Records, other: Records) -> None:
    """Until somebody ends, runs of equal prompts and declared maxima are equal."""
    known = ["start", "prefill_tokens", "decodes", "running", "waiting", "admitted", "preempted"]
    for replica in np.unique(one.steps["replica"]):
        left, right = (r.steps[r.steps["replica"] == replica] for r in (one, other))
        ends = [frame["finished"].to_numpy().nonzero()[0] for frame in (left, right)]
        until = min((int(rows[0]) + 1 for rows in ends if len(rows)), default=len(left))
        if (
            not left[known][:until]
            .reset_index(drop=True)
            .equals(right[known][:until].reset_index(drop=True))
        ):
            raise _Broken(
                "blindness",
                "it decides otherwise where only output lengths differ that nobody can know yet",
            )
    until = min(int(run.requests["finished"].min()) for run in (one, other))
    first = [r.requests.sort_values("request")["first_scheduled"].to_numpy() for r in (one, other)]
    early = (first[0] >= 0) & (first[0] < until)
    if len(first[0]) != len(first[1]) or (first[0] != first[1])[early].any():
        raise _Broken(
            "blindness",
            "it picks others where only output lengths differ that nobody can know yet",
        )


def _patient(records: Records, case: Case) -> None:
    early = records.requests[records.requests["request"] < case.patient]
    late = early[early["finished"] > case.trace.arrival[-1]]
    if len(late):
        raise _Broken(
            "end",
            f"request {late['request'].min()} waits as long as later ones keep coming; if that is "
            "meant, say who may wait for ever in a text property `starves`",
        )
