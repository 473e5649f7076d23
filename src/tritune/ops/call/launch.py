"""What an op does between its inputs and its outputs, noted down while it is done.

`ops/call/call_cache.py` does it again without asking what it is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from triton.compiler import CompiledKernel
from triton.runtime.jit import JITFunction

from tritune.ops.call import allocation
from tritune.policy.recorder import Key

#: What launches a kernel, unless somebody stands in for it (a recorder, one who only compiles).
RUN: Callable[..., Any] = JITFunction.run


def cdiv(size: int, block: int) -> int:
    """How many blocks cover a size; Triton's own is made for kernels, and slow outside of them."""
    return -(-size // block)


class Emptied(NamedTuple):
    """Room for what is neither input nor output."""

    tensor: torch.Tensor


class Converted(NamedTuple):
    """The same numbers in another dtype."""

    source: torch.Tensor
    tensor: torch.Tensor


class Launched(NamedTuple):
    """A kernel that was launched."""

    compiled: CompiledKernel
    grid: tuple[int, int, int]
    tensors: Sequence[torch.Tensor | None]
    #: Everything after the tensors, in the order of the kernel's parameters.
    rest: tuple[Any, ...]


class Steps:
    """The steps of one call, with the config that the policy gave for a question."""

    def __init__(self, question: Key, config: Mapping[str, Any]) -> None:
        self.question, self.config = question, config
        self.taken: list[Emptied | Converted | Launched] = []
        #: Whether these steps are all there is to the call.
        self.complete = JITFunction.run is RUN

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """A tensor for this call alone."""
        tensor = allocation.in_large_pages(torch.empty(shape, dtype=dtype, device=self.question[2]))
        self.taken.append(Emptied(tensor))
        return tensor

    def converted(self, source: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """The tensor in another dtype; itself if it has that."""
        tensor = source.to(dtype)
        if tensor is not source:
            self.complete &= source.is_contiguous()
            self.taken.append(Converted(source, tensor))
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
        self.taken.append(Launched(compiled, (x, y, z), tensors, rest))
