"""Every kernel compiles for every GPU architecture with its default config, and the code is good.

Nothing runs: each op is called as anybody would call it, with a Triton driver that says it is the
GPU in question, and every launch ends once the kernel is compiled. So what is looked at is what a
launch on that GPU would use: its config, its specialised arguments, its flags.
"""

from __future__ import annotations

import importlib
import pkgutil
import re
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import triton
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.runtime.jit import JITFunction

import tritune.kernels
import tritune.ops
from tritune.kernels.kernel import Kernel
from tritune.ops import choose

KIB = 1024


@dataclass(frozen=True)
class Target:
    family: str
    arch: int | str
    warp_size: int
    #: Bytes of shared memory that one program may have.
    shared_memory: int
    #: What its matrix instructions are called, in the assembly of a kernel with large tiles.
    matrix: str

    def __str__(self) -> str:
        return f"{self.family}:{self.arch}"


TARGETS = (
    Target("cuda", 80, 32, 163 * KIB, r"mma\.sync"),
    Target("cuda", 90, 32, 227 * KIB, r"wgmma\.mma_async|mma\.sync"),
    Target("cuda", 100, 32, 227 * KIB, r"tcgen05\.mma|mma\.sync"),
    Target("cuda", 120, 32, 99 * KIB, r"mma\.sync"),
    Target("hip", "gfx90a", 64, 64 * KIB, r"v_mfma_"),
    Target("hip", "gfx942", 64, 64 * KIB, r"v_mfma_"),
    Target("hip", "gfx950", 64, 160 * KIB, r"v_mfma_"),
    Target("hip", "gfx1100", 32, 64 * KIB, r"v_wmma_"),
)


@dataclass(frozen=True)
class Case:
    """A call of an op."""

    kernel: str
    call: Callable[[], Any]
    #: Whether it multiplies matrices.
    products: bool = False


def half(*shape: int) -> torch.Tensor:
    return torch.zeros(shape, dtype=torch.float16)


def linear(rows: int, bits: int | None = None) -> Callable[[], Any]:
    def call() -> None:
        from tritune.ops.linear import linear
        from tritune.ops.quantize import quantize_weight

        weight: Any = half(1024, 2048)
        if bits is not None:
            weight = quantize_weight(weight, bits, 128, zero_points=bits == 4)
        linear(half(rows, 2048), weight, half(1024), activation="silu")

    return call


def attention() -> None:
    from tritune.ops.attention import attention

    attention(half(1, 8, 512, 128), half(1, 2, 512, 128), half(1, 2, 512, 128), causal=True)


def paged_attention(queries: int) -> Callable[[], Any]:
    def call() -> None:
        from tritune.ops.paged_attention import paged_attention

        cache = half(64, 16, 2, 128)
        table = torch.arange(64, dtype=torch.int32)[None, :]
        lengths = torch.tensor([1024], dtype=torch.int32)
        starts = torch.tensor([0, queries], dtype=torch.int32)
        paged_attention(half(queries, 8, 128), cache, cache, table, lengths, starts)

    return call


def rms_norm() -> None:
    from tritune.ops.rms_norm import add_rms_norm

    add_rms_norm(half(64, 4096), half(64, 4096), half(4096))


def rope() -> None:
    from tritune.ops.rope import rope

    rope(half(64, 32, 128), half(64, 8, 128), torch.zeros(64, 128), torch.zeros(64, 128))


def gated() -> None:
    from tritune.ops.gated import silu_mul

    silu_mul(half(64, 4096), half(64, 4096))


CASES = {
    "linear, 1 row": Case("linear", linear(1), products=True),
    "linear, 512 rows": Case("linear", linear(512), products=True),
    "linear in 8 bits, 1 row": Case("linear_quantized", linear(1, bits=8), products=True),
    "linear in 4 bits, 512 rows": Case("linear_quantized", linear(512, bits=4), products=True),
    "attention": Case("attention_prefill", attention, products=True),
    "paged attention, prefill": Case("attention_paged", paged_attention(512), products=True),
    "paged attention, decode": Case("attention_paged", paged_attention(1), products=True),
    "rms_norm": Case("rms_norm", rms_norm),
    "rope": Case("rope", rope),
    "gated": Case("gated", gated),
}


def kernels() -> dict[str, Kernel]:
    """The kernels of every module in `tritune.kernels`, under the module's name."""
    names = [m.name for m in pkgutil.iter_modules(tritune.kernels.__path__)]
    modules = {name: importlib.import_module(f"tritune.kernels.{name}") for name in names}
    return {name: m.KERNEL for name, m in modules.items() if hasattr(m, "KERNEL")}


class CompilingDriver:
    """A Triton driver for a GPU that is not there."""

    def __init__(self, target: Target) -> None:
        self.target = target

    def get_current_target(self) -> GPUTarget:
        return GPUTarget(self.target.family, self.target.arch, self.target.warp_size)

    def get_current_device(self) -> str:
        # Triton keeps compiled kernels by device.
        return str(self.target)

    def get_current_stream(self, device: str) -> int:
        return 0


@contextmanager
def compiling_for(target: Target) -> Iterator[list[tuple[JITFunction, Any]]]:
    """Launches only compile, for the target; gives what they compiled."""
    compiled: list[tuple[JITFunction, Any]] = []
    launch = JITFunction.run

    def compile_only(self: JITFunction, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
        compiled.append((self, launch(self, *args, grid=grid, warmup=True, **kwargs)))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(triton.runtime.driver, "_active", CompilingDriver(target))
        patch.setattr(JITFunction, "run", compile_only)
        # The tensors are the CPU's, but the config shall be the target's.
        for module in pkgutil.iter_modules(tritune.ops.__path__):
            imported = importlib.import_module(f"tritune.ops.{module.name}")
            if hasattr(imported, "device_target"):
                patch.setattr(imported, "device_target", lambda _: (target.family, target.arch))
        choose.config_for.cache_clear()
        try:
            yield compiled
        finally:
            choose.config_for.cache_clear()


def spills(kernel: Any, family: str, folder: Path) -> int:
    """How much of a thread lies in memory because registers did not suffice; 0 if all is well."""
    if family == "hip":
        # Of vector registers only: scalars that find no register are kept in lanes of these.
        return int(re.search(r"\.vgpr_spill_count:\s*(\d+)", kernel.asm["amdgcn"])[1])
    cubin = folder / "kernel.cubin"
    cubin.write_bytes(kernel.asm["cubin"])
    tool = [knobs.nvidia.cuobjdump.path, "--dump-resource-usage", str(cubin)]
    usage = subprocess.run(tool, capture_output=True, text=True, check=True).stdout
    found = re.search(r"STACK:(\d+) .*LOCAL:(\d+)", usage)
    return int(found[1]) + int(found[2])


def test_every_kernel_has_a_case():
    assert {case.kernel for case in CASES.values()} == set(kernels())


@pytest.mark.parametrize("target", TARGETS, ids=str)
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_kernel_compiles_to_good_code(case: Case, target: Target, tmp_path: Path):
    main, *others = kernels()[case.kernel].functions
    with compiling_for(target) as compiled:
        case.call()

    functions = [function for function, _ in compiled]
    assert main in functions
    assert set(functions) <= {main, *others}
    for function, kernel in compiled:
        assert kernel.metadata.shared <= target.shared_memory, function
        assert spills(kernel, target.family, tmp_path) == 0, function
        if function is main and case.products:
            assembly = kernel.asm["ptx" if target.family == "cuda" else "amdgcn"]
            assert re.search(target.matrix, assembly), function
