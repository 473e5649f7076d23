"""A matrix product whose inner dimension is split between programs that add up with atomics."""

import pytest
import torch
import triton
import triton.language as tl

from tests.cpu.values import assert_accurate, dtype_of, normal


@triton.jit
def split_k_gemm(
    a_ptr, b_ptr, c_ptr, m, n, k,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, SPLIT: tl.constexpr,
):  # fmt: skip
    across = tl.cdiv(n, BN)
    rows = (tl.program_id(0) // across * BM + tl.arange(0, BM))[:, None]
    cols = (tl.program_id(0) % across * BN + tl.arange(0, BN))[None, :]
    part = tl.program_id(1)
    acc = tl.zeros([BM, BN], tl.float32)
    for start in range(part * BK, k, BK * SPLIT):
        inner = start + tl.arange(0, BK)
        a_mask = (rows < m) & (inner[None, :] < k)
        b_mask = (inner[:, None] < k) & (cols < n)
        a = tl.load(a_ptr + rows * k + inner[None, :], mask=a_mask, other=0.0)
        b = tl.load(b_ptr + inner[:, None] * n + cols, mask=b_mask, other=0.0)
        acc += tl.dot(a, b, input_precision="ieee")
    tl.atomic_add(c_ptr + rows * n + cols, acc, mask=(rows < m) & (cols < n))


@pytest.mark.parametrize("split", [1, 4])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_split_k_gemm(dtype, split):
    m, n, k = 40, 50, 500
    a, b = normal(dtype_of(dtype), m, k), normal(dtype_of(dtype), k, n, seed=1)
    c = torch.zeros(m, n)
    grid = (triton.cdiv(m, 16) * triton.cdiv(n, 32), split)
    split_k_gemm[grid](a, b, c, m, n, k, BM=16, BN=32, BK=32, SPLIT=split)
    exact = a.double() @ b.double()
    assert_accurate(c, a.float() @ b.float(), exact, factor=4)


def test_integer_parts_add_up_exactly():
    a = normal(torch.int8, 20, 300)
    b = normal(torch.int8, 300, 30, seed=1)
    c = torch.zeros(20, 30, dtype=torch.int32)
    integer_split_k[(2, 5)](a, b, c, 20, 30, 300, BM=16, BN=32, BK=32, SPLIT=5)
    assert torch.equal(c, a.int() @ b.int())


@triton.jit
def integer_split_k(
    a_ptr, b_ptr, c_ptr, m, n, k,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, SPLIT: tl.constexpr,
):  # fmt: skip
    rows = (tl.program_id(0) * BM + tl.arange(0, BM))[:, None]
    cols = tl.arange(0, BN)[None, :]
    acc = tl.zeros([BM, BN], tl.int32)
    for start in range(tl.program_id(1) * BK, k, BK * SPLIT):
        inner = start + tl.arange(0, BK)
        a_mask = (rows < m) & (inner[None, :] < k)
        b_mask = (inner[:, None] < k) & (cols < n)
        a = tl.load(a_ptr + rows * k + inner[None, :], mask=a_mask, other=0)
        b = tl.load(b_ptr + inner[:, None] * n + cols, mask=b_mask, other=0)
        acc = tl.dot(a, b, acc, out_dtype=tl.int32)
    tl.atomic_add(c_ptr + rows * n + cols, acc, mask=(rows < m) & (cols < n))
