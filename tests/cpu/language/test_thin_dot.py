"""Products with few rows on one side, whose other operand is read where it lies."""

import pytest
import torch
import triton
import triton.language as tl

from tests.cpu.values import dtype_of, normal
from tritune.testing import launch


@triton.jit
def rows_kernel(
    x_ptr, w_ptr, out_ptr, count, steps,
    FEW: tl.constexpr, MANY: tl.constexpr, K: tl.constexpr, FEW_FIRST: tl.constexpr,
):  # fmt: skip
    """x w^T over `steps` tiles of K, for the rows of w below `count`: contiguous along K."""
    few = tl.arange(0, FEW)
    many = tl.arange(0, MANY)
    k = tl.arange(0, K)
    if FEW_FIRST:
        acc = tl.zeros([FEW, MANY], tl.float32)
    else:
        acc = tl.zeros([MANY, FEW], tl.float32)
    for step in range(steps):
        at = step * K + k
        x = tl.load(x_ptr + few[:, None] * (K * steps) + at[None, :])
        w = tl.load(
            w_ptr + many[:, None] * (K * steps) + at[None, :],
            mask=(many < count)[:, None],
            other=0.0,
        )
        if FEW_FIRST:
            acc = tl.dot(x, w.T, acc, input_precision="ieee")
        else:
            acc = tl.dot(w, x.T, acc, input_precision="ieee")
    if FEW_FIRST:
        tl.store(out_ptr + few[:, None] * MANY + many[None, :], acc)
    else:
        tl.store(out_ptr + few[None, :] * MANY + many[:, None], acc)


@triton.jit
def columns_kernel(
    x_ptr, w_ptr, out_ptr, count, shrink, steps,
    FEW: tl.constexpr, MANY: tl.constexpr, K: tl.constexpr,
):  # fmt: skip
    """acc = acc * shrink + x w over tiles of K rows of w, contiguous along the columns."""
    few = tl.arange(0, FEW)
    many = tl.arange(0, MANY)
    acc = tl.zeros([FEW, MANY], tl.float32)
    for step in range(steps):
        k = step * K + tl.arange(0, K)
        x = tl.load(x_ptr + few[:, None] * (K * steps) + k[None, :])
        w = tl.load(w_ptr + k[:, None] * MANY + many[None, :], mask=(k < count)[:, None], other=0.0)
        acc = tl.dot(x, w, acc * shrink, input_precision="ieee")
    tl.store(out_ptr + few[:, None] * MANY + many[None, :], acc)


def assert_near(out: torch.Tensor, exact: torch.Tensor, terms: int) -> None:
    """Within what so many roundings to fp32 may add up to."""
    worst = (out.double() - exact).abs().max().item()
    limit = 1e-7 * (terms + 4) * max(1.0, exact.abs().max().item())
    assert worst <= limit, f"largest error {worst:.3g}, allowed {limit:.3g}"


FEW = [1, 2, 4, 8, 16]
DTYPES = ["float32", "bfloat16", "float16"]


def with_nan_past(w: torch.Tensor, count: int) -> torch.Tensor:
    """What is masked off must not be looked at, or must not matter."""
    w = w.clone()
    w[count:] = float("nan")
    return w


