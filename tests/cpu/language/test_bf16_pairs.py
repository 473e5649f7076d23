"""Products of bf16, which CPUs with AVX-512 BF16 multiply two at a time, in every arrangement."""

import itertools

import pytest
import torch
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from tests.cpu.values import normal
from tritune.cpu.features import host
from tritune.testing import launch


@triton.jit
def product_kernel(
    a_ptr, b_ptr, c_ptr, am, ak, bk, bn, rows, columns, inner,
    M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, STEPS: tl.constexpr, MASKED: tl.constexpr,
    ROUNDED: tl.constexpr,
):  # fmt: skip
    m = tl.arange(0, M)
    n = tl.arange(0, N)
    acc = tl.zeros([M, N], tl.float32)
    for step in range(STEPS):
        k = step * K + tl.arange(0, K)
        a_ptrs = a_ptr + m[:, None] * am + k[None, :] * ak
        b_ptrs = b_ptr + k[:, None] * bk + n[None, :] * bn
        if MASKED:
            a = tl.load(a_ptrs, mask=(m < rows)[:, None] & (k < inner)[None, :], other=0.0)
            b = tl.load(b_ptrs, mask=(k < inner)[:, None] & (n < columns)[None, :], other=0.0)
        else:
            a = tl.load(a_ptrs)
            b = tl.load(b_ptrs)
        if ROUNDED:
            # As the weights of attention are: computed in fp32, rounded for the product.
            a = (a.to(tl.float32) * 1.25).to(tl.bfloat16)
        acc = tl.dot(a, b, acc)
    tl.store(
        c_ptr + m[:, None] * N + n[None, :], acc, mask=(m < rows)[:, None] & (n < columns)[None, :]
    )


def arranged(matrix: torch.Tensor, transposed: bool) -> torch.Tensor:
    return matrix.T.contiguous().T if transposed else matrix


BOTH_WAYS = list(itertools.product([False, True], repeat=2))
SHAPES = [(16, 16, 16), (16, 64, 32), (32, 32, 2), (64, 32, 128), (32, 128, 64), (128, 16, 256)]


@pytest.mark.parametrize("rounded", [False, True])
@pytest.mark.parametrize(("ta", "tb"), BOTH_WAYS)
@pytest.mark.parametrize(("m", "n", "k"), SHAPES)
def test_products_of_bf16_however_the_operands_lie(m, n, k, ta, tb, rounded):
    a = arranged(normal(torch.bfloat16, m, 3 * k), ta)
    b = arranged(normal(torch.bfloat16, 3 * k, n, seed=1), tb)
    *_, out = launch(
        product_kernel, (1,), a, b, torch.zeros(m, n), *a.stride(), *b.stride(), m, n, 3 * k,
        M=m, N=n, K=k, STEPS=3, MASKED=False, ROUNDED=rounded,
    )  # fmt: skip
    first = (a.float() * 1.25).bfloat16() if rounded else a
    assert_sums(out, first, b)


@pytest.mark.parametrize(("ta", "tb"), BOTH_WAYS)
def test_parts_of_tiles_are_read_and_nothing_else(ta, tb):
    rows, columns, inner = 27, 45, 77
    a = arranged(normal(torch.bfloat16, rows, inner), ta)
    b = arranged(normal(torch.bfloat16, inner, columns, seed=1), tb)
    *_, out = launch(
        product_kernel, (1,), a, b, torch.full((32, 64), 7.0), *a.stride(), *b.stride(),
        rows, columns, inner, M=32, N=64, K=32, STEPS=3, MASKED=True, ROUNDED=False,
    )  # fmt: skip
    assert_sums(out[:rows, :columns], a, b)
    assert (out[rows:] == 7).all() and (out[:, columns:] == 7).all()


