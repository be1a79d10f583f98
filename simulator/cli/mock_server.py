"""`batchlab mock-server`: the simulator in real time behind an OpenAI endpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from simulator.cli.options import count_option
from simulator.cli.printing import note


def mock_server(
    scenario: Annotated[
        Path | None, typer.Argument(help="A TOML file: engine, policy, door, fleet.")
    ] = None,
    profile: Annotated[str | None, typer.Option(help="Cost curve by name, or a file.")] = None,
    policy: Annotated[
        str | None, typer.Option(help="By name (batchlab policy list), or mine.py:Mine.")
    ] = None,
    token_budget: Annotated[int | None, count_option(help="Tokens a step at most.")] = None,
    block_size: Annotated[int | None, count_option(help="Tokens a KV block.")] = None,
    replicas: Annotated[int | None, count_option(help="Engines behind the router.")] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Any key: engine.kv_tokens=100000."),
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 = any that is free.")] = 8000,
    model: Annotated[str, typer.Option(help="The name that clients ask for.")] = "mock",
    api_key: Annotated[str, typer.Option(help="What clients must send as their key.")] = "",
    output: Annotated[
        int, count_option(least=1, help="Tokens of an answer where no maximum is asked for.")
    ] = 256,
    misbehave: Annotated[
        list[str] | None,
        typer.Option(help="Such as 503=3 (every third request), chunk=2, truncate; repeat it."),
    ] = None,
) -> None:
    """Serve an OpenAI endpoint whose answers take as long as the engine's would.

    Same loop, policies and pool as `simulate`, in real time: /v1/completions,
    /v1/chat/completions (streaming), /v1/models, /tokenize, and /metrics in vLLM's names. It says
    so when it falls behind. Ctrl-C ends it.
    """
    from simulator.faults import Faults
    from simulator.scenario import Scenario, parse_set
    from simulator.serve import Settings, serve

    faults = Faults.parse(misbehave or ())
    given = {
        "engine.profile": profile,
        "policy.kind": policy,
        "policy.token_budget": token_budget,
        "engine.block_size": block_size,
        "fleet.replicas": replicas,
    }
    values = {key: value for key, value in given.items() if value is not None}
    base = Scenario.load(scenario) if scenario else Scenario()
    serve(
        base.with_values(values | dict(parse_set(text) for text in set_ or ())),
        Settings(model=model, key=api_key, output=output, faults=faults),
        host=host,
        port=port,
        say=note,
    )
