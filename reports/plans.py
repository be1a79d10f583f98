"""A plan as tables, sentences and plain data.

Takes the plain form (`simulator.planner.as_dict`), as everything under reports does: it knows no
simulator.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from reports.advice import advice_lines
from reports.units import NONE, digits, seconds, share

Plain = Mapping[str, Any]

CAUSES = {
    "tokens": "prompts wait for token budget",
    "blocks": "requests wait for free KV blocks",
    "reserve": "requests wait because of the KV reserve",
    "seats": "requests wait for a seat",
    "lane": "requests wait for their lane's share",
    "batch": "requests wait for a batch to fill or end",
    "behind": "requests wait behind the head of the queue",
    "boundary": "requests wait for the running step to end",
    "door": "requests are held at the door",
    "prefill": "others' prefill in the same steps",
    "prefill_own": "their own prefill",
    "decode": "decoding itself: too many sequences at once, or contexts too long",
    "preemption": "stalls after preemptions",
    "stalled": "stalls after preemptions",
    "service": "prefill and decode themselves",
}
"""What stops a rate, by the clock that ran most."""
PAGE = 95
"""Columns that sentences take at most: longer lines are hard to read."""


def plan_table(plan: Plain, width: int = PAGE) -> RenderableType:
    """Every setting with its range, then the best one, explained; `width` columns of terminal."""
    parts: list[RenderableType] = [_settings(plan, width), Text("")]
    parts += [_lines(sentences(plan), min(width, PAGE))]
    if plan["pareto"]:
        parts += [Text(""), _pareto(plan)]
    if plan["best"]:
        parts += [Text(""), _over_load(plan["best"])]
    if plan["flags"]:
        parts += [Text(""), _flags(plan["flags"], width)]
    return Group(*parts)


def sentences(plan: Plain) -> list[str]:
    """What the plan says, the most important first."""
    best = plan["best"]
    if best is None:
        return [_nothing(plan)]
    said = [_best(best), *_confirmed(plan["confirmed"]), *_limits(best), *_band(best)]
    if plan["fleet"]:
        said += _fleet(plan["fleet"])
    if plan["advice"]:
        said += [one.rstrip(".") for one in advice_lines(plan["advice"])]
    if plan["asked"]:
        said.append(_asked(plan["asked"]))
    return [one[0].upper() + one[1:] + "." for one in said]


def _nothing(plan: Plain) -> str:
    usable = [one for one in plan["settings"] if not one["error"]]
    if not usable:
        return f"No setting can be used: {plan['settings'][0]['error']}."
    least = min(
        (point for one in usable for point in one["points"]),
        key=lambda point: point["rate"],
        default=None,
    )
    tried = f" (the lowest tried is {digits(least['rate'])}/s)" if least else ""
    broken = next((one["breaks"] for one in usable if one["breaks"]), None)
    why = f": {broken['term']} is missed even there" if broken else ""
    return f"No rate meets {plan['sla']}{tried}{why}. Loosen it, or take a faster device."


def _best(best: Plain) -> str:
    low, high = best["rate"]["low"], best["rate"]["high"]
    said = (
        f"{best['name'] or 'one replica'}: {digits(low)} to {digits(high)} requests/s a replica "
        f"(95 %); plan with {digits(best['recommended'])}/s, ρ = {best['rho']:.2f} of μ = "
        f"{digits(best['service']['estimate'])}/s"
    )
    if best["verdict"] == "all":
        if missed := _missed(best):
            said += "; most seeds meet the level at the highest rate tried, some miss it at "
            said += f"{digits(min(missed))}/s already, so that μ is the limit"
        else:
            said += "; every tried rate meets the level, so that μ alone is the limit"
    if best["missed_below"]:
        said += f"; the level is missed at {digits(best['missed_below'])}/s and below as well"
    return said


def _missed(setting: Plain) -> list[float]:
    """Rates at which the level was missed, above those that `missed_below` tells of."""
    return [
        point["rate"]
        for point in setting["points"]
        if point["margin"] > 0 and point["rate"] > (setting["missed_below"] or 0.0)
    ]


def breaks_first(setting: Plain) -> str:
    """What stops a setting that has a rate."""
    if setting["verdict"] == "all":
        return "μ, with most seeds" if _missed(setting) else "nothing below μ"
    return str(setting["breaks"]["term"])


def _confirmed(confirmed: Plain | None) -> list[str]:
    if confirmed is None:
        return []
    values = ", ".join(
        f"{name.replace('_', ' ').upper()} {seconds(one['estimate'])} ± "
        f"{seconds((one['high'] - one['low']) / 2)}"
        for name, one in confirmed["values"].items()
        if name in ("ttft_p99", "itl_p99")
    )
    said = [
        f"with {confirmed['runs']} fresh seeds {digits(confirmed['rate'])}/s keeps the level in "
        f"{confirmed['kept']}: {values}; {share(confirmed['attainment'])} of requests meet all "
        f"terms, goodput {digits(confirmed['goodput'])}/s"
    ]
    for name, classes in confirmed["fairness"].items():
        listed = ", ".join(f"{key or NONE} {seconds(value)}" for key, value in classes.items())
        least, most = min(classes.values()), max(classes.values())
        ratio = f"; the slowest waits {digits(most / least)} times the fastest" if least else ""
        said.append(f"P99 TTFT by {name}: {listed}{ratio}")
    return said


def _limits(best: Plain) -> list[str]:
    broken = best["breaks"]
    if broken is None:
        return []
    why = CAUSES.get(broken["cause"], broken["cause"])
    return [f"beyond, {broken['term']} breaks first: {why}" if why else f"{broken['term']} breaks"]


def _band(best: Plain) -> list[str]:
    band = best["band"]
    if band is None:
        return []
    source = "held-out" if band["held_out"] else "fit"
    missing = "; ".join(f"{what}: {share(part)}" for what, part in band["missing"])
    return [
        f"if step times are off, {digits(band['low'])} / {digits(band['central'])} / "
        f"{digits(band['high'])} requests/s (low / central / high): the profile's own {source} "
        f"error is {share(band['error'])}" + (f"; it lacks {missing}" if missing else "")
    ]


def _fleet(fleet: Plain) -> list[str]:
    peak = f" ({digits(fleet['peak'])} at the peak)" if fleet["peak"] > fleet["target"] else ""
    said = [
        f"{digits(fleet['target'])} requests/s{peak} take {_count(fleet['replicas'], 'replica')} "
        f"behind {fleet['router']} ({_count(fleet['gpus'], 'GPU')}; by division "
        f"{fleet['divided']}), {_headroom(fleet)}"
    ]
    if fleet["survives"] is not None:
        holds = "keep" if fleet["survives"] else "do NOT keep"
        said.append(
            f"N + 1 = {fleet['spare']} replicas {holds} the level while one is lost half-way"
        )
    hours = f"{fleet['gpu_hours_per_day']:,.0f} GPU-hours a day"
    if fleet["elastic_gpu_hours_per_day"] < fleet["gpu_hours_per_day"]:
        hours += f" ({fleet['elastic_gpu_hours_per_day']:,.0f} if replicas followed the load)"
    if cost := fleet["cost"]:
        hours += (
            f", ${digits(cost['per_hour'])} an hour: ${digits(cost['per_million_tokens'])} per "
            f"million tokens, ${digits(cost['per_million_output_tokens'])} per million of output"
        )
    return [*said, hours]


def _headroom(fleet: Plain) -> str:
    if fleet["headroom"] >= 0:
        return f"with {share(fleet['headroom'])} of headroom"
    each = fleet["target"] / fleet["replicas"]
    alone = each * (1 + fleet["headroom"])
    take = math.ceil(fleet["target"] / alone)
    return (
        f"no headroom: each replica serves {digits(each)}/s, which the router makes possible; "
        f"alone it keeps the level up to {digits(alone)}/s; take {take} to have room"
    )


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _asked(asked: Plain) -> str:
    said = f"at {digits(asked['rate'])} requests/s one replica has ρ = {asked['rho']:.2f}"
    return said + (": more than it can serve" if asked["rho"] >= 1 else "")


def _settings(plan: Plain, width: int) -> Table:
    """One value a line where a setting on one line is too wide."""
    table = _settings_table(plan, ", ")
    fits = Console(width=1000).measure(table).maximum <= width
    return table if fits else _settings_table(plan, ",\n", close=True)


def _settings_table(plan: Plain, comma: str, *, close: bool = False) -> Table:
    table = Table(
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        title=f"{plan['title']}",
        title_justify="left",
        collapse_padding=close,
    )
    for name in ("setting", "requests/s", "plan", "ρ", "TTFT P99", "ITL P99", "breaks first"):
        words = name in ("setting", "breaks first")
        table.add_column(name, justify="left" if words else "right", no_wrap=name != "breaks first")
    best = plan["best"]
    for one in plan["settings"]:
        mark = " *" if best and one["name"] == best["name"] else ""
        name = one["name"].replace(", ", comma) or "as it is"
        label = Text(name, style="bold green" if mark else "") + mark
        if one["error"]:
            table.add_row(label, "–", "–", "–", "–", "–", Text(one["error"], style="dim"))
            continue
        if one["rate"] is None:
            term = one["breaks"]["term"] if one["breaks"] else ""
            table.add_row(label, "no rate meets it", "–", "–", "–", "–", term)
            continue
        edge = one["at_edge"]["values"] if one["at_edge"] else {}
        broken = breaks_first(one)
        if one["same_as"]:
            own = one["name"].split(", ")
            other = [part for part in one["same_as"].split(", ") if part not in own]
            broken += f" (same as {', '.join(other)})"
        table.add_row(
            label,
            f"{digits(one['rate']['low'])} – {digits(one['rate']['high'])}",
            digits(one["recommended"]),
            f"{one['rho']:.2f}",
            seconds(edge.get("ttft_p99")),
            seconds(edge.get("itl_p99")),
            broken,
        )
    return table


def _pareto(plan: Plain) -> Table:
    table = Table(
        box=box.SIMPLE_HEAD, pad_edge=False, title="Pareto front: rate against latency",
        title_justify="left",
    )  # fmt: skip
    for name in ("setting", "requests/s", "TTFT P99", "ITL P99"):
        words = name == "setting"
        table.add_column(name, justify="left" if words else "right", no_wrap=not words)
    for point in plan["pareto"]:
        table.add_row(
            point["name"] or "as it is",
            digits(point["rate"]),
            seconds(point["ttft_p99"]),
            seconds(point["itl_p99"]),
        )
    return table


def _over_load(best: Plain) -> Table:
    table = Table(
        box=box.SIMPLE_HEAD, pad_edge=False, title="Latency over load, best setting",
        title_justify="left",
    )  # fmt: skip
    for name in ("ρ", "requests/s", "TTFT P50", "TTFT P99", "ITL P99", "E2E P99", "level"):
        table.add_column(name, justify="right")
    for point in best["points"]:
        values = point["values"]
        table.add_row(
            f"{point['rho']:.2f}",
            digits(point["rate"]),
            seconds(values["ttft_p50"]),
            seconds(values["ttft_p99"]),
            seconds(values["itl_p99"]),
            seconds(values["e2e_p99"]),
            "kept" if point["margin"] <= 0 else "missed",
        )
    return table


def _flags(flags: Sequence[Plain], width: int) -> RenderableType:
    parts = []
    for one in flags:
        lines = [f"{one['engine']}: "]
        for flag in one["flags"]:
            if len(lines[-1]) + len(flag) + 3 > width:
                lines.append("   ")
            lines[-1] += f" {flag}"
        # A shell goes on after a backslash: what is copied still works.
        parts.append(Text(" \\\n".join(lines), no_wrap=True, overflow="ignore"))
        if one["unsaid"]:
            parts.append(Text(f"    no flag for: {'; '.join(one['unsaid'])}", style="dim"))
    return Group(*parts)


def _lines(said: Sequence[str], width: int) -> Table:
    grid = Table.grid(padding=(0, 1))
    for sentence in said:
        grid.add_row(Text("·"), Text("\n".join(textwrap.wrap(sentence, width - 3))))
    return grid


def rows(plan: Plain) -> list[dict[str, Any]]:
    """One row a setting: what a CSV holds."""
    return [
        {
            **one["values"],
            "low": one["rate"] and one["rate"]["low"],
            "rate": one["rate"] and one["rate"]["estimate"],
            "high": one["rate"] and one["rate"]["high"],
            "recommended": one["recommended"],
            "service_rate": one["service"] and one["service"]["estimate"],
            "rho": one["rho"],
            "breaks": one["breaks"] and one["breaks"]["term"],
            "cause": one["breaks"] and one["breaks"]["cause"],
            "model_low": one["band"] and one["band"]["low"],
            "model_high": one["band"] and one["band"]["high"],
            "error": one["error"],
        }
        for one in plan["settings"]
    ]
