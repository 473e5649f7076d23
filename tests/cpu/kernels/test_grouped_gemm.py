"""Many matrix products of different sizes in one launch."""

import pytest
import torch
import triton
import triton.language as tl

from tests.cpu.values import assert_accurate, dtype_of, normal


@triton.jit
def grouped_gemm(
    a_addresses, b_addresses, c_addresses, sizes_ptr, products, like_ptr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """Every program walks over all products and takes the tiles that are its turn."""
    dtype: tl.constexpr = like_ptr.dtype.element_ty
    turn = tl.program_id(0)
    done = 0
    for product in range(products):
        m = tl.load(sizes_ptr + product * 3)
        n = tl.load(sizes_ptr + product * 3 + 1)
        k = tl.load(sizes_ptr + product * 3 + 2)
        across = tl.cdiv(n, BN)
        tiles = tl.cdiv(m, BM) * across
        while turn >= done and turn < done + tiles:
            a_ptr = tl.load(a_addresses + product).to(tl.pointer_type(dtype))
            b_ptr = tl.load(b_addresses + product).to(tl.pointer_type(dtype))
            c_ptr = tl.load(c_addresses + product).to(tl.pointer_type(dtype))
            rows = ((turn - done) // across * BM + tl.arange(0, BM))[:, None]
            cols = ((turn - done) % across * BN + tl.arange(0, BN))[None, :]
            acc = tl.zeros([BM, BN], tl.float32)
            for start in range(0, k, BK):
                inner = start + tl.arange(0, BK)
                a_mask = (rows < m) & (inner[None, :] < k)
                b_mask = (inner[:, None] < k) & (cols < n)
                a = tl.load(a_ptr + rows * k + inner[None, :], mask=a_mask, other=0.0)
                b = tl.load(b_ptr + inner[:, None] * n + cols, mask=b_mask, other=0.0)
                acc = tl.dot(a, b, acc, input_precision="ieee")
            tl.store(c_ptr + rows * n + cols, acc.to(dtype), mask=(rows < m) & (cols < n))
            turn += tl.num_programs(0)
        done += tiles


SIZES = [(64, 48, 32), (7, 90, 33), (1, 1, 1), (33, 5, 70)]


@pytest.mark.parametrize("programs", [1, 5])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_grouped_gemm(dtype, programs):
    a = [normal(dtype_of(dtype), m, k, seed=m) for m, _, k in SIZES]
    b = [normal(dtype_of(dtype), k, n, seed=n) for _, n, k in SIZES]
    c = [torch.zeros(m, n, dtype=dtype_of(dtype)) for m, n, _ in SIZES]
    addresses = [torch.tensor([t.data_ptr() for t in group]) for group in (a, b, c)]
    sizes = torch.tensor(SIZES, dtype=torch.int32)
    grouped_gemm[(programs,)](*addresses, sizes, len(SIZES), a[0], BM=16, BN=32, BK=16)
    for left, right, out in zip(a, b, c, strict=True):
        assert_accurate(out, left @ right, left.double() @ right.double())
