"""Matrix multiplication in tiles, with grouped ordering of the programs."""

import pytest
import torch
import triton
import triton.language as tl

from tests.cpu.values import assert_accurate, dtype_of, normal


@triton.jit
def grouped(program, m_tiles, n_tiles, GROUP: tl.constexpr):
    """The tile of a program when GROUP rows of tiles are walked column by column."""
    per_group = GROUP * n_tiles
    first = program // per_group * GROUP
    height = tl.minimum(m_tiles - first, GROUP)
    within = program % per_group
    return first + within % height, within // height


@triton.jit
def matmul_advancing(
    a_ptr, b_ptr, c_ptr, m, n, k, am, ak, bk, bn, cm, cn,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """The pointers move along the inner dimension."""
    tile_m, tile_n = grouped(tl.program_id(0), tl.cdiv(m, BM), tl.cdiv(n, BN), GROUP)
    rows = tile_m * BM + tl.arange(0, BM)
    cols = tile_n * BN + tl.arange(0, BN)
    inner = tl.arange(0, BK)
    a_ptrs = a_ptr + (rows % m)[:, None] * am + inner[None, :] * ak
    b_ptrs = b_ptr + inner[:, None] * bk + (cols % n)[None, :] * bn
    acc = tl.zeros([BM, BN], tl.float32)
    for step in range(0, tl.cdiv(k, BK)):
        left = k - step * BK
        a = tl.load(a_ptrs, mask=inner[None, :] < left, other=0.0)
        b = tl.load(b_ptrs, mask=inner[:, None] < left, other=0.0)
        acc = tl.dot(a, b, acc, input_precision="ieee")
        a_ptrs += BK * ak
        b_ptrs += BK * bk
    c = acc.to(c_ptr.dtype.element_ty)
    inside = (rows[:, None] < m) & (cols[None, :] < n)
    tl.store(c_ptr + rows[:, None] * cm + cols[None, :] * cn, c, mask=inside)


@triton.jit
def matmul_recomputing(
    a_ptr, b_ptr, c_ptr, m, n, k, am, ak, bk, bn, cm, cn,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """The pointers are computed afresh in every step, and every side is masked."""
    tile_m, tile_n = grouped(tl.program_id(0), tl.cdiv(m, BM), tl.cdiv(n, BN), GROUP)
    rows = (tile_m * BM + tl.arange(0, BM))[:, None]
    cols = (tile_n * BN + tl.arange(0, BN))[None, :]
    acc = tl.zeros([BM, BN], tl.float32)
    for start in range(0, k, BK):
        inner = start + tl.arange(0, BK)
        a_mask = (rows < m) & (inner[None, :] < k)
        b_mask = (inner[:, None] < k) & (cols < n)
        a = tl.load(a_ptr + rows * am + inner[None, :] * ak, mask=a_mask, other=0.0)
        b = tl.load(b_ptr + inner[:, None] * bk + cols * bn, mask=b_mask, other=0.0)
        acc += tl.dot(a, b, input_precision="ieee")
    c = acc.to(c_ptr.dtype.element_ty)
    tl.store(c_ptr + rows * cm + cols * cn, c, mask=(rows < m) & (cols < n))


KERNELS = {"advancing": matmul_advancing, "recomputing": matmul_recomputing}


def multiply(kernel, a, b, tile, group=4):
    (m, k), n = a.shape, b.shape[1]
    c = torch.full((m, n), float("nan"), dtype=a.dtype)
    bm, bn, bk = tile
    grid = (triton.cdiv(m, bm) * triton.cdiv(n, bn),)
    strides = *a.stride(), *b.stride(), *c.stride()
    kernel[grid](a, b, c, m, n, k, *strides, BM=bm, BN=bn, BK=bk, GROUP=group)
    return c


def check(c: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> None:
    assert_accurate(c, a @ b, a.double() @ b.double())


@pytest.mark.parametrize("style", KERNELS)
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize(("m", "n", "k"), [(128, 96, 64), (77, 101, 53)])
def test_matmul(style, dtype, m, n, k):
    a, b = normal(dtype_of(dtype), m, k), normal(dtype_of(dtype), k, n, seed=1)
    check(multiply(KERNELS[style], a, b, (32, 32, 16)), a, b)


@pytest.mark.parametrize(
    "tile", [(128, 128, 32), (16, 64, 128), (64, 16, 32), (4, 8, 2), (1, 16, 16)]
)
def test_tiles_of_any_size(tile):
    a, b = normal(torch.float32, 150, 90), normal(torch.float32, 90, 140, seed=1)
    check(multiply(matmul_recomputing, a, b, tile), a, b)


@pytest.mark.parametrize("turned", ["a", "b", "both"])
def test_transposed_operands(turned):
    a, b = normal(torch.float32, 64, 80), normal(torch.float32, 80, 48, seed=1)
    if turned in ("a", "both"):
        a = a.T.contiguous().T
    if turned in ("b", "both"):
        b = b.T.contiguous().T
    check(multiply(matmul_advancing, a, b, (32, 32, 16)), a, b)


@pytest.mark.parametrize("group", [1, 3, 100])
def test_the_order_of_programs_does_not_matter(group):
    a, b = normal(torch.float32, 200, 40), normal(torch.float32, 40, 70, seed=1)
    out = multiply(matmul_recomputing, a, b, (16, 16, 16), group)
    assert torch.equal(out, multiply(matmul_recomputing, a, b, (16, 16, 16), 4))
