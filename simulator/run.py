"""Start here: build the world, run it, return what happened.

`simulate` makes the clients, the door and one `Replica` per server on a SimPy clock of whole
picoseconds, runs until everybody is done (or to the horizon), checks the laws, and returns
`Records`. What happens outside the replicas is in `World`; the loop itself is `Replica.run`.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from calibration.step_time import Executor, Predicted
from policies.base import Policy
from simulator.checks import check
from simulator.clients import Clients, RetrySettings
from simulator.clock import Clock
from simulator.door import Door, DoorSettings
from simulator.engine import Engine
from simulator.fleet import Fleet, FleetSettings
from simulator.identity import shared_by_most
from simulator.leap import FOREVER
from simulator.recorder import Progress, RequestLog, collect
from simulator.replica import Replica
from simulator.window import Outside
from simulator.world import World
from traces.records import Records
from traces.seeds import stream
from traces.trace import PS_PER_S, Trace

if TYPE_CHECKING:
    from simulator.stream import RecordsWriter


@contextmanager
def _rarely_collecting() -> Iterator[None]:
    """Python looks for cyclic garbage less often: a run makes none, and pays a tenth for it."""
    usual = gc.get_threshold()
    gc.set_threshold(50_000, *usual[1:])
    try:
        yield
    finally:
        gc.set_threshold(*usual)


def _with_swap(executor: Executor, engine: Engine) -> Executor:
    """Swapping costs what the engine's bandwidth says, where the profile does not know."""
    if not engine.swap_tokens:
        return executor
    if not isinstance(executor, Predicted):
        raise ValueError(
            f"engine.swap_tokens = {engine.swap_tokens}: really executed steps do not swap; "
            'expected executor.kind = "predicted"'
        )
    prices = executor.step_time
    if prices.tM:
        return executor
    return Predicted(replace(prices, tM=round(PS_PER_S / engine.swap_bandwidth)))


def simulate(
    trace: Trace,
    policy: Policy,
    engine: Engine,
    executor: Executor,
    *,
    seed: int = 0,
    horizon: int | None = None,
    leap: bool = True,
    door: DoorSettings | None = None,
    retry: RetrySettings | None = None,
    fleet: FleetSettings | None = None,
    outside: Outside | None = None,
    about: dict[str, Any] | None = None,
    on_progress: Progress | None = None,
    writer: RecordsWriter | None = None,
) -> Records:
    """Serve `trace` and return the records.

    `horizon` (ps) cuts the run: a step that would end later is not taken. `leap` off asks the
    policy at every step; the records are the same, byte for byte. A `writer` gets them while the
    run goes on; who made it closes it. Raises ValueError for settings that can never work,
    `LawBroken` if the policy breaks the rules, OSError where the `writer` cannot write.
    """
    door, retry, fleet = door or DoorSettings(), retry or RetrySettings(), fleet or FleetSettings()
    door.check()
    retry.check(door, fleet)
    fleet.check(door)
    executor = _with_swap(executor, engine)
    if engine.contiguous and not getattr(policy, "reserves", False):
        raise ValueError(
            "engine.contiguous = true contradicts a policy that grows block by block: expected "
            'policy.reserve_max = true, or policy.kind = "static"'
        )
    env = Clock()
    clients = Clients(trace, retry, seed)
    tokens, size = engine.pinned_tokens, engine.block_size
    pinned = shared_by_most(trace, tokens, size) if tokens else ()
    entrance = Door(engine, policy, door, pinned)
    log = RequestLog(trace, engine.block_size, on_progress)
    end = FOREVER if horizon is None else horizon
    world = World(env, clients, entrance, log.left, end, log)
    servers = [
        Replica(
            env, index, engine, policy, executor, world, entrance.max_model_len,
            stream(seed, "victims", str(index)), world.left,
            leap=leap, solo=fleet.most == 1, horizon=end,
        )
        for index in range(fleet.most)
    ]  # fmt: skip
    logs, steps = [server.log for server in servers], [server.step for server in servers]
    prices = executor.step_time if isinstance(executor, Predicted) else None
    if writer is not None:
        writer.follow(log, logs, steps, outside, prices)
    for server in servers:
        server.step.pool.pin(pinned)
    world.start(Fleet(fleet, door, servers, stream(seed, "router")))
    with _rarely_collecting():
        env.run()
    for server in servers:
        for seq in [*server.step.running, *server.step.queue]:
            if seq.group is not None:
                seq.table += server.step.pool.redeem(seq.group.leave(seq))
            seq.peak = max(seq.peak, len(seq.table))
            log.left(seq, server.index, -1, "")
    for seq in world.unfinished():
        log.left(seq, -1, -1, "")
    if writer is not None:
        writer.complete()
    facts = {
        "policy": type(policy).__name__,
        "seed": seed,
        "replicas": fleet.most,
        "blocks": engine.blocks,
        "block_size": engine.block_size,
        "max_running": engine.max_running,
        "token_budget": policy.token_budget,
        "horizon_s": None if horizon is None else horizon / 10**12,
        "notes": [*trace.notes, *world.notes],
    }
    records = collect(log, logs, steps, outside, prices, facts | (about or {}))
    check(records, steps, sent=world.sent, complete=horizon is None)
    if writer is not None:
        writer.finish(records.about)
    return records
