"""Scans, sorting, histograms and gathers within a tile."""

import pytest
import torch
import triton
import triton.language as tl

from tests.cpu.values import assert_rows, assert_same, normal
from tritune.testing import launch

M = 8
N = 32


@triton.jit
def cumulative_kernel(x_ptr, out_ptr, M: tl.constexpr, N: tl.constexpr):
    i = tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :]
    x = tl.load(x_ptr + i)
    tl.store(out_ptr + 0 * M * N + i, tl.cumsum(x, axis=1))
    tl.store(out_ptr + 1 * M * N + i, tl.cumsum(x, axis=0))
    tl.store(out_ptr + 2 * M * N + i, tl.cumprod(x, axis=1))
    tl.store(out_ptr + 3 * M * N + i, tl.cumsum(x, axis=1, reverse=True))


def test_cumsum_and_cumprod_along_each_axis_and_backwards():
    x = normal(torch.int32, M, N) % 5 + 1
    _, out = launch(cumulative_kernel, (1,), x, torch.zeros(4, M, N, dtype=torch.int32), M=M, N=N)
    expected = [
        x.cumsum(1).int(),
        x.cumsum(0).int(),
        x.cumprod(1).int(),
        x.flip(1).cumsum(1).flip(1).int(),
    ]
    assert_rows(("cumsum 1", "cumsum 0", "cumprod", "reverse"), out, expected)


@triton.jit
def add(a, b):
    return a + b


@triton.jit
def multiply(a, b):
    return a * b


@triton.jit
def bfloat16_kernel(
    x_ptr, out_ptr, M: tl.constexpr, N: tl.constexpr, AXIS: tl.constexpr, REVERSE: tl.constexpr
):  # fmt: skip
    i = tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :]
    x = tl.load(x_ptr + i)
    tl.store(out_ptr + 0 * M * N + i, tl.cumsum(x, AXIS, REVERSE))
    tl.store(out_ptr + 1 * M * N + i, tl.associative_scan(x, AXIS, add, REVERSE))
    tl.store(out_ptr + 2 * M * N + i, tl.cumprod(x, AXIS, REVERSE))
    tl.store(out_ptr + 3 * M * N + i, tl.associative_scan(x, AXIS, multiply, REVERSE))


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize(("m", "n"), [(16, 32), (1, 1024), (1024, 2)])
def test_a_long_scan_of_bfloat16_is_rounded_once(m, n, axis, reverse):
    x = normal(torch.bfloat16, m, n)
    out = torch.zeros(4, m, n)
    _, found = launch(bfloat16_kernel, (1,), x, out, M=m, N=n, AXIS=axis, REVERSE=reverse)
    forwards = x.double().flip(axis) if reverse else x.double()
    for place, expected in enumerate([forwards.cumsum(axis), forwards.cumprod(axis)]):
        expected = expected.flip(axis) if reverse else expected
        for one in found[2 * place : 2 * place + 2]:
            # The nearest bf16 is at most 2^-8 away, and the f32 behind it next to nothing.
            torch.testing.assert_close(one.double(), expected, rtol=4e-3, atol=1e-4)


@triton.jit
def last_nonzero(a, b):
    return tl.where(b != 0, b, a)


@triton.jit
def scan_kernel(x_ptr, out_ptr, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out_ptr + i, tl.associative_scan(tl.load(x_ptr + i), 0, last_nonzero))


def test_any_associative_function_can_scan_in_order():
    x = torch.tensor([0, 3, 0, 0, 5, 1, 0, 2], dtype=torch.int32)
    _, out = launch(scan_kernel, (1,), x, torch.zeros_like(x), N=8)
    assert out.tolist() == [0, 3, 3, 3, 5, 1, 1, 2]


@triton.jit
def sort_kernel(x_ptr, out_ptr, M: tl.constexpr, N: tl.constexpr, DESCENDING: tl.constexpr):
    i = tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :]
    tl.store(out_ptr + i, tl.sort(tl.load(x_ptr + i), descending=DESCENDING))


@pytest.mark.parametrize("descending", [False, True])
def test_sort_orders_every_row(descending):
    x = normal(torch.float32, M, N)
    _, out = launch(sort_kernel, (1,), x, torch.zeros_like(x), M=M, N=N, DESCENDING=descending)
    assert_same(out, x.sort(1, descending=descending).values)


@triton.jit
def histogram_kernel(x_ptr, out_ptr, N: tl.constexpr, BINS: tl.constexpr):
    x = tl.load(x_ptr + tl.arange(0, N))
    tl.store(out_ptr + tl.arange(0, BINS), tl.histogram(x, BINS))


def test_histogram_counts_every_bin():
    x = torch.arange(64, dtype=torch.int32) ** 2 % 16
    _, out = launch(histogram_kernel, (1,), x, torch.zeros(16, dtype=torch.int32), N=64, BINS=16)
    assert_same(out, torch.bincount(x, minlength=16).int())


@triton.jit
def gather_kernel(x_ptr, index_ptr, out_ptr, M: tl.constexpr, N: tl.constexpr, AXIS: tl.constexpr):
    i = tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :]
    tl.store(out_ptr + i, tl.gather(tl.load(x_ptr + i), tl.load(index_ptr + i), AXIS))


@pytest.mark.parametrize("axis", [0, 1])
def test_gather_picks_along_an_axis(axis):
    x = normal(torch.float32, M, N)
    index = torch.arange(M * N, dtype=torch.int32).reshape(M, N) * 7 % x.shape[axis]
    *_, out = launch(gather_kernel, (1,), x, index, torch.zeros_like(x), M=M, N=N, AXIS=axis)
    assert_same(out, x.gather(axis, index.long()))
