"""Float functions for both precisions: LLVM's own, libm lane by lane, and what they compose.

A float32 function without vector code is libm's double precision one, rounded: within 2 ulp
whatever the platform's libm does in single precision.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import inf, nan, pi, sqrt

from tritune.cpu.lower.math.formula import F32, F64, I32, Lanes, declare, fma, per_lane, select

#: Functions that libm has under the same name.
NAMES = (
    "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "pow", "sin", "cos", "tan", "asin",
    "acos", "atan", "atan2", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "erf", "erfc",
    "cbrt", "hypot", "fmod", "remainder", "logb", "ldexp", "lgamma", "tgamma", "j0", "j1", "jn",
    "y0", "y1", "yn",
)  # fmt: skip


def call(name: str, *args: Lanes) -> Lanes:
    """Call libm's double precision function for either precision; integers stay as they are."""
    single = any(a.is_float and a.elem is F32 for a in args)
    wide = [a.cast("fpext", F64) if a.is_float else a for a in args]
    result = _call(name, wide, wide[0].elem if wide[0].is_float else F64)
    return result.cast("fptrunc", F32) if single else result


def _call(symbol: str, args: list[Lanes], result: object) -> Lanes:
    b = args[0].b
    function = declare(b.module, symbol, result, [a.elem for a in args])
    value = per_lane(b, lambda *lanes: b.call(function, lanes), [a.value for a in args])
    return Lanes(b, value)


def _in_double(function: Callable[..., Lanes]) -> Callable[..., Lanes]:
    """Make a function compute in double precision, and round if its arguments were float32."""

    def wrapped(*args: Lanes) -> Lanes:
        result = function(*(a.cast("fpext", F64) for a in args))
        return result.cast("fptrunc", F32) if args[0].elem is F32 else result

    return wrapped


def next_after(x: Lanes, y: Lanes) -> Lanes:
    # The one function whose meaning is the precision's.
    return _call("nextafterf" if x.elem is F32 else "nextafter", [x, y], x.elem)


def exponent_integer(x: Lanes) -> Lanes:
    result = _call("ilogb", [x.cast("fpext", F64)], I32)
    # What C leaves to the platform.
    return select(x.is_nan(), -(2**31), result)


def _is_infinite(x: Lanes) -> Lanes:
    return abs(x).equals(inf)


def _is_finite(x: Lanes) -> Lanes:
    return abs(x) < inf


def _as_int(test: Callable[[Lanes], Lanes]) -> Callable[[Lanes], Lanes]:
    return lambda x: test(x).cast("zext", I32)


def saturate(x: Lanes) -> Lanes:
    """Clamp to [0, 1]; NaN becomes 0."""
    return select(x > 0.0, x, 0.0).at_most(1.0)


@_in_double
def sigmoid(x: Lanes) -> Lanes:
    decay = call("exp", -abs(x))
    return select(x < 0.0, decay, 1.0) / (decay + 1.0)


def norm(x: Lanes, *others: Lanes) -> Lanes:
    for other in others:
        x = call("hypot", x, other)
    return x


@_in_double
def sin_pi(x: Lanes) -> Lanes:
    # Subtracting the nearest integer is exact; its parity is the sign.
    nearest = x.intrinsic("roundeven")
    value = call("sin", (x - nearest) * pi)
    value = select(_is_odd(nearest), -value, value)
    return select(nearest.equals(x), x * 0.0, value)


@_in_double
def cos_pi(x: Lanes) -> Lanes:
    nearest = x.intrinsic("roundeven")
    rest = abs(x - nearest)
    # Near its zeros the cosine is the sine of the distance, and exactly zero at a half.
    value = select(rest > 0.25, call("sin", (0.5 - rest) * pi), call("cos", rest * pi))
    return select(_is_odd(nearest) & rest.differs(0.5), -value, value)


def _is_odd(integer: Lanes) -> Lanes:
    half = integer * 0.5
    return half.intrinsic("trunc").differs(half)


@_in_double
def normal_cdf(x: Lanes) -> Lanes:
    # In the tail the rounding of x / sqrt(2) is magnified by x**2: take it back to first order.
    a = x * -sqrt(0.5)
    lost = fma(x, -sqrt(0.5), -a) + x * 4.833646656726457e-17
    slope = call("exp", -(a * a)) * (2 / sqrt(pi))
    correction = select(abs(a) < 30.0, slope * lost, 0.0)
    return (call("erfc", a) - correction) * 0.5


