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
    """An intrinsic with the flag "undefined for the one hard input": never, here."""
    return x.intrinsic(name, Lanes(x.b, constant(I1, 0)))


def absolute(x: Lanes) -> Lanes:
    return _flagged(x, "abs")


def leading_zeros(x: Lanes) -> Lanes:
    return _flagged(x, "ctlz")


def trailing_zeros(x: Lanes) -> Lanes:
    return _flagged(x, "cttz")


def ones(x: Lanes) -> Lanes:
    return x.intrinsic("ctpop")


def reverse_bits(x: Lanes) -> Lanes:
    return x.intrinsic("bitreverse")


def _to_i32(x: Lanes) -> Lanes:
    return x.cast("trunc", I32)


def find_first_set(x: Lanes) -> Lanes:
    """One more than the index of the lowest set bit; 0 when there is none."""
    return _to_i32(select(x.equals(0), 0, trailing_zeros(x) + 1))


def multiply_high(x: Lanes, y: Lanes, *, extend: str) -> Lanes:
    width = x.elem.width
    double = ir.IntType(2 * width)
    product = x.cast(extend, double) * y.cast(extend, double)
    return product.lshr(width).cast("trunc", x.elem)


def multiply_24(x: Lanes, y: Lanes) -> Lanes:
    return ((x << 8) >> 8) * ((y << 8) >> 8)


def multiply_24_unsigned(x: Lanes, y: Lanes) -> Lanes:
    return (x & 0xFFFFFF) * (y & 0xFFFFFF)


def sum_of_difference(x: Lanes, y: Lanes, z: Lanes) -> Lanes:
    return select(x < y, y - x, x - y) + z


def sum_of_difference_unsigned(x: Lanes, y: Lanes, z: Lanes) -> Lanes:
    return select(x.below(y), y - x, x - y) + z


def average(x: Lanes, y: Lanes) -> Lanes:
    """(x + y) / 2 rounded down, without the overflow."""
    return (x & y) + ((x ^ y) >> 1)


def average_unsigned(x: Lanes, y: Lanes) -> Lanes:
    return (x & y) + (x ^ y).lshr(1)


def average_up(x: Lanes, y: Lanes) -> Lanes:
    """(x + y + 1) / 2 rounded down, without the overflow."""
    return (x | y) - ((x ^ y) >> 1)


def average_up_unsigned(x: Lanes, y: Lanes) -> Lanes:
    return (x | y) - (x ^ y).lshr(1)


def pick_bytes(x: Lanes, y: Lanes, selector: Lanes) -> Lanes:
    """Four bytes of the eight of (y, x), each named by three bits of a nibble of the selector."""
    pool = (y.cast("zext", I64) << 32) | x.cast("zext", I64)
    selector = selector.cast("zext", I64)
    result = pool.const(0)
    for byte in range(4):
        shift = (selector.lshr(4 * byte) & 7) << 3
        result = result | ((pool.lshr(shift) & 0xFF) << (8 * byte))
    return _to_i32(result)


def float_to_int(x: Lanes, *, rounding: str, elem: ir.IntType, signed: bool) -> Lanes:
    """Round, then saturate; NaN gives what PTX's `cvt` gives."""
    result_type = shaped_like(x.type, elem)
    rounded = x.intrinsic(rounding)
    name = "fptosi.sat" if signed else "fptoui.sat"
    result = rounded.intrinsic(name, result=result_type)
    if x.elem is F32 and elem.width == 32:
        return result  # LLVM's answer for NaN, zero, is the right one
    return select(x.is_nan(), 1 << (elem.width - 1), result)


def join_double(high: Lanes, low: Lanes) -> Lanes:
    return ((high.cast("zext", I64) << 32) | low.cast("zext", I64)).as_float()


def low_word(x: Lanes) -> Lanes:
    return _to_i32(x.bits())


def high_word(x: Lanes) -> Lanes:
    return _to_i32(x.bits().lshr(32))


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
    "abs": absolute,
    "ctlz": leading_zeros,
    "cttz": trailing_zeros,
    "ctpop": ones,
    "clz": lambda x: _to_i32(leading_zeros(x)),
    "popc": lambda x: _to_i32(ones(x)),
    "brev": reverse_bits,
    "ffs": find_first_set,
    "mulhi": partial(multiply_high, extend="sext"),
    "umulhi": partial(multiply_high, extend="zext"),
    "mul24": multiply_24,
    "umul24": multiply_24_unsigned,
    "sad": sum_of_difference,
    "usad": sum_of_difference_unsigned,
    "hadd": average,
    "uhadd": average_unsigned,
    "rhadd": average_up,
    "urhadd": average_up_unsigned,
    "min": lambda x, y: x.intrinsic("smin", y),
    "max": lambda x, y: x.intrinsic("smax", y),
    "umin": lambda x, y: x.intrinsic("umin", y),
    "umax": lambda x, y: x.intrinsic("umax", y),
    "byte_perm": pick_bytes,
    "llrint": partial(float_to_int, rounding="roundeven", elem=I64, signed=True),
    "llround": partial(float_to_int, rounding="round", elem=I64, signed=True),
    "double2float_rn": partial(_cast, operation="fptrunc", elem=F32),
    "hiloint2double": join_double,
    "double2loint": low_word,
    "double2hiint": high_word,
    "float_as_int": Lanes.bits,
    "int_as_float": Lanes.as_float,
    "double_as_longlong": Lanes.bits,
    "longlong_as_double": Lanes.as_float,
    **_conversions(),
}
