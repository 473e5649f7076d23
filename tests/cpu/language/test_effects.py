"""A value is what it was when it was computed, whatever is stored afterwards; tiles of any size."""

import pytest
import torch
import triton
import triton.language as tl

from tests.cpu.values import assert_same, normal
from tritune.testing import launch

N = 64
I32 = torch.int32


@triton.jit
def rows_kernel(x_ptr, sums_ptr, M: tl.constexpr, N: tl.constexpr):
    m = tl.arange(0, M)
    i = m[:, None] * N + tl.arange(0, N)[None, :]
    x = tl.load(x_ptr + i)
    sums = tl.sum(x, axis=1)
    tl.store(x_ptr + i, x - sums[:, None])
    tl.store(sums_ptr + m, sums)


def test_a_reduction_of_what_is_overwritten_with_it():
    x = normal(I32, 8, 32)
    out, sums = launch(rows_kernel, (1,), x, torch.zeros(8, dtype=I32), M=8, N=32)
    assert_same(sums, x.sum(1).int())
    assert_same(out, (x - x.sum(1, keepdim=True)).int())


@triton.jit
def late_reduction_kernel(x_ptr, out_ptr, N: tl.constexpr):
    i = tl.arange(0, N)
    x = tl.load(x_ptr + i)
    doubled = x * 2
    tl.store(x_ptr + i, doubled)
    tl.store(out_ptr, tl.sum(x, axis=0))
    tl.store(out_ptr + 1, tl.sum(doubled, axis=0))
    tl.store(out_ptr + 2, tl.sum(tl.load(x_ptr + i), axis=0))


def test_a_reduction_after_the_store_sees_what_was_loaded_before():
    x = normal(I32, N)
    _, out = launch(late_reduction_kernel, (1,), x, torch.zeros(3, dtype=I32), N=N)
    total = int(x.sum())
    assert out.tolist() == [total, 2 * total, 2 * total]


@triton.jit
def atomic_between_kernel(x_ptr, out_ptr, N: tl.constexpr):
    i = tl.arange(0, N)
    before = tl.load(x_ptr + i)
    tl.atomic_add(x_ptr + i, 5)
    after = tl.load(x_ptr + i)
    tl.store(out_ptr + i, after * 1000 + before)


def test_an_atomic_update_between_two_loads():
    x = normal(I32, N)
    _, out = launch(atomic_between_kernel, (1,), x, torch.zeros_like(x), N=N)
    assert_same(out, (x + 5) * 1000 + x)


@triton.jit
def branch_store_kernel(x_ptr, out_ptr, n, N: tl.constexpr):
    i = tl.arange(0, N)
    x = tl.load(x_ptr + i)
    if n > 3:
        tl.store(x_ptr + i, x + 1)
    tl.store(out_ptr + i, x)


@pytest.mark.parametrize("n", [2, 5])
def test_a_store_in_a_branch_does_not_change_what_was_loaded(n):
    x = normal(I32, N)
    changed, out = launch(branch_store_kernel, (1,), x, torch.zeros_like(x), n, N=N)
    assert_same(out, x)
    assert_same(changed, x + int(n > 3))


@triton.jit
def carried_load_kernel(x_ptr, out_ptr, steps, N: tl.constexpr):
    i = tl.arange(0, N)
    previous = tl.load(x_ptr + i)
    for _ in range(steps):
        current = tl.load(x_ptr + i)
        tl.store(x_ptr + i, current + previous)
        previous = current
    tl.store(out_ptr + i, previous)


def test_a_load_carried_to_the_next_iteration_past_a_store():
    x = normal(I32, N)
    changed, out = launch(carried_load_kernel, (1,), x, torch.zeros_like(x), 5, N=N)
    memory, previous = x, x
    for _ in range(5):
        memory, previous = memory + previous, memory
    assert_same(out, previous)
    assert_same(changed, memory)


@triton.jit
def masks_kernel(x_ptr, mask_ptr, out_ptr, steps, N: tl.constexpr):
    i = tl.arange(0, N)
    total = tl.zeros([N], tl.int32)
    for k in range(steps):
        mask = tl.load(mask_ptr + k * N + i) > 0
        total += tl.load(x_ptr + k * N + i, mask=mask, other=-1)
        tl.store(x_ptr + (k + 1) * N + i, total, mask=mask)
    tl.store(out_ptr + i, total)


