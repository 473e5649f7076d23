"""A persistent matrix product: few programs, each looping over its tiles."""

import pytest
import torch
import triton
import triton.language as tl

from tests.cpu.values import assert_accurate, dtype_of, normal


@triton.jit
def persistent_gemm(
    a_ptr, b_ptr, bias_ptr, c_ptr, m, n, k,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, FLATTEN: tl.constexpr,
):  # fmt: skip
    across = tl.cdiv(n, BN)
    tiles = tl.cdiv(m, BM) * across
    for tile in tl.range(tl.program_id(0), tiles, tl.num_programs(0), flatten=FLATTEN):
        rows = (tile // across * BM + tl.arange(0, BM))[:, None]
        cols = (tile % across * BN + tl.arange(0, BN))[None, :]
        acc = tl.zeros([BM, BN], tl.float32)
        for start in range(0, k, BK):
            inner = start + tl.arange(0, BK)
            a_mask = (rows < m) & (inner[None, :] < k)
            b_mask = (inner[:, None] < k) & (cols < n)
            a = tl.load(a_ptr + rows * k + inner[None, :], mask=a_mask, other=0.0)
            b = tl.load(b_ptr + inner[:, None] * n + cols, mask=b_mask, other=0.0)
            acc = tl.dot(a, b, acc, input_precision="ieee")
        acc += tl.load(bias_ptr + cols, mask=cols < n, other=0.0)
        c = tl.maximum(acc, 0.0).to(c_ptr.dtype.element_ty)
        tl.store(c_ptr + rows * n + cols, c, mask=(rows < m) & (cols < n))


def run(a, b, bias, programs, *, flatten=False):
    m, k, n = *a.shape, b.shape[1]
    c = torch.full((m, n), float("nan"), dtype=a.dtype)
    persistent_gemm[(programs,)](a, b, bias, c, m, n, k, BM=32, BN=16, BK=32, FLATTEN=flatten)
    return c


@pytest.mark.parametrize("programs", [1, 3, 50])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_persistent_gemm(dtype, programs):
    a, b = normal(dtype_of(dtype), 100, 70), normal(dtype_of(dtype), 70, 90, seed=1)
    bias = normal(torch.float32, 90, seed=2)
    out = run(a, b, bias, programs)
    plain = (a @ b + bias).clamp(min=0).to(a.dtype)
    assert_accurate(out, plain, (a.double() @ b.double() + bias.double()).clamp(min=0))


def test_the_number_of_programs_does_not_change_a_bit():
    a, b = normal(torch.float32, 100, 70), normal(torch.float32, 70, 90, seed=1)
    bias = normal(torch.float32, 90, seed=2)
    assert torch.equal(run(a, b, bias, 2), run(a, b, bias, 30))


def test_a_flattened_loop_gives_the_same():
    a, b = normal(torch.float32, 64, 32), normal(torch.float32, 32, 48, seed=1)
    bias = normal(torch.float32, 48, seed=2)
    assert torch.equal(run(a, b, bias, 2, flatten=True), run(a, b, bias, 2))
