"""A scenario's load at another rate: what a planner turns."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

from simulator.scenario import Scenario
from simulator.search import Probe
from simulator.settings_file import ScenarioError
from simulator.workload import DEFAULT_PRESET, load_trace
from traces.arrivals import Varying
from traces.presets import expand
from traces.trace import PS_PER_S
from traces.workload import Workload

Kind = Literal["drawn", "shaped", "recorded"]
AT_ONCE = 1e9
"""Times as fast that a recording is replayed to saturate a server: all there at once."""
DAY_S = 86_400.0


@dataclass(frozen=True)
class Load:
    """How the rate of a scenario is set, and how long its runs are."""

    kind: Kind
    """`drawn`: as many requests as one likes, others by every seed. `shaped`: the same, but a
    run is one pass through its curve of rates (a day, a ramp). `recorded`: these requests."""
    rate: float
    """Of the scenario as it is, requests per second on average."""
    requests: int
    """That it holds as it is."""
    span_s: float = 0.0
    """Of one pass, where it is shaped."""

    @classmethod
    def of(cls, scenario: Scenario) -> Load:
        """Raises `ScenarioError` for a load whose rate cannot be turned."""
        trace = scenario.trace
        if trace.file is not None:
            recorded = load_trace(trace, scenario.seed, scenario.engine.max_model_len or 1 << 30)
            open_loop = recorded.arrival[recorded.after < 0]
            span = int(open_loop.max() - open_loop.min()) / PS_PER_S if len(open_loop) else 0.0
            if not span:
                raise ScenarioError(
                    f"{trace.file}: {len(recorded)} requests that all arrive at once have no rate "
                    "to plan with"
                )
            return cls("recorded", (len(open_loop) - 1) / span, len(recorded))
        known = Workload.from_table(synthetic(scenario))
        if known.clients is not None:
            raise ScenarioError(
                "trace.clients: the clients of a closed loop set the pace, so that there is no "
                "rate to plan; give trace.rate instead"
            )
        if trace.limit is not None:
            raise ScenarioError(
                f"trace.limit = {trace.limit} (--limit): is for recorded traces here; of a "
                "synthetic load the plan takes as many requests as its precision needs "
                "(--precision)"
            )
        rate = known.rate
        assert rate is not None
        if isinstance(known.arrivals, Varying):
            span = trace.duration or known.duration_s or _pass(known.arrivals)
            return cls("shaped", 1.0 if math.isinf(rate) else rate, 0, span)
        return cls("drawn", 1.0 if math.isinf(rate) else rate, known.requests or 0)

    def at(self, base: Scenario, probe: Probe, *, replicas: int = 1) -> Scenario:
        """The scenario of a run."""
        if self.kind == "recorded":
            factor = probe.rate / self.rate * base.trace.scale_rate
            return base.with_values({"trace.scale_rate": factor})
        trace = {
            key: value
            for key, value in base.tables().get("trace", {}).items()
            if key not in ("start", "duration", "limit", "duration_s", "requests", "rate")
        }
        if "preset" in synthetic(base):
            trace["preset"] = synthetic(base)["preset"]
        trace["rate"] = probe.rate
        if self.kind == "shaped":
            trace["duration_s"] = self.span_s
        else:
            trace["requests"] = probe.requests * replicas
        tables = base.tables() | {"trace": trace, "seed": base.seed + probe.seed}
        tables.pop("horizon", None)
        return Scenario.of(tables)

    def saturated(self, base: Scenario, seed: int, requests: int) -> Scenario:
        """All requests at once: the server never waits for one."""
        if self.kind == "recorded":
            return base.with_values({"trace.scale_rate": AT_ONCE})
        drawn = Load("drawn", self.rate, requests)
        return drawn.at(base, Probe(math.inf, seed, requests))


def full_trace(scenario: Scenario) -> dict[str, Any]:
    """The `[trace]` section, with what its preset says written out."""
    table = scenario.tables().get("trace", {})
    return table if scenario.trace.file is not None else expand(table | synthetic(scenario))


def synthetic(scenario: Scenario) -> dict[str, Any]:
    """The workload's table, with the preset that is meant where nothing is said."""
    table = scenario.trace.workload
    if scenario.trace.preset or not table:
        table["preset"] = scenario.trace.preset or DEFAULT_PRESET
    return table


def _pass(arrivals: Varying) -> float:
    knots, _, repeats = arrivals.curve()
    once = float(knots[-1])
    # A curve that repeats within the hour is seen for an hour; one that ends, and a while after.
    return max(once, 3600.0) if repeats else once * 1.5
