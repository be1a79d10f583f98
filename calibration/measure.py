"""Time real steps over a grid: what a profile is fitted from.

Every visit runs one step once to warm up and once timed, and writes two rows of the raw table:
the step without the host's part, and the host's part. Visits go over the grid several times in
a fresh random order each, so that no kind of step is measured in a slow hour of the machine
alone; an anchor step in between shows whether there was one. Rows are written as they come:
run again, a measurement goes on where it stopped.
"""

from __future__ import annotations

import os
import platform
import random
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from datetime import date
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from statistics import median
from typing import NamedTuple

import numpy as np
import torch

from calibration.graphs import CAPTURED
from calibration.grid import Limits, Point, anchor, blocks_of, grid, shape_of
from calibration.hardware import GPUS, Gpu, ModelShape, find_model, pool_tokens
from calibration.raw import RawHeader, RawRow, append_raw, read_raw, write_raw
from calibration.runner import Chunk, Runner, check_settings
from calibration.sampling import Draw, Sampling
from calibration.step_time import StepShape

ANCHOR_EVERY = 16
PS_PER_S = 10**12
CPU_LIMITS = Limits(sequences=64, tokens=512, context=2048, held=32_768)
CUDA_LIMITS = Limits(sequences=256, tokens=8192, context=32_768, held=524_288)
CPU_POOL_BYTES = 2**30


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """What to measure and how; the same settings plan the same visits."""

    model: str = "tiny"
    device: str = "cpu"
    dtype: str | None = None
    """Default: fp32 on the CPU, bf16 on CUDA."""
    block_sizes: tuple[int, ...] = (16,)
    limits: Limits | None = None
    """Default: by device, model and memory."""
    passes: int = 4
    quick: bool = False
    threads: int = 1
    clock: str = "cpu"
    seed: int = 0
    eager: bool = False
    """On CUDA: capture no graphs."""
    attention: str = "auto"

    def __post_init__(self) -> None:
        for size in self.block_sizes:
            if not 1 <= size <= 1024:
                raise ValueError(f"block size {size}, expected 1 to 1024 tokens")
        if self.passes < 1:
            raise ValueError(f"passes {self.passes}, expected at least 1")


class Visit(NamedTuple):
    """One timed step: which, in blocks of what size, for the how-manyth time."""

    point: Point
    block_size: int
    repeat: int


class Drift(NamedTuple):
    """The anchor step over the measurement."""

    change: float
    """Median of its last third of visits over that of the first, less one."""
    spread: float
    """(P90 − P10) / median."""


def plan(settings: Measurement, limits: Limits) -> Iterator[Visit]:
    """The visits in order."""
    points = grid(limits, quick=settings.quick, seed=settings.seed)
    shuffle = random.Random(settings.seed).shuffle
    anchors = 0
    for repeat in range(settings.passes):
        cells = [(point, size) for point in points for size in settings.block_sizes]
        shuffle(cells)
        for i, (point, size) in enumerate(cells):
            if i % ANCHOR_EVERY == 0:
                yield Visit(anchor(limits), settings.block_sizes[0], anchors)
                anchors += 1
            yield Visit(point, size, repeat)


def measure(
    settings: Measurement, path: Path, progress: Callable[[float], None] = lambda share: None
) -> Drift:
    """Write the raw table at `path`, or go on with the one that a stopped measurement left there.

    Raises ValueError where the file holds anything else, and as `Runner.create` does.
    """
    if path.suffix == ".gz":
        raise ValueError(f"{path}: rows are added one by one, expected a name without .gz")
    model = find_model(settings.model)
    dtype = check_settings(
        device=settings.device, dtype=settings.dtype, clock=settings.clock, threads=settings.threads
    )
    limits = settings.limits or default_limits(settings, model)
    visits = list(plan(settings, limits))
    header = header_of(settings, model, dtype, limits)
    done = _already_done(path, header, visits) if path.exists() else 0
    if done < len(visits):
        bench = Bench(settings, limits, visits)
        bench.warm_up(visits)
        if not path.exists():
            write_raw(path, header)
        for i, visit in enumerate(visits[done:], done):
            progress(i / len(visits))
            append_raw(path, bench.rows(visit))
    return drift(path, shape_of(anchor(limits), settings.block_sizes[0]))


class Bench:
    """Runners over one pool of random KV, cut into blocks of each size."""

    def __init__(self, settings: Measurement, limits: Limits, visits: list[Visit]) -> None:
        tokens = max(blocks_of(v.point, v.block_size) * v.block_size for v in visits)
        whole = Runner.create(
            model=settings.model, device=settings.device, blocks=tokens, block_size=1,
            dtype=settings.dtype, seed=settings.seed, clock=settings.clock,
            threads=settings.threads, attention=settings.attention,
        )  # fmt: skip
        for storage in (*whole.cache.keys, *whole.cache.values):
            storage.normal_()
        self.runners = {size: whole.recut(size) for size in settings.block_sizes}
        if sizes := captured_sizes(settings, limits):
            for runner in self.runners.values():
                runner.capture(sizes, limits.context)
        self._draw = random.Random(settings.seed)
        self._flush: torch.Tensor | None = None
        if settings.device == "cuda":
            cached = torch.cuda.get_device_properties(0).L2_cache_size
            self._flush = torch.empty(2 * cached, dtype=torch.uint8, device="cuda")

    def rows(self, visit: Visit) -> list[RawRow]:
        """Run the visit's step twice, the second time for the table."""
        size = visit.block_size
        runner = self.runners[size]
        chunks = self._chunks(visit.point, runner)
        runner.step(chunks)
        if self._flush is not None:
            self._flush.zero_()
        outcome = runner.step(chunks)
        shape = shape_of(visit.point, size)
        device_s = (outcome.duration - outcome.host) / PS_PER_S
        return [
            RawRow.of(shape, device_s, size, visit.repeat),
            RawRow.of(shape, outcome.host / PS_PER_S, size, visit.repeat, host=True),
        ]

    def warm_up(self, visits: list[Visit]) -> None:
        """Let the device, the allocator and compiled kernels settle at their largest."""
        most_tokens = max(visits, key=lambda visit: sum(new for new, _ in visit.point))
        most_held = max(visits, key=lambda visit: blocks_of(visit.point, 1))
        for visit in (most_tokens, most_held) * 2:
            self.rows(visit)

    def _chunks(self, point: Point, runner: Runner) -> list[Chunk]:
        """Random tokens in random blocks."""
        size, vocab = runner.cache.block_size, runner.transformer.model.vocab
        free = iter(self._draw.sample(range(runner.cache.blocks), blocks_of(point, size)))
        chunks = []
        for new, cached in point:
            tokens = self._draw.choices(range(vocab), k=new)
            table = list(islice(free, blocks_of(((new, cached),), size)))
            chunks.append(Chunk(tokens, cached, table, Draw(Sampling())))
        return chunks


