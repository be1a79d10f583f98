"""What-if answers as a table, a page and rows. Takes the plain form, as `reports.plans` does."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from reports.page import render
from reports.units import NONE, digits, seconds, share

Plain = Mapping[str, Any]


def whatif_table(answer: Plain, width: int = 80) -> RenderableType:
    """One table a variant: base, variant, difference with its interval; * = more than chance.

    Closer together where it would be wider than `width`.
    """
    parts: list[RenderableType] = []
    for variant in answer["variants"]:
        table = Table(
            box=box.SIMPLE_HEAD, pad_edge=False, title=f"what if {variant['name']}",
            title_justify="left",
        )  # fmt: skip
        if variant["error"]:
            parts.append(Text(f"what if {variant['name']}: cannot run: {variant['error']}"))
            continue
        for name in ("", "base", "then", "change", "95 %"):
            table.add_column(name, justify="left" if not name else "right", no_wrap=True)
        for one in variant["differences"]:
            if not one["base"] and not one["variant"]:
                continue
            change, reach = said(one)
            style = "bold" if one["real"] else "dim"
            table.add_row(
                one["measure"],
                _form(one)(one["base"]),
                _form(one)(one["variant"]),
                Text(change, style=style),
                Text(reach, style=style),
            )
        table.collapse_padding = Console(width=1000).measure(table).maximum > width
        parts += [table, *(Text(f"· {line}") for line in _findings(variant))]
    parts.append(Text(f"* more than chance, over {answer['pairs']}, each interval by itself",
                      style="dim"))  # fmt: skip
    return Group(*parts)


def _findings(variant: Plain) -> list[str]:
    real = [one["measure"] for one in variant["differences"] if one["real"]]
    if not real:
        return ["nothing changes by more than chance"]
    return []


def whatif_page(answer: Plain, *, command: str = "") -> str:
    """One self-contained HTML file."""
    return render(
        "whatif.html.j2",
        title="What if",
        answer=answer,
        said=said,
        form=lambda one, value: _form(one)(value),
        command=command,
        data={"charts": []},
    )


def said(one: Plain) -> tuple[str, str]:
    """The change, marked where it is more than chance, and its interval."""
    change = one["change"]
    form = _form(one)

    def signed(value: float) -> str:
        return f"{'-' if value < 0 else '+'}{form(abs(value))}"

    if change is None:
        if one["base"] is None or one["variant"] is None:
            return NONE, ""
        return signed(one["variant"] - one["base"]), ""
    mark = " *" if one["real"] else "  "
    whole = f"{signed(change['estimate'])}"
    if one["base"]:
        whole += f" ({change['estimate'] / one['base']:+.0%})"
    return whole + mark, f"{signed(change['low'])} to {signed(change['high'])}"


def rows(answer: Plain) -> list[dict[str, Any]]:
    """One row a variant and figure: what a CSV holds."""
    return [
        {
            "variant": variant["name"],
            "measure": one["measure"],
            "base": one["base"],
            "then": one["variant"],
            "change": one["change"] and one["change"]["estimate"],
            "low": one["change"] and one["change"]["low"],
            "high": one["change"] and one["change"]["high"],
            "more_than_chance": one["real"],
        }
        for variant in answer["variants"]
        for one in variant["differences"]
    ]


def _form(one: Plain) -> Callable[[float | None], str]:
    forms: dict[str, Callable[[float | None], str]] = {"seconds": seconds, "share": share}
    return forms.get(one["kind"], lambda value: NONE if value is None else digits(value))
