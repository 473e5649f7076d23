"""float32 functions as straight-line vector code: no table, one result for every target.

Each function reduces its argument to a small interval, evaluates a minimax polynomial there and
scales back. The coefficients are minimax for the relative error on the interval named beside
them, rounded to float32 one after another from the lowest, the rest refitted each time. All
results are within 2 ulp of the exact one over the whole range of float32, denormals included.
Only angles too large for the reduction leave the straight line, for libm.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf, nan

from llvmlite import ir

from tritune.cpu.lower.math.formula import (
    F32,
    F64,
    Lanes,
    declare,
    fma,
    per_lane,
    polynomial,
    select,
    suffix,
)

LOG2_E = 1.4426950408889634
#: ln 2 in two parts; the first has so few bits that its product with an exponent is exact.
LN2_HIGH, LN2_LOW = 0.693145751953125, 1.42860677e-06

#: Adding this rounds a float32 below 2**22 to an integer and leaves that integer in the low bits.
ROUND = 1.5 * 2.0**23
ONE_BITS = 0x3F800000
SIGN_BIT = 0x80000000

#: 2**f on [-1, 1], error 2**-26.1.
EXP2_WIDE = (
    1.0, 0.69314724, 0.24022669, 0.05550366, 0.009616844, 0.001334172, 0.00015645292, 1.491696e-05,
)  # fmt: skip
#: e**f on [-ln 2, ln 2], error 2**-26.0.
EXP_WIDE = (
    1.0, 1.0, 0.50000036, 0.16666618, 0.041661233, 0.008335938, 0.0014104681, 0.00019629044,
)  # fmt: skip
#: (e**f - 1 - f) / f**2 for |f| <= ln(2)/2; e**f then has the error 2**-28.2.
EXP_NARROW = (0.49999994, 0.16666521, 0.041668255, 0.008368663, 0.0013821471)
#: (log(1 + f) - f) / f**2 on [-1/3, 1/3]; the logarithm then has the error 2**-27.7.
LOG = (
    -0.5, 0.33333215, -0.24999805, 0.20010436, -0.16680223, 0.14005537, -0.121874325, 0.1398565,
    -0.12879352,
)  # fmt: skip
#: log2(1 + f) / f and log10(1 + f) / f on [-1/3, 1/3], errors below 2**-25.3.
LOG2 = (
    1.442695, -0.7213475, 0.4809019, -0.3606745, 0.28846636, -0.24049623, 0.20514446, -0.17782839,
    0.18827477, -0.17725688,
)  # fmt: skip
LOG10 = (
    0.4342945, -0.21714725, 0.14476149, -0.10857179, 0.08703379, -0.072487406, 0.058924984,
    -0.052220084, 0.069418065, -0.0593077,
)  # fmt: skip
#: (sin r - r) / r**3 and (cos r - 1 + r**2 / 2) / r**4 in powers of r**2, for |r| <= pi/4 + 0.01.
SIN = (-0.16666667, 0.008333382, -0.00019854108, 2.8416393e-06)
COS = (0.041666653, -0.0013887597, 2.4459066e-05)
#: pi/2 in three parts of float32 precision.
HALF_PI = (1.5707963705062866, -4.371138828673793e-08, -1.7151245100058819e-15)
#: (tanh x - x) / x**3 in powers of x**2, for |x| <= 0.625.
TANH = (-0.3333333, 0.13333221, -0.05394818, 0.021706894, -0.0081900135, 0.0021526839)
#: erf(x) / x - 1 in powers of x**2, for |x| <= 0.93.
ERF = (0.12837917, -0.3761263, 0.112836257, -0.026855731, 0.005192405, -0.00080497697, 7.99665e-05)
#: log(erfc x) / x, for 0.92 <= x <= 4.
LOG_ERFC = (-1.1285144, -0.63571817, -0.10526202, 0.022890063, -0.0032149816, 0.00021398744)


def exp2(x: Lanes) -> Lanes:
    # 2**x = 2**h * 2**h * 2**f with h = round(x / 2) and |f| <= 1. Halving the exponent costs one
    # more coefficient, and saves what denormal results and overflow would take: no 2**h leaves the
    # normal range, and the second multiplication rounds to the denormal or to infinity.
    x = x.at_least(-200.0).at_most(200.0)
    rounded = fma(x, 0.5, ROUND)
    half = rounded - ROUND
    return _scale_twice(polynomial(fma(half, -2.0, x), EXP2_WIDE), rounded)


def exp(x: Lanes) -> Lanes:
    x = x.at_least(-120.0).at_most(120.0)
    rounded = fma(x, LOG2_E / 2, ROUND)
    half = rounded - ROUND
    rest = fma(half, -2 * LN2_LOW, fma(half, -2 * LN2_HIGH, x))
    return _scale_twice(polynomial(rest, EXP_WIDE), rounded)


def _power_of_two(rounded: Lanes) -> Lanes:
    """Return 2**n, a normal number; n is in the low bits of `rounded` (see ROUND)."""
    return ((rounded.bits() << 23) + ONE_BITS).as_float()


def _scale_twice(value: Lanes, rounded: Lanes) -> Lanes:
    # Multiplied, not added to the exponent's bits: a NaN has to come out as one.
    scale = _power_of_two(rounded)
    return value * scale * scale


def _reduce_exp(x: Lanes) -> tuple[Lanes, Lanes]:
    """Return (r, f) with e**x = 2**n * (1 + f); r holds n as ROUND says. |x| is below 2**21."""
    rounded = fma(x, LOG2_E, ROUND)
    n = rounded - ROUND
    rest = fma(n, -LN2_LOW, fma(n, -LN2_HIGH, x))
    return rounded, fma(rest * rest, polynomial(rest, EXP_NARROW), rest)


def _exp_normal(x: Lanes) -> Lanes:
    """Return e**x where neither x nor the result leaves the normal range."""
    rounded, fraction = _reduce_exp(x)
    scale = _power_of_two(rounded)
    return fma(fraction, scale, scale)


def expm1(x: Lanes) -> Lanes:
    rounded, fraction = _reduce_exp(x.at_least(-20.0).at_most(89.0))
    # Half the scale, so that 2**128 does not appear on the way to a finite result.
    scale = ((rounded.bits() << 23) + (ONE_BITS - (1 << 23))).as_float()
    result = fma(fraction, scale, scale - 0.5) * 2.0
    return select(abs(x) < 2.0**-25, x, result)


def sigmoid(x: Lanes) -> Lanes:
    # With e = exp(-|x|) nothing overflows, and a tiny result is e itself.
    rounded, fraction = _reduce_exp((-abs(x)).at_least(-120.0))
    half = rounded.bits() << 23
    low = (half >> 1) & 0xFF800000
    scaled = (fraction + 1.0) * (low + ONE_BITS).as_float()
    e = scaled * ((half - low) + ONE_BITS).as_float()
    # e + 1 is known exactly as total + lost; one Newton step takes both back into the quotient.
    numerator = select(x < 0.0, e, 1.0)
    total = e + 1.0
    lost = e - (total - 1.0)
    reciprocal = 1.0 / total
    quotient = numerator * reciprocal
    rest = fma(-quotient, lost, fma(-quotient, total, numerator))
    return fma(rest, reciprocal, quotient)


def log(x: Lanes) -> Lanes:
    exponent, fraction = _split(x)
    series = fma(fraction * fraction, polynomial(fraction, LOG), fraction)
    return _log_limits(x, fma(exponent, LN2_HIGH, fma(exponent, LN2_LOW, series)))


def log2(x: Lanes) -> Lanes:
    exponent, fraction = _split(x)
    return _log_limits(x, fma(fraction, polynomial(fraction, LOG2), exponent))


def log10(x: Lanes) -> Lanes:
    exponent, fraction = _split(x)
    series = fraction * polynomial(fraction, LOG10)
    return _log_limits(x, fma(exponent, 0.30102539, fma(exponent, 4.6050390e-06, series)))


def log1p(x: Lanes) -> Lanes:
    total = x + 1.0
    lost = select(abs(x) < 1.0, x - (total - 1.0), 1.0 - (total - x))
    exponent_bits = _exponent_bits(total.bits())
    mantissa = (total.bits() - exponent_bits).as_float()
    # What the addition lost is scaled like the mantissa. The exponent may be 128, so half of it is
    # scaled by 2 / 2**exponent, which is then zero.
    scale = ((ONE_BITS + (1 << 23)) - exponent_bits).as_float()
    fraction = fma(lost * 0.5, scale, mantissa - 1.0)
    exponent = (exponent_bits >> 23).cast("sitofp", F32)
    series = fma(fraction * fraction, polynomial(fraction, LOG), fraction)
    result = fma(exponent, LN2_HIGH, fma(exponent, LN2_LOW, series))
    return select(abs(x) < 2.0**-25, x, _log_limits(total, result))


def _exponent_bits(bits: Lanes) -> Lanes:
    """Return the exponent e, in place, for which a float is 2**e * m with m in [2/3, 4/3)."""
    return (bits - 0x3F2AAAAB) & 0xFF800000


def _split(x: Lanes) -> tuple[Lanes, Lanes]:
    """Return (e, f) with x = 2**e * (1 + f) and f in [-1/3, 1/3), for positive finite x."""
    tiny = x < 2.0**-126
    bits = select(tiny, x * 2.0**23, x).bits()
    exponent_bits = _exponent_bits(bits)
    fraction = (bits - exponent_bits).as_float() - 1.0
    exponent = (exponent_bits >> 23).cast("sitofp", F32)
    return exponent - select(tiny, x.const(23.0), 0.0), fraction


def _log_limits(x: Lanes, result: Lanes) -> Lanes:
    outside = select(x.equals(0.0), x.const(-inf), select(x < 0.0, nan, x))
    return select((x > 0.0) & (x < inf), result, outside)


def tanh(x: Lanes) -> Lanes:
    y = abs(x)
    square = x * x
    small = fma(y * square, polynomial(square, TANH), y)
    clamped = y.at_most(10.0)
    large = 1.0 - 2.0 / (_exp_normal(clamped + clamped) + 1.0)
    return select(y < 0.625, small, large).with_sign_of(x)


def erf(x: Lanes) -> Lanes:
    y = abs(x)
    square = x * x
    small = fma(y, polynomial(square, ERF), y)
    clamped = y.at_most(4.0)
    large = 1.0 - _exp_normal(clamped * polynomial(clamped, LOG_ERFC))
    return select(y < 0.927, small, large).with_sign_of(x)


#: Up to here three parts of pi/2 are enough, and the quotient fits ROUND with room to spare.
LARGE_ANGLE = 2.0**17


def angle_function(name: str, x: Lanes, common: Callable[[Lanes], Lanes], limit: float) -> Lanes:
    """Return `common(x)` where |x| is at most `limit`, else libm's function `name`.

    This is the call of a function of its own: large angles need a branch, and what the caller has
    is a place inside a block.
    """
    function = declare(x.b.module, f"tritune.{name}.{suffix(x.type)}", x.type, [x.type])
    if function.is_declaration:
        function.linkage = "internal"
        function.attributes.add("alwaysinline")
        _define_angle_function(function, name, common, limit)
    return Lanes(x.b, x.b.call(function, [x.value]))


def _define_angle_function(
    function: ir.Function, name: str, common: Callable[[Lanes], Lanes], limit: float
) -> None:
    entry = function.append_basic_block("entry")
    rare = function.append_basic_block("large_angle")
    end = function.append_basic_block("end")
    b = ir.IRBuilder(entry)
    x = Lanes(b, function.args[0])
    usual = common(x)
    large = abs(x) > limit
    b.cbranch(large.any().value, rare, end)
    b.position_at_end(rare)
    exact = Lanes(b, b.call(_large_angle(b.module, name, x.type), [x.value]))
    # Lane by lane, so that a value never depends on its neighbours.
    mixed = select(large, exact, usual)
    b.branch(end)
    b.position_at_end(end)
    result = b.phi(x.type)
    result.add_incoming(usual.value, entry)
    result.add_incoming(mixed.value, rare)
    b.ret(result)


def _large_angle(module: ir.Module, name: str, type_: ir.Type) -> ir.Function:
    """Define the function for any angle, by libm in double precision."""
    function = declare(module, f"tritune.{name}.large.{suffix(type_)}", type_, [type_])
    if function.is_declaration:
        function.linkage = "internal"
        for attribute in ("noinline", "cold"):
            function.attributes.add(attribute)
        b = ir.IRBuilder(function.append_basic_block("entry"))
        libm = declare(module, name, F64, [F64])
        wide = Lanes(b, function.args[0]).cast("fpext", F64)
        result = per_lane(b, lambda lane: b.call(libm, [lane]), [wide.value])
        b.ret(Lanes(b, result).cast("fptrunc", F32).value)
    return function


def _reduce_angle(x: Lanes) -> tuple[Lanes, Lanes, Lanes]:
    """Return (quadrant, sin r, cos r) with x = quadrant * pi/2 + r and r about [-pi/4, pi/4]."""
    rounded = fma(x, 0.6366197723675814, ROUND)
    count = rounded - ROUND
    r = x
    for part in HALF_PI:
        r = fma(count, -part, r)
    square = r * r
    sine = fma(r * square, polynomial(square, SIN), r)
    cosine = fma(square * square, polynomial(square, COS), fma(square, -0.5, 1.0))
    return rounded.bits(), sine, cosine


def _sin_reduced(x: Lanes) -> Lanes:
    quadrant, sine, cosine = _reduce_angle(abs(x))
    value = select((quadrant & 1).equals(0), sine, cosine).bits()
    return (value ^ ((quadrant & 2) << 30) ^ (x.bits() & SIGN_BIT)).as_float()


def _cos_reduced(x: Lanes) -> Lanes:
    quadrant, sine, cosine = _reduce_angle(abs(x))
    value = select((quadrant & 1).equals(0), cosine, sine).bits()
    return (value ^ (((quadrant + 1) & 2) << 30)).as_float()


FUNCTIONS: dict[str, Callable[..., Lanes]] = {
    **{f.__name__: f for f in (exp2, exp, expm1, sigmoid, log, log2, log10, log1p, tanh, erf)},
    "rsqrt": lambda x: 1.0 / x.sqrt(),
    "sin": lambda x: angle_function("sin", x, _sin_reduced, LARGE_ANGLE),
    "cos": lambda x: angle_function("cos", x, _cos_reduced, LARGE_ANGLE),
}
