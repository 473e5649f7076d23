"""Functions on the bits: integer arithmetic, and conversions between integers and floats.

The conversions saturate as CUDA's do, where LLVM's plain ones are undefined out of range.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from llvmlite import ir

from tritune.cpu.lower.math.formula import (
    F32,
    F64,
    I1,
    I32,
    I64,
    Lanes,
    constant,
    select,
    shaped_like,
)


def _flagged(x: Lanes, name: str) -> Lanes:
    """Call an intrinsic that has a flag for "undefined for the one hard input": never, here."""
    return x.intrinsic(name, Lanes(x.b, constant(I1, 0)))


def _to_i32(x: Lanes) -> Lanes:
    return x.cast("trunc", I32)


def find_first_set(x: Lanes) -> Lanes:
    """Return one more than the index of the lowest set bit; 0 when there is none."""
    return _to_i32(select(x.equals(0), 0, _flagged(x, "cttz") + 1))


def multiply_high(x: Lanes, y: Lanes, *, extend: str) -> Lanes:
    width = x.elem.width
    double = ir.IntType(2 * width)
    product = x.cast(extend, double) * y.cast(extend, double)
    return product.lshr(width).cast("trunc", x.elem)


def pick_bytes(x: Lanes, y: Lanes, selector: Lanes) -> Lanes:
    """Select four of the eight bytes of (y, x), each by three bits of a nibble of the selector."""
    pool = (y.cast("zext", I64) << 32) | x.cast("zext", I64)
    selector = selector.cast("zext", I64)
    result = pool.const(0)
    for byte in range(4):
        shift = (selector.lshr(4 * byte) & 7) << 3
        result = result | ((pool.lshr(shift) & 0xFF) << (8 * byte))
    return _to_i32(result)


def float_to_int(x: Lanes, *, rounding: str, elem: ir.IntType, signed: bool) -> Lanes:
    """Round, then saturate; return for NaN what PTX's `cvt` does."""
    result_type = shaped_like(x.type, elem)
    rounded = x.intrinsic(rounding)
    name = "fptosi.sat" if signed else "fptoui.sat"
    result = rounded.intrinsic(name, result=result_type)
    if x.elem is F32 and elem.width == 32:
        return result  # LLVM's answer for NaN, zero, is the right one
    return select(x.is_nan(), 1 << (elem.width - 1), result)


def _conversions() -> dict[str, Callable[..., Lanes]]:
    roundings = {"rn": "roundeven", "rd": "floor", "ru": "ceil", "rz": "trunc"}
    integers = {"int": (I32, True), "uint": (I32, False), "ll": (I64, True), "ull": (I64, False)}
    table: dict[str, Callable[..., Lanes]] = {}
    for integer, (elem, signed) in integers.items():
        cast = "sitofp" if signed else "uitofp"
        for source, float_elem in (("float", F32), ("double", F64)):
            for mode, rounding in roundings.items():
                table[f"{source}2{integer}_{mode}"] = partial(
                    float_to_int, rounding=rounding, elem=elem, signed=signed
                )
            table[f"{integer}2{source}_rn"] = partial(_cast, operation=cast, elem=float_elem)
    return table


def _cast(x: Lanes, *, operation: str, elem: ir.Type) -> Lanes:
    return x.cast(operation, elem)


FUNCTIONS: dict[str, Callable[..., Lanes]] = {
    "abs": lambda x: _flagged(x, "abs"),
    "ctlz": lambda x: _flagged(x, "ctlz"),
    "cttz": lambda x: _flagged(x, "cttz"),
    "ctpop": lambda x: x.intrinsic("ctpop"),
    "clz": lambda x: _to_i32(_flagged(x, "ctlz")),
    "popc": lambda x: _to_i32(x.intrinsic("ctpop")),
    "brev": lambda x: x.intrinsic("bitreverse"),
    "ffs": find_first_set,
    "mulhi": partial(multiply_high, extend="sext"),
    "umulhi": partial(multiply_high, extend="zext"),
    "mul24": lambda x, y: ((x << 8) >> 8) * ((y << 8) >> 8),
    "umul24": lambda x, y: (x & 0xFFFFFF) * (y & 0xFFFFFF),
    "sad": lambda x, y, z: select(x < y, y - x, x - y) + z,
    "usad": lambda x, y, z: select(x.below(y), y - x, x - y) + z,
    # (x + y) / 2 and (x + y + 1) / 2 rounded down, without the overflow.
    "hadd": lambda x, y: (x & y) + ((x ^ y) >> 1),
    "uhadd": lambda x, y: (x & y) + (x ^ y).lshr(1),
    "rhadd": lambda x, y: (x | y) - ((x ^ y) >> 1),
    "urhadd": lambda x, y: (x | y) - (x ^ y).lshr(1),
    "min": lambda x, y: x.intrinsic("smin", y),
    "max": lambda x, y: x.intrinsic("smax", y),
    "umin": lambda x, y: x.intrinsic("umin", y),
    "umax": lambda x, y: x.intrinsic("umax", y),
    "byte_perm": pick_bytes,
    "llrint": partial(float_to_int, rounding="roundeven", elem=I64, signed=True),
    "llround": partial(float_to_int, rounding="round", elem=I64, signed=True),
    "double2float_rn": lambda x: x.cast("fptrunc", F32),
    "hiloint2double": lambda high, low: (
        (high.cast("zext", I64) << 32) | low.cast("zext", I64)
    ).as_float(),
    "double2loint": lambda x: _to_i32(x.bits()),
    "double2hiint": lambda x: _to_i32(x.bits().lshr(32)),
    "float_as_int": Lanes.bits,
    "int_as_float": Lanes.as_float,
    "double_as_longlong": Lanes.bits,
    "longlong_as_double": Lanes.as_float,
    **_conversions(),
}
