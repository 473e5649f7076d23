"""The functions of `lower.vecmath`, compiled and run over arrays, against better precision."""

from __future__ import annotations

import ctypes
import math
import re
from collections.abc import Callable
from functools import cache
from typing import Any

import llvmlite.binding as llvm
import mpmath
import numpy as np
import pytest
from llvmlite import ir

from tritune.cpu.lower.math import vecmath

F32, F64, I32, I64 = ir.FloatType(), ir.DoubleType(), ir.IntType(32), ir.IntType(64)
LLVM_TYPE = {"float32": F32, "float64": F64, "int32": I32, "int64": I64}
WIDTHS = (1, 4, 8, 16)

llvm.initialize_native_target()
llvm.initialize_native_asmprinter()


def build(name: str, dtypes: tuple[str, ...], result: str, lanes: int) -> ir.Module:
    """A module with `run(inputs..., output, count)`: the function, `lanes` elements at a time."""
    module = ir.Module(name)
    pointer = ir.PointerType()
    kind = ir.FunctionType(ir.VoidType(), [pointer] * (len(dtypes) + 1) + [I64])
    run = ir.Function(module, kind, "run")
    *inputs, output, count = run.args
    entry, loop, end = (run.append_basic_block(label) for label in ("entry", "loop", "end"))
    ir.IRBuilder(entry).branch(loop)
    b = ir.IRBuilder(loop)
    index = b.phi(I64)
    index.add_incoming(ir.Constant(I64, 0), entry)
    args = []
    for base, dtype in zip(inputs, dtypes, strict=True):
        elem = LLVM_TYPE[dtype]
        wide = elem if lanes == 1 else ir.VectorType(elem, lanes)
        args.append(b.load(b.gep(base, [index], source_etype=elem), typ=wide, align=4))
    value = vecmath.emit(b, name, args)
    assert b.block is loop, "emit must stay in the caller's block"
    b.store(value, b.gep(output, [index], source_etype=LLVM_TYPE[result]), align=4)
    following = b.add(index, ir.Constant(I64, lanes))
    index.add_incoming(following, loop)
    b.cbranch(b.icmp_unsigned("<", following, count), loop, end)
    ir.IRBuilder(end).ret_void()
    return module


def optimise(module: ir.Module, machine: llvm.TargetMachine) -> llvm.ModuleRef:
    parsed = llvm.parse_assembly(str(module))
    parsed.verify()
    options = llvm.create_pipeline_tuning_options(speed_level=2)
    passes = llvm.create_pass_builder(machine, options)
    passes.getModulePassManager().run(parsed, passes)
    return parsed


@cache
def compiled(name: str, dtypes: tuple[str, ...], result: str, lanes: int) -> tuple[Any, Any]:
    target = llvm.Target.from_default_triple()
    machine = target.create_target_machine(
        cpu=llvm.get_host_cpu_name(), features=llvm.get_host_cpu_features().flatten(), jit=True
    )
    engine = llvm.create_mcjit_compiler(
        optimise(build(name, dtypes, result, lanes), machine), machine
    )
    engine.finalize_object()
    signature = [ctypes.c_void_p] * (len(dtypes) + 1) + [ctypes.c_int64]
    return ctypes.CFUNCTYPE(None, *signature)(engine.get_function_address("run")), engine


