"""Making tensors and moving their elements about: nothing here computes."""

import numpy as np
import pytest
import torch
import triton
import triton.language as tl

from tests.cpu.values import ALL, assert_rows, assert_same, dtype_of, from_bits, normal
from tritune.testing import interpret, launch


def counted(*shape: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
    return torch.arange(int(np.prod(shape)), dtype=dtype).reshape(shape)


@triton.jit
def making_kernel(out_ptr, value, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out_ptr + 0 * N + i, i)
    tl.store(out_ptr + 1 * N + i, tl.arange(N, 2 * N))
    tl.store(out_ptr + 2 * N + i, tl.full([N], 7, tl.int32))
    tl.store(out_ptr + 3 * N + i, tl.full([N], value, tl.int32))
    tl.store(out_ptr + 4 * N + i, tl.zeros([N], tl.int32))
    tl.store(out_ptr + 5 * N + i, tl.zeros_like(i))
    tl.store(out_ptr + 6 * N + i, value)


@pytest.mark.parametrize("count", [1, 16, 128])
def test_arange_full_zeros_and_splat(count):
    (out,) = launch(making_kernel, (1,), torch.full((7, count), -1, dtype=torch.int32), 42, N=count)
    i = torch.arange(count, dtype=torch.int32)
    expected = [i, i + count, i * 0 + 7, i * 0 + 42, i * 0, i * 0, i * 0 + 42]
    assert_rows(
        ("arange", "arange from n", "full", "full of argument", "zeros", "zeros_like", "splat"),
        out,
        expected,
    )


@triton.jit
def constant_kernel(out_ptr, N: tl.constexpr, VALUE: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out_ptr + i, tl.full([N], VALUE, out_ptr.dtype.element_ty))


@pytest.mark.parametrize(
    "dtype", ["bool", "int8", "uint16", "int64", "uint64", "float16", "bfloat16", "float64"]
)
def test_constants_in_every_dtype(dtype):
    (out,) = launch(constant_kernel, (1,), torch.zeros(16, dtype=dtype_of(dtype)), N=16, VALUE=1)
    assert_same(out, torch.ones(16, dtype=dtype_of(dtype)))


@pytest.mark.parametrize(
    "value", [float("inf"), float("-inf"), float("nan"), -0.0, 1e-45, 3.4028234663852886e38]
)
def test_special_float_constants(value):
    (out,) = launch(constant_kernel, (1,), torch.zeros(4), N=4, VALUE=value)
    assert_same(out, torch.full((4,), value), signed_zero=value != 0)


@pytest.mark.parametrize("value", [2**63 - 1, -(2**63), 2**32, -1])
def test_64_bit_constants(value):
    (out,) = launch(constant_kernel, (1,), torch.zeros(4, dtype=torch.int64), N=4, VALUE=value)
    assert_same(out, torch.full((4,), value, dtype=torch.int64))


@triton.jit
def broadcast_kernel(row_ptr, col_ptr, out_ptr, M: tl.constexpr, N: tl.constexpr):
    m = tl.arange(0, M)
    n = tl.arange(0, N)
    col = tl.load(col_ptr + m)
    row = tl.load(row_ptr + n)
    i = m[:, None] * N + n[None, :]
    a, b = tl.broadcast(col[:, None], row[None, :])
    tl.store(out_ptr + 0 * M * N + i, col[:, None] + row[None, :])
    tl.store(out_ptr + 1 * M * N + i, tl.broadcast_to(tl.expand_dims(row, 0), (M, N)))
    tl.store(out_ptr + 2 * M * N + i, a - b)
    tl.store(out_ptr + 3 * M * N + i, tl.expand_dims(col, 1) * (i * 0 + 1))


@pytest.mark.parametrize(("m", "n"), [(1, 1), (2, 64), (16, 1), (32, 16)])
def test_rows_and_columns_broadcast(m, n):
    row, col = normal(torch.int32, n), normal(torch.int32, m, seed=1)
    *_, out = launch(
        broadcast_kernel, (1,), row, col, torch.zeros(4, m, n, dtype=torch.int32), M=m, N=n
    )
    full_row, full_col = row[None, :].expand(m, n), col[:, None].expand(m, n)
    expected = [
        full_col + full_row,
        full_row.contiguous(),
        full_col - full_row,
        full_col.contiguous(),
    ]
    assert_rows(("operator", "broadcast_to", "broadcast", "expand_dims"), out, expected)


@triton.jit
def reshape_kernel(x_ptr, out_ptr, M: tl.constexpr, N: tl.constexpr):
    m = tl.arange(0, M)
    n = tl.arange(0, N)
    flat = tl.arange(0, M * N)
    x = tl.load(x_ptr + m[:, None] * N + n[None, :])
    tl.store(out_ptr + 0 * M * N + flat, tl.reshape(x, [M * N]))
    tl.store(out_ptr + 1 * M * N + flat, tl.ravel(x))
    tl.store(out_ptr + 2 * M * N + n[:, None] * M + m[None, :], tl.reshape(x, [N, M]))
    tl.store(out_ptr + 3 * M * N + flat, x.T.reshape([M * N]))
    tl.store(out_ptr + 4 * M * N + flat, tl.reshape(tl.reshape(x, [M // 2, 2, N]), [M * N]))
    tl.store(
        out_ptr + 5 * M * N + flat, tl.reshape(tl.trans(tl.reshape(x, [M // 2, 2 * N])), [M * N])
    )


@pytest.mark.parametrize(("m", "n"), [(2, 2), (4, 16), (64, 8)])
def test_reshape_keeps_the_row_major_order(m, n):
    x = counted(m, n)
    _, out = launch(reshape_kernel, (1,), x, torch.zeros(6, m * n, dtype=torch.int32), M=m, N=n)
    turned = x.reshape(m // 2, 2 * n).T.reshape(-1)
    expected = [x.flatten(), x.flatten(), x.flatten(), x.T.reshape(-1), x.flatten(), turned]
    names = (
        "reshape",
        "ravel",
        "to (n, m)",
        "of a transpose",
        "to rank 3 and back",
        "transpose of a reshape",
    )
    assert_rows(names, out, expected)


@triton.jit
def permute_kernel(
    x_ptr, out_ptr, A: tl.constexpr, B: tl.constexpr, C: tl.constexpr, P: tl.constexpr
):
    a = tl.arange(0, A)[:, None, None]
    b = tl.arange(0, B)[None, :, None]
    c = tl.arange(0, C)[None, None, :]
    x = tl.load(x_ptr + (a * B + b) * C + c)
    y = tl.permute(x, P[0], P[1], P[2])
    tl.store(out_ptr + tl.arange(0, A * B * C), tl.reshape(y, [A * B * C]))


@pytest.mark.parametrize(
    "order", [(0, 1, 2), (0, 2, 1), (1, 0, 2), (1, 2, 0), (2, 0, 1), (2, 1, 0)]
)
def test_permute_in_every_order(order):
    x = counted(2, 4, 8)
    _, out = launch(
        permute_kernel, (1,), x, torch.zeros(64, dtype=torch.int32), A=2, B=4, C=8, P=order
    )
    assert_same(out, x.permute(order).reshape(-1))


@triton.jit
def transpose_kernel(x_ptr, out_ptr, M: tl.constexpr, N: tl.constexpr):
    m = tl.arange(0, M)
    n = tl.arange(0, N)
    x = tl.load(x_ptr + m[:, None] * N + n[None, :])
    tl.store(out_ptr + n[:, None] * M + m[None, :], tl.trans(x))


@pytest.mark.parametrize("dtype", ALL)
def test_trans_in_every_dtype(dtype):
    x = from_bits(
        np.arange(128, dtype=np.uint64) * np.uint64(0x0101_0301_0101), dtype_of(dtype)
    ).reshape(8, 16)
    _, out = launch(transpose_kernel, (1,), x, torch.zeros_like(x.T.contiguous()), M=8, N=16)
    assert_same(out, x.T.contiguous())


@triton.jit
def joining_kernel(x_ptr, y_ptr, out_ptr, N: tl.constexpr):
    i = tl.arange(0, N)
    j = tl.arange(0, 2 * N)
    x = tl.load(x_ptr + i)
    y = tl.load(y_ptr + i)
    both = tl.join(x, y)
    left, right = tl.split(both)
    even, odd = tl.split(tl.reshape(tl.interleave(x, y), [N, 2]))
    tl.store(out_ptr + 0 * N + j, tl.reshape(both, [2 * N]))
    tl.store(out_ptr + 2 * N + j, tl.interleave(x, y))
    tl.store(out_ptr + 4 * N + i, left)
    tl.store(out_ptr + 5 * N + i, right)
    tl.store(out_ptr + 6 * N + i, even - odd)
    tl.store(out_ptr + 7 * N + i, left + right)


@pytest.mark.parametrize("count", [1, 4, 64])
def test_join_split_and_interleave(count):
    x, y = normal(torch.float32, count), normal(torch.float32, count, seed=1)
    *_, out = launch(joining_kernel, (1,), x, y, torch.zeros(8 * count), N=count)
    mixed = torch.stack([x, y], dim=1).reshape(-1)
    assert_same(out, torch.cat([mixed, mixed, x, y, x - y, x + y]))


@triton.jit
def concatenation_kernel(x_ptr, y_ptr, out_ptr, N: tl.constexpr):
    i = tl.arange(0, N)
    both = tl.cat(tl.load(x_ptr + i), tl.load(y_ptr + i), can_reorder=True)
    tl.store(out_ptr + tl.arange(0, 2 * N), both)


def test_cat_holds_the_elements_of_both():
    """Triton leaves the order open."""
    x, y = counted(16), counted(16) + 100
    *_, out = launch(concatenation_kernel, (1,), x, y, torch.zeros(32, dtype=torch.int32), N=16)
    assert_same(out.sort().values, torch.cat([x, y]))


@triton.jit
def flip_kernel(x_ptr, out_ptr, M: tl.constexpr, N: tl.constexpr):
    i = tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :]
    tl.store(out_ptr + i, tl.flip(tl.load(x_ptr + i), 1))


def test_flip_reverses_an_axis():
    x = counted(4, 16, dtype=torch.float32)
    _, out = launch(flip_kernel, (1,), x, torch.zeros_like(x), M=4, N=16)
    assert_same(out, x.flip(1))


@triton.jit
def chain_kernel(x_ptr, out_ptr, A: tl.constexpr, B: tl.constexpr):
    a = tl.arange(0, A)
    b = tl.arange(0, B)
    x = tl.load(x_ptr + a[:, None] * B + b[None, :])
    y = tl.trans(x) * 2
    z = tl.reshape(y, [B // 2, 2, A]) + 1
    z = tl.permute(z, 2, 0, 1)
    w = tl.reshape(z, [A, B]) + x
    tl.store(out_ptr + a[:, None] * B + b[None, :], w)


def test_a_chain_of_shape_changes_between_arithmetic():
    x = counted(8, 16)
    _, out = launch(chain_kernel, (1,), x, torch.zeros_like(x), A=8, B=16)
    expected = (x.T * 2).reshape(8, 2, 8) + 1
    assert_same(out, expected.permute(2, 0, 1).reshape(8, 16) + x)


@triton.jit
def view_kernel(x_ptr, out_ptr, N: tl.constexpr):
    i = tl.arange(0, N)
    x = tl.load(x_ptr + i).reshape([N // 4, 4])
    x = x[:, None, :] + tl.zeros([N // 4, 2, 4], tl.int32)
    tl.store(out_ptr + tl.arange(0, 2 * N), x.reshape([2 * N]))


def test_a_view_can_be_expanded():
    x = counted(32)
    args = x, torch.zeros(64, dtype=torch.int32)
    assert_same(
        launch(view_kernel, (1,), *args, N=32)[1], interpret(view_kernel, (1,), *args, N=32)[1]
    )


@triton.jit
def scalar_shape_kernel(x_ptr, out_ptr):
    x = tl.load(x_ptr + tl.arange(0, 1))
    y = tl.broadcast_to(x, (8,)) + tl.arange(0, 8)
    tl.store(out_ptr + tl.arange(0, 8), y)


def test_a_tensor_of_one_element_broadcasts():
    _, out = launch(
        scalar_shape_kernel,
        (1,),
        torch.tensor([5], dtype=torch.int32),
        torch.zeros(8, dtype=torch.int32),
    )
    assert_same(out, torch.arange(5, 13, dtype=torch.int32))
