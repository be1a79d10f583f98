"""`batchlab policy`: the policies that can be named, their settings, and whether one is sound."""

from __future__ import annotations

from typing import Annotated

import typer

from simulator.cli.options import FormatOption
from simulator.cli.printing import FAILED, Format, note, progress, show, show_rows

app = typer.Typer(no_args_is_help=True, help="The policies known, and whether one is sound.")


@app.command("list")
def list_policies(format: FormatOption = Format.table) -> None:
    """Every policy by name, with what it does and its settings."""
    from simulator.policy_names import described

    rows = described()
    if format is Format.table:
        from rich.console import Group
        from rich.text import Text

        show(
            Group(
                *(
                    Text.assemble((row["name"], "bold"), f"  {row['says']}\n  {row['settings']}\n")
                    for row in rows
                )
            )
        )
    else:
        show_rows(rows, format)


@app.command("check")
def check(
    policy: Annotated[
        str, typer.Argument(help="By name or mine.py:Mine; settings follow: static:batch=64.")
    ],
    seed: Annotated[int, typer.Option("--seed", help="Seed of the scenarios.")] = 0,
    format: FormatOption = Format.table,
) -> None:
    """Try a policy on small scenarios, and say which laws it breaks. Exit code 1 if any."""
    from simulator.compare import parse_policy
    from simulator.contract import cases, check_policy
    from simulator.scenario import Scenario

    kind, settings = parse_policy(policy)
    chosen = Scenario().with_values({"policy.kind": kind}).with_values(settings).policy.build()
    with progress(f"trying {policy}") as update:
        findings = check_policy(chosen, seed=seed, on_case=update)
    if format is Format.table:
        laws = [finding.law for finding in findings]
        for law, finding in {finding.law: finding for finding in reversed(findings)}.items():
            more = laws.count(law) - 1
            print(finding, f"(and in {more} more)" if more else "")
    elif findings:
        show_rows([vars(finding) for finding in findings], format)
    elif format is Format.json:
        print("[]")
    if findings:
        note(f"{policy} breaks {len({finding.law for finding in findings})} of the laws")
        raise typer.Exit(FAILED)
    note(f"{policy} keeps the laws in {len(cases(chosen, seed))} scenarios")
    if starves := getattr(chosen, "starves", ""):
        note(f"it says itself who may wait for ever: {starves}")