def apply(name: str, *arrays: np.ndarray, result: str | None = None, lanes: int = 8) -> np.ndarray:
    """The function over arrays of any length."""
    length = len(arrays[0])
    padded = [np.resize(a, -(-length // lanes) * lanes) for a in arrays]
    result = result or str(arrays[0].dtype)
    function, _ = compiled(name, tuple(str(a.dtype) for a in arrays), result, lanes)
    output = np.empty(len(padded[0]), result)
    function(*(a.ctypes.data for a in padded), output.ctypes.data, len(output))
    return output[:length]


EDGES = np.array(
    [
        0.0, -0.0, math.inf, -math.inf, math.nan, 1, -1, 2, -2, 0.5, -0.5, 1.5, 2.5, -1.5, 3, -3,
        1e9,
        1e-45, -1e-45, 1.1754942e-38, 1.1754944e-38, -1.1754944e-38, 3.4028235e38, -3.4028235e38,
        127.99999, 128, -126, -126.5, -140, -149, -149.5, -150, -151, 88.72283, 88.72284, -87.4,
        -103.9, -104, 1 / 3, 2 / 3, 4 / 3, 0.625, 0.927, 131072.0, 131073.0,
        1.5707964, 3.1415927, 1e22,
    ],
    np.float32,
)  # fmt: skip


def samples(count: int) -> np.ndarray:
    """All kinds of float32: every binade by bit pattern, and the intervals where kernels live."""
    random = np.random.default_rng(7)
    patterns = random.integers(0, 2**32, count, dtype=np.uint32).view(np.float32)
    intervals = [random.uniform(-r, r, count // 4).astype(np.float32) for r in (1, 10, 110, 1e5)]
    return np.concatenate([EDGES, patterns, *intervals])


def ulps(actual: np.ndarray, exact: np.ndarray) -> np.ndarray:
    """Distance in units of the exact value's last place; infinite where NaN or infinity differ."""
    with np.errstate(all="ignore"):
        rounded = exact.astype(np.float32)
        _, exponent = np.frexp(exact)
        unit = np.ldexp(1.0, np.maximum(exponent, -125) - 24)
        distance = np.abs(actual - exact) / unit
    special = ~np.isfinite(rounded) | ~np.isfinite(actual)
    same = (actual == rounded) | (np.isnan(actual) & np.isnan(rounded))
    return np.where(special, np.where(same, 0.0, math.inf), distance)


def per_element(function: Callable[..., float]) -> Callable[..., np.ndarray]:
    return np.vectorize(function, otypes=[np.float64])


def sigmoid(x: np.ndarray) -> np.ndarray:
    decay = np.exp(-np.abs(x))
    return np.where(x < 0, decay, 1) / (1 + decay)


#: Vector code, with a float64 reference.
HOT: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "exp2": np.exp2, "exp": np.exp, "exp10": lambda x: np.power(10.0, x), "expm1": np.expm1,
    "log": np.log, "log2": np.log2, "log10": np.log10, "log1p": np.log1p, "sin": np.sin,
    "cos": np.cos, "tan": np.tan, "tanh": np.tanh, "sigmoid": sigmoid, "erf": per_element(math.erf),
    "sqrt": np.sqrt,
    "rsqrt": lambda x: 1 / np.sqrt(x), "atan": np.arctan, "sinh": np.sinh, "cosh": np.cosh,
}  # fmt: skip

RARE: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "asin": np.arcsin, "acos": np.arccos, "asinh": np.arcsinh, "acosh": np.arccosh,
    "atanh": np.arctanh, "cbrt": np.cbrt, "rcbrt": lambda x: 1 / np.cbrt(x),
    "erfc": per_element(math.erfc),
    "rsqrt_rn": lambda x: 1 / np.sqrt(x), "floor": np.floor, "ceil": np.ceil, "trunc": np.trunc,
    "roundeven": np.rint, "absf": np.abs, "logb": lambda x: np.where(
        np.isfinite(x) & (x != 0), np.frexp(x)[1] - 1.0, np.where(x == 0, -np.inf, np.abs(x))),
    "round": lambda x: np.copysign(np.floor(np.abs(x) + 0.5), x),
    "saturate": lambda x: np.where(np.isnan(x), 0, np.clip(x, 0, 1)), "rcp_rn": lambda x: 1 / x,
}  # fmt: skip


@pytest.mark.parametrize("name", [*HOT, *RARE])
def test_a_float32_function_is_within_two_ulp_everywhere(name: str) -> None:
    x = samples(2**17 if name in HOT else 2**13)
    with np.errstate(all="ignore"):
        exact = {**HOT, **RARE}[name](x.astype(np.float64))
    error = ulps(apply(name, x), exact)
    worst = int(error.argmax())
    assert error[worst] <= 2, f"{name}({x[worst]!r}) is off by {error[worst]:.3g} ulp"


@pytest.mark.parametrize("name", HOT)
def test_the_result_does_not_depend_on_the_vector_width(name: str) -> None:
    x = samples(2**10)
    expected, *others = (apply(name, x, lanes=lanes).view(np.uint32) for lanes in WIDTHS)
    number = ~np.isnan(expected.view(np.float32))
    for other in others:
        np.testing.assert_array_equal(other[number], expected[number])
        assert np.isnan(other.view(np.float32)[~number]).all()


@pytest.mark.parametrize(
    "name", ["sin", "tan", "tanh", "erf", "expm1", "log1p", "sinh", "atan", "sqrt"]
)
def test_zero_keeps_its_sign(name: str) -> None:
    assert np.signbit(apply(name, np.array([0.0, -0.0], np.float32))).tolist() == [False, True]


def test_powers_of_two_are_exact() -> None:
    x = np.arange(-149, 128, dtype=np.float32)
    np.testing.assert_array_equal(apply("exp2", x), np.ldexp(np.float32(1), x.astype(int)))


def test_exp_of_zero_is_exactly_one() -> None:
    zeros = np.array([0.0, -0.0], np.float32)
    assert apply("exp", zeros).tolist() == apply("exp2", zeros).tolist() == [1.0, 1.0]


@pytest.mark.parametrize("name", ["sin", "cos", "tan"])
def test_huge_angles_are_reduced_exactly(name: str) -> None:
    x = np.array([131071.0, 1e6, 1e10, 1e22, 2.0**100, -3.4e38, 16367173 * 2.0**72], np.float32)
    with mpmath.workprec(300):
        exact = np.array([float(getattr(mpmath, name)(mpmath.mpf(float(v)))) for v in x])
    assert ulps(apply(name, x), exact).max() <= 2


@pytest.mark.parametrize("name", ["pow", "hypot", "rhypot", "atan2", "fmod", "copysign", "fdim"])
def test_a_float32_function_of_two_arguments_follows_c(name: str) -> None:
    random = np.random.default_rng(3)
    near_one = np.exp2(random.uniform(-2, 2, 2**15)).astype(np.float32)
    exponents = random.uniform(-80, 80, 2**15).astype(np.float32)
    integers = random.integers(-9, 10, 2**10).astype(np.float32)
    grid = np.meshgrid(EDGES, EDGES)
    x = np.concatenate([grid[0].ravel(), near_one, -near_one[: 2**10]])
    y = np.concatenate([grid[1].ravel(), exponents, integers])
    reference: dict[str, Any] = {
        "pow": np.power, "hypot": np.hypot, "rhypot": lambda a, b: 1 / np.hypot(a, b),
        "fmod": np.fmod, "atan2": np.arctan2, "copysign": np.copysign,
        "fdim": lambda a, b: np.where(a <= b, 0, a - b),
    }  # fmt: skip
    with np.errstate(all="ignore"):
        exact = reference[name](x.astype(np.float64), y.astype(np.float64))
    actual = apply(name, x, y)
    error = ulps(actual, exact)
    worst = int(error.argmax())
    assert error[worst] <= 2, f"{name}({x[worst]!r}, {y[worst]!r}) is {actual[worst]!r}"


INVERSES = {
    "erfinv": (mpmath.erfinv, [-0.999, -0.5, -1e-3, 1e-30, 0.3, 0.5, 0.9, 0.99999]),
    "erfcinv": (lambda x: mpmath.erfinv(1 - x), [1e-7, 0.01, 0.4, 0.6, 0.999, 1.5, 1.999]),
    "normcdf": (mpmath.ncdf, [-12.0, -5.0, -1.0, 0.0, 0.3, 2.0, 9.0]),
    "normcdfinv": (lambda p: mpmath.sqrt(2) * mpmath.erfinv(2 * p - 1), [1e-6, 0.02, 0.3, 0.999]),
    "sinpi": (mpmath.sinpi, [0.25, 1.0, 1.5, -2.25, 1e-20, 1000.3]),
    "cospi": (mpmath.cospi, [0.25, 0.5, 1.0, 1.4999, -2.25, 1000.3]),
    "lgamma": (lambda x: mpmath.log(abs(mpmath.gamma(x))), [0.1, 2.5, 30.0]),
    "tgamma": (mpmath.gamma, [0.1, 2.5, -1.5, 10.0]),
    "j0": (mpmath.j0, [0.1, 2.0, 10.0]),
}  # fmt: skip


@pytest.mark.parametrize("name", INVERSES)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_composed_function_agrees_with_mpmath(name: str, dtype: str) -> None:
    function, points = INVERSES[name]
    x = np.array(points, dtype)
    with mpmath.workdps(60):
        exact = np.array([float(function(mpmath.mpf(float(v)))) for v in x])
    np.testing.assert_allclose(apply(name, x), exact, rtol=8 * float(np.finfo(dtype).eps))


def test_erfcx_agrees_with_mpmath_on_both_sides_of_its_switch() -> None:
    x = np.array([-5.0, 0.0, 1.0, 24.9, 25.1, 1e4, 1e30], np.float32)
    with mpmath.workdps(60):
        wide = [mpmath.mpf(float(v)) for v in x]
        exact = [float(mpmath.exp(v * v) * mpmath.erfc(v)) if v < 1e3 else float(
            1 / (v * mpmath.sqrt(mpmath.pi))) for v in wide]  # fmt: skip
    np.testing.assert_allclose(apply("erfcx", x), exact, rtol=2e-7)


@pytest.mark.parametrize(
    "name", ["exp", "exp2", "log", "log2", "sin", "cos", "tanh", "erf", "sqrt", "atan"]
)
def test_a_float64_function_has_float64_precision(name: str) -> None:
    x = np.random.default_rng(5).uniform(0.01, 20, 64)
    for lanes in WIDTHS:
        np.testing.assert_allclose(
            apply(name, x, lanes=lanes), HOT[name](x), rtol=1e-15, atol=1e-300
        )


def test_integer_powers() -> None:
    x, n = np.array([2.0, -3.0, 0.5, -0.0], np.float32), np.array([10, 3, -100, -3], np.int32)
    assert apply("powi", x, n).tolist() == [1024.0, -27.0, 2.0**100, -math.inf]
    assert apply("ldexp", x, n).tolist() == [2048.0, -24.0, 2.0**-101, -0.0]


def test_classification() -> None:
    x = np.array([1.0, -0.0, math.inf, -math.inf, math.nan], np.float32)
    assert apply("isnan_int", x, result="int32").tolist() == [0, 0, 0, 0, 1]
    assert apply("isinf_int", x, result="int32").tolist() == [0, 0, 1, 1, 0]
    assert apply("isfinite_int", x, result="int32").tolist() == [1, 1, 0, 0, 0]
    assert apply("signbit_int", x, result="int32").tolist()[:4] == [0, 1, 0, 1]


WORDS = np.array([0, 1, -1, 2, 7, 255, 256, -(2**31), 2**31 - 1, 0x12345678, -0x12345678], np.int32)


@pytest.mark.parametrize("lanes", WIDTHS)
def test_bit_functions(lanes: int) -> None:
    def check(name: str, expected: Callable[[int], int], x: np.ndarray, bits: int) -> None:
        actual = apply(name, x, result="int32", lanes=lanes)
        assert actual.tolist() == [expected(int(v) & (2**bits - 1)) for v in x]

    for x, bits in ((WORDS, 32), (WORDS.astype(np.int64) << 17, 64)):
        check("popc", int.bit_count, x, bits)
        check("clz", lambda v: bits - v.bit_length(), x, bits)
        check("ffs", lambda v: (v & -v).bit_length(), x, bits)
    reverse = apply("brev", WORDS, lanes=lanes).view(np.uint32)
    assert reverse.tolist() == [int(f"{int(v) & (2**32 - 1):032b}"[::-1], 2) for v in WORDS]


def signed(value: int, bits: int) -> int:
    return (value + 2 ** (bits - 1)) % 2**bits - 2 ** (bits - 1)


def low24(value: int) -> int:
    return signed(value, 24)


BINARY: dict[str, Callable[[int, int], int]] = {
    "mulhi": lambda x, y: (x * y) >> 32,
    "umulhi": lambda x, y: ((x % 2**32) * (y % 2**32)) >> 32,
    "mul24": lambda x, y: low24(x) * low24(y),
    "umul24": lambda x, y: (x % 2**24) * (y % 2**24),
    "hadd": lambda x, y: (x + y) >> 1,
    "uhadd": lambda x, y: (x % 2**32 + y % 2**32) >> 1,
    "rhadd": lambda x, y: (x + y + 1) >> 1,
    "urhadd": lambda x, y: (x % 2**32 + y % 2**32 + 1) >> 1,
    "min": min,
    "max": max,
}


@pytest.mark.parametrize("name", BINARY)
def test_integer_arithmetic_does_not_lose_the_high_bits(name: str) -> None:
    x, y = (g.ravel() for g in np.meshgrid(WORDS, WORDS))
    expected = [signed(BINARY[name](int(a), int(b)), 32) for a, b in zip(x, y, strict=True)]
    assert apply(name, x, y).tolist() == expected


def test_high_half_of_a_64_bit_product() -> None:
    x = np.array([-(2**63), 2**63 - 1, 12345678901234567], np.int64)
    expected = [signed((int(a) * int(b)) >> 64, 64) for a, b in zip(x, x[::-1], strict=True)]
    assert apply("mulhi", x, x[::-1].copy()).tolist() == expected


def test_sum_of_absolute_difference_and_byte_selection() -> None:
    x, y, z = (np.array(v, np.int32) for v in ([5, -(2**31), 1], [9, 2**31 - 1, -1], [100, 1, 0]))
    assert apply("sad", x, y, z).tolist() == [104, 0, 2]
    assert apply("usad", x, y, z).tolist() == [104, 2, -2]
    words = [np.array([v], np.int32) for v in (0x33221100, 0x77665544, 0x7F20)]
    assert apply("byte_perm", *words).tolist() == [0x77772200]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("float2int_rn", [2, 2, -2, -3, 2**31 - 1, -(2**31), 0]),
        ("float2int_rd", [1, 2, -2, -3, 2**31 - 1, -(2**31), 0]),
        ("float2int_ru", [2, 3, -1, -2, 2**31 - 1, -(2**31), 0]),
        ("float2int_rz", [1, 2, -1, -2, 2**31 - 1, -(2**31), 0]),
        ("float2uint_rn", [2, 2, 0, 0, -1, 0, 0]),
    ],
)
def test_conversion_to_integers_saturates(name: str, expected: list[int]) -> None:
    x = np.array([1.5, 2.4, -1.5, -2.9, 1e20, -math.inf, math.nan], np.float32)
    assert apply(name, x, result="int32").tolist() == expected


def test_conversion_to_64_bits_marks_nan() -> None:
    x = np.array([1e30, -1e30, math.nan, 2.5])
    assert apply("double2ll_rn", x, result="int64").tolist() == [2**63 - 1, -(2**63), -(2**63), 2]
    assert apply("llround", x, result="int64").tolist()[3] == 3


def test_unsigned_integers_convert_as_unsigned() -> None:
    x = np.array([-1, 5], np.int32)
    assert apply("uint2float_rn", x, result="float32").tolist() == [float(2**32), 5.0]
    assert apply("int2double_rn", x, result="float64").tolist() == [-1.0, 5.0]


def test_doubles_come_apart_and_together_again() -> None:
    x = np.array([math.pi, -1e300])
    high = apply("double2hiint", x, result="int32")
    low = apply("double2loint", x, result="int32")
    assert apply("hiloint2double", high, low, result="float64").tolist() == x.tolist()


@pytest.mark.parametrize(
    ("symbol", "expected"),
    [
        ("__nv_expf", ("exp", "f32")),
        ("__nv_exp", ("exp", "f64")),
        ("__nv_fast_expf", ("exp", "f32")),
        ("__ocml_exp_f32", ("exp", "f32")),
        ("__nv_isnanf", ("isnan_int", "f32")),
        ("__nv_isnand", ("isnan_int", "f64")),
        ("__nv_ffsll", ("ffs", "int")),
        ("__nv_llabs", ("abs", "int")),
        ("__nv_float2int_rn", ("float2int_rn", "f32")),
        ("__nv_fadd_rn", ("add_rn", "f32")),
        ("__nv_fadd_rz", None),
        ("__nv_erfcx", None),
        ("no_such_function", None),
    ],
)
def test_device_library_symbols(symbol: str, expected: tuple[str, str] | None) -> None:
    assert vecmath.from_symbol(symbol) == expected


def libdevice_symbols() -> list[tuple[str, tuple[str, ...], str]]:
    """(symbol, argument types, result type) of all that Triton's libdevice modules can call."""
    from triton.language.extra.cuda import libdevice as cuda
    from triton.language.extra.hip import libdevice as hip

    dtype = r'core\.dtype\("(\w+)"\)'
    found = []
    for library in (cuda, hip):
        with open(str(library.__file__), encoding="utf-8") as source:
            text = source.read()
        pattern = rf'\(((?:{dtype},?\s*)+)\):\s*\(\s*"(\w+)",\s*{dtype}\s*\)'
        for match in re.finditer(pattern, text):
            found.append((match[3], tuple(re.findall(dtype, match[1])), match[4]))
    return found


def test_every_known_symbol_compiles_for_the_types_triton_gives_it() -> None:
    elems = {"int32": I32, "uint32": I32, "int64": I64, "uint64": I64, "fp32": F32, "fp64": F64}
    symbols = libdevice_symbols()
    module = ir.Module()
    checked = 0
    for number, (symbol, args, result) in enumerate(symbols):
        known = vecmath.from_symbol(symbol)
        if known is None or not {result, *args} <= set(elems):
            continue
        vectors = [ir.VectorType(elems[a], 4) for a in args]
        wanted = ir.VectorType(elems[result], 4)
        function = ir.Function(module, ir.FunctionType(wanted, vectors), f"case.{number}")
        b = ir.IRBuilder(function.append_basic_block())
        value = vecmath.emit(b, known[0], list(function.args))
        assert value.type == wanted, f"{symbol} gives {value.type}, Triton expects {wanted}"
        b.ret(value)
        checked += 1
    llvm.parse_assembly(str(module)).verify()
    assert checked > 250


@pytest.mark.parametrize(
    ("operation", "expected"),
    [
        ("math.exp2", "exp2"),
        ("math.powf", "pow"),
        ("math.absi", "abs"),
        ("arith.addf", None),
        ("math.no_such_operation", None),
    ],
)
def test_operations_of_the_math_dialect(operation: str, expected: str | None) -> None:
    assert vecmath.from_mlir(operation) == expected


def test_an_unknown_function_is_a_key_error() -> None:
    assert not vecmath.supported("no_such_function")
    with pytest.raises(KeyError):
        build("no_such_function", ("float32",), "float32", 4)
    with pytest.raises(KeyError):
        build("erfcx", ("float64",), "float64", 4)


def vector_instructions(name: str) -> list[str]:
    """The loop's AVX2 instructions, without loads, stores and copies between registers."""
    try:
        llvm.initialize_all_targets()
        llvm.initialize_all_asmprinters()
        target = llvm.Target.from_triple("x86_64-unknown-linux-gnu")
    except RuntimeError:
        pytest.skip("this LLVM has no x86-64 code generator")
    machine = target.create_target_machine(cpu="x86-64-v3", opt=3)
    module = build(name, ("float32",), "float32", 8)
    module.triple = "x86_64-unknown-linux-gnu"
    assembly = machine.emit_assembly(optimise(module, machine))
    loop = assembly[assembly.index(".LBB0_1:") : assembly.index("jb\t.LBB0_1")]
    assert "call" not in loop
    mnemonics = re.findall(r"^\t(\w+)", loop, re.MULTILINE)
    return [m for m in mnemonics if m.startswith("v") and not m.startswith(("vmov", "vbroadcast"))]


@pytest.mark.parametrize(
    ("name", "limit"), [("exp2", 16), ("exp", 17), ("log2", 36), ("tanh", 38), ("erf", 42)]
)
def test_hot_functions_are_a_few_vector_instructions(name: str, limit: int) -> None:
    assert len(vector_instructions(name)) <= limit