def test_masks_that_are_loaded_and_rows_that_feed_the_next():
    x, mask = normal(I32, 5, 16), normal(I32, 4, 16, seed=1)
    changed, _, out = launch(masks_kernel, (1,), x, mask, torch.zeros(16, dtype=I32), 4, N=16)
    memory, total = x.clone(), torch.zeros(16, dtype=I32)
    for k in range(4):
        on = mask[k] > 0
        total = total + torch.where(on, memory[k], -1)
        memory[k + 1] = torch.where(on, total, memory[k + 1])
    assert_same(out, total)
    assert_same(changed, memory)


@triton.jit
def dot_over_operand_kernel(a_ptr, out_ptr, N: tl.constexpr):
    i = tl.arange(0, N)[:, None] * N + tl.arange(0, N)[None, :]
    a = tl.load(a_ptr + i)
    tl.store(a_ptr + i, tl.dot(a, a, input_precision="ieee"))
    tl.store(out_ptr + i, tl.dot(a, tl.trans(a), input_precision="ieee"))


def test_a_dot_stored_over_its_operand():
    a = normal(torch.float32, 32, 32)
    square, gram = launch(dot_over_operand_kernel, (1,), a, torch.zeros(32, 32), N=32)
    torch.testing.assert_close(square, a @ a, rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(gram, a @ a.T, rtol=1e-5, atol=1e-4)


@triton.jit
def branching_tiles_kernel(x_ptr, out_ptr, steps, N: tl.constexpr):
    i = tl.arange(0, N)[:, None] * N + tl.arange(0, N)[None, :]
    x = tl.load(x_ptr + i)
    for k in range(steps):
        if k % 2 == 0:
            x = tl.trans(x)
        elif k % 3 == 0:
            x = x + tl.sum(x, axis=0)[None, :]
        else:
            x = tl.where(x > 50, x - 50, x * 2)
    tl.store(out_ptr + i, x)


def test_a_tile_changed_by_the_branches_of_a_loop():
    x = torch.arange(256, dtype=I32).reshape(16, 16)
    _, out = launch(branching_tiles_kernel, (1,), x, torch.zeros_like(x), 7, N=16)
    expected = x
    for k in range(7):
        if k % 2 == 0:
            expected = expected.T
        elif k % 3 == 0:
            expected = expected + expected.sum(0).int()
        else:
            expected = torch.where(expected > 50, expected - 50, expected * 2)
    assert_same(out, expected.contiguous())


@triton.jit
def exchange_kernel(x_ptr, out_ptr, steps, N: tl.constexpr):
    i = tl.arange(0, N)[:, None] * N + tl.arange(0, N)[None, :]
    a = tl.load(x_ptr + i)
    b = a * 3 + 1
    for _ in range(steps):
        a, b = tl.trans(b), a + tl.trans(a)
    tl.store(out_ptr + i, a)
    tl.store(out_ptr + N * N + i, b)


def test_tiles_exchanged_and_transposed_at_once():
    x = torch.arange(256, dtype=I32).reshape(16, 16)
    _, out = launch(exchange_kernel, (1,), x, torch.zeros(2, 16, 16, dtype=I32), 5, N=16)
    a, b = x, x * 3 + 1
    for _ in range(5):
        a, b = b.T, a + a.T
    assert_same(out, torch.stack([a, b]))


@triton.jit
def gram_kernel(x_ptr, out_ptr, M: tl.constexpr, K: tl.constexpr):
    m = tl.arange(0, M)
    x = tl.load(x_ptr + m[:, None] * K + tl.arange(0, K)[None, :])
    gram = tl.dot(x, tl.trans(x), input_precision="ieee")
    tl.store(out_ptr + m[:, None] * M + m[None, :], gram)


def test_tiles_of_megabytes():
    x = normal(torch.float32, 512, 512)
    _, out = launch(gram_kernel, (1,), x, torch.zeros(512, 512), M=512, K=512)
    torch.testing.assert_close(out, x @ x.T, rtol=1e-4, atol=1e-3)
