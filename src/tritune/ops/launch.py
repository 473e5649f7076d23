"""Launching again what was launched before, without Triton finding out anew what it is.

Most of what a small launch costs is Triton looking at each argument: what it is specialised on and
whether that was compiled. Calls with the sizes and strides of an earlier call differ from it in
their tensors only, of which dtypes and alignment decide. Those that are not aligned go the long
way, and so does everything while somebody stands in for Triton's `JITFunction.run`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from triton.compiler import CompiledKernel
from triton.runtime.jit import JITFunction

#: What Triton takes for aligned, in bytes.
_ALIGNED = 16
#: What launches a kernel, unless somebody stands in for it (a recorder, one who only compiles).
_RUN = JITFunction.run
#: So many launches of a plan are remembered. There are few but while a plan is tuned.
_MOST = 64


def cdiv(size: int, block: int) -> int:
    """How many blocks cover a size; Triton's own is made for kernels, and slow outside of them."""
    return -(-size // block)


class _Known(NamedTuple):
    #: The very object that the policy gave: another answer is another launch.
    config: Mapping[str, Any]
    run: Callable[..., None]
    #: Everything after the tensors, in the order of the function's parameters.
    rest: tuple[Any, ...]


class Launches:
    """Launches of one function with the same sizes and strides; part of an op's plan."""

    def __init__(self, function: Any) -> None:
        self._function = function
        self._known: dict[tuple[Any, ...], _Known] = {}

    def __call__(
        self,
        grid: tuple[int, ...],
        tensors: Sequence[torch.Tensor | None],
        numbers: tuple[Any, ...],
        config: Mapping[str, Any],
        **constants: Any,
    ) -> None:
        """Launch: tensors first, numbers after them, the rest by name. `grid` and `constants`
        follow from the config and from what all launches of this plan share.
        """
        addresses = 0
        key: list[Any] = [id(config), numbers, tensors[0] is not None and tensors[0].get_device()]
        for tensor in tensors:
            if tensor is not None:
                addresses |= tensor.data_ptr()
                key.append(tensor.dtype)
        if addresses % _ALIGNED or JITFunction.run is not _RUN:
            self._function[grid](*tensors, *numbers, **constants, **config)
            return
        known = self._known.get(tuple(key))
        if known is not None and known.config is config:
            known.run(*tensors, *known.rest)
            return
        compiled = self._function[grid](*tensors, *numbers, **constants, **config)
        # Triton's interpreter returns something else.
        if isinstance(compiled, CompiledKernel):
            values = {**constants, **config}
            given = len(tensors) + len(numbers)
            named = list(self._function.signature.parameters.values())[given:]
            rest = (*numbers, *(values.get(each.name, each.default) for each in named))
            run = compiled[(*grid, 1, 1)[:3]]
            if tensors[0] is not None and tensors[0].is_cpu:
                run = functools.partial(run, stream=0)  # a CPU has no others to look for
            if len(self._known) >= _MOST:
                self._known.clear()
            self._known[tuple(key)] = _Known(config, run, rest)
