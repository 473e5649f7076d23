"""Layer norm, forward and backward; the gradients of weight and bias by locks or in two stages."""

import pytest
import torch
import triton
import triton.language as tl

from tests.cpu.values import assert_accurate, dtype_of, normal

EPS = 1e-5


@triton.jit
def forward(
    x_ptr, w_ptr, b_ptr, y_ptr, mean_ptr, rstd_ptr, stride, cols, eps, BLOCK: tl.constexpr
):  # fmt: skip
    row = tl.program_id(0)
    x_ptr += row * stride
    y_ptr += row * stride
    total = tl.zeros([BLOCK], tl.float32)
    for start in range(0, cols, BLOCK):
        i = start + tl.arange(0, BLOCK)
        total += tl.load(x_ptr + i, mask=i < cols, other=0.0).to(tl.float32)
    mean = tl.sum(total, axis=0) / cols
    squares = tl.zeros([BLOCK], tl.float32)
    for start in range(0, cols, BLOCK):
        i = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + i, mask=i < cols, other=0.0).to(tl.float32)
        centred = tl.where(i < cols, x - mean, 0.0)
        squares += centred * centred
    rstd = 1 / tl.sqrt(tl.sum(squares, axis=0) / cols + eps)
    tl.store(mean_ptr + row, mean)
    tl.store(rstd_ptr + row, rstd)
    for start in range(0, cols, BLOCK):
        i = start + tl.arange(0, BLOCK)
        inside = i < cols
        x = tl.load(x_ptr + i, mask=inside, other=0.0).to(tl.float32)
        w = tl.load(w_ptr + i, mask=inside)
        b = tl.load(b_ptr + i, mask=inside)
        y = (x - mean) * rstd * w + b
        tl.store(y_ptr + i, y.to(y_ptr.dtype.element_ty), mask=inside)


@triton.jit
def backward_input(
    dx_ptr, dy_ptr, dw_ptr, db_ptr, x_ptr, w_ptr, mean_ptr, rstd_ptr, lock_ptr, stride, cols,
    GROUPS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The gradient of the input; GROUPS partial sums for weight and bias, under a lock each."""
    row = tl.program_id(0)
    i = tl.arange(0, BLOCK)
    inside = i < cols
    x = tl.load(x_ptr + row * stride + i, mask=inside, other=0.0).to(tl.float32)
    dy = tl.load(dy_ptr + row * stride + i, mask=inside, other=0.0).to(tl.float32)
    w = tl.load(w_ptr + i, mask=inside, other=0.0).to(tl.float32)
    mean = tl.load(mean_ptr + row)
    rstd = tl.load(rstd_ptr + row)
    normalised = tl.where(inside, (x - mean) * rstd, 0.0)
    scaled = tl.where(inside, w * dy, 0.0)
    c1 = tl.sum(normalised * scaled, axis=0) / cols
    c2 = tl.sum(scaled, axis=0) / cols
    dx = (scaled - (normalised * c1 + c2)) * rstd
    tl.store(dx_ptr + row * stride + i, dx.to(dx_ptr.dtype.element_ty), mask=inside)

    group = row % GROUPS
    lock = lock_ptr + group
    first = lock_ptr + GROUPS + group
    dw_ptrs = dw_ptr + group * cols + i
    db_ptrs = db_ptr + group * cols + i
    dw = dy * normalised
    db = dy
    while tl.atomic_cas(lock, 0, 1) == 1:
        pass
    if tl.load(first) == 0:
        tl.atomic_xchg(first, 1)
    else:
        dw += tl.load(dw_ptrs, mask=inside)
        db += tl.load(db_ptrs, mask=inside)
    tl.store(dw_ptrs, dw, mask=inside)
    tl.store(db_ptrs, db, mask=inside)
    tl.debug_barrier()
    tl.atomic_xchg(lock, 0)


@triton.jit
def backward_weight(
    partial_dw, partial_db, dw_ptr, db_ptr, rows, cols, BM: tl.constexpr, BN: tl.constexpr
):  # fmt: skip
    column = tl.program_id(0) * BN + tl.arange(0, BN)
    dw = tl.zeros([BM, BN], tl.float32)
    db = tl.zeros([BM, BN], tl.float32)
    for start in range(0, rows, BM):
        row = start + tl.arange(0, BM)
        inside = (row[:, None] < rows) & (column[None, :] < cols)
        place = row[:, None] * cols + column[None, :]
        dw += tl.load(partial_dw + place, mask=inside, other=0.0)
        db += tl.load(partial_db + place, mask=inside, other=0.0)
    tl.store(dw_ptr + column, tl.sum(dw, axis=0), mask=column < cols)
    tl.store(db_ptr + column, tl.sum(db, axis=0), mask=column < cols)


def layer_norm(x, w, b):
    y = torch.empty_like(x)
    mean, rstd = torch.empty(len(x)), torch.empty(len(x))
    forward[(len(x),)](x, w, b, y, mean, rstd, x.stride(0), x.shape[1], EPS, BLOCK=128)
    return y, mean, rstd


def gradients(x, w, b, dy, groups=4):
    rows, cols = x.shape
    _, mean, rstd = layer_norm(x, w, b)
    dx = torch.empty_like(x)
    partial_dw, partial_db = torch.empty(groups, cols), torch.empty(groups, cols)
    locks = torch.zeros(2 * groups, dtype=torch.int32)
    backward_input[(rows,)](
        dx, dy, partial_dw, partial_db, x, w, mean, rstd, locks, x.stride(0), cols,
        GROUPS=groups, BLOCK=triton.next_power_of_2(cols),
    )  # fmt: skip
    dw, db = torch.empty(cols), torch.empty(cols)
    backward_weight[(triton.cdiv(cols, 64),)](
        partial_dw, partial_db, dw, db, min(groups, rows), cols, BM=8, BN=64
    )
    return dx, dw, db


def torch_gradients(x, w, b, dy):
    x, w, b = (t.clone().requires_grad_() for t in (x, w, b))
    y = torch.nn.functional.layer_norm(x, x.shape[1:], w, b, EPS)
    y.backward(dy)
    return y.detach(), x.grad, w.grad, b.grad


def problem(dtype, rows, cols):
    x = normal(dtype, rows, cols) * 2 + 0.5
    w, b = normal(dtype, cols, seed=1), normal(dtype, cols, seed=2)
    return x, w, b, normal(dtype, rows, cols, seed=3)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize(("rows", "cols"), [(5, 128), (33, 301)])
def test_layer_norm_forward(dtype, rows, cols):
    x, w, b, dy = problem(dtype_of(dtype), rows, cols)
    y, _, _ = layer_norm(x, w, b)
    plain = torch.nn.functional.layer_norm(x, (cols,), w, b, EPS)
    exact = torch_gradients(*(t.double() for t in (x, w, b, dy)))[0]
    assert_accurate(y, plain, exact)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize(("rows", "cols"), [(3, 64), (40, 100)])
def test_layer_norm_backward(dtype, rows, cols):
    x, w, b, dy = problem(dtype_of(dtype), rows, cols)
    found = gradients(x, w, b, dy)
    plain = torch_gradients(x, w, b, dy)[1:]
    exact = torch_gradients(*(t.double() for t in (x, w, b, dy)))[1:]
    for got, usual, reference in zip(found, plain, exact, strict=True):
        assert_accurate(got, usual, reference, factor=3)
