"""Skinny GEMM: products with few rows on one side, whose other operand is streamed."""

import re

import pytest
import torch
import triton
import triton.language as tl

from tests.cpu.values import dtype_of, normal
from tritune.cpu.features import host
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
    x_ptr, w_ptr, out_ptr, count, rescale, steps,
    FEW: tl.constexpr, MANY: tl.constexpr, K: tl.constexpr,
):  # fmt: skip
    """acc = acc * rescale + x w over tiles of K rows of w, contiguous along the columns."""
    few = tl.arange(0, FEW)
    many = tl.arange(0, MANY)
    acc = tl.zeros([FEW, MANY], tl.float32)
    for step in range(steps):
        k = step * K + tl.arange(0, K)
        x = tl.load(x_ptr + few[:, None] * (K * steps) + k[None, :])
        w = tl.load(w_ptr + k[:, None] * MANY + many[None, :], mask=(k < count)[:, None], other=0.0)
        acc = tl.dot(x, w, acc * rescale, input_precision="ieee")
    tl.store(out_ptr + few[:, None] * MANY + many[None, :], acc)


def assert_near(out: torch.Tensor, exact: torch.Tensor, terms: int) -> None:
    """Assert equality within the error of so many roundings to fp32."""
    worst = (out.double() - exact).abs().max().item()
    limit = 1e-7 * (terms + 4) * max(1.0, exact.abs().max().item())
    assert worst <= limit, f"largest error {worst:.3g}, allowed {limit:.3g}"


FEW = [1, 2, 4, 8, 16]
DTYPES = ["float32", "bfloat16", "float16"]


def with_nan_past(w: torch.Tensor, count: int) -> torch.Tensor:
    """Fill with NaN what is masked off: it must not be read, or must not matter."""
    w = w.clone()
    w[count:] = float("nan")
    return w


