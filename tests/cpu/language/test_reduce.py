"""Reductions: named ones and any combine function, along every axis."""

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from hypothesis import given

from tests.cpu.values import (
    INTEGERS,
    assert_rows,
    assert_same,
    difference,
    dtype_of,
    edge_pairs,
    normal,
    patterns,
    prop,
    take,
    wide,
)
from tritune.testing import launch

N = 64


@triton.jit
def sum_kernel(x_ptr, out_ptr, N: tl.constexpr):
    tl.store(out_ptr, tl.sum(tl.load(x_ptr + tl.arange(0, N)), axis=0))


@pytest.mark.parametrize("count", [1, 2, 16, 128, 4096])
def test_the_sum_of_a_vector(count):
    x = normal(torch.float32, count)
    _, out = launch(sum_kernel, (1,), x, torch.zeros(1), N=count)
    torch.testing.assert_close(out, x.double().sum().float().reshape(1), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", INTEGERS)
def test_integer_sums_widen_to_at_least_32_bits_and_wrap(dtype):
    x, _ = edge_pairs(dtype_of(dtype), N)
    kind = "uint" if dtype.startswith("u") else "int"
    result = f"{kind}{max(32, 8 * x.element_size())}"
    _, out = launch(sum_kernel, (1,), x, torch.zeros(1, dtype=dtype_of(result)), N=N)
    assert_same(out, torch.from_numpy(x.numpy().astype(result).sum(dtype=result, keepdims=True)))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_float_sums(dtype):
    x = normal(dtype_of(dtype), N)
    _, out = launch(sum_kernel, (1,), x, torch.zeros(1, dtype=x.dtype), N=N)
    # Each addition may round to the dtype itself, in any order.
    close = {"float16": 3e-2, "bfloat16": 3e-1, "float64": 1e-13}[dtype]
    torch.testing.assert_close(out.double(), x.double().sum().reshape(1), rtol=close, atol=close)


def test_a_sum_with_nan_is_nan_and_with_infinity_infinite():
    x = normal(torch.float32, N)
    x[5] = float("inf")
    assert launch(sum_kernel, (1,), x, torch.zeros(1), N=N)[1].item() == float("inf")
    x[6] = float("nan")
    assert np.isnan(launch(sum_kernel, (1,), x, torch.zeros(1), N=N)[1].item())


@triton.jit
def sum_as_kernel(x_ptr, out_ptr, N: tl.constexpr):
    x = tl.load(x_ptr + tl.arange(0, N))
    tl.store(out_ptr, tl.sum(x, axis=0, dtype=out_ptr.dtype.element_ty))


@pytest.mark.parametrize(
    ("dtype", "result"), [("int8", "int64"), ("float16", "float32"), ("int32", "float32")]
)
def test_a_sum_in_the_dtype_that_was_asked_for(dtype, result):
    x = normal(dtype_of(dtype), N)
    _, out = launch(sum_as_kernel, (1,), x, torch.zeros(1, dtype=dtype_of(result)), N=N)
    torch.testing.assert_close(out, x.to(dtype_of(result)).sum().reshape(1))


@triton.jit
def axes_kernel(x_ptr, out0, out1, keep0, keep1, whole, M: tl.constexpr, N: tl.constexpr):
    m = tl.arange(0, M)
    n = tl.arange(0, N)
    x = tl.load(x_ptr + m[:, None] * N + n[None, :])
    tl.store(out0 + n, tl.sum(x, axis=0))
    tl.store(out1 + m, tl.sum(x, axis=1))
    tl.store(keep0 + n[None, :], tl.max(x, axis=0, keep_dims=True))
    tl.store(keep1 + m[:, None], tl.max(x, axis=1, keep_dims=True))
    tl.store(whole, tl.sum(x))
    tl.store(whole + 1, tl.min(x))
    tl.store(whole + 2, tl.max(x))


@pytest.mark.parametrize(("m", "n"), [(1, 16), (16, 1), (2, 2), (32, 64), (128, 16)])
def test_reductions_of_a_matrix_along_each_axis_and_as_a_whole(m, n):
    x = normal(torch.int32, m, n)
    outs = [torch.zeros(size, dtype=torch.int32) for size in (n, m, n, m, 3)]
    _, *found = launch(axes_kernel, (1,), x, *outs, M=m, N=n)
    whole = torch.stack([x.sum(), x.min(), x.max()]).int()
    expected = [x.sum(0).int(), x.sum(1).int(), x.max(0).values, x.max(1).values, whole]
    for name, got, want in zip(
        ("axis 0", "axis 1", "keep 0", "keep 1", "whole"), found, expected, strict=True
    ):
        assert not (problem := difference(got, want)), f"{name}: {problem}"


@triton.jit
def rank3_kernel(
    x_ptr, out_ptr, A: tl.constexpr, B: tl.constexpr, C: tl.constexpr, AXIS: tl.constexpr
):
    a = tl.arange(0, A)[:, None, None]
    b = tl.arange(0, B)[None, :, None]
    c = tl.arange(0, C)[None, None, :]
    x = tl.load(x_ptr + (a * B + b) * C + c)
    y = tl.sum(x, axis=AXIS)
    tl.store(out_ptr + tl.arange(0, y.numel), tl.reshape(y, [y.numel]))


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_reductions_of_rank_3(axis):
    x = normal(torch.int32, 4, 8, 16)
    expected = x.sum(axis).int().flatten()
    _, out = launch(rank3_kernel, (1,), x, torch.zeros_like(expected), A=4, B=8, C=16, AXIS=axis)
    assert_same(out, expected)


@triton.jit
def extremes_kernel(x_ptr, out_ptr, M: tl.constexpr, N: tl.constexpr):
    m = tl.arange(0, M)
    x = tl.load(x_ptr + m[:, None] * N + tl.arange(0, N)[None, :])
    tl.store(out_ptr + 0 * M + m, tl.max(x, axis=1))
    tl.store(out_ptr + 1 * M + m, tl.min(x, axis=1))


@pytest.mark.parametrize("dtype", ["int8", "int32", "int64", "uint32", "uint64"])
def test_integer_max_and_min(dtype):
    x = edge_pairs(dtype_of(dtype), 256)[0].reshape(16, 16)
    _, out = launch(extremes_kernel, (1,), x, torch.zeros(2, 16, dtype=x.dtype), M=16, N=16)
    assert_rows(
        ("max", "min"), out, [torch.from_numpy(f(x.numpy(), axis=1)) for f in (np.max, np.min)]
    )


def check_float_extremes(x: torch.Tensor) -> None:
    rows = len(x)
    _, out = launch(
        extremes_kernel, (1,), x, torch.zeros(2, rows, dtype=x.dtype), M=rows, N=x.shape[1]
    )
    values = wide(x)
    expected = [torch.from_numpy(f.reduce(values, axis=1)).to(x.dtype) for f in (np.fmax, np.fmin)]
    assert_rows(
        ("max", "min"), out, expected, lambda got, want: difference(got, want, signed_zero=False)
    )


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_float_max_and_min_ignore_nan_unless_there_is_nothing_else(dtype):
    x = edge_pairs(dtype_of(dtype), 512)[0].reshape(32, 16)
    x[3] = float("nan")
    check_float_extremes(x)


@prop
@given(drawn=patterns(8, 16))
def test_float_max_and_min_of_any_values(drawn):
    check_float_extremes(take(drawn, torch.float32))


@triton.jit
def arguments_kernel(x_ptr, out_ptr, values_ptr, M: tl.constexpr, N: tl.constexpr):
    m = tl.arange(0, M)
    x = tl.load(x_ptr + m[:, None] * N + tl.arange(0, N)[None, :])
    most, where_most = tl.max(x, axis=1, return_indices=True)
    least, where_least = tl.min(x, axis=1, return_indices=True)
    tl.store(values_ptr + 0 * M + m, most)
    tl.store(values_ptr + 1 * M + m, least)
    tl.store(out_ptr + 0 * M + m, where_most)
    tl.store(out_ptr + 1 * M + m, where_least)
    tl.store(out_ptr + 2 * M + m, tl.argmax(x, axis=1))
    tl.store(out_ptr + 3 * M + m, tl.argmin(x, axis=1))
    tl.store(out_ptr + 4 * M + m, tl.argmax(x, axis=1, tie_break_left=False))
    tl.store(out_ptr + 5 * M + m, tl.argmin(x, axis=1, tie_break_left=False))


@pytest.mark.parametrize("dtype", ["float32", "float16", "int32", "int64"])
def test_argmax_and_argmin_take_the_leftmost_of_equal_values(dtype):
    rng = np.random.default_rng(0)
    x = torch.from_numpy(rng.integers(-3, 4, (16, 32))).to(dtype_of(dtype))
    outs = torch.zeros(6, 16, dtype=torch.int32), torch.zeros(2, 16, dtype=x.dtype)
    _, out, values = launch(arguments_kernel, (1,), x, *outs, M=16, N=32)
    most, least = x.numpy().argmax(1), x.numpy().argmin(1)
    expected = [torch.from_numpy(a.astype(np.int32)) for a in (most, least, most, least)]
    assert_rows(("max index", "min index", "argmax", "argmin"), out[:4], expected)
    assert_rows(("max", "min"), values, [x.amax(1), x.amin(1)])
    # Without tie_break_left any of the equal ones will do.
    assert_same(x.gather(1, out[4].long()[:, None])[:, 0], x.amax(1))
    assert_same(x.gather(1, out[5].long()[:, None])[:, 0], x.amin(1))


@triton.jit
def column_argmax_kernel(x_ptr, out_ptr, M: tl.constexpr, N: tl.constexpr):
    n = tl.arange(0, N)
    x = tl.load(x_ptr + tl.arange(0, M)[:, None] * N + n[None, :])
    tl.store(out_ptr + n, tl.argmax(x, axis=0))


def test_argmax_along_the_first_axis():
    x = torch.from_numpy(np.random.default_rng(0).integers(0, 4, (16, 32))).float()
    _, out = launch(column_argmax_kernel, (1,), x, torch.zeros(32, dtype=torch.int32), M=16, N=32)
    assert_same(out, torch.from_numpy(x.numpy().argmax(0).astype(np.int32)))


@triton.jit
def bitwise_kernel(x_ptr, out_ptr, M: tl.constexpr, N: tl.constexpr):
    m = tl.arange(0, M)
    x = tl.load(x_ptr + m[:, None] * N + tl.arange(0, N)[None, :])
    tl.store(out_ptr + 0 * M + m, tl.xor_sum(x, axis=1))
    tl.store(out_ptr + 1 * M + m, tl.reduce_or(x, axis=1))


@pytest.mark.parametrize("dtype", ["int32", "int64", "uint8"])
def test_xor_sum_and_reduce_or(dtype):
    x = edge_pairs(dtype_of(dtype), 256)[1].reshape(16, 16)
    _, out = launch(bitwise_kernel, (1,), x, torch.zeros(2, 16, dtype=x.dtype), M=16, N=16)
    expected = [np.bitwise_xor.reduce(x.numpy(), axis=1), np.bitwise_or.reduce(x.numpy(), axis=1)]
    assert_rows(("xor_sum", "reduce_or"), out, [torch.from_numpy(row) for row in expected])


@triton.jit
def multiply(a, b):
    return a * b


@triton.jit
def first_nonzero(a, b):
    return tl.where(a != 0, a, b)


@triton.jit
def custom_kernel(x_ptr, out_ptr, M: tl.constexpr, N: tl.constexpr):
    m = tl.arange(0, M)
    x = tl.load(x_ptr + m[:, None] * N + tl.arange(0, N)[None, :])
    tl.store(out_ptr + 0 * M + m, tl.reduce(x, 1, multiply))
    tl.store(out_ptr + 1 * M + m, tl.reduce(x, 1, first_nonzero))


def test_any_associative_function_can_reduce():
    """`first_nonzero` is not commutative: the order of the elements must be kept."""
    x = torch.from_numpy(np.random.default_rng(0).integers(-1, 3, (16, 32))).int()
    _, out = launch(custom_kernel, (1,), x, torch.zeros(2, 16, dtype=torch.int32), M=16, N=32)
    first = [row[row != 0][0] for row in x.numpy()]
    expected = [x.prod(1).int(), torch.from_numpy(np.array(first))]
    assert_rows(("product", "first nonzero"), out, expected)


@triton.jit
def welford(mean_a, m2_a, n_a, mean_b, m2_b, n_b):
    n = n_a + n_b
    delta = mean_b - mean_a
    return mean_a + delta * n_b / n, m2_a + m2_b + delta * delta * n_a * n_b / n, n


@triton.jit
def welford_kernel(x_ptr, out_ptr, M: tl.constexpr, N: tl.constexpr):
    m = tl.arange(0, M)
    x = tl.load(x_ptr + m[:, None] * N + tl.arange(0, N)[None, :])
    ones = tl.full([M, N], 1.0, tl.float32)
    mean, m2, count = tl.reduce((x, tl.zeros_like(x), ones), 1, welford)
    tl.store(out_ptr + 0 * M + m, mean)
    tl.store(out_ptr + 1 * M + m, m2 / count)
    tl.store(out_ptr + 2 * M + m, count)


def test_several_tensors_are_reduced_together():
    x = normal(torch.float32, 8, 32)
    _, out = launch(welford_kernel, (1,), x, torch.zeros(3, 8), M=8, N=32)
    expected = torch.stack([x.mean(1), x.var(1, unbiased=False), torch.full((8,), 32.0)])
    torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-5)


