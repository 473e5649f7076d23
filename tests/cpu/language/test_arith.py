"""Arithmetic, bitwise, comparison and selection operators in every dtype."""

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from hypothesis import given

from tests.cpu.values import (
    FLOATS,
    INTEGERS,
    SIGNED,
    assert_rows,
    assert_same,
    difference,
    dtype_of,
    edge_pairs,
    normal,
    patterns,
    prop,
    take,
    ulps_off,
    wide,
)
from tritune.testing import launch

N = 512
FEW = 64


@triton.jit
def add_kernel(x_ptr, y_ptr, out_ptr, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out_ptr + i, tl.load(x_ptr + i) + tl.load(y_ptr + i))


@pytest.mark.parametrize("dtype", ["float32", "int32"])
def test_the_simplest_kernel_adds_two_vectors(dtype):
    x, y = normal(dtype_of(dtype), 16), normal(dtype_of(dtype), 16, seed=1)
    *_, out = launch(add_kernel, (1,), x, y, torch.zeros_like(x), N=16)
    assert_same(out, x + y)


INTEGER_OPS = (
    "add",
    "sub",
    "mul",
    "and",
    "or",
    "xor",
    "not",
    "neg",
    "min",
    "max",
    "clamp",
    "add scalar",
)


@triton.jit
def integer_kernel(x_ptr, y_ptr, out_ptr, N: tl.constexpr):
    i = tl.arange(0, N)
    x = tl.load(x_ptr + i)
    y = tl.load(y_ptr + i)
    tl.store(out_ptr + 0 * N + i, x + y)
    tl.store(out_ptr + 1 * N + i, x - y)
    tl.store(out_ptr + 2 * N + i, x * y)
    tl.store(out_ptr + 3 * N + i, x & y)
    tl.store(out_ptr + 4 * N + i, x | y)
    tl.store(out_ptr + 5 * N + i, x ^ y)
    tl.store(out_ptr + 6 * N + i, ~x)
    tl.store(out_ptr + 7 * N + i, -x)
    tl.store(out_ptr + 8 * N + i, tl.minimum(x, y))
    tl.store(out_ptr + 9 * N + i, tl.maximum(x, y))
    tl.store(out_ptr + 10 * N + i, tl.minimum(tl.maximum(x, 2), 100))
    tl.store(out_ptr + 11 * N + i, x + 5)


def integer_rows(x: np.ndarray, y: np.ndarray) -> list[np.ndarray]:
    with np.errstate(all="ignore"):
        zero, five = x.dtype.type(0), x.dtype.type(5)
        return [
            x + y, x - y, x * y, x & y, x | y, x ^ y, ~x, zero - x,
            np.minimum(x, y), np.maximum(x, y), np.clip(x, 2, 100), x + five,
        ]  # fmt: skip


def check_integers(x: torch.Tensor, y: torch.Tensor) -> None:
    count = len(x)
    *_, out = launch(
        integer_kernel, (1,), x, y, torch.zeros(len(INTEGER_OPS), count, dtype=x.dtype), N=count
    )
    assert_rows(
        INTEGER_OPS, out, [torch.from_numpy(row) for row in integer_rows(x.numpy(), y.numpy())]
    )


@pytest.mark.parametrize("dtype", INTEGERS)
def test_integer_arithmetic_wraps_around_on_every_pair_of_edges(dtype):
    check_integers(*edge_pairs(dtype_of(dtype), N))


@pytest.mark.parametrize("dtype", ["int8", "uint64"])
@prop
@given(drawn=patterns(2, FEW))
def test_integer_arithmetic_on_any_values(dtype, drawn):
    check_integers(take(drawn[0], dtype_of(dtype)), take(drawn[1], dtype_of(dtype)))


