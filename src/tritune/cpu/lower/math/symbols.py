"""The plain names of what NVIDIA's and AMD's device libraries and MLIR's math dialect call."""

from __future__ import annotations

from tritune.cpu.lower.math import integers

#: libdevice's and ocml's name: ours, where the two differ.
_RENAMED = {
    "fabs": "absf", "rint": "roundeven", "nearbyint": "roundeven", "isnan": "isnan_int",
    "isinf": "isinf_int", "isfinite": "isfinite_int", "signbit": "signbit_int", "pown": "powi",
}  # fmt: skip

#: Functions that come as `__nv_<name>` (float64), `__nv_<name>f` (float32), `__ocml_<name>_f32`.
_REGULAR = (
    "acos", "acosh", "asin", "asinh", "atan", "atan2", "atanh", "cbrt", "ceil", "copysign", "cos",
    "cosh", "cospi", "erf", "erfc", "erfcinv", "erfcx", "erfinv", "exp", "exp10", "exp2", "expm1",
    "fabs", "fdim", "floor", "fma", "fmax", "fmin", "fmod", "hypot", "ilogb", "isfinite", "isinf",
    "isnan", "j0", "j1", "jn", "ldexp", "lgamma", "llrint", "llround", "log", "log10", "log1p",
    "log2", "logb", "nearbyint", "nextafter", "norm3d", "norm4d", "normcdf", "normcdfinv", "pow",
    "powi", "pown", "rcbrt", "remainder", "rhypot", "rint", "rnorm3d", "rnorm4d", "round",
    "rsqrt", "scalbn", "signbit", "sin", "sinh", "sinpi", "sqrt", "tan", "tanh", "tgamma",
    "trunc", "y0", "y1", "yn",
)  # fmt: skip
_NO_FLOAT64 = frozenset({"erfcx"})

_IRREGULAR: dict[str, tuple[str, str]] = {
    "__nv_isnand": ("isnan_int", "f64"),
    "__nv_isinfd": ("isinf_int", "f64"),
    "__nv_isfinited": ("isfinite_int", "f64"),
    "__nv_finitef": ("isfinite_int", "f32"),
    "__nv_signbitd": ("signbit_int", "f64"),
    "__nv_saturatef": ("saturate", "f32"),
    "__nv_fast_fdividef": ("div_rn", "f32"),
    "__nv_frsqrt_rn": ("rsqrt_rn", "f32"),
    "__nv_fma_rn": ("fma", "f64"),
    "__nv_fmaf_rn": ("fma", "f32"),
    "__nv_uint_as_float": ("int_as_float", "int"),
    "__nv_float_as_uint": ("float_as_int", "f32"),
    "__nv_mul64hi": ("mulhi", "int"),
    "__nv_umul64hi": ("umulhi", "int"),
    "__nv_ullmin": ("umin", "int"),
    "__nv_ullmax": ("umax", "int"),
}

_MLIR_RENAMED = {"powf": "pow", "fpowi": "powi", "absi": "abs"}
_MLIR = frozenset(
    "absf absi acos acosh asin asinh atan atan2 atanh cbrt ceil copysign cos cosh ctlz ctpop "
    "cttz erf erfc exp exp2 expm1 floor fma fpowi isfinite isinf isnan log log10 log1p log2 "
    "powf round roundeven rsqrt sin sinh sqrt tan tanh trunc".split()
)


def _kind(name: str) -> str:
    """Return what an integer or conversion function of libdevice takes, by its name."""
    return {"float": "f32", "double": "f64"}.get(name.replace("_", "2").split("2")[0], "int")


def _libdevice() -> dict[str, tuple[str, str]]:
    table: dict[str, tuple[str, str]] = {}
    for name in integers.FUNCTIONS:
        table[f"__nv_{name}"] = (name, _kind(name))
        table[f"__nv_{name}ll"] = table[f"__nv_ll{name}"] = (name, "int")
    for name in _REGULAR:
        ours = _RENAMED.get(name, name)
        for symbol in (f"__nv_{name}f", f"__nv_fast_{name}f", f"__ocml_{name}_f32"):
            table[symbol] = (ours, "f32")
        if name not in _NO_FLOAT64:
            for symbol in (f"__nv_{name}", f"__ocml_{name}_f64"):
                table[symbol] = (ours, "f64")
    for name in ("add", "sub", "mul", "div", "rcp"):
        table[f"__nv_f{name}_rn"] = (f"{name}_rn", "f32")
        table[f"__nv_d{name}_rn"] = (f"{name}_rn", "f64")
    for letter, kind in (("f", "f32"), ("d", "f64")):
        table[f"__nv_{letter}sqrt_rn"] = ("sqrt", kind)
    return table | _IRREGULAR


_SYMBOLS = _libdevice()


def from_symbol(symbol: str) -> tuple[str, str] | None:
    """Return the plain name of a library's function, and its arguments: `f32`, `f64`, `int`."""
    return _SYMBOLS.get(symbol)


def from_mlir(op_name: str) -> str | None:
    """Return the plain name of an operation of MLIR's math dialect, with or without the `math.`."""
    dialect, _, name = op_name.rpartition(".")
    if dialect not in ("", "math") or name not in _MLIR:
        return None
    return _MLIR_RENAMED.get(name, name)
