"""Start here: build the world, run it, return what happened.

`simulate` makes the clients, the door and one `Replica` per server on a SimPy clock of whole
picoseconds, runs until everybody is done (or to the horizon), checks the laws, and returns
`Records`. The loop itself is `Replica.run`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

import simpy

from calibration.step_time import Executor, StepTime
from policies.base import Policy
from policies.routing import ROUTERS, Router
from simulator.checks import check
from simulator.clients import Clients
from simulator.clock import Clock, Wake
from simulator.door import Door
from simulator.engine import Engine
from simulator.leap import FOREVER
from simulator.recorder import Outside, RequestLog, collect
from simulator.replica import Replica
from simulator.sequence import Sequence
from traces.records import Records
from traces.seeds import stream
from traces.trace import Trace

Progress = Callable[[int, int], None]
"""Called now and then with (requests ended, requests in the trace)."""


def simulate(
    trace: Trace,
    policy: Policy,
    engine: Engine,
    executor: Executor,
    *,
    seed: int = 0,
    horizon: int | None = None,
    leap: bool = True,
    replicas: int = 1,
    router: str = "least-outstanding",
    outside: Outside | None = None,
    about: dict[str, Any] | None = None,
    on_progress: Progress | None = None,
) -> Records:
    """Serve `trace` and return the records.

    `horizon` (ps) cuts the run: a step that would end later is not taken. `leap` off asks the
    policy at every step; the records are the same, byte for byte. Raises ValueError for
    settings that can never work, `LawBroken` if the policy breaks the rules.
    """
    env = Clock()
    clients = Clients(trace)
    door = Door(engine, policy)
    log = RequestLog()
    end = FOREVER if horizon is None else horizon

    def left(seq: Sequence, replica: int, reason: str) -> None:
        log.left(seq, replica, env.now, reason)
        if clients.ended(seq.index, env.now):
            world.wake()
        if on_progress is not None and len(log) % 512 == 0:
            on_progress(len(log), len(trace))

    servers = [
        Replica(
            env, index, engine, policy, executor, clients, door.max_model_len,
            stream(seed, "victims", str(index)), left,
            leap=leap, solo=replicas == 1, horizon=end,
        )
        for index in range(replicas)
    ]  # fmt: skip
    world = World(env, clients, door, servers, ROUTERS[router], left, end)
    world.start()
    env.run()
    for server in servers:
        for seq in [*server.step.running, *server.step.queue]:
            if seq.group is not None:
                seq.group.leave(seq)
            seq.peak = max(seq.peak, len(seq.table))
            log.left(seq, server.index, -1, "")
    prices: StepTime | None = getattr(executor, "step_time", None)
    facts = {
        "policy": type(policy).__name__,
        "seed": seed,
        "replicas": replicas,
        "blocks": engine.blocks,
        "block_size": engine.block_size,
        "max_running": engine.max_running,
        "token_budget": policy.token_budget,
        "horizon_s": None if horizon is None else horizon / 10**12,
        "notes": list(trace.notes),
    }
    records = collect(
        log,
        [server.log for server in servers],
        [server.step for server in servers],
        (prices.t0, prices.tS, prices.tB) if prices else (0, 0, 0),
        outside,
        facts | (about or {}),
    )
    check(
        records,
        [server.step for server in servers],
        sent=world.sent,
        complete=horizon is None,
    )
    return records


class World:
    """The process that sends requests through the door to the replicas."""

    def __init__(
        self,
        env: Clock,
        clients: Clients,
        door: Door,
        replicas: list[Replica],
        router: Router,
        left: Callable[[Sequence, int, str], None],
        horizon: int,
    ) -> None:
        self.env = env
        self.sent = 0
        self._clients = clients
        self._door = door
        self._replicas = replicas
        self._router = router
        self._left = left
        self._horizon = horizon
        self._process: simpy.Process | None = None
        self._waiting = False

    def start(self) -> None:
        """Register the processes: clients first, then replicas by index."""
        self._process = self.env.process(self._send())
        for replica in self._replicas:
            replica.process = self.env.process(replica.run())

    def wake(self) -> None:
        """A request became due that nobody knew of."""
        if self._waiting and self._process is not None:
            self._waiting = False
            self._process.interrupt()

    def _send(self) -> Generator[simpy.Event, Any, None]:
        env, clients = self.env, self._clients
        while True:
            now = env.now
            while (request := clients.take(now)) is not None:
                self.sent += 1
                seq, refusal = self._door.enter(request)
                if refusal:
                    self._left(seq, -1, refusal)
                    continue
                at = 0
                if len(self._replicas) > 1:
                    at = self._router(request, self._replicas)
                self._replicas[at].deliver(seq, now)
            if not clients.more:
                for replica in self._replicas:
                    replica.interrupt()
                return
            upcoming = clients.next
            if upcoming is None:
                upcoming = FOREVER
            if upcoming > self._horizon:
                if clients.next is not None or env.now > self._horizon:
                    return
                upcoming = self._horizon + 1
            self._waiting = True
            try:
                yield Wake(env, upcoming - now, 1)
            except simpy.Interrupt:
                continue
            self._waiting = False