@triton.jit
def mixed(value_a, index_a, value_b, index_b):
    take_a = value_a * 2 >= value_b * 2
    return tl.where(take_a, value_a, value_b), tl.where(take_a, index_a, index_b)


@triton.jit
def mixed_kernel(x_ptr, out_ptr, where_ptr, N: tl.constexpr):
    i = tl.arange(0, N)
    value, place = tl.reduce((tl.load(x_ptr + i), i.to(tl.int64)), 0, mixed)
    tl.store(out_ptr, value)
    tl.store(where_ptr, place)


def test_the_tensors_reduced_together_may_differ_in_dtype():
    x = normal(torch.float32, N)
    _, out, where = launch(
        mixed_kernel, (1,), x, torch.zeros(1), torch.zeros(1, dtype=torch.int64), N=N
    )
    assert_same(out, x.max().reshape(1))
    assert_same(where, x.argmax().reshape(1))


@triton.jit
def normalise_kernel(x_ptr, out_ptr, cols, M: tl.constexpr, N: tl.constexpr):
    m = tl.arange(0, M)[:, None]
    n = tl.arange(0, N)[None, :]
    x = tl.load(x_ptr + m * cols + n, mask=n < cols, other=0.0)
    mean = tl.sum(x, axis=1, keep_dims=True) / cols
    centred = tl.where(n < cols, x - mean, 0.0)
    variance = tl.sum(centred * centred, axis=1)[:, None] / cols
    tl.store(out_ptr + m * cols + n, centred / tl.sqrt(variance), mask=n < cols)


