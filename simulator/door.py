"""The door: what can never be served is refused on arrival, with a reason, and counted."""

from __future__ import annotations

from policies.base import Policy
from simulator.engine import Engine
from simulator.sequence import Sequence
from traces.trace import Request


class Door:
    """Turns a `Request` into a `Sequence`, or says why not."""

    def __init__(self, engine: Engine, policy: Policy) -> None:
        self._engine = engine
        self._policy = policy
        self._slots = engine.blocks * engine.block_size
        self.max_model_len = min(engine.max_model_len, self._slots)
        """The least of the model's limit and the pool."""

    def enter(self, request: Request) -> tuple[Sequence, str]:
        """The sequence, and "" or the reason for its refusal."""
        engine = self._engine
        room = engine.max_model_len - request.prompt
        declared = request.declared or request.output
        if engine.output_cap is not None:
            declared = min(declared, engine.output_cap)
        declared = min(declared, max(room, 0))
        goal = min(declared, request.output, max(self.max_model_len - request.prompt, 0))
        seq = Sequence(request, declared, goal, self._policy.lane(request))
        if room < 1:
            return seq, "rejected: prompt reaches max_model_len"
        # The last token is never fed (rule A5); at least one more than the prompt must fit, for
        # the run's model limit is no more than the pool.
        if request.prompt + max(declared - 1, 1) > self._slots:
            return seq, "rejected: prompt and declared maximum exceed the pool"
        return seq, ""
