"""Mathematical functions on LLVM scalars and vectors of any lane count.

`emit` adds a function's code at a builder's place and leaves the builder in the same block. The
float32 functions that kernels spend time in are vector code (`float32`, `wide`); the others call
libm per lane.
"""

from __future__ import annotations

from collections.abc import Callable

from llvmlite import ir

from tritune.cpu.lower.math import float32, integers, libm
from tritune.cpu.lower.math import float32_in_float64 as wide
from tritune.cpu.lower.math.formula import F32, Lanes
from tritune.cpu.lower.math.symbols import from_mlir, from_symbol

__all__ = ["emit", "from_mlir", "from_symbol", "supported"]

_FLOAT32: dict[str, Callable[..., Lanes]] = {
    **libm.FLOAT32_ONLY,
    **wide.FUNCTIONS,
    **float32.FUNCTIONS,
}
_ANY: dict[str, Callable[..., Lanes]] = {**integers.FUNCTIONS, **libm.FUNCTIONS}


def supported(name: str) -> bool:
    """Return whether `emit` knows the function, for float32 or integers at least."""
    return name in _FLOAT32 or name in _ANY


def emit(b: ir.IRBuilder, name: str, args: list[ir.Value]) -> ir.Value:
    """Emit the function `name`; raise KeyError if there is none for these argument types."""
    lanes = [Lanes(b, arg) for arg in args]
    single = any(arg.elem == F32 for arg in lanes)
    function = _FLOAT32.get(name) if single else None
    return (function or _ANY[name])(*lanes).value