@pytest.mark.parametrize("count", [64, 37], ids=["whole", "masked"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("few", FEW)
def test_the_streamed_operand_is_contiguous_along_k(few, dtype, count):
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
def test_the_streamed_operand_is_contiguous_along_n(few, dtype, count):
    x, w = normal(dtype_of(dtype), few, 64), normal(dtype_of(dtype), 64, 128, seed=1)
    w = with_nan_past(w, count)
    arguments = {"FEW": few, "MANY": 128, "K": 32}
    *_, out = launch(columns_kernel, (1,), x, w, torch.zeros(few, 128), count, 0.5, 2, **arguments)
    exact = w.new_zeros(few, 128).double()
    for first in (0, 32):
        rows = slice(first, min(first + 32, count))
        exact = exact * 0.5 + x[:, rows].double() @ w[rows].double()
    assert_near(out, exact, 64)


@pytest.mark.parametrize(("along", "many"), [("k", 64), ("many", 128)])
@pytest.mark.parametrize("dtype", DTYPES)
def test_bf16_is_multiplied_in_pairs_where_a_cpu_can(dtype, along, many):
    x, w, out = torch.zeros(4, 64), torch.zeros(many, 128), torch.zeros(4, many)
    x, w = x.to(dtype_of(dtype)), w.to(dtype_of(dtype))
    if along == "k":
        compiled = rows_kernel[(1,)](x, w, out, many, 1, FEW=4, MANY=many, K=64, FEW_FIRST=True)
    else:
        compiled = columns_kernel[(1,)](x, w, out, 64, 1.0, 1, FEW=4, MANY=many, K=64)
    paired = dtype == "bfloat16" and host().multiplies_bf16
    assert ("dpbf16ps" in compiled.asm["asm"]) == paired


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
def test_codes_are_converted_in_registers(few, dtype, half):
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


def test_a_streamed_tile_with_other_users():
    x, w = normal(torch.float32, 4, 32), normal(torch.float32, 32, 32, seed=1)
    *_, out, rows = launch(
        both_kernel, (1,), x, w, torch.zeros(4, 32), torch.zeros(32), FEW=4, K=32
    )
    assert_near(out, x.double() @ w.double().T @ w.double(), 64)
    assert_near(rows, w.double().sum(1), 32)


@triton.jit
def halves_kernel(
    x_ptr, y_ptr, codes_ptr, out_ptr, more_ptr, count,
    FEW: tl.constexpr, MANY: tl.constexpr, K: tl.constexpr, ALSO: tl.constexpr,
):  # fmt: skip
    """x l^T + y h^T for the low and the high half of each byte, as far as rows of codes go. Also
    the first product is stored, or the codes are overwritten in between, or their low halves added
    up.
    """
    few = tl.arange(0, FEW)
    many = tl.arange(0, MANY)
    k = tl.arange(0, K)
    x = tl.load(x_ptr + few[:, None] * K + k[None, :])
    y = tl.load(y_ptr + few[:, None] * K + k[None, :])
    codes_ptrs = codes_ptr + many[:, None] * K + k[None, :]
    codes = tl.load(codes_ptrs, mask=(many < count)[:, None], other=0)
    at = few[:, None] * MANY + many[None, :]
    low = (codes & 15).to(tl.float32).T
    first = tl.dot(x, low, input_precision="ieee")
    if ALSO == "overwritten":
        tl.store(codes_ptrs, tl.zeros_like(codes))
    total = tl.dot(y, (codes >> 4).to(tl.float32).T, first, input_precision="ieee")
    tl.store(out_ptr + at, total)
    if ALSO == "stored":
        tl.store(more_ptr + at, first)
    if ALSO == "added up":
        tl.store(more_ptr + many, tl.sum(low, 0))


@pytest.mark.parametrize("also", ["nothing", "overwritten", "stored", "added up"])
@pytest.mark.parametrize("count", [32, 21], ids=["whole", "masked"])
@pytest.mark.parametrize("few", FEW)
def test_a_product_that_continues_the_sums_of_another(few, count, also):
    x, y = (normal(torch.float32, few, 64, seed=seed) for seed in (1, 2))
    codes = torch.randint(0, 256, (32, 64), generator=torch.manual_seed(0)).to(torch.uint8)
    arguments = {"FEW": few, "MANY": 32, "K": 64, "ALSO": also}
    outs = torch.zeros(few, 32), torch.zeros(few, 32)
    *_, out, more = launch(halves_kernel, (1,), x, y, codes.clone(), *outs, count, **arguments)
    codes[count:] = 0
    low, high = (codes & 15).double(), (codes >> 4).double()
    assert_near(out, x.double() @ low.T + y.double() @ high.T, 128)
    if also == "stored":
        assert_near(more, x.double() @ low.T, 64)
    if also == "added up":
        assert_near(more[0], low.sum(1), 64)


@pytest.mark.parametrize(
    ("also", "together"), [("nothing", True), ("stored", False), ("overwritten", False)]
)
def test_two_products_are_fused_unless_the_first_has_other_users(also, together):
    tensors = [torch.zeros(1, 64), torch.zeros(1, 64), torch.zeros(32, 64, dtype=torch.uint8)]
    tensors += [torch.zeros(1, 32), torch.zeros(1, 32)]
    arguments = {"FEW": 1, "MANY": 32, "K": 64, "ALSO": also}
    compiled = halves_kernel[(1,)](*tensors, 32, **arguments)
    # One loop over rows of codes is for whole tiles, one for those at the edge.
    loops = re.findall(r"^n\.head[.\d]*:", compiled.asm["llir"], re.MULTILINE)
    assert (len(loops) == 2) == together, loops


def test_the_smallest_numbers_that_are_scaled_exactly():
    """Bytes stay in place, and the stationary operand is scaled down instead."""
    x, y = (normal(torch.float32, 1, 64, seed=seed) for seed in (1, 2))
    codes = torch.randint(0, 256, (32, 64), generator=torch.manual_seed(0)).to(torch.uint8)
    tiny = 2.0**-100
    outs = torch.zeros(1, 32), torch.zeros(1, 32)
    arguments = {"FEW": 1, "MANY": 32, "K": 64, "ALSO": "nothing"}
    *_, out, _ = launch(halves_kernel, (1,), x * tiny, y * tiny, codes, *outs, 32, **arguments)
    exact = x.double() @ (codes & 15).double().T + y.double() @ (codes >> 4).double().T
    assert_near(out / tiny, exact, 128)


@triton.jit
def unequal_kernel(x_ptr, w_ptr, out_ptr, FEW: tl.constexpr, MANY: tl.constexpr):
    """A product with 64 steps continues the sums of one with 32."""
    few = tl.arange(0, FEW)
    many = tl.arange(0, MANY)
    short, rest = tl.arange(0, 32), 32 + tl.arange(0, 64)
    x = tl.load(x_ptr + few[:, None] * 96 + short[None, :])
    w = tl.load(w_ptr + many[:, None] * 96 + short[None, :])
    sums = tl.dot(x, w.T, input_precision="ieee")
    x = tl.load(x_ptr + few[:, None] * 96 + rest[None, :])
    w = tl.load(w_ptr + many[:, None] * 96 + rest[None, :])
    sums = tl.dot(x, w.T, sums, input_precision="ieee")
    tl.store(out_ptr + few[:, None] * MANY + many[None, :], sums)


def test_products_of_different_depths_in_a_row():
    x, w = normal(torch.float32, 2, 96), normal(torch.float32, 32, 96, seed=1)
    *_, out = launch(unequal_kernel, (1,), x, w, torch.zeros(2, 32), FEW=2, MANY=32)
    assert_near(out, x.double() @ w.double().T, 96)


@triton.jit
def codes_across_kernel(
    x_ptr, codes_ptr, out_ptr, FEW: tl.constexpr, MANY: tl.constexpr, K: tl.constexpr
):
    few = tl.arange(0, FEW)
    many = tl.arange(0, MANY)
    k = tl.arange(0, K)
    x = tl.load(x_ptr + few[:, None] * K + k[None, :])
    codes = tl.load(codes_ptr + k[:, None] * MANY + many[None, :])
    out = tl.dot(x, codes.to(tl.float32), input_precision="ieee")
    tl.store(out_ptr + few[:, None] * MANY + many[None, :], out)


@pytest.mark.parametrize("few", FEW)
def test_codes_that_are_contiguous_along_n(few):
    x = normal(torch.float32, few, 32)
    codes = torch.randint(0, 256, (32, 64), generator=torch.manual_seed(0)).to(torch.uint8)
    arguments = {"FEW": few, "MANY": 64, "K": 32}
    *_, out = launch(codes_across_kernel, (1,), x, codes, torch.zeros(few, 64), **arguments)
    assert_near(out, x.double() @ codes.double(), 32)


@triton.jit
def same_rows_kernel(x_ptr, w_ptr, out_ptr, steps, MANY: tl.constexpr, K: tl.constexpr):
    """The sums of 4 rows of x times each of the tiles that lie one after the other."""
    few, many, k = tl.arange(0, 4), tl.arange(0, MANY), tl.arange(0, K)
    x = tl.load(x_ptr + few[:, None] * K + k[None, :], mask=few[:, None] < 3, other=0.0)
    acc = tl.zeros([4, MANY], tl.float32)
    for step in range(steps):
        rows = step * MANY + many
        acc = tl.dot(x, tl.load(w_ptr + rows[None, :] * K + k[:, None]), acc)
    tl.store(out_ptr + few[:, None] * MANY + many[None, :], acc)


def test_a_loop_invariant_operand_is_packed_once():
    x, w = normal(torch.bfloat16, 4, 64), normal(torch.bfloat16, 3, 32, 64, seed=1)
    out = torch.zeros(4, 32)
    compiled = same_rows_kernel[(1,)](x, w, out, 3, MANY=32, K=64)
    x[3] = 0
    assert_near(out, x.double() @ w.double().sum(0).T, 3 * 64)
    if host().multiplies_bf16:
        # Neither made to f32 nor back: it is multiplied as it lies.
        assert not re.search(r"trunc .*<\d+ x i32>", compiled.asm["llir"])
