"""The launch that a call comes to with a config: arguments and grid, after heuristics."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tritune.tuning.autotune.portable import PortableError

#: The names of a function's arguments, and what works out some of them from all of them.
Heuristic = tuple[Sequence[str], Mapping[str, Callable[[dict[str, Any]], Any]]]


@dataclass(frozen=True)
class Stack:
    """A `triton.jit` function and the `triton.heuristics` around it, the outermost first."""

    kernel: Any
    heuristics: tuple[Heuristic, ...] = ()


@dataclass(frozen=True)
class Call:
    """The arguments of a call, without a config."""

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    #: Up to three numbers, or a function of the named arguments that returns them.
    grid: Any

    def named(self, names: Sequence[str]) -> dict[str, Any]:
        """Return all arguments by their names."""
        return {**dict(zip(names, self.args, strict=False)), **self.kwargs}


@dataclass(frozen=True)
class Planned:
    """The arguments that a config adds to a call or replaces in it, and the grid."""

    kwargs: Mapping[str, Any]
    grid: tuple[int, ...]


def stack_of(function: Any) -> Stack:
    """Take the decorators off a function; only Triton's own are understood."""
    from triton.runtime.autotuner import Heuristics
    from triton.runtime.jit import JITFunction

    heuristics = []
    while isinstance(function, Heuristics):
        heuristics.append((function.arg_names, function.values))
        function = function.fn
    if not isinstance(function, JITFunction):
        raise PortableError(f"it is no triton.jit function but a {type(function).__qualname__}")
    return Stack(function, tuple(heuristics))


def innermost(function: Any) -> Any:
    """Return the `triton.jit` function inside, whatever is around it."""
    from triton.runtime.jit import JITFunction

    inner = function
    while not isinstance(inner, JITFunction):
        if not hasattr(inner, "fn"):
            raise PortableError(f"there is no triton.jit function in {function!r}")
        inner = inner.fn
    return inner


def plan(stack: Stack, call: Call, config: Mapping[str, Any]) -> Planned:
    """Return what a config makes of a call."""
    kwargs = {**call.kwargs, **config}
    for names, values in stack.heuristics:
        for name, value_of in values.items():
            kwargs[name] = value_of({**dict(zip(names, call.args, strict=False)), **kwargs})
    grid = call.grid
    if callable(grid):
        names = stack.kernel.arg_names
        bound = stack.kernel.signature.bind(
            *call.args, **{name: value for name, value in kwargs.items() if name in names}
        )
        bound.apply_defaults()
        grid = grid(dict(bound.arguments))
    given = call.kwargs
    changed = {
        name: value
        for name, value in kwargs.items()
        if name not in given or given[name] is not value
    }
    return Planned(changed, tuple(int(size) for size in grid))
