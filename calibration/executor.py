"""The measured executor: really runs each planned step and says how long it took.

The simulator's loop, policies and block pool stay as they are; only the clock changes hands.
Arrivals are virtual, so with the clock `cpu` a busy machine does not disturb a run.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from calibration.graphs import CAPTURED
from calibration.prompts import Prompted, prompt_tokens
from calibration.runner import Chunk, Runner
from calibration.sampling import Draw, Sampling
from calibration.step_time import Done, Row, StepShape

LONGEST_CAPTURED = 32_768
"""Tokens of context beyond which decode steps run without graphs."""

Listener = Callable[[int, int, str], None]
"""Told of every token at the end of its step: request, token, and how its output ends with it:
"stop" (end of sequence), "length" (all that its request asked for), "" (it goes on)."""


@dataclass
class _Dialogue:
    """One request's own text: what it was sent, what it generated, how it draws."""

    request: Prompted
    sampling: Sampling
    generator: random.Random
    outputs: list[int] = field(default_factory=list)
    known: list[int] | None = None
    """Prompt + outputs; None while it has no KV."""


@dataclass(frozen=True)
class Measured:
    """Runs steps on a `Runner`. A request's tokens are its prompt, then what it generated.

    A row that reaches the end of the known tokens samples the next one; a preempted request
    is fed prompt + outputs again and so goes on with the token it would have drawn undisturbed.
    """

    runner: Runner
    dialogues: dict[int, _Dialogue]
    seed: int = 0
    listener: Listener | None = None
    log: list[tuple[StepShape, int, int]] = field(default_factory=list)
    """Every step run: shape, picoseconds, and of these the host's."""
    ahead: bool = False

    @classmethod
    def create(
        cls,
        *,
        requests: Iterable[Prompted],
        model: str,
        device: str = "cpu",
        blocks: int,
        block_size: int,
        seed: int = 0,
        sampling: Sampling | Callable[[int], Sampling] | None = None,
        listener: Listener | None = None,
        clock: str = "cpu",
        threads: int = 1,
        dtype: str | None = None,
        attention: str = "auto",
        eager: bool = False,
    ) -> Measured:
        """An engine for `requests`, its pool of `blocks` to be assigned by the simulator.

        `sampling` is one setting for all (default greedy) or a function of the request's index.
        `seed` fixes weights and prompts; `eager` captures no CUDA graphs. Raises ValueError as
        `Runner.create` does.
        """
        runner = Runner.create(
            model=model, device=device, blocks=blocks, block_size=block_size, dtype=dtype,
            seed=seed, clock=clock, threads=threads, attention=attention,
        )  # fmt: skip
        if device == "cuda" and not eager:
            longest = min(runner.transformer.model.max_model_len, runner.cache.tokens)
            runner.capture(CAPTURED, min(longest, LONGEST_CAPTURED))
        runner.warm_up()
        return cls.on(runner, requests, seed=seed, sampling=sampling, listener=listener)

    @classmethod
    def on(
        cls,
        runner: Runner,
        requests: Iterable[Prompted],
        *,
        seed: int = 0,
        sampling: Sampling | Callable[[int], Sampling] | None = None,
        listener: Listener | None = None,
    ) -> Measured:
        """The same on a runner that stands already; its cache need not be empty."""
        dialogues = {}
        for request in requests:
            own = sampling(request.index) if callable(sampling) else sampling or Sampling()
            # Seeded by text: neighbouring integers would seed related generators.
            generator = random.Random(f"{own.seed}/{request.index}")
            dialogues[request.index] = _Dialogue(request, own, generator)
        return cls(runner, dialogues, seed, listener)

    def run(self, shape: StepShape, rows: Callable[[], list[Row]]) -> Done:
        """Feed the rows in order. A step of no rows costs nothing.

        Raises ValueError where a row lies beyond the tokens that its request has.
        """
        planned = rows()
        if not planned:
            return Done(0)
        chunks = [self._chunk(row) for row in planned]
        outcome = self.runner.step(chunks)
        self.log.append((shape, outcome.duration, outcome.host))
        speakers = [
            row.request
            for row, chunk in zip(planned, chunks, strict=True)
            if chunk.draw is not None
        ]
        stopped = []
        for request, token in zip(speakers, outcome.tokens, strict=True):
            finish = self._hear(self.dialogues[request], token)
            if finish == "stop":
                stopped.append(request)
            if self.listener:
                self.listener(request, token, finish)
        return Done(outcome.duration, stopped)

    def forget(self, request: int) -> None:
        """Its KV is gone. Its outputs, and where it stands in its random numbers, are kept."""
        self.dialogues[request].known = None

    def outputs(self, request: int) -> list[int]:
        """The tokens it generated so far."""
        return self.dialogues[request].outputs

    def _chunk(self, row: Row) -> Chunk:
        dialogue = self.dialogues[row.request]
        if dialogue.known is None:
            vocab = self.runner.transformer.model.vocab
            prompt = prompt_tokens(dialogue.request, vocab, self.seed, self.outputs)
            dialogue.known = prompt + dialogue.outputs
        end = row.first + row.tokens
        if end > len(dialogue.known):
            raise ValueError(
                f"request {row.request}: fed up to position {end}, "
                f"but it has {len(dialogue.known)} tokens"
            )
        draw = None
        if end == len(dialogue.known):
            sampling = dialogue.sampling
            uniform = dialogue.generator.random() if sampling.temperature > 0 else 0.0
            draw = Draw(sampling, uniform)
        return Chunk(dialogue.known[row.first : end], row.first, row.table, draw)

    def _hear(self, dialogue: _Dialogue, token: int) -> str:
        dialogue.outputs.append(token)
        if dialogue.known is not None:
            dialogue.known.append(token)
        if token == dialogue.sampling.eos:
            return "stop"
        return "length" if len(dialogue.outputs) >= dialogue.request.output else ""
