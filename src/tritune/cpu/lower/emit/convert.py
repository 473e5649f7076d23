"""Conversions between number formats, on scalars and vectors alike.

f16 and bf16 are computed in f32 and rounded after every operation: f32 carries more than twice
their precision, so the result is the correctly rounded one. fp8 formats are loaded, stored and
converted only.
"""

from __future__ import annotations

from llvmlite import ir as ll

from tritune.cpu.lower.llvm import (
    DOUBLE,
    FLOAT,
    HALF,
    I8,
    I16,
    I32,
    I64,
    Emitter,
    constant,
    lanes_of,
    scalar_type,
    vector_of,
)

#: Formats that are not computed in, but widened to f32 and rounded back.
NARROW_FLOATS = ("f16", "bf16", "f8E4M3FN", "f8E5M2")


def widen(e: Emitter, x: ll.Value, elem: str) -> ll.Value:
    """Return the exact f32 value of a narrow float; f32 and f64 as they are."""
    n = lanes_of(x.type)
    b = e.b
    if elem == "f16":
        return b.fpext(x, vector_of(FLOAT, n))
    wide = vector_of(I32, n)
    if elem == "bf16":
        return b.bitcast(b.shl(b.zext(x, wide), constant(wide, 16)), vector_of(FLOAT, n))
    if elem == "f8E5M2":  # the upper half of an f16
        half = vector_of(I16, n)
        bits = b.shl(b.zext(x, half), constant(half, 8))
        return b.fpext(b.bitcast(bits, vector_of(HALF, n)), vector_of(FLOAT, n))
    if elem == "f8E4M3FN":
        return _widen_e4m3(e, x, n)
    return x


def narrow(
    e: Emitter, x: ll.Value, elem: str, rounding: str = "rtne", finite: bool = False
) -> ll.Value:
    """Round an f32 to a narrow float: to nearest, ties to even, or towards zero (`rtz`).

    Overflow to an fp8 format saturates at its largest number, with `finite` infinity does too.
    """
    n = lanes_of(x.type)
    if rounding == "rtz" and elem in NARROW_FLOATS:
        x = _toward_zero(e, x, elem, n)
    if elem == "f16":
        return e.b.fptrunc(x, vector_of(HALF, n))
    if elem == "bf16":
        return _narrow_bf16(e, x, n)
    return _narrow_fp8(e, x, n, elem, finite) if elem in NARROW_FLOATS else x


def float_to_float(
    e: Emitter, x: ll.Value, source: str, target: str, rounding: str = "rtne"
) -> ll.Value:
    """Convert between any two float formats with one rounding."""
    if source == target:
        return x
    n = lanes_of(x.type)
    if source == "f64" and target == "f32" and rounding != "rtz":
        return e.b.fptrunc(x, vector_of(FLOAT, n))
    x = _f64_to_f32(e, x, n, target != "f32") if source == "f64" else widen(e, x, source)
    if target == "f64":
        return e.b.fpext(x, vector_of(DOUBLE, n))
    # Triton's conversion to nearest makes infinity finite too: `cvt.rn.satfinite` on NVIDIA's
    # GPUs, a clamp on AMD's. Towards zero it takes the upper byte of an f16, infinite or not.
    return narrow(e, x, target, rounding, finite=rounding != "rtz")


def float_to_int(e: Emitter, x: ll.Value, source: str, target: str, signed: bool) -> ll.Value:
    """Truncate to an integer; out of range saturates, NaN becomes 0."""
    x = widen(e, x, source)
    result = vector_of(scalar_type(target), lanes_of(x.type))
    name = "fptosi.sat" if signed else "fptoui.sat"
    return e.intrinsic(name, result, [x], [result, x.type])


