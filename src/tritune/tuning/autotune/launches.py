"""The arguments and the grid of the launch that a call makes with a config."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from triton.runtime.autotuner import Heuristics
from triton.runtime.jit import JITFunction

from tritune.tuning.autotune.pickling import TransferError

#: The names of a function's arguments, and what works out some of them from all of them.
Heuristic = tuple[Sequence[str], Mapping[str, Callable[[dict[str, Any]], Any]]]


@dataclass(frozen=True)
class DecoratedKernel:
    """A `triton.jit` function and the `triton.heuristics` around it, the outermost first."""

    function: Any
    heuristics: tuple[Heuristic, ...] = ()


@dataclass(frozen=True)
class CallArguments:
    """The arguments of a call, without a config."""

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    #: Up to three numbers, or a function of the named arguments that returns them.
    grid: Any

    def named(self, names: Sequence[str]) -> dict[str, Any]:
        """Return all arguments by their names."""
        return {**dict(zip(names, self.args, strict=False)), **self.kwargs}


@dataclass(frozen=True)
class LaunchArguments:
    """The arguments that a config adds to a call or replaces in it, and the grid."""

    kwargs: Mapping[str, Any]
    grid: tuple[int, ...]


def decorated_kernel(function: Any) -> DecoratedKernel:
    """Take the decorators off a function; TransferError where one of them is not Triton's."""
    heuristics = []
    while isinstance(function, Heuristics):
        heuristics.append((function.arg_names, function.values))
        function = function.fn
    if not isinstance(function, JITFunction):
        raise TransferError(f"it is no triton.jit function but a {type(function).__qualname__}")
    return DecoratedKernel(function, tuple(heuristics))


def jit_function(function: Any) -> Any:
    """Return the `triton.jit` function inside, whatever is around it."""
    inner = function
    while not isinstance(inner, JITFunction):
        if not hasattr(inner, "fn"):
            raise TransferError(f"there is no triton.jit function in {function!r}")
        inner = inner.fn
    return inner


def launch_arguments(
    kernel: DecoratedKernel, call: CallArguments, config: Mapping[str, Any]
) -> LaunchArguments:
    """Return what a config makes of a call."""
    kwargs = {**call.kwargs, **config}
    for names, values in kernel.heuristics:
        for name, value_of in values.items():
            kwargs[name] = value_of({**dict(zip(names, call.args, strict=False)), **kwargs})
    grid = call.grid
    if callable(grid):
        function = kernel.function
        own = {name: value for name, value in kwargs.items() if name in function.arg_names}
        bound = function.signature.bind(*call.args, **own)
        bound.apply_defaults()
        grid = grid(dict(bound.arguments))
    given = call.kwargs
    changed = {
        name: value
        for name, value in kwargs.items()
        if name not in given or given[name] is not value
    }
    return LaunchArguments(changed, tuple(int(size) for size in grid))