@pytest.mark.parametrize("count", [64, 37], ids=["whole", "masked"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("few", FEW)
def test_rows_that_lie_along_k(few, dtype, count):
    x, w = (normal(dtype_of(dtype), n, 256, seed=n) for n in (few, 64))
    w = with_nan_past(w, count)
    arguments = {"FEW": few, "MANY": 64, "K": 128, "FEW_FIRST": True}
    *_, out = launch(rows_kernel, (1,), x, w, torch.zeros(few, 64), count, 2, **arguments)
    assert_near(out[:, :count], x.double() @ w[:count].double().T, 256)
    assert not out[:, count:].any()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("few", [1, 4, 16])
def test_few_columns_instead_of_few_rows(few, dtype):
    x, w = (normal(dtype_of(dtype), n, 128, seed=n) for n in (few, 64))
    arguments = {"FEW": few, "MANY": 64, "K": 64, "FEW_FIRST": False}
    *_, out = launch(rows_kernel, (1,), x, w, torch.zeros(few, 64), 64, 2, **arguments)
    assert_near(out, x.double() @ w.double().T, 128)


@pytest.mark.parametrize("count", [64, 41], ids=["whole", "masked"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("few", FEW)
def test_rows_that_lie_across_k(few, dtype, count):
    x, w = normal(dtype_of(dtype), few, 64), normal(dtype_of(dtype), 64, 128, seed=1)
    w = with_nan_past(w, count)
    arguments = {"FEW": few, "MANY": 128, "K": 32}
    *_, out = launch(columns_kernel, (1,), x, w, torch.zeros(few, 128), count, 0.5, 2, **arguments)
    exact = w.new_zeros(few, 128).double()
    for first in (0, 32):
        rows = slice(first, min(first + 32, count))
        exact = exact * 0.5 + x[:, rows].double() @ w[rows].double()
    assert_near(out, exact, 64)


@pytest.mark.parametrize("vector_bits", [128, 512])
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_result_does_not_depend_on_the_width_of_vectors(dtype, vector_bits):
    x, w = normal(dtype_of(dtype), 4, 128), normal(dtype_of(dtype), 64, 128, seed=1)
    arguments = {"FEW": 4, "MANY": 64, "K": 64, "FEW_FIRST": True, "vector_bits": vector_bits}
    *_, out = launch(rows_kernel, (1,), x, w, torch.zeros(4, 64), 50, 2, **arguments)
    assert_near(out[:, :50], x.double() @ w[:50].double().T, 128)
    p, v = normal(dtype_of(dtype), 4, 64), normal(dtype_of(dtype), 64, 128, seed=2)
    arguments = {"FEW": 4, "MANY": 128, "K": 32, "vector_bits": vector_bits}
    *_, out = launch(columns_kernel, (1,), p, v, torch.zeros(4, 128), 64, 1.0, 2, **arguments)
    assert_near(out, p.double() @ v.double(), 64)


@pytest.mark.parametrize(("many", "k"), [(16, 1), (16, 4), (32, 8), (256, 16), (16, 2048)])
def test_shapes_that_do_not_fill_a_vector_or_exceed_a_sum(many, k):
    x, w = normal(torch.float32, 4, k), normal(torch.float32, many, k, seed=1)
    arguments = {"FEW": 4, "MANY": many, "K": k, "FEW_FIRST": True}
    *_, out = launch(rows_kernel, (1,), x, w, torch.zeros(4, many), many, 1, **arguments)
    assert_near(out, x.double() @ w.double().T, k)


@triton.jit
def codes_kernel(
    x_ptr, codes_ptr, zero_ptr, out_ptr, FEW: tl.constexpr, MANY: tl.constexpr, K: tl.constexpr,
    HALF: tl.constexpr,
):  # fmt: skip
    few = tl.arange(0, FEW)
    many = tl.arange(0, MANY)
    k = tl.arange(0, K)
    x = tl.load(x_ptr + few[:, None] * K + k[None, :])
    codes = tl.load(codes_ptr + many[:, None] * K + k[None, :])
    zero = tl.load(zero_ptr + many)
    if HALF:
        codes = codes & 15
    w = codes.to(tl.float32) - zero[:, None]
    tl.store(out_ptr + few[:, None] * MANY + many[None, :], tl.dot(x, w.T, input_precision="ieee"))


@pytest.mark.parametrize("half", [False, True], ids=["bytes", "halves"])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8], ids=["unsigned", "signed"])
@pytest.mark.parametrize("few", FEW)
def test_codes_are_converted_on_the_way(few, dtype, half):
    x = normal(torch.float32, few, 128)
    low, high = (0, 256) if dtype == torch.uint8 else (-128, 128)
    codes = torch.randint(low, high, (32, 128), generator=torch.manual_seed(0)).to(dtype)
    zero = torch.arange(32).float()
    arguments = {"FEW": few, "MANY": 32, "K": 128, "HALF": half}
    *_, out = launch(codes_kernel, (1,), x, codes, zero, torch.zeros(few, 32), **arguments)
    kept = codes & 15 if half else codes
    assert_near(out, x.double() @ (kept.double() - zero.double()[:, None]).T, 128)


@triton.jit
def scaled_along_k_kernel(
    x_ptr, w_ptr, scale_ptr, out_ptr, FEW: tl.constexpr, MANY: tl.constexpr, K: tl.constexpr
):
    """The second operand differs along the lanes, so that elements have to come in order."""
    few = tl.arange(0, FEW)
    many = tl.arange(0, MANY)
    k = tl.arange(0, K)
    x = tl.load(x_ptr + few[:, None] * K + k[None, :])
    w = tl.load(w_ptr + many[:, None] * K + k[None, :]).to(tl.float32)
    w = w * tl.load(scale_ptr + k)[None, :]
    tl.store(out_ptr + few[:, None] * MANY + many[None, :], tl.dot(x, w.T, input_precision="ieee"))


def test_a_factor_along_k_meets_its_own_elements():
    x, w = normal(torch.float32, 4, 64), normal(torch.bfloat16, 32, 64, seed=1)
    scale = torch.arange(64).float()
    arguments = {"FEW": 4, "MANY": 32, "K": 64}
    *_, out = launch(scaled_along_k_kernel, (1,), x, w, scale, torch.zeros(4, 32), **arguments)
    assert_near(out, x.double() @ (w.double() * scale.double()).T, 64)


@triton.jit
def both_kernel(x_ptr, w_ptr, out_ptr, rows_ptr, FEW: tl.constexpr, K: tl.constexpr):
    """The same tile is the operand of two products and of a sum."""
    few = tl.arange(0, FEW)
    k = tl.arange(0, K)
    x = tl.load(x_ptr + few[:, None] * K + k[None, :])
    w = tl.load(w_ptr + k[:, None] * K + k[None, :])
    first = tl.dot(x, w.T, input_precision="ieee")
    second = tl.dot(first.to(w.dtype), w, input_precision="ieee")
    tl.store(out_ptr + few[:, None] * K + k[None, :], second)
    tl.store(rows_ptr + k, tl.sum(w.to(tl.float32), axis=1))


def test_a_tile_that_others_need_too():
    x, w = normal(torch.float32, 4, 32), normal(torch.float32, 32, 32, seed=1)
    *_, out, rows = launch(
        both_kernel, (1,), x, w, torch.zeros(4, 32), torch.zeros(32), FEW=4, K=32
    )
    assert_near(out, x.double() @ w.double().T @ w.double(), 64)
    assert_near(rows, w.double().sum(1), 32)