def scaled_erfc(x: Lanes) -> Lanes:
    """Return exp(x**2) * erfc(x) of float32, whose square is exact in float64."""
    wide = x.cast("fpext", F64)
    square = wide * wide
    near = call("exp", square) * call("erfc", wide)
    inverse = 1.0 / square
    far = fma(inverse, fma(inverse, 0.75, -0.5), 1.0) / (wide * sqrt(pi))
    return select(wide < 25.0, near, far).cast("fptrunc", F32)


@_in_double
def erf_inverse(x: Lanes) -> Lanes:
    size = abs(x)
    return _erf_inverse(size, 1.0 - size).with_sign_of(x)


@_in_double
def erfc_inverse(x: Lanes) -> Lanes:
    upper = x > 1.0
    tail = select(upper, 2.0 - x, x)
    result = _erf_inverse(1.0 - tail, tail)
    return select(upper, -result, result)


def _erf_inverse(body: Lanes, tail: Lanes) -> Lanes:
    """Find the positive y with erf(y) = body and erfc(y) = tail = 1 - body, by Halley's method."""
    logarithm = call("log", tail * (body + 1.0))
    middle = logarithm * 0.5 + 4.330746750799873
    start = ((middle * middle - logarithm * 6.802721088435374).sqrt() - middle).sqrt()
    y = select(body < 0.01, body * (sqrt(pi) / 2), start)
    for _ in range(3):
        # Each side of 1/2 is measured by the function that has digits to spare there.
        excess = select(body < 0.5, call("erf", y) - body, tail - call("erfc", y))
        step = excess / (call("exp", -(y * y)) * (2 / sqrt(pi)))
        y = y - step / fma(y, step, 1.0)
    y = select(tail.equals(0.0), inf, y)
    return select(tail < 0.0, nan, y)


FUNCTIONS: dict[str, Callable[..., Lanes]] = {
    **{name: partial(call, name) for name in NAMES},
    "absf": Lanes.__abs__,
    "sqrt": Lanes.sqrt,
    "rsqrt": lambda x: 1.0 / x.sqrt(),
    "rsqrt_rn": lambda x: 1.0 / x.sqrt(),
    "floor": lambda x: x.intrinsic("floor"),
    "ceil": lambda x: x.intrinsic("ceil"),
    "trunc": lambda x: x.intrinsic("trunc"),
    "round": lambda x: x.intrinsic("round"),
    "roundeven": lambda x: x.intrinsic("roundeven"),
    "copysign": Lanes.with_sign_of,
    "fmin": lambda x, y: x.intrinsic("minnum", y),
    "fmax": lambda x, y: x.intrinsic("maxnum", y),
    "fma": fma,
    "add_rn": lambda x, y: x + y,
    "sub_rn": lambda x, y: x - y,
    "mul_rn": lambda x, y: x * y,
    "div_rn": lambda x, y: x / y,
    "rcp_rn": lambda x: 1.0 / x,
    "fdim": lambda x, y: select(x <= y, 0.0, x - y),
    "saturate": saturate,
    "isnan": Lanes.is_nan,
    "isinf": _is_infinite,
    "isfinite": _is_finite,
    "isnan_int": _as_int(Lanes.is_nan),
    "isinf_int": _as_int(_is_infinite),
    "isfinite_int": _as_int(_is_finite),
    "signbit_int": _as_int(Lanes.is_negative),
    "ilogb": exponent_integer,
    "nextafter": next_after,
    "scalbn": partial(call, "ldexp"),
    "exp10": _in_double(lambda x: call("pow", x.const(10.0), x)),
    "powi": lambda x, n: call("pow", x, n.cast("sitofp", F64)),
    "sigmoid": sigmoid,
    "rcbrt": _in_double(lambda x: 1.0 / call("cbrt", x)),
    "norm3d": norm,
    "norm4d": norm,
    "rhypot": lambda *parts: 1.0 / norm(*parts),
    "rnorm3d": lambda *parts: 1.0 / norm(*parts),
    "rnorm4d": lambda *parts: 1.0 / norm(*parts),
    "sinpi": sin_pi,
    "cospi": cos_pi,
    "normcdf": normal_cdf,
    "normcdfinv": _in_double(lambda x: erfc_inverse(x * 2.0) * -sqrt(2.0)),
    "erfinv": erf_inverse,
    "erfcinv": erfc_inverse,
}

#: Good enough for float32 only.
FLOAT32_ONLY: dict[str, Callable[..., Lanes]] = {"erfcx": scaled_erfc}