def captured_sizes(settings: Measurement, limits: Limits) -> tuple[int, ...]:
    """Decode batch sizes that are captured as CUDA graphs; none on the CPU or where eager."""
    if settings.device != "cuda" or settings.eager:
        return ()
    return tuple(size for size in CAPTURED if size <= limits.sequences)


def default_limits(settings: Measurement, model: ModelShape) -> Limits:
    """The range that model and memory of the device allow."""
    if settings.device == "cuda":
        most, pool = CUDA_LIMITS, pool_tokens(_gpu(), model)
    else:
        most, pool = CPU_LIMITS, CPU_POOL_BYTES // model.kv_bytes_per_token("fp32")
    return replace(most, context=min(most.context, model.max_model_len), held=min(most.held, pool))


def drift(path: Path, shape: StepShape) -> Drift:
    """How the steps of `shape`, the anchor, changed over the raw table."""
    rows = read_raw(path).rows
    whole = rows[rows["kind"] != "host"]
    same = (whole[list(StepShape._fields[:7])].to_numpy() == np.array(shape[:7])).all(axis=1)
    seconds = whole["seconds"][same]
    third = max(1, len(seconds) // 3)
    low, middle, high = seconds.quantile([0.1, 0.5, 0.9])
    change = median(seconds.iloc[-third:]) / median(seconds.iloc[:third]) - 1
    return Drift(float(change), float((high - low) / middle))


def header_of(settings: Measurement, model: ModelShape, dtype: str, limits: Limits) -> RawHeader:
    """What a raw table of these settings states of itself."""
    cuda = settings.device == "cuda"
    if cuda:
        device = _gpu().name
        machine = f"{torch.cuda.get_device_name()}, CUDA {torch.version.cuda}"
        clock = "cuda events"
        pool = pool_tokens(_gpu(), model, dtype=dtype, kv_dtype=dtype)
    else:
        device, clock, pool = "cpu", f"{settings.clock} time", limits.held
        machine = f"{_processor()}, {os.cpu_count()} cores"
    return RawHeader(
        device=device,
        model=model.name,
        dtype=dtype,
        engine="batchlab",
        engine_version=f"{version('batchlab')} on torch {torch.__version__}",
        date=date.today().isoformat(),
        machine=machine,
        clock=clock,
        kv_bytes_per_token=model.kv_bytes_per_token(dtype),
        pool_tokens=pool,
        max_model_len=model.max_model_len,
        threads=None if cuda else settings.threads,
        captured=captured_sizes(settings, limits),
    )


def _already_done(path: Path, header: RawHeader, visits: list[Visit]) -> int:
    """How many of the visits the file holds."""
    table = read_raw(path)
    if replace(table.header, date=header.date) != header:
        theirs, ours = asdict(table.header), asdict(header)
        name = next(name for name in ours if name != "date" and theirs[name] != ours[name])
        raise ValueError(
            f"{path}: another measurement, its {name} is {theirs[name]!r}, expected "
            f"{ours[name]!r}: name another file or remove it"
        )
    done = len(table.rows) // 2
    measured = table.rows.iloc[::2][[*StepShape._fields[:7], "block_size", "repeat"]]
    planned = [(*shape_of(v.point, v.block_size)[:7], *v[1:]) for v in visits]
    for i, row in enumerate(measured.itertuples(index=False, name=None)):
        if i >= len(visits) or row != planned[i]:
            raise ValueError(
                f"{path}, line {3 + 2 * i}: a step that these settings do not plan here: name "
                "another file, or measure with the settings that began it"
            )
    return done


def _gpu() -> Gpu:
    """The device at hand, with the memory that its driver reports."""
    name = torch.cuda.get_device_name().lower()
    memory = torch.cuda.mem_get_info()[1]
    for gpu in GPUS.values():
        # "NVIDIA H100 80GB HBM3" is h100-sxm, "NVIDIA GeForce RTX 4090" rtx-4090.
        if all(part in name for part in gpu.name.removesuffix("-sxm").split("-")):
            return replace(gpu, memory_bytes=memory)
    return Gpu(
        name=name.removeprefix("nvidia ").replace(" ", "-"),
        memory_bytes=memory,
        bandwidth_bytes_per_s=0.0,
        bf16_flops_per_s=0.0,
        fp8_flops_per_s=None,
        source="as the driver reports it",
    )


def _processor() -> str:
    """The processor's name."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())
