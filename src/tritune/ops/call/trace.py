"""The trace of a call: scratch tensors, conversions and launches, recorded while they are made.

`fast_path.py` compiles it to a function that repeats the call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from triton.compiler import CompiledKernel
from triton.runtime.jit import JITFunction

from tritune.kernels.kernel import Kernel, Problem
from tritune.ops.call import allocation
from tritune.policy import config_for

#: Triton's own launch method, which a recorder or a compile-only run may replace.
RUN: Callable[..., Any] = JITFunction.run


def cdiv(size: int, block: int) -> int:
    """Return how many blocks cover a size; Triton's own is slow outside of kernels."""
    return -(-size // block)


class Scratch(NamedTuple):
    """An allocated tensor that is neither input nor output."""

    tensor: torch.Tensor


class Conversion(NamedTuple):
    """A tensor converted to another dtype."""

    source: torch.Tensor
    tensor: torch.Tensor


class KernelLaunch(NamedTuple):
    """A launched kernel."""

    compiled: CompiledKernel
    grid: tuple[int, int, int]
    tensors: Sequence[torch.Tensor | None]
    #: Everything after the tensors, in the order of the kernel's parameters.
    rest: tuple[Any, ...]


class Trace:
    """The steps of one call, made with the config that the policy gave for its problem."""

    def __init__(self, kernel: Kernel, problem: Problem, device: torch.device) -> None:
        self.key = (kernel, problem, device)
        self.config = config_for(kernel, problem, device)
        self.steps: list[Scratch | Conversion | KernelLaunch] = []
        #: False where the call has effects that the steps do not show.
        self.complete = JITFunction.run is RUN

    def scratch(self, *shape: int) -> torch.Tensor:
        """Allocate an fp32 tensor for this call alone."""
        tensor = torch.empty(shape, dtype=torch.float32, device=self.key[2])
        self.steps.append(Scratch(allocation.in_huge_pages(tensor)))
        return tensor

    def converted(self, source: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """Convert a tensor; return the tensor itself if it has the dtype."""
        tensor = source.to(dtype)
        if tensor is not source:
            self.complete &= source.is_contiguous()
            self.steps.append(Conversion(source, tensor))
        return tensor

    def launch(
        self,
        function: Any,
        grid: tuple[int, ...],
        tensors: Sequence[torch.Tensor | None],
        numbers: tuple[Any, ...],
        **constants: Any,
    ) -> None:
        """Launch: tensors first, numbers after them, the rest by name."""
        compiled = function[grid](*tensors, *numbers, **constants)
        # Triton's interpreter returns something else.
        if not isinstance(compiled, CompiledKernel):
            self.complete = False
            return
        named = list(function.signature.parameters.values())[len(tensors) + len(numbers) :]
        rest = (*numbers, *(constants.get(each.name, each.default) for each in named))
        x, y, z = (*grid, 1, 1)[:3]
        self.steps.append(KernelLaunch(compiled, (x, y, z), tensors, rest))
