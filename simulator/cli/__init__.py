"""The command line: parse, call, print. One file a command; `main` turns errors into one line."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from simulator.cli import (
    compare,
    demo,
    export,
    plan,
    policy,
    profile,
    report,
    simulate,
    sweep,
    trace,
    whatif,
)
from simulator.cli.mock_server import mock_server
from simulator.cli.printing import FAILED, INTERRUPTED, WRONG_INPUT, complain

EXTRAS = {"torch": "calibrate", "httpx": "serve", "starlette": "serve", "uvicorn": "serve"}
"""What is imported where it is needed, and the extra that it comes with."""


class _Commands(TyperGroup):
    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:  # commands that keep something have said so themselves
            complain("interrupted; nothing was written")
            raise typer.Exit(INTERRUPTED) from None


app = typer.Typer(
    name="batchlab",
    cls=_Commands,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Simulate how an LLM server batches requests, and plan its capacity.",
)


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"batchlab {version('batchlab')}")
        raise typer.Exit


@app.callback()
def _batchlab(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


app.command("demo")(demo.demo)
app.command("simulate")(simulate.simulate)
app.command("compare")(compare.compare)
app.command("sweep")(sweep.sweep)
app.command("plan")(plan.plan)
app.command("whatif")(whatif.whatif)
app.command("report")(report.report)
app.command("export")(export.export)
app.add_typer(trace.app, name="trace")
app.add_typer(profile.app, name="profile")
app.add_typer(policy.app, name="policy")
app.command("mock-server")(mock_server)


def run(args: list[str] | None = None) -> int:
    """Run a command line (default: the process's own) to its exit code; never raises.

    0 = done, 1 = the run or the SLA failed, 2 = wrong input, 130 = interrupted. What is wrong
    is said in one line on stderr.
    """
    _let_streams_take_anything()
    try:
        code = app(args, prog_name="batchlab", standalone_mode=False)
        sys.stdout.flush()
    except BrokenPipeError:  # the reader (head, less) has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (ValueError, OSError) as error:  # pydantic's errors are ValueErrors
        complain(_said(error))
        return FAILED if _broke_a_law(error) else WRONG_INPUT
    except MemoryError as error:
        complain(f"not enough memory: {_said(error)}".rstrip(": "))
        return FAILED
    except ModuleNotFoundError as error:
        extra = EXTRAS.get((error.name or "").partition(".")[0])
        if extra is None:
            raise
        complain(f"this needs {error.name}: pip install 'batchlab[{extra}]'")
        return WRONG_INPUT
    except Exception as error:
        # click's own errors: typer ships its own copy of click, so there is no class to name.
        if hasattr(error, "format_message"):
            if said := error.format_message():  # nothing where help was shown instead
                complain(said)
            return WRONG_INPUT
        if os.environ.get("BATCHLAB_TRACEBACK"):
            raise
        complain(f"a fault of batchlab: {type(error).__name__}: {_said(error)}")
        complain("BATCHLAB_TRACEBACK=1 shows where")
        return FAILED
    return code if isinstance(code, int) else 0


def _let_streams_take_anything() -> None:
    """A sign that the terminal lacks becomes "?", a closed stream takes what it is given, and
    one that takes no more is named in the error, as files are."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # closed by whoever started us
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
        elif hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
            for method in ("write", "flush"):
                if method not in vars(stream):
                    setattr(stream, method, _named(name, getattr(stream, method)))


def _named(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
    def named(*args: Any) -> Any:
        try:
            return method(*args)
        except OSError as error:
            why = f"cannot write: {(error.strerror or str(error)).lower()}"
            raise OSError(error.errno, why, name) from None

    return named


def _broke_a_law(error: Exception) -> bool:
    from simulator.checks import LawBroken

    return isinstance(error, LawBroken)


def _said(error: Exception) -> str:
    from simulator.settings_file import one_line

    return one_line(error)
