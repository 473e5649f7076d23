"""Matrix products of tiles: every dtype, precision, shape and arrangement."""

import numpy as np
import pytest
import torch
import triton
import triton.language as tl

from tests.cpu.values import assert_same, dtype_of, from_bits, normal
from tritune.testing import launch


@triton.jit
def dot_kernel(
    a_ptr, b_ptr, c_ptr, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, PRECISION: tl.constexpr
):
    m = tl.arange(0, M)
    n = tl.arange(0, N)
    k = tl.arange(0, K)
    a = tl.load(a_ptr + m[:, None] * K + k[None, :])
    b = tl.load(b_ptr + k[:, None] * N + n[None, :])
    c = tl.dot(a, b, input_precision=PRECISION, out_dtype=c_ptr.dtype.element_ty)
    tl.store(c_ptr + m[:, None] * N + n[None, :], c)


def product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return a.double() @ b.double()


def assert_close(
    out: torch.Tensor, exact: torch.Tensor, inner: int, per_term: float = 1e-7
) -> None:
    """Within what `inner` roundings of unit-sized terms may add up to."""
    worst = (out.double() - exact).abs().max().item()
    limit = per_term * (inner + 4) * max(1.0, exact.abs().max().item())
    assert worst <= limit, f"largest error {worst:.3g}, allowed {limit:.3g}"


SHAPES = [
    (16, 16, 16),
    (1, 1, 1),
    (1, 16, 32),
    (16, 1, 16),
    (2, 4, 8),
    (32, 64, 16),
    (64, 16, 128),
    (128, 128, 32),
]


@pytest.mark.parametrize(("m", "n", "k"), SHAPES)
def test_fp32_dot_of_any_shape(m, n, k):
    a, b = normal(torch.float32, m, k), normal(torch.float32, k, n, seed=1)
    *_, out = launch(dot_kernel, (1,), a, b, torch.zeros(m, n), M=m, N=n, K=k, PRECISION="ieee")
    assert_close(out, product(a, b), k)


@pytest.mark.parametrize(("m", "n", "k"), [(16, 16, 16), (32, 16, 64)])
@pytest.mark.parametrize(
    ("dtype", "result", "per_term"),
    [
        ("float16", "float32", 1e-7),
        ("bfloat16", "float32", 1e-7),
        ("float64", "float64", 1e-15),
        ("float16", "float16", 1e-3),
        ("float8_e5m2", "float32", 1e-7),
        ("float8_e4m3fn", "float32", 1e-7),
    ],
)
def test_dot_in_every_float_dtype(dtype, result, per_term, m, n, k):
    a, b = normal(dtype_of(dtype), m, k), normal(dtype_of(dtype), k, n, seed=1)
    c = torch.zeros(m, n, dtype=dtype_of(result))
    *_, out = launch(dot_kernel, (1,), a, b, c, M=m, N=n, K=k, PRECISION="ieee")
    assert_close(out, product(a, b), k, per_term)


@pytest.mark.parametrize(("m", "n", "k"), [(16, 16, 32), (4, 64, 128)])
def test_int8_dot_accumulates_in_int32(m, n, k):
    generator = torch.Generator().manual_seed(0)
    a = torch.randint(-128, 128, (m, k), dtype=torch.int8, generator=generator)
    b = torch.randint(-128, 128, (k, n), dtype=torch.int8, generator=generator)
    a[0], b[:, 0] = -128, -128
    c = torch.zeros(m, n, dtype=torch.int32)
    *_, out = launch(dot_kernel, (1,), a, b, c, M=m, N=n, K=k, PRECISION="ieee")
    assert_same(out, a.int() @ b.int())


@pytest.mark.parametrize("precision", ["tf32", "tf32x3", "ieee"])
def test_every_input_precision_is_at_least_as_good_as_it_promises(precision):
    a, b = normal(torch.float32, 32, 64), normal(torch.float32, 64, 32, seed=1)
    *_, out = launch(
        dot_kernel, (1,), a, b, torch.zeros(32, 32), M=32, N=32, K=64, PRECISION=precision
    )
    assert_close(out, product(a, b), 64, per_term=1e-3 if precision == "tf32" else 1e-6)


@pytest.mark.parametrize("value", [float("inf"), float("nan")])
def test_infinities_and_nan_reach_only_their_row(value):
    a, b = normal(torch.float32, 16, 16), normal(torch.float32, 16, 16, seed=1).abs() + 1
    a[3, 5] = value
    *_, out = launch(
        dot_kernel, (1,), a, b, torch.zeros(16, 16), M=16, N=16, K=16, PRECISION="ieee"
    )
    others = torch.arange(16) != 3
    assert_close(out[others], product(a, b)[others], 16)
    assert (out[3].isnan() if value != value else out[3].isinf()).all()


