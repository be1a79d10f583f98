"""`batchlab profile measure --server URL`: a live server, from outside."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from simulator.cli.options import count_option
from simulator.cli.printing import Format, note, progress, show_rows

if TYPE_CHECKING:
    from calibration.openai_client import Endpoint
    from calibration.server import Report, ServerMeasurement

PANEL = "With --server"

ServerOption = Annotated[
    str | None,
    typer.Option(
        "--server",
        metavar="URL",
        help="Measure this OpenAI-compatible server, with --model as it calls it.",
        rich_help_panel=PANEL,
    ),
]
EndpointOption = Annotated[str, typer.Option(help="completions or chat.", rich_help_panel=PANEL)]
KeyOption = Annotated[
    str,
    typer.Option(
        "--api-key", envvar="BATCHLAB_API_KEY", help="The server's key.", rich_help_panel=PANEL
    ),
]
ConcurrencyOption = Annotated[
    int, typer.Option(min=1, help="Streams at once at most.", rich_help_panel=PANEL)
]
LongestOption = Annotated[
    int, typer.Option(min=16, help="Tokens of the longest prompt.", rich_help_panel=PANEL)
]
BudgetOption = Annotated[
    int | None,
    typer.Option(
        "--token-budget",
        min=16,
        help="Tokens that the server takes a step (max_num_batched_tokens) [default: found out].",
        rich_help_panel=PANEL,
    ),
]
OfOption = Annotated[
    str | None,
    typer.Option(
        "--of",
        metavar="MODEL",
        help="What the model is: a known one, or its config.json; for its KV bytes.",
        rich_help_panel=PANEL,
    ),
]
PoolOption = Annotated[
    int | None,
    count_option(
        "--kv-tokens", least=1, help="The KV pool, where /metrics lacks it.", rich_help_panel=PANEL
    ),
]
LengthOption = Annotated[
    int | None,
    typer.Option(
        "--max-model-len", min=16, help="Where the server lacks it.", rich_help_panel=PANEL
    ),
]
RequestsOption = Annotated[
    int,
    typer.Option("--max-requests", min=1, help="Sent at most, in all.", rich_help_panel=PANEL),
]
RestOption = Annotated[
    float, typer.Option("--rest", min=0, help="Seconds between points.", rich_help_panel=PANEL)
]
TimeoutOption = Annotated[
    float, typer.Option("--timeout", min=0.1, help="Seconds for an answer.", rich_help_panel=PANEL)
]
DryOption = Annotated[
    bool,
    typer.Option(
        "--dry-run", help="Print what would be asked of the server, and its cost.",
        rich_help_panel=PANEL,
    ),
]  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Server:
    """Where to measure, and how to talk to it."""

    url: str
    model: str
    endpoint: Endpoint
    key: str
    timeout_s: float


def endpoint_of(text: str) -> Endpoint:
    """Raises ValueError where there is none of the name."""
    from calibration.openai_client import PATHS

    if text not in PATHS:
        raise ValueError(f"--endpoint {text!r}, expected {' or '.join(PATHS)}")
    return cast("Endpoint", text)


def measure_server(server: Server, settings: ServerMeasurement, path: Path) -> None:
    """Measure into `path`, and say how it went."""
    try:
        with progress(f"measuring {server.model} at {server.url}") as update:
            report = asyncio.run(_measure(server, settings, path, update))
    except KeyboardInterrupt:
        note(f"stopped; {path} keeps what is measured: run the same command again to go on")
        raise typer.Exit(130) from None
    except ValueError:
        if path.exists():
            note(f"{path} keeps what is measured: run the same command again to go on")
        raise
    for text in report.notes:
        note(f"note: {text}")
    note(
        f"{report.requests:,} requests ({report.retries} points again), prompts as "
        f"{report.prompts}; {report.delay_s * 1e3:.2f} ms of client and network subtracted from "
        "first tokens"
    )
    typer.echo(path)


async def _measure(
    server: Server, settings: ServerMeasurement, path: Path, update: object
) -> Report:
    from calibration.openai_client import Client
    from calibration.server import ServerMeter

    assert callable(update)
    client = Client(
        server.url,
        server.model,
        endpoint=server.endpoint,
        key=server.key,
        timeout_s=server.timeout_s,
        most=settings.max_requests,
        connections=settings.concurrency + 2,
    )
    async with client:
        return await ServerMeter(client, settings).measure(path, update)


def show_plan(settings: ServerMeasurement, format: Format) -> None:
    """What would be asked, without asking anything."""
    from calibration.server_plan import Limits, cost, plan, within

    unknown = Limits(
        concurrency=settings.concurrency,
        longest=settings.longest,
        token_budget=settings.token_budget or Limits.token_budget,
    )
    if settings.kv_tokens:
        unknown = Limits(**vars(unknown) | {"kv_tokens": settings.kv_tokens})
    if settings.max_model_len:
        unknown = Limits(**vars(unknown) | {"max_model_len": settings.max_model_len})
    limits = within(unknown, settings.passes, settings.max_requests)
    planned = plan(limits, settings.passes)
    rows = []
    for kind in ("prefill", "decode", "mixed", "all"):
        some = cost([one for one in planned if kind in ("all", one[1].kind)])
        rows.append(
            {
                "kind": kind,
                "points": some.points,
                "requests": some.requests,
                "prompt_tokens": some.prompt_tokens,
                "output_tokens": some.output_tokens,
                "at_once": some.most_at_once,
            }
        )
    show_rows(rows, format)
    note("nothing was sent; before the points come some 16 requests to warm up and look around")
    if settings.token_budget is None:
        note(f"a token budget of {limits.token_budget} is assumed here (--token-budget)")
    if settings.kv_tokens is None:
        note("points that do not fit the server's KV pool will be left out (--kv-tokens)")