def int_to_float(e: Emitter, x: ll.Value, target: str, signed: bool) -> ll.Value:
    b, n = e.b, lanes_of(x.type)
    convert = b.sitofp if signed else b.uitofp
    if target in ("f32", "f64"):
        return convert(x, vector_of(scalar_type(target), n))
    width = x.type.element.width if n > 1 else x.type.width
    if width <= 16:  # exact in f32
        return narrow(e, convert(x, vector_of(FLOAT, n)), target)
    if width <= 32:  # exact in f64, then one rounding
        return float_to_float(e, convert(x, vector_of(DOUBLE, n)), "f64", target)
    return narrow(e, _i64_to_odd_f32(e, x, n, signed), target)


def _i64_to_odd_f32(e: Emitter, x: ll.Value, n: int, signed: bool) -> ll.Value:
    """Return an f32 that rounds to a narrow format as the 64-bit integer would, by sticky bits."""
    b = e.b
    wide = vector_of(I64, n)
    zero = constant(wide, 0)
    negative = b.icmp_signed("<", x, zero) if signed else None
    magnitude = b.select(negative, b.sub(zero, x), x) if signed else x
    big = b.icmp_unsigned(">=", magnitude, constant(wide, 1 << 31))
    low = b.and_(magnitude, constant(wide, (1 << 31) - 1))
    sticky = b.zext(b.icmp_unsigned("!=", low, zero), wide)
    folded = b.shl(b.or_(b.lshr(magnitude, constant(wide, 31)), sticky), constant(wide, 31))
    value = b.uitofp(b.select(big, folded, magnitude), vector_of(DOUBLE, n))
    value = _f64_to_f32(e, value, n, odd=True)
    return b.select(negative, b.fneg(value), value) if signed else value


def _f64_to_f32(e: Emitter, x: ll.Value, n: int, odd: bool) -> ll.Value:
    """Round to f32 towards zero, or to `odd`, after which a second rounding is correct."""
    b = e.b
    single, bits = vector_of(FLOAT, n), vector_of(I32, n)
    nearest = b.fptrunc(x, single)
    back = b.fpext(nearest, x.type)
    inexact = b.fcmp_ordered("!=", back, x)
    sizes = [e.intrinsic("fabs", x.type, [each]) for each in (back, x)]
    away = b.fcmp_ordered(">", *sizes)
    raw = b.bitcast(nearest, bits)
    toward = b.select(away, b.sub(raw, constant(bits, 1)), raw)
    if odd:
        toward = b.or_(toward, constant(bits, 1))
    return b.bitcast(b.select(inexact, toward, raw), single)


def _narrow_bf16(e: Emitter, x: ll.Value, n: int) -> ll.Value:
    b = e.b
    bits = vector_of(I32, n)
    raw = b.bitcast(x, bits)
    upper = b.lshr(raw, constant(bits, 16))
    tie = b.add(b.and_(upper, constant(bits, 1)), constant(bits, 0x7FFF))
    rounded = b.lshr(b.add(raw, tie), constant(bits, 16))
    quiet = b.or_(upper, constant(bits, 0x40))
    result = b.select(b.fcmp_unordered("uno", x, x), quiet, rounded)
    return b.trunc(result, vector_of(I16, n))


def _widen_e4m3(e: Emitter, x: ll.Value, n: int) -> ll.Value:
    b = e.b
    half, bits = vector_of(I16, n), vector_of(I32, n)
    x16 = b.zext(x, half)
    magnitude = b.and_(x16, constant(half, 0x7F))
    # As f16 bits the exponent is biased by 15 instead of 7: the value is 2^-8 of what it should be.
    shifted = b.bitcast(b.shl(magnitude, constant(half, 7)), vector_of(HALF, n))
    small = b.fpext(shifted, vector_of(FLOAT, n))
    value = b.bitcast(b.fmul(small, constant(small.type, 256.0)), bits)
    is_nan = b.icmp_unsigned("==", magnitude, constant(half, 0x7F))
    value = b.select(is_nan, constant(bits, 0x7FC00000), value)
    sign = b.shl(b.zext(b.and_(x16, constant(half, 0x80)), bits), constant(bits, 24))
    return b.bitcast(b.or_(value, sign), vector_of(FLOAT, n))