@triton.jit
def division_kernel(x_ptr, y_ptr, out_ptr, N: tl.constexpr):
    i = tl.arange(0, N)
    x = tl.load(x_ptr + i)
    y = tl.load(y_ptr + i)
    tl.store(out_ptr + 0 * N + i, x // y)
    tl.store(out_ptr + 1 * N + i, x % y)
    tl.store(out_ptr + 2 * N + i, x // 7)
    tl.store(out_ptr + 3 * N + i, x % 8)


def divisible(x: torch.Tensor, y: torch.Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Without the quotients that do not exist: by zero, and of the least number by -1."""
    left, right = x.numpy(), y.numpy().copy()
    right[right == 0] = 1
    if left.dtype.kind == "i":
        right[(left == np.iinfo(left.dtype).min) & (right == -1)] = 3
    return left, right


def truncated(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    remainder = np.fmod(x, y)
    # Exact, so that numpy's floor division is the truncating one too.
    return ((x - remainder) // y).astype(x.dtype), remainder


@pytest.mark.parametrize("dtype", INTEGERS)
def test_integer_division_truncates_and_the_remainder_has_the_sign_of_the_dividend(dtype):
    x, y = divisible(*edge_pairs(dtype_of(dtype), N))
    tensors = torch.from_numpy(x), torch.from_numpy(y)
    *_, out = launch(division_kernel, (1,), *tensors, torch.zeros(4, N, dtype=dtype_of(dtype)), N=N)
    seven, eight = np.full_like(x, 7), np.full_like(x, 8)
    expected = [*truncated(x, y), truncated(x, seven)[0], truncated(x, eight)[1]]
    assert_rows(["//", "%", "// 7", "% 8"], out, [torch.from_numpy(row) for row in expected])


@triton.jit
def shift_kernel(x_ptr, y_ptr, out_ptr, N: tl.constexpr):
    i = tl.arange(0, N)
    x = tl.load(x_ptr + i)
    y = tl.load(y_ptr + i)
    tl.store(out_ptr + 0 * N + i, x << y)
    tl.store(out_ptr + 1 * N + i, x >> y)
    tl.store(out_ptr + 2 * N + i, x >> 1)


@pytest.mark.parametrize("dtype", INTEGERS)
def test_shifts_are_arithmetic_for_signed_and_logical_for_unsigned_integers(dtype):
    x, y = (t.numpy() for t in edge_pairs(dtype_of(dtype), N))
    width = 8 * x.itemsize
    y = (y % np.array(width, x.dtype)).astype(x.dtype)
    *_, out = launch(
        shift_kernel,
        (1,),
        torch.from_numpy(x),
        torch.from_numpy(y),
        torch.zeros(3, N, dtype=dtype_of(dtype)),
        N=N,
    )
    expected = [np.left_shift(x, y), np.right_shift(x, y), np.right_shift(x, x.dtype.type(1))]
    assert_rows(["<<", ">>", ">> 1"], out, [torch.from_numpy(row) for row in expected])


@triton.jit
def ceiling_kernel(x_ptr, out_ptr, div, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out_ptr + i, tl.cdiv(tl.load(x_ptr + i), div))


def test_cdiv_rounds_up():
    x = torch.arange(0, 64, dtype=torch.int32)
    _, out = launch(ceiling_kernel, (1,), x, torch.zeros_like(x), 5, N=64)
    assert_same(out, (x + 4) // 5)


@triton.jit
def high_product_kernel(x_ptr, y_ptr, out_ptr, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out_ptr + i, tl.umulhi(tl.load(x_ptr + i), tl.load(y_ptr + i)))


@pytest.mark.parametrize("dtype", ["int32", "uint32", "int64", "uint64"])
def test_umulhi_is_the_high_half_of_the_unsigned_product(dtype):
    x, y = edge_pairs(dtype_of(dtype), N)
    width = 8 * x.element_size()
    unsigned = f"uint{width}"
    products = [
        (int(a) * int(b)) >> width
        for a, b in zip(x.numpy().view(unsigned), y.numpy().view(unsigned), strict=True)
    ]
    *_, out = launch(high_product_kernel, (1,), x, y, torch.zeros_like(x), N=N)
    assert_same(out, torch.from_numpy(np.array(products, dtype=unsigned).view(dtype)))


FLOAT_OPS = ("add", "sub", "mul", "neg", "abs", "add scalar", "mul scalar")


@triton.jit
def float_kernel(x_ptr, y_ptr, out_ptr, N: tl.constexpr):
    i = tl.arange(0, N)
    x = tl.load(x_ptr + i)
    y = tl.load(y_ptr + i)
    tl.store(out_ptr + 0 * N + i, x + y)
    tl.store(out_ptr + 1 * N + i, x - y)
    tl.store(out_ptr + 2 * N + i, x * y)
    tl.store(out_ptr + 3 * N + i, -x)
    tl.store(out_ptr + 4 * N + i, tl.abs(x))
    tl.store(out_ptr + 5 * N + i, x + 1.5)
    tl.store(out_ptr + 6 * N + i, x * 0.5)


def check_floats(x: torch.Tensor, y: torch.Tensor) -> None:
    count = len(x)
    *_, out = launch(
        float_kernel, (1,), x, y, torch.zeros(len(FLOAT_OPS), count, dtype=x.dtype), N=count
    )
    # Triton negates by subtracting from zero, which makes +0 of both zeros; the sign of zero has
    # its own test.
    assert_rows(
        FLOAT_OPS,
        out,
        [x + y, x - y, x * y, 0 - x, x.abs(), x + 1.5, x * 0.5],
        compare=lambda got, want: difference(got, want, signed_zero=False),
    )


@pytest.mark.parametrize("dtype", FLOATS)
def test_float_arithmetic_rounds_once_on_every_pair_of_edges(dtype):
    check_floats(*edge_pairs(dtype_of(dtype), N))


@pytest.mark.parametrize("dtype", FLOATS)
@prop
@given(drawn=patterns(2, FEW))
def test_float_arithmetic_on_any_values(dtype, drawn):
    check_floats(take(drawn[0], dtype_of(dtype)), take(drawn[1], dtype_of(dtype)))


@triton.jit
def signed_zero_kernel(x_ptr, y_ptr, out_ptr, N: tl.constexpr):
    i = tl.arange(0, N)
    x = tl.load(x_ptr + i)
    y = tl.load(y_ptr + i)
    tl.store(out_ptr + 0 * N + i, x + y)
    tl.store(out_ptr + 1 * N + i, x * y)
    tl.store(out_ptr + 2 * N + i, x / y)


def test_the_sign_of_zero_follows_ieee():
    x = torch.tensor([0.0, -0.0, -0.0, 1.0])
    y = torch.tensor([-0.0, -0.0, 2.0, -0.0])
    *_, out = launch(signed_zero_kernel, (1,), x, y, torch.zeros(3, 4), N=4)
    assert_rows(["+", "*", "/"], out, [x + y, x * y, x / y])


@triton.jit
def quotient_kernel(x_ptr, y_ptr, out_ptr, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out_ptr + i, tl.load(x_ptr + i) / tl.load(y_ptr + i))


@pytest.mark.parametrize("dtype", FLOATS)
def test_division_is_accurate_and_half_types_divide_in_fp32(dtype):
    x, y = edge_pairs(dtype_of(dtype), N)
    result = torch.float64 if dtype == "float64" else torch.float32
    *_, out = launch(quotient_kernel, (1,), x, y, torch.zeros(N, dtype=result), N=N)
    with np.errstate(all="ignore"):
        problem = ulps_off(out, wide(x) / wide(y), 2)
    assert not problem, problem


@triton.jit
def exact_quotient_kernel(x_ptr, y_ptr, out_ptr, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out_ptr + i, tl.div_rn(tl.load(x_ptr + i), tl.load(y_ptr + i)))


def test_div_rn_rounds_to_nearest():
    x, y = edge_pairs(torch.float32, N)
    *_, out = launch(exact_quotient_kernel, (1,), x, y, torch.zeros(N), N=N)
    assert_same(out, x / y)


@triton.jit
def float_remainder_kernel(x_ptr, y_ptr, out_ptr, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out_ptr + i, tl.load(x_ptr + i) % tl.load(y_ptr + i))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_float_remainder_has_the_sign_of_the_dividend(dtype):
    x, y = normal(dtype_of(dtype), N) * 100, normal(dtype_of(dtype), N, seed=1)
    *_, out = launch(float_remainder_kernel, (1,), x, y, torch.zeros_like(x), N=N)
    assert_same(out, torch.from_numpy(np.fmod(x.numpy(), y.numpy())))


EXTREMES = ("min", "max", "min propagating", "max propagating", "clamp", "clamp propagating")


@triton.jit
def extremes_kernel(x_ptr, y_ptr, out_ptr, N: tl.constexpr):
    i = tl.arange(0, N)
    x = tl.load(x_ptr + i)
    y = tl.load(y_ptr + i)
    low = tl.full([N], -1.5, x.dtype)
    high = tl.full([N], 2.5, x.dtype)
    every: tl.constexpr = tl.PropagateNan.ALL
    tl.store(out_ptr + 0 * N + i, tl.minimum(x, y))
    tl.store(out_ptr + 1 * N + i, tl.maximum(x, y))
    tl.store(out_ptr + 2 * N + i, tl.minimum(x, y, propagate_nan=every))
    tl.store(out_ptr + 3 * N + i, tl.maximum(x, y, propagate_nan=every))
    tl.store(out_ptr + 4 * N + i, tl.clamp(x, low, high))
    tl.store(out_ptr + 5 * N + i, tl.clamp(x, low, high, propagate_nan=every))


def check_extremes(x: torch.Tensor, y: torch.Tensor) -> None:
    count = len(x)
    *_, out = launch(
        extremes_kernel, (1,), x, y, torch.zeros(len(EXTREMES), count, dtype=x.dtype), N=count
    )
    a, b = wide(x), wide(y)
    rows = [
        np.fmin(a, b), np.fmax(a, b), np.minimum(a, b), np.maximum(a, b),
        np.fmin(np.fmax(a, -1.5), 2.5), np.minimum(np.maximum(a, -1.5), 2.5),
    ]  # fmt: skip
    assert_rows(
        EXTREMES,
        out,
        [torch.from_numpy(row).to(x.dtype) for row in rows],
        compare=lambda got, want: difference(got, want, signed_zero=False),
    )


@pytest.mark.parametrize("dtype", FLOATS)
def test_min_max_and_clamp_ignore_or_propagate_nan_as_asked(dtype):
    check_extremes(*edge_pairs(dtype_of(dtype), N))


@prop
@given(drawn=patterns(2, FEW))
def test_min_max_and_clamp_on_any_values(drawn):
    check_extremes(take(drawn[0], torch.float32), take(drawn[1], torch.float32))


@triton.jit
def comparison_kernel(x_ptr, y_ptr, out_ptr, selected_ptr, N: tl.constexpr):
    i = tl.arange(0, N)
    x = tl.load(x_ptr + i)
    y = tl.load(y_ptr + i)
    tl.store(out_ptr + 0 * N + i, x < y)
    tl.store(out_ptr + 1 * N + i, x <= y)
    tl.store(out_ptr + 2 * N + i, x > y)
    tl.store(out_ptr + 3 * N + i, x >= y)
    tl.store(out_ptr + 4 * N + i, x == y)
    tl.store(out_ptr + 5 * N + i, x != y)
    tl.store(out_ptr + 6 * N + i, (x < y) & (i % 2 == 0))
    tl.store(out_ptr + 7 * N + i, ~(x < y))
    tl.store(selected_ptr + 0 * N + i, tl.where(x < y, x, y))
    tl.store(selected_ptr + 1 * N + i, tl.where(i % 3 == 0, x, 1))


@pytest.mark.parametrize("dtype", ["bool", *INTEGERS, *FLOATS])
def test_comparisons_and_where(dtype):
    if dtype == "bool":
        x = torch.arange(N) % 2 == 0
        y = torch.arange(N) % 3 == 0
        a, b = x.numpy(), y.numpy()
    else:
        x, y = edge_pairs(dtype_of(dtype), N)
        a, b = (wide(x), wide(y)) if x.dtype.is_floating_point else (x.numpy(), y.numpy())
    outs = torch.zeros(8, N, dtype=torch.bool), torch.zeros(2, N, dtype=x.dtype)
    _, _, out, selected = launch(comparison_kernel, (1,), x, y, *outs, N=N)
    even, third = np.arange(N) % 2 == 0, np.arange(N) % 3 == 0
    truths = [a < b, a <= b, a > b, a >= b, a == b, a != b, (a < b) & even, ~(a < b)]
    names = ("<", "<=", ">", ">=", "==", "!=", "and", "not")
    assert_rows(names, out, [torch.from_numpy(truth) for truth in truths])
    less = torch.from_numpy(a < b)
    picked = [torch.where(less, x, y), torch.where(torch.from_numpy(third), x, torch.ones_like(x))]
    assert_rows(("where", "where with a scalar"), selected, picked)


@triton.jit
def boolean_kernel(x_ptr, y_ptr, out_ptr, N: tl.constexpr):
    i = tl.arange(0, N)
    x = tl.load(x_ptr + i)
    y = tl.load(y_ptr + i)
    tl.store(out_ptr + 0 * N + i, x & y)
    tl.store(out_ptr + 1 * N + i, x | y)
    tl.store(out_ptr + 2 * N + i, x ^ y)
    tl.store(out_ptr + 3 * N + i, ~x)
    tl.store(out_ptr + 4 * N + i, x.logical_and(y))
    tl.store(out_ptr + 5 * N + i, x.logical_or(y))


def test_boolean_algebra():
    x = torch.tensor([False, False, True, True])
    y = torch.tensor([False, True, False, True])
    *_, out = launch(boolean_kernel, (1,), x, y, torch.zeros(6, 4, dtype=torch.bool), N=4)
    assert_rows(("&", "|", "^", "~", "and", "or"), out, [x & y, x | y, x ^ y, ~x, x & y, x | y])


@triton.jit
def abs_kernel(x_ptr, out_ptr, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out_ptr + i, tl.abs(tl.load(x_ptr + i)))


@pytest.mark.parametrize("dtype", SIGNED)
def test_abs_of_the_least_integer_wraps(dtype):
    x, _ = edge_pairs(dtype_of(dtype), 128)
    _, out = launch(abs_kernel, (1,), x, torch.zeros_like(x), N=128)
    assert_same(out, torch.from_numpy(np.abs(x.numpy())))


@triton.jit
def promotion_kernel(narrow_ptr, wide_ptr, half_ptr, out_ptr, whole_ptr, N: tl.constexpr):
    i = tl.arange(0, N)
    narrow = tl.load(narrow_ptr + i)
    broad = tl.load(wide_ptr + i)
    half = tl.load(half_ptr + i)
    tl.store(whole_ptr + 0 * N + i, narrow + broad)
    tl.store(whole_ptr + 1 * N + i, narrow * broad)
    tl.store(out_ptr + 0 * N + i, half + narrow)
    tl.store(out_ptr + 1 * N + i, half * 2)
    tl.store(out_ptr + 2 * N + i, narrow / broad)


def test_mixed_dtypes_are_promoted_as_triton_says():
    narrow = torch.arange(-8, 8, dtype=torch.int8)
    broad = torch.arange(1, 17, dtype=torch.int32) * 100_000
    half = normal(torch.float16, 16)
    outs = torch.zeros(3, 16), torch.zeros(2, 16, dtype=torch.int32)
    *_, out, whole = launch(promotion_kernel, (1,), narrow, broad, half, *outs, N=16)
    assert_rows(("int8 + int32", "int8 * int32"), whole, [narrow + broad, narrow * broad])
    floats = [(half + narrow.half()).float(), (half * 2).float(), narrow.float() / broad.float()]
    assert_rows(
        ("fp16 + int8", "fp16 * 2", "int8 / int32"),
        out,
        floats,
        lambda g, w: ulps_off(g, wide(w), 2),
    )
