"""The Triton kernels compiled ahead of time for real GPUs, which needs none.

What the compiler says of a kernel decides how many programs a multiprocessor holds: registers,
bytes spilled to local memory, shared memory. The limits are the cards': 255 registers a thread,
163 KiB (sm_80) and 227 KiB (sm_90) of shared memory a program.
"""

from __future__ import annotations

import importlib.util
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

if importlib.util.find_spec("triton") is None:
    pytest.skip("triton is not installed here", allow_module_level=True)

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from calibration.attention import triton_kernel, triton_launch
from calibration.attention.triton_launch import Tiles

BINARIES = Path(triton.__path__[0]) / "backends/nvidia/bin"
POINTERS = {torch.bfloat16: "*bf16", torch.float16: "*fp16", torch.float32: "*fp32"}
TYPES = {"slots": "*i64", "partial": "*fp32", "lse": "*fp32", "scale_log2": "fp32"}
INDICES = [
    "block_tables",
    "cu_seqlens",
    "contexts",
    "piece",
    "piece_owner",
    "piece_offset",
    "tile_owner",
    "tile_offset",
]
TENSORS = ["out", "q", "k", "v", "k_cache", "v_cache"]
EVEN_INTEGERS = ["q_stride", "k_stride", "v_stride"]
REGISTERS_PER_SM = 65_536
SHARED_PER_PROGRAM = {80: 163 * 1024, 90: 227 * 1024}


@dataclass(frozen=True, kw_only=True)
class Compiled:
    registers: int
    stack: int
    """Bytes of local memory a thread: spilled registers live there."""
    shared: int
    warps: int
    assembly: str

    def programs_per_sm(self, capability: int) -> int:
        shared_per_sm = SHARED_PER_PROGRAM[capability] + 1024
        # Each program reserves 1 KiB for the system.
        by_shared = shared_per_sm // (self.shared + 1024)
        return min(by_shared, REGISTERS_PER_SM // (self.registers * 32 * self.warps))


def compiled(
    kernel: Any, dtype: torch.dtype, capability: int, arguments: dict[str, Any], directory: Path
) -> Compiled:
    """`arguments`: compile-time arguments and launch options, as `triton_launch` passes them."""
    names = kernel.arg_names
    constants = {name: value for name, value in arguments.items() if name in names}
    options = {name: value for name, value in arguments.items() if name not in names}
    signature = {}
    for name in names:
        if name in constants:
            signature[name] = "constexpr"
        elif name in TENSORS:
            signature[name] = POINTERS[dtype]
        else:
            signature[name] = TYPES.get(name, "*i32" if name in INDICES else "i32")
    # The launcher finds these multiples of 16 and compiles for that: 16-byte loads need it.
    aligned = [
        i
        for i, name in enumerate(names)
        if signature[name].startswith("*") or name in EVEN_INTEGERS
    ]
    source = ASTSource(
        kernel,
        signature,
        constexprs={(names.index(name),): value for name, value in constants.items()},
        attrs={(i,): [["tt.divisibility", 16]] for i in aligned},
    )
    target = GPUTarget("cuda", capability, 32)
    binary = triton.compile(source, target=target, options=options)
    cubin = directory / "kernel.cubin"
    cubin.write_bytes(binary.asm["cubin"])
    usage = subprocess.run(
        [BINARIES / "cuobjdump", "-res-usage", cubin], capture_output=True, text=True, check=True
    ).stdout
    assembly = subprocess.run(
        [BINARIES / "nvdisasm", cubin], capture_output=True, text=True, check=True
    ).stdout
    found = re.search(r"REG:(\d+) STACK:(\d+)", usage)
    assert found, usage
    return Compiled(
        registers=int(found[1]),
        stack=int(found[2]),
        shared=binary.metadata.shared,
        warps=binary.metadata.num_warps,
        assembly=assembly,
    )


def arguments(
    tiles: Tiles, dtype: torch.dtype, *, group: int = 4, head_dim: int = 128, block_size: int = 16
) -> dict[str, Any]:
    fixed = triton_launch.constants(8 * group, 8, head_dim, block_size, dtype)
    return {**fixed, **triton_launch.launch_options(tiles)}


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))


@pytest.mark.parametrize("capability", [80, 90])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_decode_fits_and_reads_16_bytes_at_a_time(
    capability: int, dtype: torch.dtype, tmp_path: Path
) -> None:
    tiles = triton_launch.decode_tiles(dtype, group=4)
    kernel = triton_kernel.decode_kernel
    got = compiled(kernel, dtype, capability, arguments(tiles, dtype), tmp_path)
    assert got.stack == 0
    assert got.programs_per_sm(capability) >= 2
    assert "LDGSTS.E.BYPASS.128" in got.assembly  # K and V: asynchronous, 16 bytes a thread
    assert "HMMA" in got.assembly  # on the matrix units


@pytest.mark.parametrize("capability", [80, 90])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_prefill_fits_and_runs_on_the_matrix_units(
    capability: int, dtype: torch.dtype, tmp_path: Path
) -> None:
    tiles = triton_launch.prefill_tiles(dtype, group=4, hopper=capability >= 90)
    kernel = triton_kernel.prefill_kernel
    got = compiled(kernel, dtype, capability, arguments(tiles, dtype), tmp_path)
    assert got.stack == 0
    assert got.programs_per_sm(capability) >= 1
    warpgroups = capability >= 90 and dtype is not torch.float32
    assert ("HGMMA" if warpgroups else "HMMA") in got.assembly


@pytest.mark.parametrize(
    ("head_dim", "block_size", "group"), [(64, 8, 1), (64, 24, 8), (128, 128, 7)]
)
def test_other_shapes_do_not_spill(
    head_dim: int, block_size: int, group: int, tmp_path: Path
) -> None:
    dtype = torch.bfloat16
    shape = {"group": group, "head_dim": head_dim, "block_size": block_size}
    decode = arguments(triton_launch.decode_tiles(dtype, group), dtype, **shape)
    prefill = arguments(triton_launch.prefill_tiles(dtype, group), dtype, **shape)
    assert compiled(triton_kernel.decode_kernel, dtype, 90, decode, tmp_path).stack == 0
    assert compiled(triton_kernel.prefill_kernel, dtype, 90, prefill, tmp_path).stack == 0


@pytest.mark.parametrize("capability", [80, 90])
def test_write_and_reduce_are_small(capability: int, tmp_path: Path) -> None:
    options = {"num_warps": 4, "enable_fp_fusion": True}
    write = {"WIDTH": 1024, "BLOCK": 1024, **options}
    reduce = {"HEADS": 32, "HEAD_DIM": 128, "PIECES": 16, **options}
    for kernel, given in (
        (triton_kernel.write_kernel, write),
        (triton_kernel.reduce_kernel, reduce),
    ):
        got = compiled(kernel, torch.bfloat16, capability, given, tmp_path)
        assert got.stack == 0
        assert got.programs_per_sm(capability) >= 8
