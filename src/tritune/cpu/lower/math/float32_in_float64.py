"""float32 functions in float64 lanes: vector code for what float32 arithmetic is too coarse for.

Twice the registers buy simplicity: no value has to be kept in two parts, denormals of float32 are
normal numbers, and the final rounding to float32 is the only error that counts. Coefficients are
minimax for the relative error on the interval named beside them.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf, nan, pi

from tritune.cpu.lower.math.float32 import angle_function
from tritune.cpu.lower.math.formula import F32, F64, Lanes, fma, polynomial, select

#: As in float32: adding this leaves the rounded integer in the low bits.
ROUND = 1.5 * 2.0**52
ONE_BITS = 1023 << 52

#: 2**f on [-1/2, 1/2], error 2**-43.5.
EXP2 = (
    1.0, 0.6931471805585505, 0.24022650695813708, 0.05550410873971679, 0.009618129159171878,
    0.0013333547330785889, 0.00015403456037204016, 1.5258493422235623e-05, 1.3255182625388612e-06,
    9.168056737409487e-08,
)  # fmt: skip
#: log2((1 + s) / (1 - s)) / s in powers of s**2, for |s| <= 0.2; error 2**-50 or better.
LOG2 = (
    2.8853900817779268, 0.9617966939261046, 0.5770780162882787, 0.41219859647917434,
    0.32059759618745903, 0.2623768357759476, 0.21995906782985322, 0.222091326133775,
)  # fmt: skip
#: sin(r) / r and cos(r) in powers of r**2, for |r| <= pi/4; error below 2**-47.
SIN = (
    1.0, -0.16666666666631177, 0.008333333325194973, -0.00019841263779907996, 2.755534839570309e-06,
    -2.4760960167240014e-08,
)  # fmt: skip
COS = (
    1.0, -0.4999999999999947, 0.04166666666650113, -0.0013888888871552453, 2.4801578953254944e-05,
    -2.755528609406903e-07, 2.0632973984725747e-09,
)  # fmt: skip
#: atan(t) / t in powers of t**2, for |t| <= 1; error 2**-33.9.
ATAN = (
    1.0, -0.3333333213377877, 0.1999992724262514, -0.14284167199881487, 0.11094503352412523,
    -0.08985437464705276, 0.07259433222537337, -0.054515875318918966, 0.03447576780221606,
    -0.016299372391419664, 0.004926324578725739, -0.000697951514727508,
)  # fmt: skip
#: pi/2 in two parts.
HALF_PI = (1.5707963267948966, 6.123233995736766e-17)


def widen(x: Lanes) -> Lanes:
    return x.cast("fpext", F64)


def narrow(x: Lanes) -> Lanes:
    return x.cast("fptrunc", F32)


def _exp2(x: Lanes) -> Lanes:
    """Return 2**x of float64 lanes, good enough for any float32 result."""
    x = x.at_least(-300.0).at_most(300.0)
    rounded = x + ROUND
    scale = ((rounded.bits() << 52) + ONE_BITS).as_float()
    return polynomial(x - (rounded - ROUND), EXP2) * scale


def _log2(x: Lanes) -> Lanes:
    """Return log2 of positive lanes that were float32; zero and infinity are the caller's."""
    # Offset so that the exponent is a positive number: AVX2 has no arithmetic shift of 64 bits, and
    # no conversion of such integers either; the bits of 2**52 below make the conversion.
    shifted = x.bits() - (0x3FE5555555555555 - ONE_BITS)
    exponent = (shifted.lshr(52) | 0x4330000000000000).as_float() - (2.0**52 + 1023)
    mantissa = (x.bits() - ((shifted & 0xFFF0000000000000) - ONE_BITS)).as_float()
    s = (mantissa - 1.0) / (mantissa + 1.0)
    return fma(s, polynomial(s * s, LOG2), exponent)


def _exp(x: Lanes) -> Lanes:
    return _exp2(x * 1.4426950408889634)


def sinh(x: Lanes) -> Lanes:
    y = widen(x)
    grown = _exp(y)
    square = y * y
    small = y * polynomial(square, (1.0, 1 / 6, 1 / 120))
    return narrow(select(abs(y) < 0.02, small, (grown - 1.0 / grown) * 0.5))


def cosh(x: Lanes) -> Lanes:
    grown = _exp(widen(x))
    return narrow((grown + 1.0 / grown) * 0.5)


def power(x: Lanes, y: Lanes) -> Lanes:
    """Return x**y of float32 and float64 lanes, with C's rules for zeros, infinities and NaN."""
    base = abs(widen(x))
    logarithm = select(base.equals(0.0), base.const(-inf), _log2(base))
    # A NaN passes through the selection below as infinity does: as itself.
    logarithm = select(base < inf, logarithm, base)
    magnitude = narrow(_exp2(y * logarithm))
    is_integer = y.intrinsic("trunc").equals(y)
    half = y * 0.5
    is_odd = is_integer & half.intrinsic("trunc").differs(half) & (abs(y) < 2.0**53)
    negative = x.is_negative()
    result = select(negative & is_odd, -magnitude, magnitude)
    no_root = (x < 0.0) & (x > -inf) & ~is_integer & ~y.is_nan()
    result = select(no_root, nan, result)
    one = y.equals(0.0) | x.equals(1.0) | (x.equals(-1.0) & abs(y).equals(inf))
    return select(one, 1.0, result)


def _tan_reduced(x: Lanes) -> Lanes:
    y = abs(widen(x))
    rounded = fma(y, 2 / pi, ROUND)
    count = rounded - ROUND
    r = fma(count, -HALF_PI[1], fma(count, -HALF_PI[0], y))
    square = r * r
    sine, cosine = r * polynomial(square, SIN), polynomial(square, COS)
    odd = (rounded.bits() & 1).differs(0)
    quotient = select(odd, -cosine, sine) / select(odd, sine, cosine)
    return narrow(select(x.is_negative(), -quotient, quotient))


def atan(x: Lanes) -> Lanes:
    y = abs(widen(x))
    inverted = y > 1.0
    t = select(inverted, 1.0 / y, y)
    angle = t * polynomial(t * t, ATAN)
    return narrow(select(inverted, pi / 2 - angle, angle)).with_sign_of(x)


def _norm(*parts: Lanes) -> Lanes:
    # No square of a float32 leaves the range of float64. An infinite part wins over a NaN.
    wide = [abs(widen(part)) for part in parts]
    total, infinite = wide[0] * wide[0], wide[0].equals(inf)
    for part in wide[1:]:
        total = fma(part, part, total)
        infinite = infinite | part.equals(inf)
    return select(infinite, inf, total.sqrt())


FUNCTIONS: dict[str, Callable[..., Lanes]] = {
    "exp10": lambda x: narrow(_exp2(widen(x) * 3.321928094887362)),
    "sinh": sinh,
    "cosh": cosh,
    "pow": lambda x, y: power(x, widen(y)),
    "powi": lambda x, n: power(x, n.cast("sitofp", F64)),  # float64 holds an int32 exactly
    "tan": lambda x: angle_function("tan", x, _tan_reduced, 2.0**30),
    "atan": atan,
    **dict.fromkeys(("hypot", "norm3d", "norm4d"), lambda *parts: narrow(_norm(*parts))),
    **dict.fromkeys(("rhypot", "rnorm3d", "rnorm4d"), lambda *parts: narrow(1.0 / _norm(*parts))),
    "rsqrt_rn": lambda x: narrow(1.0 / widen(x).sqrt()),
}