@triton.jit
def accumulate_kernel(
    a_ptr, b_ptr, c_ptr, out_ptr, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr
):
    m = tl.arange(0, M)
    n = tl.arange(0, N)
    k = tl.arange(0, K)
    a = tl.load(a_ptr + m[:, None] * K + k[None, :])
    b = tl.load(b_ptr + k[:, None] * N + n[None, :])
    place = m[:, None] * N + n[None, :]
    c = tl.load(c_ptr + place)
    tl.store(out_ptr + place, tl.dot(a, b, c, input_precision="ieee", out_dtype=c.dtype))
    tl.store(
        out_ptr + M * N + place, tl.dot(a, b, input_precision="ieee", out_dtype=c.dtype) + c * 2
    )


@pytest.mark.parametrize(
    ("dtype", "result", "per_term"),
    [
        ("float32", "float32", 1e-7),
        ("float16", "float32", 1e-7),
        ("float16", "float16", 1e-3),
        ("bfloat16", "float32", 1e-7),
    ],
)
def test_the_accumulator_is_added(dtype, result, per_term):
    a, b = normal(dtype_of(dtype), 16, 32), normal(dtype_of(dtype), 32, 16, seed=1)
    c = normal(dtype_of(result), 16, 16, seed=2)
    *_, out = launch(
        accumulate_kernel, (1,), a, b, c, torch.zeros(2, 16, 16, dtype=c.dtype), M=16, N=16, K=32
    )
    assert_close(out[0], product(a, b) + c.double(), 32, per_term)
    assert_close(out[1], product(a, b) + 2 * c.double(), 32, per_term)


def test_an_int32_accumulator_is_added():
    a, b = normal(torch.int8, 16, 32), normal(torch.int8, 32, 16, seed=1)
    c = torch.full((16, 16), 2**31 - 5, dtype=torch.int32)
    out = torch.zeros(2, 16, 16, dtype=torch.int32)
    *_, out = launch(accumulate_kernel, (1,), a, b, c, out, M=16, N=16, K=32)
    assert_same(out[0], a.int() @ b.int() + c)


@triton.jit
def transposed_kernel(
    a_ptr, b_ptr, c_ptr, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, WAY: tl.constexpr
):
    m = tl.arange(0, M)
    n = tl.arange(0, N)
    k = tl.arange(0, K)
    if WAY == "a":
        a = tl.trans(tl.load(a_ptr + k[:, None] * M + m[None, :]))
        b = tl.load(b_ptr + k[:, None] * N + n[None, :])
        c = tl.dot(a, b, input_precision="ieee")
    elif WAY == "b":
        a = tl.load(a_ptr + m[:, None] + k[None, :] * M)
        b = tl.trans(tl.load(b_ptr + n[:, None] + k[None, :] * N))
        c = tl.dot(a, b, input_precision="ieee")
    else:
        a = tl.load(a_ptr + k[:, None] * M + m[None, :])
        b = tl.load(b_ptr + n[:, None] + k[None, :] * N)
        c = tl.trans(tl.dot(b, a, input_precision="ieee"))
    tl.store(c_ptr + m[:, None] * N + n[None, :], c)


@pytest.mark.parametrize("way", ["a", "b", "c"])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_transposed_operands_and_results(way, dtype):
    a, b = normal(dtype_of(dtype), 64, 32), normal(dtype_of(dtype), 64, 16, seed=1)
    *_, out = launch(transposed_kernel, (1,), a, b, torch.zeros(32, 16), M=32, N=16, K=64, WAY=way)
    assert_close(out, product(a.T, b), 64)


@triton.jit
def batched_kernel(
    a_ptr, b_ptr, c_ptr, B: tl.constexpr, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr
):
    batch = tl.arange(0, B)[:, None, None]
    m = tl.arange(0, M)
    n = tl.arange(0, N)
    k = tl.arange(0, K)
    a = tl.load(a_ptr + batch * M * K + m[None, :, None] * K + k[None, None, :])
    b = tl.load(b_ptr + batch * K * N + k[None, :, None] * N + n[None, None, :])
    c = tl.dot(a, b, input_precision="ieee", out_dtype=c_ptr.dtype.element_ty)
    tl.store(c_ptr + batch * M * N + m[None, :, None] * N + n[None, None, :], c)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int8"])
@pytest.mark.parametrize(("batch", "m", "n", "k"), [(1, 16, 16, 16), (4, 16, 32, 16)])
def test_batched_dot(dtype, batch, m, n, k):
    a, b = normal(dtype_of(dtype), batch, m, k), normal(dtype_of(dtype), batch, k, n, seed=1)
    c = torch.zeros(batch, m, n, dtype=torch.int32 if dtype == "int8" else torch.float32)
    *_, out = launch(batched_kernel, (1,), a, b, c, B=batch, M=m, N=n, K=k)
    assert_close(out, product(a, b), k)