@pytest.mark.parametrize("bits", [128, 256, 512, 1024])
@pytest.mark.parametrize(("m", "n"), [(4, 64), (32, 64)])
def test_vectors_of_any_length(bits, m, n):
    a, b = normal(torch.bfloat16, m, 64), arranged(normal(torch.bfloat16, 64, n, seed=1), True)
    *_, out = launch(
        product_kernel, (1,), a, b, torch.zeros(m, n), *a.stride(), *b.stride(), m, n, 64,
        M=m, N=n, K=64, STEPS=1, MASKED=False, ROUNDED=True, vector_bits=bits,
    )  # fmt: skip
    assert_sums(out, (a.float() * 1.25).bfloat16(), b)


def test_infinities_and_nans_come_through():
    a, b = torch.zeros(32, 32, dtype=torch.bfloat16), torch.ones(32, 32, dtype=torch.bfloat16)
    a[0, 3], a[1, 4], a[2, 5], a[2, 6] = float("inf"), float("nan"), float("inf"), float("-inf")
    *_, out = launch(
        product_kernel, (1,), a, b, torch.zeros(32, 32), *a.stride(), *b.stride(), 32, 32, 32,
        M=32, N=32, K=32, STEPS=1, MASKED=False, ROUNDED=False,
    )  # fmt: skip
    assert (out[0] == float("inf")).all()
    assert out[1:3].isnan().all()
    assert (out[3:] == 0).all()


@triton.jit
def batched_kernel(a_ptr, b_ptr, c_ptr, B: tl.constexpr, S: tl.constexpr):
    batch = tl.arange(0, B)[:, None, None] * S * S
    x = tl.arange(0, S)[None, :, None]
    y = tl.arange(0, S)[None, None, :]
    a = tl.load(a_ptr + batch + x * S + y)
    b = tl.load(b_ptr + batch + x * S + y)
    tl.store(c_ptr + batch + x * S + y, tl.dot(a, b))


def test_batches_of_products():
    a, b = normal(torch.bfloat16, 2, 32, 32), normal(torch.bfloat16, 2, 32, 32, seed=1)
    *_, out = launch(batched_kernel, (1,), a, b, torch.zeros(2, 32, 32), B=2, S=32)
    assert_sums(out, a, b)


@triton.jit
def several_uses_kernel(a_ptr, c_ptr, d_ptr, S: tl.constexpr):
    x = tl.arange(0, S)[:, None]
    y = tl.arange(0, S)[None, :]
    a = tl.load(a_ptr + x * S + y)
    tl.store(c_ptr + x * S + y, tl.dot(a, a))
    tl.store(d_ptr + x * S + y, tl.dot(a, a.T) + a.to(tl.float32))


def test_an_operand_may_be_used_in_other_ways_too():
    a = normal(torch.bfloat16, 32, 32)
    *_, c, d = launch(several_uses_kernel, (1,), a, torch.zeros(32, 32), torch.zeros(32, 32), S=32)
    assert_sums(c, a, a)
    assert_sums(d - a.float(), a, a.T, slack=4)


def assert_sums(out: torch.Tensor, a: torch.Tensor, b: torch.Tensor, slack: float = 1) -> None:
    """Within the roundings of a sum in fp32; products of bf16 are exact in it."""
    limit = slack * 2**-23 * (a.double().abs() @ b.double().abs()) + 1e-30
    assert ((out.double() - a.double() @ b.double()).abs() <= limit * 4).all()


@pytest.mark.skipif(not host().has("avx512bf16"), reason="this CPU has no AVX-512 BF16")
def test_this_cpu_multiplies_two_at_a_time():
    signature = dict.fromkeys(("a_ptr", "b_ptr"), "*bf16") | {"c_ptr": "*fp32"}
    constants = {"B": 2, "S": 32}
    source = ASTSource(batched_kernel, signature | dict.fromkeys(constants, "constexpr"), constants)
    compiled = triton.compile(source, target=GPUTarget("cpu", host().name, 1))
    assert "vdpbf16ps" in compiled.asm["asm"]
