"""A synthetic load as settings: arrivals, lengths and who sends them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any, Self

from pydantic import Field, model_validator
from pydantic.dataclasses import dataclass

from traces.arrivals import Arrivals, Poisson, check_rate
from traces.lengths import Lengths
from traces.sessions import SINGLE, Clients, Declared, Kind, RequestClass, Sessions, SharedPrefix
from traces.settings import STRICT, load


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Workload:
    """A synthetic load: everything under `[trace]` in a scenario that names no file."""

    arrivals: Arrivals = Poisson()
    rate: Annotated[float, Field(gt=0)] | None = None
    """Requests per second, the mean of the process; inf = all at time 0."""
    requests: Annotated[int, Field(ge=1)] | None = None
    """How many; None = as many as `duration_s` holds, 1000 if that is None too."""
    duration_s: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    prompt: Lengths
    """Prompt tokens; in conversations and behind a shared prefix, the new ones."""
    output: Lengths
    declared: Declared | None = None
    """The maximum that requests declare; "exact" = their true output; None = not recorded."""
    shared: tuple[SharedPrefix, ...] = ()
    sessions: Sessions | None = None
    clients: Clients | None = None
    classes: tuple[RequestClass, ...] = ()

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.clients is None and self.rate is None:
            raise ValueError("rate: missing (or clients, for a closed loop)")
        if self.rate is not None:
            check_rate(self.rate)
        if self.clients is not None:
            if self.rate is not None:
                raise ValueError("rate and clients contradict each other: clients set the pace")
            if self.duration_s is not None:
                raise ValueError("duration_s and clients contradict each other: give requests")
            if any(kind.sessions.loop == "open" for kind in self.kinds):
                raise ValueError('clients and sessions.loop = "open" contradict each other')
        elif self.rate == math.inf and self.requests is None and self.duration_s is not None:
            raise ValueError("rate = inf sends all at once: give requests, not duration_s")
        names = [one.name for one in self.classes]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"classes: the name {name!r} occurs twice")
        for kind in self.kinds:
            if sum(prefix.share for prefix in kind.shared) > 1 + 1e-9:
                raise ValueError(f"shared: the shares of {kind.name or 'all'} add up to over 1")
        return self

    @classmethod
    def from_table(cls, table: Mapping[str, Any], where: str = "trace") -> Self:
        """From a TOML table; `preset = "chat"` in it fills in what it leaves out."""
        from traces.presets import expand  # presets are written as tables of this very form

        made: Self = load(cls, expand(table), where)
        return made

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """The classes with everything filled in; one without a name where there are none."""
        classes = self.classes or (RequestClass(name="-", tenant=""),)
        return tuple(
            Kind(
                name=one.name if self.classes else "",
                weight=one.weight,
                tenant=one.name if one.tenant is None else one.tenant,
                priority=one.priority,
                prompt=one.prompt or self.prompt,
                output=one.output or self.output,
                declared=one.declared or self.declared,
                shared=self.shared if one.shared is None else one.shared,
                sessions=one.sessions or self.sessions or SINGLE,
            )
            for one in classes
        )
