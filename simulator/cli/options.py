"""The flags that describe a scenario, shared by every command that runs one."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .printing import Format

if TYPE_CHECKING:
    from simulator.scenario import Scenario

LOAD = "Load"
ENGINE = "Engine and policy"

FormatOption = Annotated[Format, typer.Option("--format", help="How results are printed.")]
MetricsOption = Annotated[
    str, typer.Option("--metrics", help="Definitions of batchlab, vllm, aiperf or guidellm.")
]


def count_option(*names: str, least: int | None = None, **more: Any) -> Any:
    """An option that takes a whole number, also written as 1e6."""
    bound = "" if least is None else f" of at least {least}"

    def parse(text: Any) -> int:
        whole = _whole(text)
        if whole is None or (least is not None and whole < least):
            raise typer.BadParameter(f"{text}, expected a whole number{bound}, such as 8 or 1e3")
        return whole

    return typer.Option(*names, parser=parse, metavar="<int>", **more)


def _whole(text: Any) -> int | None:
    with suppress(ValueError):
        return int(text)
    with suppress(ValueError):
        number = float(text)
        return int(number) if number.is_integer() else None
    return None


def _some(workers: int) -> int:
    if workers < 1 and workers != -1:
        raise typer.BadParameter(f"{workers}, expected at least 1, or -1 for every core")
    return workers


WorkersOption = Annotated[
    int,
    typer.Option("--workers", "-j", callback=_some, help="Processes at once; -1 = every core."),
]
PoolOption = Annotated[
    str, typer.Option("--pool", help="Where runs are made: local, or ray (extra `ray`).")
]
RayAddressOption = Annotated[
    str | None,
    typer.Option(
        "--ray-address",
        help="A Ray cluster that is there; default: one on this machine.",
        show_default=False,
    ),
]


def _flag(name: str, panel: str, help: str, **more: Any) -> Any:
    return typer.Option(name, rich_help_panel=panel, help=help, show_default=False, **more)


def _count(name: str, panel: str, help: str) -> Any:
    return count_option(name, rich_help_panel=panel, help=help, show_default=False)


def scenario_from(
    scenario: Annotated[
        Path | None, typer.Argument(help="A TOML file (docs/settings.md).", show_default=False)
    ] = None,
    trace: Annotated[str | None, _flag("--trace", LOAD, "Replay a recorded trace.")] = None,
    preset: Annotated[
        str | None, _flag("--preset", LOAD, "A workload with published numbers, such as chat.")
    ] = None,
    rate: Annotated[
        float | None, _flag("--rate", LOAD, "Requests per second of a synthetic load.")
    ] = None,
    seed: Annotated[int | None, _count("--seed", LOAD, "Seed of all that is random.")] = None,
    start: Annotated[
        str | None, _flag("--start", LOAD, 'Leave out what arrives before, such as "10min".')
    ] = None,
    duration: Annotated[
        str | None, _flag("--duration", LOAD, "Only what arrives within this time.")
    ] = None,
    limit: Annotated[int | None, _count("--limit", LOAD, "Only this many requests.")] = None,
    scale_rate: Annotated[
        float | None, _flag("--scale-rate", LOAD, "Replay this many times as fast.")
    ] = None,
    drop_invalid: Annotated[
        bool, _flag("--drop-invalid", LOAD, "Drop and count wrong rows instead of refusing.")
    ] = False,
    spread_ticks: Annotated[
        bool, _flag("--spread-ticks", LOAD, "Spread arrivals recorded in coarse ticks.")
    ] = False,
    policy: Annotated[
        str | None, _flag("--policy", ENGINE, "By name (batchlab policy list), or mine.py:Mine.")
    ] = None,
    token_budget: Annotated[
        int | None, _count("--token-budget", ENGINE, "Tokens a step at most.")
    ] = None,
    block_size: Annotated[int | None, _count("--block-size", ENGINE, "Tokens a KV block.")] = None,
    profile: Annotated[
        str | None, _flag("--profile", ENGINE, "Cost curve by name, or a file.")
    ] = None,
    replicas: Annotated[
        int | None, _count("--replicas", ENGINE, "Engines behind the router.")
    ] = None,
    router: Annotated[
        str | None, _flag("--router", ENGINE, "Who takes a request (docs/fleet.md).")
    ] = None,
    executor: Annotated[
        str | None,
        _flag("--executor", ENGINE, "predicted, or measured: run every step."),
    ] = None,
    device: Annotated[
        str | None, _flag("--device", ENGINE, "Where measured steps run: cpu or cuda.")
    ] = None,
    model: Annotated[str | None, _flag("--model", ENGINE, "What measured steps run.")] = None,
    set_: Annotated[
        list[str] | None,
        _flag("--set", ENGINE, "Any key: engine.reserve=0.05; repeat it.", metavar="KEY=VALUE"),
    ] = None,
) -> Scenario:
    """The scenario that the flags describe: the file, then flags, then `--set`."""
    from simulator.scenario import Scenario, parse_set

    base = Scenario.load(scenario) if scenario else Scenario()
    if trace is not None or preset is not None:
        base = base.with_load(file=trace, preset=preset)
    given = {
        "seed": seed,
        "trace.rate": rate,
        "trace.start": start,
        "trace.duration": duration,
        "trace.limit": limit,
        "trace.scale_rate": scale_rate,
        "trace.drop_invalid": drop_invalid or None,
        "trace.spread_ticks": spread_ticks or None,
        "policy.kind": policy,
        "policy.token_budget": token_budget,
        "engine.block_size": block_size,
        "engine.profile": profile,
        "fleet.replicas": replicas,
        "fleet.router": router,
        "executor.kind": executor,
        "executor.device": device,
        "executor.model": model,
    }
    values = {key: value for key, value in given.items() if value is not None}
    return base.with_values(values | dict(parse_set(text) for text in set_ or ()))


def takes_scenario(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command whose first parameter is a `Scenario` the flags of `scenario_from`.

    Typer reads parameters from the signature, so the flags are written once and put there. A
    flag that the command has a parameter of the same name for is the command's own.
    """
    own = _parameters(command, skip=1)
    flags = [p for p in _parameters(scenario_from) if p.name not in {q.name for q in own}]

    @functools.wraps(command)
    def with_flags(**given: Any) -> None:
        described = {p.name: given.pop(p.name) for p in flags}
        command(scenario_from(**described), **given)

    del with_flags.__wrapped__  # else its signature would be the one that is read
    parameters = [*flags, *own]
    with_flags.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    with_flags.__annotations__ = {p.name: p.annotation for p in parameters}
    return with_flags


def _parameters(function: Callable[..., Any], skip: int = 0) -> list[inspect.Parameter]:
    """Its parameters with their annotations evaluated, keyword only."""
    # One by one: what is skipped may name a type that is imported for checking only.
    return [
        p.replace(
            kind=inspect.Parameter.KEYWORD_ONLY,
            annotation=eval(p.annotation, function.__globals__),
        )
        for p in list(inspect.signature(function).parameters.values())[skip:]
    ]