def test_a_reduction_feeds_the_rows_it_came_from():
    x = normal(torch.float32, 8, 50)
    _, out = launch(normalise_kernel, (1,), x, torch.zeros_like(x), 50, M=8, N=64)
    expected = (x - x.mean(1, keepdim=True)) / x.std(1, keepdim=True, unbiased=False)
    torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-5)


@triton.jit
def nested_kernel(x_ptr, out_ptr, M: tl.constexpr, N: tl.constexpr):
    x = tl.load(x_ptr + tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :])
    rows = tl.max(x, axis=1)
    tl.store(out_ptr, tl.sum(rows - tl.min(rows, axis=0), axis=0))


def test_reductions_of_reductions():
    x = normal(torch.int32, 16, 16)
    _, out = launch(nested_kernel, (1,), x, torch.zeros(1, dtype=torch.int32), M=16, N=16)
    rows = x.amax(1)
    assert_same(out, (rows - rows.min()).sum().int().reshape(1))


@triton.jit
def any_kernel(x_ptr, out_ptr, N: tl.constexpr):
    x = tl.load(x_ptr + tl.arange(0, N))
    tl.store(out_ptr, tl.max((x > 10).to(tl.int32), axis=0))
    tl.store(out_ptr + 1, tl.sum((x > 0).to(tl.int32), axis=0))
    tl.store(out_ptr + 2, tl.sum(x > 0, axis=0))


def test_counting_truths():
    x = normal(torch.int32, N)
    _, out = launch(any_kernel, (1,), x, torch.zeros(3, dtype=torch.int32), N=N)
    count = int((x > 0).sum())
    assert out.tolist() == [int((x > 10).any()), count, count]
