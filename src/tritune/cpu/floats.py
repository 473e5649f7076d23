"""The bits of floats in the formats that are narrower than f32."""

from __future__ import annotations

import math

from tritune.cpu.ir import BITS

#: Bits of the mantissa, bias of the exponent, and what overflow and NaN become.
FORMATS = {
    "f16": (10, 15, 0x7C00, 0x7E00),
    "bf16": (7, 127, 0x7F80, 0x7FC0),
    "f8E5M2": (2, 15, 0x7C, 0x7F),
    "f8E4M3FN": (3, 7, 0x7E, 0x7F),
}


def to_bits(number: float, elem: str) -> int:
    """Return the bits of a number, rounded to nearest, as a signed integer."""
    mantissa_bits, bias, infinity, nan = FORMATS[elem]
    size = abs(number)
    if math.isnan(number):
        bits = nan
    elif math.isinf(number):
        bits = infinity
    else:
        exponent = max(math.frexp(size)[1] - 1, 1 - bias) if size else 1 - bias
        units = round(math.ldexp(size, mantissa_bits - exponent))
        bits = min(units + ((exponent + bias - 1) << mantissa_bits), infinity)
    negative = math.copysign(1, number) < 0
    return bits - (1 << (BITS[elem] - 1)) if negative else bits


def from_bits(bits: int, elem: str) -> float:
    """Return the number that has these bits."""
    mantissa_bits, bias, infinity, _ = FORMATS[elem]
    size = bits & ((1 << (BITS[elem] - 1)) - 1)
    sign = -1.0 if bits != size else 1.0
    if size > infinity:
        return math.nan
    if size == infinity and elem != "f8E4M3FN":  # whose largest number it is
        return sign * math.inf
    exponent = max(size >> mantissa_bits, 1)
    mantissa = size - ((exponent - 1) << mantissa_bits)
    return sign * math.ldexp(mantissa, exponent - bias - mantissa_bits)
