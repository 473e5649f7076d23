"""Compiling for GPUs that are not there, and reading what came out of it.

An op is called as anybody would call it, with a Triton driver that says it is the GPU in question,
and every launch ends once the kernel is compiled. So what is looked at is what a launch on that GPU
would use: its config, its specialised arguments, its flags.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime.jit import JITFunction

from tritune.ops import linear, paged_attention
from tritune.ops.call import trace
from tritune.targets.binary import read_compiled

KIB = 1024


@dataclass(frozen=True)
class Target:
    family: str
    arch: int | str
    warp_size: int
    #: Bytes of shared memory that one program may have.
    shared_memory: int
    #: What its matrix instructions are called in assembly, for 16-bit products of large tiles.
    matrix: str
    #: The same for tiles of few rows, which the largest instructions do not fit.
    few_rows: str
    #: The same for products in full fp32, where there are such instructions.
    full: str | None = None

    def __str__(self) -> str:
        return f"{self.family}:{self.arch}"


TARGETS = (
    Target("cuda", 80, 32, 163 * KIB, r"mma\.sync", r"mma\.sync"),
    Target("cuda", 90, 32, 227 * KIB, r"wgmma\.mma_async", r"mma\.sync"),
    Target("cuda", 100, 32, 227 * KIB, r"tcgen05\.mma", r"mma\.sync"),
    Target("cuda", 120, 32, 99 * KIB, r"mma\.sync", r"mma\.sync"),
    Target("hip", "gfx90a", 64, 64 * KIB, r"v_mfma_f32", r"v_mfma_f32", r"v_mfma_f32\w*f32"),
    Target("hip", "gfx942", 64, 64 * KIB, r"v_mfma_f32", r"v_mfma_f32", r"v_mfma_f32\w*f32"),
    Target("hip", "gfx950", 64, 160 * KIB, r"v_mfma_f32", r"v_mfma_f32", r"v_mfma_f32\w*f32"),
    Target("hip", "gfx1100", 32, 64 * KIB, r"v_wmma_f32", r"v_wmma_f32"),
)


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
def compiling_for(target: Target, **changes: Any) -> Iterator[list[tuple[JITFunction, Any]]]:
    """Launches only compile, for the target; gives what they compiled.

    Configs are the target's defaults, with these changes.
    """
    compiled: list[tuple[JITFunction, Any]] = []
    launch = JITFunction.run
    place = (target.family, target.arch)

    def compile_only(self: JITFunction, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
        compiled.append((self, launch(self, *args, grid=grid, warmup=True, **kwargs)))

    def config_for(kernel: Any, problem: Any, _: Any) -> dict[str, Any]:
        return {**kernel.default(problem, *place).as_kwargs(), **changes}

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(triton.runtime.driver, "_active", CompilingDriver(target))
        patch.setattr(JITFunction, "run", compile_only)
        # The tensors are the CPU's, but the config shall be the target's.
        patch.setattr(trace, "config_for", config_for)
        for module in (linear, paged_attention):
            patch.setattr(module, "compile_target", lambda _: target)
        yield compiled


def assembly(kernel: Any) -> str:
    return str(kernel.asm["ptx"] if "ptx" in kernel.asm else kernel.asm["amdgcn"])


def spilled_bytes(kernel: Any) -> int:
    """How much of a thread lies in memory because registers did not suffice; 0 if all is well."""
    return read_compiled(kernel).spill_bytes or 0
