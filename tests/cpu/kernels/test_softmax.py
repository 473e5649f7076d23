"""Softmax of rows, fused: one read, one write."""

import pytest
import torch
import triton
import triton.language as tl

from tests.cpu.values import assert_accurate, dtype_of, normal


@triton.jit
def softmax_rows(x_ptr, out_ptr, x_stride, out_stride, rows, cols, BLOCK: tl.constexpr):
    column = tl.arange(0, BLOCK)
    inside = column < cols
    for row in tl.range(tl.program_id(0), rows, tl.num_programs(0)):
        x = tl.load(x_ptr + row * x_stride + column, mask=inside, other=-float("inf"))
        x = x.to(tl.float32)
        shifted = tl.exp(x - tl.max(x, axis=0))
        y = shifted / tl.sum(shifted, axis=0)
        tl.store(out_ptr + row * out_stride + column, y.to(out_ptr.dtype.element_ty), mask=inside)


@triton.jit
def softmax_tile(x_ptr, out_ptr, rows, cols, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    column = tl.arange(0, BLOCK)[None, :]
    inside = (row < rows) & (column < cols)
    x = tl.load(x_ptr + row * cols + column, mask=inside, other=-float("inf")).to(tl.float32)
    x = tl.where(row < rows, x, 0.0)
    shifted = tl.exp(x - tl.max(x, axis=1)[:, None])
    y = shifted / tl.sum(shifted, axis=1)[:, None]
    tl.store(out_ptr + row * cols + column, y.to(out_ptr.dtype.element_ty), mask=inside)


def reference(x: torch.Tensor) -> torch.Tensor:
    return x.double().softmax(1)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize(("rows", "cols"), [(1, 1), (37, 781), (8, 4096)])
def test_softmax_with_a_program_for_several_rows(dtype, rows, cols):
    x = normal(dtype_of(dtype), rows, cols) * 4
    out = torch.zeros_like(x)
    block = triton.next_power_of_2(cols)
    softmax_rows[(4,)](x, out, x.stride(0), out.stride(0), rows, cols, BLOCK=block)
    assert_accurate(out, x.softmax(1), reference(x))


def test_softmax_of_a_tile_of_rows():
    x = normal(torch.float32, 21, 100) * 4
    out = torch.zeros_like(x)
    softmax_tile[(triton.cdiv(21, 8),)](x, out, 21, 100, ROWS=8, BLOCK=128)
    assert_accurate(out, x.softmax(1), reference(x))


def test_nan_past_the_columns_changes_nothing():
    wide = torch.full((16, 256), float("nan"))
    wide[:, :100] = normal(torch.float32, 16, 100)
    clean = wide[:, :100].contiguous()
    out, clean_out = torch.zeros(16, 100), torch.zeros(16, 100)
    softmax_rows[(3,)](wide, out, 256, 100, 16, 100, BLOCK=128)
    softmax_rows[(3,)](clean, clean_out, 100, 100, 16, 100, BLOCK=128)
    assert torch.equal(out, clean_out)
