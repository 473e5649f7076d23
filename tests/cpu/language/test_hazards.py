"""Shortcuts that would be wrong: memory written while it is still read, integers that wrap round.

The compiler computes a tensor late, in place and without its mask where that changes nothing. Each
kernel here looks like one of those cases and is not.
"""

import pytest
import torch
import triton
import triton.language as tl

from tests.cpu.values import assert_same, normal
from tritune.testing import interpret, launch

N = 16
F32, I32, I64 = torch.float32, torch.int32, torch.int64
INT64_MIN = -(2**63)


def square(start: int = 0) -> torch.Tensor:
    return torch.arange(start, start + N * N, dtype=I32).reshape(N, N)


@triton.jit
def dot_of_itself_kernel(x_ptr, b_ptr, out_ptr, steps, LEFT: tl.constexpr, N: tl.constexpr):
    i = tl.arange(0, N)[:, None] * N + tl.arange(0, N)[None, :]
    acc = tl.load(x_ptr + i)
    b = tl.load(b_ptr + i)
    for _ in range(steps):
        if LEFT:
            acc = tl.dot(acc, b, acc, input_precision="ieee")
        else:
            acc = tl.dot(b, acc, acc, input_precision="ieee")
    tl.store(out_ptr + i, acc)


@pytest.mark.parametrize("left", [False, True])
def test_a_product_may_read_the_loop_variable_it_becomes(left):
    x, b = normal(F32, N, N), normal(F32, N, N, seed=1)
    out = launch(dot_of_itself_kernel, (1,), x, b, torch.zeros(N, N), 3, LEFT=left, N=N)[2]
    expected = x
    for _ in range(3):
        expected = expected + (expected @ b if left else b @ expected)
    torch.testing.assert_close(out, expected, rtol=1e-4, atol=1e-3)


@triton.jit
def reshaped_kernel(a_ptr, b_ptr, out_ptr, sum_ptr, steps, N: tl.constexpr):
    i = tl.arange(0, N)[:, None] * N + tl.arange(0, N)[None, :]
    a = tl.load(a_ptr + i)
    b = tl.load(b_ptr + i)
    acc = tl.zeros([N, N], tl.float32)
    total = tl.zeros([N * N], tl.float32)
    for _ in range(steps):
        flat = tl.reshape(acc, [N * N])
        acc = tl.dot(a, b, acc, input_precision="ieee")
        total += flat
    tl.store(out_ptr + i, acc)
    tl.store(sum_ptr + tl.arange(0, N * N), total)