@triton.jit
def chained_kernel(q_ptr, k_ptr, v_ptr, out_ptr, M: tl.constexpr, N: tl.constexpr, D: tl.constexpr):
    m = tl.arange(0, M)
    n = tl.arange(0, N)
    d = tl.arange(0, D)
    q = tl.load(q_ptr + m[:, None] * D + d[None, :])
    k = tl.load(k_ptr + n[:, None] * D + d[None, :])
    v = tl.load(v_ptr + n[:, None] * D + d[None, :])
    s = tl.dot(q, tl.trans(k), input_precision="ieee") * 0.125
    tl.store(
        out_ptr + m[:, None] * D + d[None, :], tl.dot(s.to(v.dtype), v, input_precision="ieee")
    )


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_dot_of_a_dot(dtype):
    q, k, v = (normal(dtype_of(dtype), rows, 32, seed=rows) for rows in (16, 64, 64))
    *_, out = launch(chained_kernel, (1,), q, k, v, torch.zeros(16, 32), M=16, N=64, D=32)
    scores = (product(q, k.T) * 0.125).to(q.dtype)
    assert_close(out, product(scores, v), 64, per_term=1e-6 if dtype == "float32" else 1e-4)


@triton.jit
def loop_kernel(
    a_ptr,
    b_ptr,
    c_ptr,
    inner,
    M: tl.constexpr,
    N: tl.constexpr,
    K: tl.constexpr,
    FORM: tl.constexpr,
):
    m = tl.arange(0, M)
    n = tl.arange(0, N)
    k = tl.arange(0, K)
    c = tl.zeros([M, N], tl.float32)
    for start in range(0, inner, K):
        valid = start + k < inner
        a = tl.load(
            a_ptr + m[:, None] * inner + (start + k)[None, :], mask=valid[None, :], other=0.0
        )
        b = tl.load(b_ptr + (start + k)[:, None] * N + n[None, :], mask=valid[:, None], other=0.0)
        if FORM == "acc":
            c = tl.dot(a, b, c, input_precision="ieee")
        elif FORM == "add":
            c += tl.dot(a, b, input_precision="ieee")
        else:
            c = c * 0.5 + tl.dot(a, b, input_precision="ieee")
    tl.store(c_ptr + m[:, None] * N + n[None, :], c)


@pytest.mark.parametrize("form", ["acc", "add", "scaled"])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_an_accumulator_carried_by_a_loop(form, dtype):
    a, b = normal(dtype_of(dtype), 32, 150), normal(dtype_of(dtype), 150, 64, seed=1)
    *_, out = launch(loop_kernel, (1,), a, b, torch.zeros(32, 64), 150, M=32, N=64, K=32, FORM=form)
    exact = torch.zeros(32, 64, dtype=torch.float64)
    for start in range(0, 150, 32):
        exact = exact * (0.5 if form == "scaled" else 1) + product(
            a[:, start : start + 32], b[start : start + 32]
        )
    assert_close(out, exact, 150, 2e-7)


@triton.jit
def fused_kernel(
    a_ptr, b_ptr, row_ptr, out_ptr, sums_ptr, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr
):
    m = tl.arange(0, M)
    n = tl.arange(0, N)
    k = tl.arange(0, K)
    a = tl.load(a_ptr + m[:, None] * K + k[None, :])
    b = tl.load(b_ptr + k[:, None] * N + n[None, :]) * 2.0
    c = tl.dot(tl.maximum(a, 0.0), b, input_precision="ieee") + tl.load(row_ptr + n)[None, :]
    tl.store(out_ptr + m[:, None] * N + n[None, :], c)
    tl.store(sums_ptr + m, tl.sum(c, axis=1))
    tl.store(sums_ptr + M + n, tl.max(c, axis=0))


def test_arithmetic_around_a_dot():
    a, b, row = (
        normal(torch.float32, 16, 32),
        normal(torch.float32, 32, 16, seed=1),
        normal(torch.float32, 16, seed=2),
    )
    *_, out, sums = launch(
        fused_kernel, (1,), a, b, row, torch.zeros(16, 16), torch.zeros(32), M=16, N=16, K=32
    )
    exact = product(a.clamp(min=0), b * 2) + row.double()
    assert_close(out, exact, 32)
    assert_close(sums[:16], exact.sum(1), 64)
    assert_close(sums[16:], exact.amax(0), 32)


@triton.jit
def twice_used_kernel(a_ptr, out_ptr, N: tl.constexpr):
    i = tl.arange(0, N)
    place = i[:, None] * N + i[None, :]
    a = tl.load(a_ptr + place)
    gram = tl.dot(tl.trans(a), a, input_precision="ieee")
    tl.store(out_ptr + place, gram - tl.trans(gram) + tl.dot(a, a, input_precision="ieee"))


def test_one_operand_used_twice():
    a = normal(torch.float32, 32, 32)
    _, out = launch(twice_used_kernel, (1,), a, torch.zeros(32, 32), N=32)
    assert_close(out, product(a, a), 64, 2e-7)


def test_fp8_operands_take_every_bit_pattern():
    pattern = np.random.default_rng(0).permutation(np.arange(256, dtype=np.uint64))
    # All but the infinities and NaN, whose products with zero would spread.
    pattern[(pattern & np.uint64(0x7C)) == 0x7C] = 0
    a = from_bits(pattern, torch.float8_e5m2).reshape(16, 16)
    b = torch.eye(16).to(torch.float8_e5m2)
    *_, out = launch(
        dot_kernel, (1,), a, b, torch.zeros(16, 16), M=16, N=16, K=16, PRECISION="ieee"
    )
    assert torch.equal(out, a.float())
