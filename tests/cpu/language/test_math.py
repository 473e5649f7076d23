"""Mathematical functions: within 2 ulp in fp32, judged by numpy in double precision."""

import math

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from hypothesis import given
from triton.language.extra import libdevice

from tests.cpu.values import (
    assert_rows,
    assert_same,
    assert_ulps,
    difference,
    edges,
    normal,
    patterns,
    prop,
    take,
    ulps_off,
    wide,
)
from tritune.testing import launch

N = 1024


def spread(low: float, high: float, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Numbers of both signs with magnitudes from `low` to `high`, and the edges of the dtype."""
    rng = np.random.default_rng(0)
    magnitudes = np.exp(rng.uniform(np.log(low), np.log(high), N))
    values = torch.from_numpy(magnitudes * rng.choice([-1.0, 1.0], N)).to(dtype)
    special = edges(dtype)
    special = special[~((special.abs() > high) & special.isfinite())]
    values[: len(special)] = special
    return values


MATH = ("exp", "exp2", "log", "log2", "sqrt", "rsqrt", "erf", "floor", "ceil", "abs", "sigmoid")


@triton.jit
def math_kernel(x_ptr, out_ptr, N: tl.constexpr):
    i = tl.arange(0, N)
    x = tl.load(x_ptr + i)
    tl.store(out_ptr + 0 * N + i, tl.exp(x))
    tl.store(out_ptr + 1 * N + i, tl.exp2(x))
    tl.store(out_ptr + 2 * N + i, tl.log(x))
    tl.store(out_ptr + 3 * N + i, tl.log2(x))
    tl.store(out_ptr + 4 * N + i, tl.sqrt(x))
    tl.store(out_ptr + 5 * N + i, tl.rsqrt(x))
    tl.store(out_ptr + 6 * N + i, tl.erf(x))
    tl.store(out_ptr + 7 * N + i, tl.floor(x))
    tl.store(out_ptr + 8 * N + i, tl.ceil(x))
    tl.store(out_ptr + 9 * N + i, tl.abs(x))
    tl.store(out_ptr + 10 * N + i, tl.sigmoid(x))


def math_rows(x: np.ndarray, largest: float) -> list[np.ndarray]:
    with np.errstate(all="ignore"):
        # As Triton defines it: zero where the exponential overflows.
        sigmoid = np.where(np.exp(-x) > largest, 0, 1 / (1 + np.exp(-x)))
        return [
            np.exp(x), np.exp2(x), np.log(x), np.log2(x), np.sqrt(x), 1 / np.sqrt(x),
            np.vectorize(math.erf)(x), np.floor(x), np.ceil(x), np.abs(x), sigmoid,
        ]  # fmt: skip


def check_math(x: torch.Tensor, ulps: float) -> None:
    count = len(x)
    _, out = launch(math_kernel, (1,), x, torch.zeros(len(MATH), count, dtype=x.dtype), N=count)
    problems = []
    for name, row, exact in zip(
        MATH, out, math_rows(wide(x), torch.finfo(x.dtype).max), strict=True
    ):
        # A sigmoid is an exponential, an addition and a division.
        if problem := ulps_off(row, exact, 2 * ulps if name == "sigmoid" else ulps):
            problems.append(f"{name}: {problem}")
    assert not problems, "\n".join(problems)


@pytest.mark.parametrize(("low", "high"), [(1e-3, 10.0), (1e-45, 3e38), (10.0, 200.0)])
def test_fp32_functions_are_within_2_ulp(low, high):
    check_math(spread(low, high), 2)


@prop
@given(drawn=patterns(64))
def test_fp32_functions_of_any_values(drawn):
    check_math(take(drawn, torch.float32), 2)


@pytest.mark.parametrize(("low", "high"), [(1e-3, 10.0), (1e-300, 1e300), (10.0, 800.0)])
def test_fp64_functions_are_within_4_ulp(low, high):
    check_math(spread(low, high, torch.float64), 4)


@triton.jit
def circular_kernel(x_ptr, out_ptr, N: tl.constexpr):
    i = tl.arange(0, N)
    x = tl.load(x_ptr + i)
    tl.store(out_ptr + 0 * N + i, tl.sin(x))
    tl.store(out_ptr + 1 * N + i, tl.cos(x))


@pytest.mark.parametrize(("low", "high"), [(1e-40, 1.0), (0.1, 100.0), (100.0, 1e5), (1e5, 3e38)])
def test_sin_and_cos_of_small_and_huge_arguments(low, high):
    x = spread(low, high)
    _, out = launch(circular_kernel, (1,), x, torch.zeros(2, N), N=N)
    with np.errstate(all="ignore"):
        exact = [np.sin(wide(x)), np.cos(wide(x))]
    problems = [
        f"{n}: {p}"
        for n, row, e in zip(("sin", "cos"), out, exact, strict=True)
        if (p := ulps_off(row, e, 2))
    ]
    assert not problems, "\n".join(problems)


def test_sin_and_cos_in_fp64():
    x = spread(1e-3, 1e4, torch.float64)
    _, out = launch(circular_kernel, (1,), x, torch.zeros(2, N, dtype=torch.float64), N=N)
    with np.errstate(all="ignore"):
        exact = [np.sin(wide(x)), np.cos(wide(x))]
    problems = [
        f"{n}: {p}"
        for n, row, e in zip(("sin", "cos"), out, exact, strict=True)
        if (p := ulps_off(row, e, 4))
    ]
    assert not problems, "\n".join(problems)


@triton.jit
def root_kernel(x_ptr, out_ptr, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out_ptr + i, tl.sqrt_rn(tl.load(x_ptr + i)))


def test_sqrt_rn_rounds_to_nearest():
    x = spread(1e-45, 3e38)
    _, out = launch(root_kernel, (1,), x, torch.zeros(N), N=N)
    with np.errstate(invalid="ignore"):
        assert_same(out, torch.from_numpy(np.sqrt(x.numpy())))


@triton.jit
def fused_kernel(x_ptr, y_ptr, z_ptr, out_ptr, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out_ptr + i, tl.fma(tl.load(x_ptr + i), tl.load(y_ptr + i), tl.load(z_ptr + i)))


def test_fma_rounds_once():
    x = 1 + torch.arange(N) * 2.0**-23
    y = 1 - torch.arange(N) * 2.0**-23
    *_, out = launch(fused_kernel, (1,), x, y, torch.full((N,), -1.0), torch.zeros(N), N=N)
    # The product needs 48 bits, so that double precision holds product and sum exactly.
    assert_same(out, torch.from_numpy(wide(x) * wide(y) - 1).float())


@triton.jit
def softmax_kernel(x_ptr, out_ptr, M: tl.constexpr, N: tl.constexpr, AXIS: tl.constexpr):
    i = tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :]
    tl.store(out_ptr + i, tl.softmax(tl.load(x_ptr + i), AXIS, keep_dims=True))


@pytest.mark.parametrize("axis", [0, 1])
def test_softmax_along_either_axis(axis):
    x = normal(torch.float32, 16, 32) * 10
    x[0, 3] = -float("inf")
    _, out = launch(softmax_kernel, (1,), x, torch.zeros(16, 32), M=16, N=32, AXIS=axis)
    torch.testing.assert_close(out.double(), x.double().softmax(axis), rtol=3e-6, atol=1e-12)


LIBRARY = (
    "tanh", "sinh", "cosh", "tan", "asin", "acos", "atan", "asinh", "acosh", "atanh",
    "log1p", "expm1", "exp10", "log10", "cbrt", "erf", "erfc",
    "exp", "exp2", "log", "log2", "sin", "cos", "sqrt", "rsqrt",
)  # fmt: skip


@triton.jit
def library_kernel(x_ptr, out_ptr, N: tl.constexpr):
    i = tl.arange(0, N)
    x = tl.load(x_ptr + i)
    tl.store(out_ptr + 0 * N + i, libdevice.tanh(x))
    tl.store(out_ptr + 1 * N + i, libdevice.sinh(x))
    tl.store(out_ptr + 2 * N + i, libdevice.cosh(x))
    tl.store(out_ptr + 3 * N + i, libdevice.tan(x))
    tl.store(out_ptr + 4 * N + i, libdevice.asin(x))
    tl.store(out_ptr + 5 * N + i, libdevice.acos(x))
    tl.store(out_ptr + 6 * N + i, libdevice.atan(x))
    tl.store(out_ptr + 7 * N + i, libdevice.asinh(x))
    tl.store(out_ptr + 8 * N + i, libdevice.acosh(x))
    tl.store(out_ptr + 9 * N + i, libdevice.atanh(x))
    tl.store(out_ptr + 10 * N + i, libdevice.log1p(x))
    tl.store(out_ptr + 11 * N + i, libdevice.expm1(x))
    tl.store(out_ptr + 12 * N + i, libdevice.exp10(x))
    tl.store(out_ptr + 13 * N + i, libdevice.log10(x))
    tl.store(out_ptr + 14 * N + i, libdevice.cbrt(x))
    tl.store(out_ptr + 15 * N + i, libdevice.erf(x))
    tl.store(out_ptr + 16 * N + i, libdevice.erfc(x))
    tl.store(out_ptr + 17 * N + i, libdevice.exp(x))
    tl.store(out_ptr + 18 * N + i, libdevice.exp2(x))
    tl.store(out_ptr + 19 * N + i, libdevice.log(x))
    tl.store(out_ptr + 20 * N + i, libdevice.log2(x))
    tl.store(out_ptr + 21 * N + i, libdevice.sin(x))
    tl.store(out_ptr + 22 * N + i, libdevice.cos(x))
    tl.store(out_ptr + 23 * N + i, libdevice.sqrt(x))
    tl.store(out_ptr + 24 * N + i, libdevice.rsqrt(x))


def library_rows(x: np.ndarray) -> list[np.ndarray]:
    with np.errstate(all="ignore"):
        return [
            np.tanh(x), np.sinh(x), np.cosh(x), np.tan(x), np.arcsin(x), np.arccos(x), np.arctan(x),
            np.arcsinh(x), np.arccosh(x), np.arctanh(x), np.log1p(x), np.expm1(x),
            np.power(10.0, x), np.log10(x), np.cbrt(x), np.vectorize(math.erf)(x),
            np.vectorize(math.erfc)(x), np.exp(x), np.exp2(x), np.log(x), np.log2(x),
            np.sin(x), np.cos(x), np.sqrt(x), 1 / np.sqrt(x),
        ]  # fmt: skip


@pytest.mark.parametrize(("low", "high"), [(1e-6, 1.0), (0.1, 20.0), (1e-40, 1e4)])
def test_libdevice_functions_are_within_2_ulp(low, high):
    x = spread(low, high)
    _, out = launch(library_kernel, (1,), x, torch.zeros(len(LIBRARY), N), N=N)
    rows = library_rows(wide(x))
    problems = [
        f"{n}: {p}"
        for n, row, e in zip(LIBRARY, out, rows, strict=True)
        if (p := ulps_off(row, e, 2))
    ]
    assert not problems, "\n".join(problems)


ROUNDING = ("floor", "ceil", "trunc", "round", "rint", "nearbyint", "abs")


@triton.jit
def rounding_kernel(x_ptr, out_ptr, truth_ptr, N: tl.constexpr):
    i = tl.arange(0, N)
    x = tl.load(x_ptr + i)
    tl.store(out_ptr + 0 * N + i, libdevice.floor(x))
    tl.store(out_ptr + 1 * N + i, libdevice.ceil(x))
    tl.store(out_ptr + 2 * N + i, libdevice.trunc(x))
    tl.store(out_ptr + 3 * N + i, libdevice.round(x))
    tl.store(out_ptr + 4 * N + i, libdevice.rint(x))
    tl.store(out_ptr + 5 * N + i, libdevice.nearbyint(x))
    tl.store(out_ptr + 6 * N + i, libdevice.abs(x))
    tl.store(truth_ptr + 0 * N + i, libdevice.isnan(x))
    tl.store(truth_ptr + 1 * N + i, libdevice.isinf(x))
    tl.store(truth_ptr + 2 * N + i, libdevice.signbit(x) != 0)


def test_libdevice_rounding_and_classification_are_exact():
    x = spread(0.1, 1e9)
    x[100:140] = torch.arange(-20, 20) + 0.5
    outs = torch.zeros(len(ROUNDING), N), torch.zeros(3, N, dtype=torch.bool)
    _, out, truth = launch(rounding_kernel, (1,), x, *outs, N=N)
    away = torch.copysign((x.double().abs() + 0.5).floor(), x.double()).float()
    expected = [x.floor(), x.ceil(), x.trunc(), away, x.round(), x.round(), x.abs()]
    assert_rows(ROUNDING, out, expected, lambda got, want: difference(got, want, signed_zero=False))
    numbers = ~x.isnan()
    assert_rows(("isnan", "isinf"), truth[:2], [x.isnan(), x.isinf()])
    assert_same(truth[2][numbers], x.signbit()[numbers])


PAIRS = ("pow", "atan2", "fmod", "hypot", "copysign", "div_rn")


@triton.jit
def pairs_kernel(x_ptr, y_ptr, out_ptr, N: tl.constexpr):
    i = tl.arange(0, N)
    x = tl.load(x_ptr + i)
    y = tl.load(y_ptr + i)
    tl.store(out_ptr + 0 * N + i, libdevice.pow(x, y))
    tl.store(out_ptr + 1 * N + i, libdevice.atan2(x, y))
    tl.store(out_ptr + 2 * N + i, libdevice.fmod(x, y))
    tl.store(out_ptr + 3 * N + i, libdevice.hypot(x, y))
    tl.store(out_ptr + 4 * N + i, libdevice.copysign(x, y))
    tl.store(out_ptr + 5 * N + i, libdevice.div_rn(x, y))


def test_libdevice_functions_of_two_arguments():
    x, y = spread(1e-3, 50.0), spread(1e-2, 20.0).flip(0)
    # Integer powers of negative numbers exist.
    y[500:600] = y[500:600].round()
    *_, out = launch(pairs_kernel, (1,), x, y, torch.zeros(len(PAIRS), N), N=N)
    a, b = wide(x), wide(y)
    with np.errstate(all="ignore"):
        rows = [
            np.power(a, b),
            np.arctan2(a, b),
            np.fmod(a, b),
            np.hypot(a, b),
            np.copysign(a, b),
            a / b,
        ]
    ulps = (2, 2, 0, 2, 0, 0.5)
    problems = [
        f"{n}: {p}"
        for n, row, e, u in zip(PAIRS, out, rows, ulps, strict=True)
        if (p := ulps_off(row, e, u))
    ]
    assert not problems, "\n".join(problems)


@triton.jit
def wide_library_kernel(x_ptr, out_ptr, N: tl.constexpr):
    i = tl.arange(0, N)
    x = tl.load(x_ptr + i)
    tl.store(out_ptr + 0 * N + i, libdevice.tanh(x))
    tl.store(out_ptr + 1 * N + i, libdevice.log1p(x))
    tl.store(out_ptr + 2 * N + i, libdevice.expm1(x))
    tl.store(out_ptr + 3 * N + i, libdevice.pow(x, tl.full([N], 3.0, tl.float64)))


def test_libdevice_in_fp64():
    x = spread(1e-3, 20.0, torch.float64)
    _, out = launch(wide_library_kernel, (1,), x, torch.zeros(4, N, dtype=torch.float64), N=N)
    with np.errstate(all="ignore"):
        rows = [np.tanh(wide(x)), np.log1p(wide(x)), np.expm1(wide(x)), wide(x) ** 3]
    names = ("tanh", "log1p", "expm1", "pow")
    problems = [
        f"{n}: {p}"
        for n, row, e in zip(names, out, rows, strict=True)
        if (p := ulps_off(row, e, 4))
    ]
    assert not problems, "\n".join(problems)


@triton.jit
def scalar_kernel(out_ptr, x):
    tl.store(out_ptr + 0, tl.exp(x))
    tl.store(out_ptr + 1, tl.sqrt(x))
    tl.store(out_ptr + 2, tl.sin(x))
    tl.store(out_ptr + 3, tl.log2(x))


def test_functions_of_scalars():
    (out,) = launch(scalar_kernel, (1,), torch.zeros(4), 2.5)
    assert_ulps(out, np.array([np.exp(2.5), np.sqrt(2.5), np.sin(2.5), np.log2(2.5)]), 2)


@triton.jit
def gelu_kernel(x_ptr, out_ptr, N: tl.constexpr):
    i = tl.arange(0, N)
    x = tl.load(x_ptr + i).to(tl.float32)
    y = 0.5 * x * (1 + tl.erf(x * 0.7071067811865476))
    tl.store(out_ptr + i, y.to(tl.float16))


def test_a_chain_of_functions_in_half_precision():
    x = normal(torch.float16, N) * 3
    _, out = launch(gelu_kernel, (1,), x, torch.zeros_like(x), N=N)
    exact = torch.nn.functional.gelu(x.double())
    torch.testing.assert_close(out.double(), exact, rtol=1e-3, atol=1e-4)