#: Bits of the mantissa, bias of the exponent, largest number.
_FORMATS = {
    "f16": (10, 15, 65504.0), "bf16": (7, 127, 3.3895313892515355e38),
    "f8E5M2": (2, 15, 57344.0), "f8E4M3FN": (3, 7, 448.0),
}  # fmt: skip


def _narrow_fp8(e: Emitter, x: ll.Value, n: int, elem: str, finite: bool) -> ll.Value:
    """Round to nearest even on the f32 bits; overflow saturates, as in hardware conversions."""
    mantissa, bias, largest = _FORMATS[elem]
    b = e.b
    bits, single = vector_of(I32, n), vector_of(FLOAT, n)
    raw = b.bitcast(x, bits)
    sign = b.and_(b.lshr(raw, constant(bits, 24)), constant(bits, 0x80))
    magnitude = b.and_(raw, constant(bits, 0x7FFFFFFF))
    absolute = b.bitcast(magnitude, single)
    clamped = e.intrinsic("minnum", single, [absolute, constant(single, largest)])

    drop = 23 - mantissa
    clamped_bits = b.bitcast(clamped, bits)
    tie = b.and_(b.lshr(clamped_bits, constant(bits, drop)), constant(bits, 1))
    rounded = b.add(b.add(clamped_bits, tie), constant(bits, (1 << (drop - 1)) - 1))
    normal = b.sub(b.lshr(rounded, constant(bits, drop)), constant(bits, (127 - bias) << mantissa))
    # A denormal result: adding a power of two whose last place is the format's smallest step rounds
    # in hardware.
    step = 2.0 ** (1 - bias - mantissa + 23)
    magic = b.fadd(clamped, constant(single, step))
    raw_step = (127 + 1 - bias - mantissa + 23) << 23
    denormal = b.sub(b.bitcast(magic, bits), constant(bits, raw_step))
    is_small = b.fcmp_ordered("<", clamped, constant(single, 2.0 ** (1 - bias)))
    result = b.select(is_small, denormal, normal)
    if elem == "f8E5M2" and not finite:
        is_infinite = b.icmp_unsigned("==", magnitude, constant(bits, 0x7F800000))
        result = b.select(is_infinite, constant(bits, 0x7C), result)
    is_nan = b.icmp_unsigned(">", magnitude, constant(bits, 0x7F800000))
    result = b.select(is_nan, constant(bits, 0x7F), result)
    return b.trunc(b.or_(result, sign), vector_of(I8, n))


def _toward_zero(e: Emitter, x: ll.Value, elem: str, n: int) -> ll.Value:
    """Clear the bits that the format cannot hold, so that the rounding that follows is exact."""
    b = e.b
    bits, single = vector_of(I32, n), vector_of(FLOAT, n)
    raw = b.bitcast(x, bits)
    mantissa, bias, largest = _FORMATS[elem]
    magnitude = b.and_(raw, constant(bits, 0x7FFFFFFF))
    shift = constant(bits, 23 - mantissa)
    # A denormal result loses more bits; not for bf16, whose exponents are those of f32.
    if elem != "bf16":
        exponent = b.sub(b.lshr(magnitude, constant(bits, 23)), constant(bits, 127))
        below = b.sub(constant(bits, 1 - bias), exponent)
        zero = constant(bits, 0)
        extra = b.select(b.icmp_signed(">", below, zero), below, zero)
        shift = b.add(shift, extra)
        limit = constant(bits, 31)
        shift = b.select(b.icmp_signed("<", shift, limit), shift, limit)
    kept = b.and_(magnitude, b.shl(constant(bits, -1), shift))
    top = constant(single, largest)
    value = b.bitcast(kept, single)
    finite = b.icmp_unsigned("<", magnitude, constant(bits, 0x7F800000))
    over = b.and_(finite, b.fcmp_ordered(">", value, top))
    value = b.select(over, top, b.select(finite, value, b.bitcast(magnitude, single)))
    sign = b.and_(raw, constant(bits, -(1 << 31)))
    return b.bitcast(b.or_(b.bitcast(value, bits), sign), single)