def test_a_reshaped_accumulator_keeps_its_values_past_the_product():
    a, b = normal(F32, N, N), normal(F32, N, N, seed=1)
    args = a, b, torch.zeros(N, N), torch.zeros(N, N), 3
    _, _, out, total = launch(reshaped_kernel, (1,), *args, N=N)
    # Before the products the accumulator held none, one and two of them.
    torch.testing.assert_close(out, 3 * (a @ b), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(total, (0 + 1 + 2) * (a @ b), rtol=1e-4, atol=1e-4)


@triton.jit
def both_ways_kernel(x_ptr, out_ptr, steps, N: tl.constexpr):
    i = tl.arange(0, N)[:, None] * N + tl.arange(0, N)[None, :]
    acc = tl.load(x_ptr + i)
    for _ in range(steps):
        y = acc + 1
        acc = y * 2 + tl.trans(y)
    tl.store(out_ptr + i, acc)


def test_a_loop_variable_read_straight_and_transposed():
    x = square()
    _, out = launch(both_ways_kernel, (1,), x, torch.zeros_like(x), 3, N=N)
    expected = x
    for _ in range(3):
        expected = (expected + 1) * 2 + (expected + 1).T
    assert_same(out, expected)


@triton.jit
def crossed_kernel(x_ptr, out_ptr, steps, N: tl.constexpr):
    i = tl.arange(0, N)[:, None] * N + tl.arange(0, N)[None, :]
    a = tl.load(x_ptr + i)
    b = tl.load(x_ptr + N * N + i)
    for _ in range(steps):
        a, b = b + 1, a + tl.trans(b)
    tl.store(out_ptr + i, a)
    tl.store(out_ptr + N * N + i, b)


# The fault was a compiler that never ended.
@pytest.mark.timeout(60)
def test_two_loop_variables_that_both_read_the_one_that_is_transposed():
    x = torch.stack([square(), square(1000)])
    _, out = launch(crossed_kernel, (1,), x, torch.zeros_like(x), 3, N=N)
    a, b = x
    for _ in range(3):
        a, b = b + 1, a + b.T
    assert_same(out, torch.stack([a, b]))


@triton.jit
def transposed_in_memory_kernel(x_ptr, SUM: tl.constexpr, N: tl.constexpr):
    i = tl.arange(0, N)[:, None] * N + tl.arange(0, N)[None, :]
    x = tl.load(x_ptr + i)
    tl.store(x_ptr + i, x * 3 + tl.trans(x) if SUM else tl.trans(x))


@pytest.mark.parametrize("summed", [False, True])
def test_a_tile_transposed_over_the_memory_it_came_from(summed):
    x = square()
    (out,) = launch(transposed_in_memory_kernel, (1,), x, SUM=summed, N=N)
    assert_same(out, x * 3 + x.T if summed else x.T.contiguous())


@triton.jit
def overlapping_kernel(x_ptr, row, column, N: tl.constexpr):
    i = tl.arange(0, N)[:, None] * row + tl.arange(0, N)[None, :] * column
    tl.store(x_ptr + i, tl.load(x_ptr + i) + 1)


# A step of one is compiled as a constant, the others are known at run time.
@pytest.mark.parametrize(("row", "column"), [(1, 1), (3, 3), (2, 3), (5, 1)])
def test_elements_at_one_address_are_all_read_before_any_is_written(row, column):
    x = normal(I32, 256)
    (out,) = launch(overlapping_kernel, (1,), x, row, column, N=N)
    places = torch.arange(N)[:, None] * row + torch.arange(N) * column
    expected = x.clone()
    expected[places] = x[places] + 1
    assert_same(out, expected)


@triton.jit
def atomic_reversed_kernel(x_ptr, old_ptr, N: tl.constexpr):
    i = tl.arange(0, N)
    x = tl.load(x_ptr + i)
    old = tl.atomic_add(x_ptr + N - 1 - i, x)
    tl.store(old_ptr + i, old)


def test_an_atomic_adds_what_was_loaded_before_it_began():
    x = normal(I32, N)
    out, old = launch(atomic_reversed_kernel, (1,), x, torch.zeros_like(x), N=N)
    assert_same(out, x + x.flip(0))
    assert_same(old, x.flip(0))


@triton.jit
def cat_kernel(x_ptr, y_ptr, out_ptr, HALF: tl.constexpr):
    i = tl.arange(0, HALF)
    both = tl.cat(tl.load(x_ptr + i), tl.load(y_ptr + i), can_reorder=True)
    tl.store(out_ptr + tl.arange(0, 2 * HALF), both)


@pytest.mark.parametrize("half", [1, 2, 4, 8])
def test_halves_shorter_than_a_vector_are_joined(half):
    x, y = normal(F32, half), normal(F32, half, seed=1)
    out = launch(cat_kernel, (1,), x, y, torch.zeros(2 * half), HALF=half)[2]
    # The order is the compiler's to choose.
    assert_same(out.sort().values, torch.cat([x, y]).sort().values)


@triton.jit
def pointers_kernel(x_ptr, out_ptr, steps, flag, N: tl.constexpr):
    i = tl.arange(0, N)
    places = x_ptr + i
    total = tl.zeros([N], tl.int32)
    for _ in range(steps):
        total += tl.load(places)
        places += N
    if flag == 0:
        return
    tl.store(out_ptr + i, total * 1000 + tl.load(places))


@pytest.mark.parametrize("flag", [0, 7])
def test_pointers_advanced_by_a_loop_are_used_after_an_early_return(flag):
    x = normal(I32, 4, N)
    _, out = launch(pointers_kernel, (1,), x, torch.zeros(N, dtype=I32), 3, flag, N=N)
    assert_same(out, (x[:3].sum(0) * 1000 + x[3]).int() * int(flag != 0))


@triton.jit
def value_of_two_blocks_kernel(x_ptr, out_ptr, flag, N: tl.constexpr):
    i = tl.arange(0, N)
    x = tl.load(x_ptr + i)
    y = tl.exp(x) * tl.log(x + 30)
    if flag == 0:
        tl.store(out_ptr + i, y * 2)
        tl.store(out_ptr + N + i, tl.sum(y) + y)
        return
    tl.store(out_ptr + N + i, y + 1)


@triton.jit
def value_of_three_blocks_kernel(x_ptr, out_ptr, flag, N: tl.constexpr):
    i = tl.arange(0, N)
    place = i[:, None] * N + i[None, :]
    x = tl.load(x_ptr + i)
    y = tl.exp(x) * tl.log(x + 30)
    z = y[:, None] + y[None, :]
    if flag == 0:
        tl.store(out_ptr + place, z)
        return
    if flag == 2:
        tl.store(out_ptr + place, z * 2)
        return
    tl.store(out_ptr + place, y[:, None] + 1 + i[None, :])


@pytest.mark.parametrize("flag", [0, 2, 3])
@pytest.mark.parametrize("kernel", [value_of_two_blocks_kernel, value_of_three_blocks_kernel])
def test_a_value_used_before_and_after_an_early_return(kernel, flag):
    args = normal(F32, N), torch.zeros(N, N), flag
    found, expected = (run(kernel, (1,), *args, N=N)[1] for run in (launch, interpret))
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


@triton.jit
def hashed_mask_kernel(x_ptr, out_ptr, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out_ptr + i, tl.load(x_ptr + i), mask=(i + 1) * 1103515245 > 0)


def test_a_mask_of_integers_that_wrap_round():
    x = normal(F32, N)
    _, out = launch(hashed_mask_kernel, (1,), x, torch.zeros(N), N=N)
    kept = torch.arange(1, N + 1, dtype=I32) * 1103515245 > 0
    assert_same(out, torch.where(kept, x, 0.0))


@triton.jit
def hashed_mask64_kernel(x_ptr, out_ptr, N: tl.constexpr):
    i = tl.arange(0, N)
    mask = (i.to(tl.int64) + 1) * 6364136223846793005 > 0
    tl.store(out_ptr + i, tl.load(x_ptr + i), mask=mask)


def test_a_mask_of_wide_integers_that_wrap_round():
    x = normal(F32, N)
    _, out = launch(hashed_mask64_kernel, (1,), x, torch.zeros(N), N=N)
    kept = torch.arange(1, N + 1, dtype=I64) * 6364136223846793005 > 0
    assert_same(out, torch.where(kept, x, 0.0))


@triton.jit
def widened_kernel(out_ptr, start, USE: tl.constexpr, N: tl.constexpr):
    i = tl.arange(0, N)
    if USE == "unsigned":
        hashed = (i + start).to(tl.uint32) * 1103515245
        tl.store(out_ptr + i, 1, mask=hashed.to(tl.int64) > 2000000000)
    else:
        large = ((i + start) * 1103515245).to(tl.int64) > 5
        if USE == "mask":
            tl.store(out_ptr + i, 1, mask=large)
        else:
            tl.store(out_ptr + i, tl.where(large, 1, 0))


# One use in each kernel: which shortcut is taken depends on all the uses of a value.
@pytest.mark.parametrize("use", ["mask", "where", "unsigned"])
@pytest.mark.parametrize("start", [0, 1, 10])
def test_integers_wrap_round_before_they_are_widened(start, use):
    (out,) = launch(widened_kernel, (1,), torch.zeros(N, dtype=I32), start, USE=use, N=N)
    hashed = (torch.arange(N, dtype=I32) + start) * 1103515245
    expected = hashed.to(I64) % 2**32 > 2000000000 if use == "unsigned" else hashed > 5
    assert_same(out, expected.int())


@triton.jit
def remainder_kernel(out_ptr, start, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out_ptr + i, ((i + start) * 1664525 + 1013904223) % 1000000000)


@pytest.mark.parametrize("start", [0, 5003])
def test_a_remainder_of_integers_that_wrap_round(start):
    (out,) = launch(remainder_kernel, (1,), torch.zeros(N, dtype=I32), start, N=N)
    hashed = (torch.arange(N, dtype=I32) + start) * 1664525 + 1013904223
    assert_same(out, torch.fmod(hashed, 1000000000))


@triton.jit
def limit_kernel(out_ptr, limit, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out_ptr + i, 1, mask=i.to(tl.int64) < limit)


@pytest.mark.parametrize("limit", [INT64_MIN, INT64_MIN + 1, -1, 5, 2**63 - 1])
def test_a_mask_with_a_limit_at_the_end_of_the_integers(limit):
    (out,) = launch(limit_kernel, (1,), torch.zeros(N, dtype=I32), limit, N=N)
    assert_same(out, (torch.arange(N) < limit).int())


@triton.jit
def stored_and_used_again_kernel(x_ptr, sum_ptr, out_ptr, SHIFT: tl.constexpr, N: tl.constexpr):
    i = tl.arange(0, N)
    y = tl.exp(tl.load(x_ptr + i)) + tl.load(sum_ptr + i)
    tl.store(sum_ptr + i + SHIFT, y)
    tl.store(out_ptr + i, y * tl.sum(y * y))


@pytest.mark.parametrize("shift", [0, 1, N])
def test_a_value_that_is_stored_over_its_operand_and_used_again(shift: int) -> None:
    x, sums = normal(F32, N), normal(F32, 2 * N)
    y = x.exp() + sums[:N]
    _, found, out = launch(
        stored_and_used_again_kernel, (1,), x, sums, torch.zeros(N), SHIFT=shift, N=N
    )
    expected = sums.clone()
    expected[shift : shift + N] = y
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(out, y * (y * y).sum())
