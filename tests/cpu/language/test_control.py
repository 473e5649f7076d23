"""Programs, loops, branches and functions."""

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from hypothesis import given
from hypothesis import strategies as st

from tests.cpu.values import assert_same, normal, prop
from tritune.testing import interpret, launch

N = 16
I32 = torch.int32


def zeros(*shape: int) -> torch.Tensor:
    return torch.zeros(shape, dtype=I32)


@triton.jit
def ids_kernel(out_ptr):
    x, y, z = tl.program_id(0), tl.program_id(1), tl.program_id(axis=2)
    nx, ny, nz = tl.num_programs(0), tl.num_programs(1), tl.num_programs(2)
    place = (z * ny + y) * nx + x
    tl.store(out_ptr + place, x + 100 * y + 10000 * z + 1000000 * (nx + ny + nz))


@pytest.mark.parametrize("grid", [(1,), (7,), (3, 5), (2, 3, 4), (1, 1, 9), (1000, 1, 1)])
def test_every_program_of_a_grid_runs_once_and_knows_its_place(grid):
    nx, ny, nz = (*grid, 1, 1)[:3]
    (out,) = launch(ids_kernel, grid, zeros(nz, ny, nx))
    z, y, x = np.meshgrid(np.arange(nz), np.arange(ny), np.arange(nx), indexing="ij")
    assert_same(
        out, torch.from_numpy((x + 100 * y + 10000 * z + 1000000 * (nx + ny + nz)).astype(np.int32))
    )


def test_a_grid_can_be_a_function_of_the_constants():
    out = zeros(4 * N)
    rows_kernel[lambda meta: (4 * N // meta["N"],)](out, N=N)
    assert_same(out, torch.arange(4 * N, dtype=I32) // N)


@triton.jit
def rows_kernel(out_ptr, N: tl.constexpr):
    tl.store(out_ptr + tl.program_id(0) * N + tl.arange(0, N), tl.program_id(0))


@triton.jit(do_not_specialize=["start", "stop", "step"])
def for_kernel(out_ptr, start, stop, step, N: tl.constexpr):
    i = tl.arange(0, N)
    count = 0
    total = tl.zeros([N], tl.int32)
    for k in range(start, stop, step):
        total += i * k
        count += 1
    tl.store(out_ptr + i, total)
    tl.store(out_ptr + N, count)


@prop
@given(start=st.integers(-20, 20), stop=st.integers(-20, 40), step=st.integers(1, 9))
def test_a_for_loop_takes_the_steps_of_a_range(start, stop, step):
    (out,) = launch(for_kernel, (1,), zeros(N + 1), start, stop, step, N=N)
    steps = range(start, stop, step)
    assert_same(out[:N], torch.arange(N, dtype=I32) * sum(steps))
    assert out[N].item() == len(steps)


@triton.jit
def backwards_kernel(out_ptr, n):
    place = 0
    for k in range(n, 0, -1):
        tl.store(out_ptr + place, k)
        place += 1
    for k in range(5, -1, -2):
        tl.store(out_ptr + place, k)
        place += 1


def test_a_for_loop_can_count_down():
    (out,) = launch(backwards_kernel, (1,), zeros(7), 4)
    assert out.tolist() == [4, 3, 2, 1, 5, 3, 1]


@triton.jit
def carried_kernel(x_ptr, y_ptr, out_ptr, steps, N: tl.constexpr):
    i = tl.arange(0, N)
    a = tl.load(x_ptr + i)
    b = tl.load(y_ptr + i)
    for _ in range(steps):
        a, b = b, a
    tl.store(out_ptr + 0 * N + i, a)
    tl.store(out_ptr + 1 * N + i, b)
    for _ in range(steps):
        a, b = b, a + b
    tl.store(out_ptr + 2 * N + i, a)
    tl.store(out_ptr + 3 * N + i, b)
    first = b
    for k in range(steps):
        first = a
        a = a * 3 + k
    tl.store(out_ptr + 4 * N + i, first)
    tl.store(out_ptr + 5 * N + i, a)


@pytest.mark.parametrize("steps", [0, 3, 6])
def test_values_carried_by_a_loop_are_exchanged_at_once(steps):
    x, y = normal(I32, N), normal(I32, N, seed=1)
    args = x, y, zeros(6, N), steps
    assert_same(
        launch(carried_kernel, (1,), *args, N=N)[2], interpret(carried_kernel, (1,), *args, N=N)[2]
    )


@triton.jit
def rotation_kernel(x_ptr, out_ptr, steps, M: tl.constexpr, N: tl.constexpr):
    place = tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :]
    a = tl.load(x_ptr + place)
    b = a + 1000
    c = a + 2000
    for _ in range(steps):
        a, b, c = b, c, a
    tl.store(out_ptr + place, a)
    tl.store(out_ptr + M * N + place, b)
    tl.store(out_ptr + 2 * M * N + place, c)


@pytest.mark.parametrize("steps", [2, 7])
def test_tiles_rotate_through_a_loop(steps):
    x = torch.arange(64 * 32, dtype=I32).reshape(64, 32)
    _, out = launch(rotation_kernel, (1,), x, zeros(3, 64, 32), steps, M=64, N=32)
    turned = [x + 1000 * ((k + steps) % 3) for k in range(3)]
    assert_same(out, torch.stack(turned))


@triton.jit
def transposing_loop_kernel(x_ptr, out_ptr, steps, N: tl.constexpr):
    i = tl.arange(0, N)
    place = i[:, None] * N + i[None, :]
    a = tl.load(x_ptr + place)
    for _ in range(steps):
        a = tl.trans(a) + i[None, :]
    tl.store(out_ptr + place, a)


@pytest.mark.parametrize("steps", [3, 4])
def test_a_tile_can_be_transposed_into_itself_by_a_loop(steps):
    x = torch.arange(N * N, dtype=I32).reshape(N, N)
    _, out = launch(transposing_loop_kernel, (1,), x, zeros(N, N), steps, N=N)
    expected = x
    for _ in range(steps):
        expected = expected.T + torch.arange(N, dtype=I32)
    assert_same(out, expected.contiguous())


@triton.jit
def nested_kernel(out_ptr, n, N: tl.constexpr):
    i = tl.arange(0, N)
    total = tl.zeros([N], tl.int32)
    for a in range(n):
        row = tl.zeros([N], tl.int32)
        for b in range(a, n):
            if (a + b) % 2 == 0:
                row += i * b
            else:
                row -= a
            for c in range(2):
                total += c
        total = total * 2 + row
    tl.store(out_ptr + i, total)


@pytest.mark.parametrize("n", [0, 5])
def test_nested_loops_with_branches(n):
    args = zeros(N), n
    assert_same(
        launch(nested_kernel, (1,), *args, N=N)[0], interpret(nested_kernel, (1,), *args, N=N)[0]
    )


@triton.jit
def while_kernel(out_ptr, limit, N: tl.constexpr):
    i = tl.arange(0, N)
    n = limit
    steps = 0
    total = tl.zeros([N], tl.int32)
    while n > 1:
        if n % 2 == 0:
            n = n // 2
        else:
            n = 3 * n + 1
        steps += 1
        total += i
    tl.store(out_ptr + i, total)
    tl.store(out_ptr + N, steps)


@pytest.mark.parametrize(("limit", "steps"), [(27, 111), (8, 3), (0, 0)])
def test_a_while_loop_runs_until_its_condition_fails(limit, steps):
    (out,) = launch(while_kernel, (1,), zeros(N + 1), limit, N=N)
    assert out[N].item() == steps
    assert_same(out[:N], torch.arange(N, dtype=I32) * steps)


@triton.jit
def while_reduce_kernel(x_ptr, out_ptr, N: tl.constexpr):
    i = tl.arange(0, N)
    x = tl.load(x_ptr + i)
    steps = 0
    while tl.max(x, axis=0) > 1.0:
        x = x * 0.5
        steps += 1
    tl.store(out_ptr, steps)


def test_a_while_loop_can_depend_on_a_reduction():
    x = torch.linspace(0, 1000, N)
    _, out = launch(while_reduce_kernel, (1,), x, zeros(1), N=N)
    assert out.item() == 10


@triton.jit
def if_kernel(x_ptr, out_ptr, n, N: tl.constexpr):
    i = tl.arange(0, N)
    x = tl.load(x_ptr + i)
    if n > 10:
        y = x * 2
        z = 1
    elif n > 5:
        y = x + 100
        z = 2
    else:
        y = -x
        z = 3
        tl.store(out_ptr + 2 * N, 77)
    tl.store(out_ptr + i, y + z)
    w = x if n % 2 == 0 else y
    tl.store(out_ptr + N + i, w)


@pytest.mark.parametrize("n", [3, 4, 6, 7, 11, 12])
def test_branches_give_tensors_and_have_effects(n):
    args = normal(I32, N), zeros(2 * N + 1), n
    assert_same(launch(if_kernel, (1,), *args, N=N)[1], interpret(if_kernel, (1,), *args, N=N)[1])


@triton.jit
def program_if_kernel(out_ptr, N: tl.constexpr):
    program = tl.program_id(0)
    i = tl.arange(0, N)
    value = tl.zeros([N], tl.int32)
    if program % 3 == 0:
        value = i
    elif program % 3 == 1:
        for k in range(program):
            value += k
    tl.store(out_ptr + program * N + i, value)


def test_programs_take_different_branches():
    args = (zeros(10, N),)
    assert_same(
        launch(program_if_kernel, (10,), *args, N=N)[0],
        interpret(program_if_kernel, (10,), *args, N=N)[0],
    )


@triton.jit
def early_return_kernel(out_ptr, limit, N: tl.constexpr):
    program = tl.program_id(0)
    if program >= limit:
        return
    tl.store(out_ptr + program * N + tl.arange(0, N), program + 1)


def test_a_program_can_return_early():
    (out,) = launch(early_return_kernel, (6,), zeros(6, N), 4, N=N)
    expected = torch.tensor([1, 2, 3, 4, 0, 0], dtype=I32)[:, None].expand(6, N)
    assert_same(out, expected.contiguous())


@triton.jit
def two_returns_kernel(out_ptr, a, b):
    if a > 3:
        tl.store(out_ptr, 1)
        return
    tl.store(out_ptr + 1, 2)
    if b > 3:
        tl.store(out_ptr + 2, 3)
        return
    tl.store(out_ptr + 3, 4)


@pytest.mark.parametrize(
    ("a", "b", "expected"), [(5, 5, [1, 0, 0, 0]), (2, 5, [0, 2, 3, 0]), (2, 2, [0, 2, 0, 4])]
)
def test_several_early_returns(a, b, expected):
    (out,) = launch(two_returns_kernel, (1,), zeros(4), a, b)
    assert out.tolist() == expected


@triton.jit
def static_kernel(out_ptr, N: tl.constexpr, STEPS: tl.constexpr):
    i = tl.arange(0, N)
    total = i
    for k in tl.static_range(STEPS):
        if k % 2 == 0:
            total = total * 2 + k
    for k in tl.static_range(1, 10, 4):
        total += k
    tl.store(out_ptr + i, total)


def test_static_range_is_unrolled_in_order():
    args = (zeros(N),)
    found, expected = (
        run(static_kernel, (1,), *args, N=N, STEPS=5)[0] for run in (launch, interpret)
    )
    assert_same(found, expected)


@triton.jit
def hinted_kernel(x_ptr, out_ptr, rows, N: tl.constexpr):
    i = tl.arange(0, N)
    a = tl.zeros([N], tl.int32)
    for k in tl.range(0, rows, num_stages=3):
        a += tl.load(x_ptr + k * N + i)
    for k in tl.range(0, rows, loop_unroll_factor=4):
        a += tl.load(x_ptr + k * N + i) * 2
    for k in tl.range(rows, warp_specialize=False, disallow_acc_multi_buffer=True):
        a += k
    for j in tl.range(0, 3, flatten=True):
        for k in tl.range(0, rows):
            a += j * k
    tl.store(out_ptr + i, a)


@pytest.mark.parametrize("rows", [0, 7])
def test_loop_hints_change_nothing(rows):
    x = normal(I32, 8, N)
    _, out = launch(hinted_kernel, (1,), x, zeros(N), rows, N=N)
    extra = sum(range(rows)) + 3 * sum(range(rows))
    assert_same(out, (x[:rows].sum(0) * 3 + extra).int())


@triton.jit
def scaled_sum(x, y, SCALE: tl.constexpr):
    return x * SCALE + y


@triton.jit
def extremes(x, y):
    return tl.minimum(x, y), tl.maximum(x, y)


@triton.jit
def sorted3(a, b, c):
    a, b = extremes(a, b)
    b, c = extremes(b, c)
    a, b = extremes(a, b)
    return a, b, c


@triton.jit
def helpers_kernel(x_ptr, out_ptr, N: tl.constexpr):
    i = tl.arange(0, N)
    a = tl.load(x_ptr + i)
    b = tl.load(x_ptr + N + i)
    c = tl.load(x_ptr + 2 * N + i)
    a, b, c = sorted3(a, b, c)
    tl.store(out_ptr + i, a)
    tl.store(out_ptr + N + i, b)
    tl.store(out_ptr + 2 * N + i, c)
    tl.store(out_ptr + 3 * N + i, scaled_sum(a, scaled_sum(b, c, 10), 100))


def test_helper_functions_return_tuples_and_call_each_other():
    x = normal(I32, 3, N)
    _, out = launch(helpers_kernel, (1,), x, zeros(4, N), N=N)
    a, b, c = x.sort(0).values
    assert_same(out, torch.stack([a, b, c, a * 100 + b * 10 + c]))


@triton.jit(noinline=True)
def collatz_steps(n):
    steps = 0
    while n > 1:
        if n % 2 == 0:
            n = n // 2
        else:
            n = 3 * n + 1
        steps += 1
    return steps


@triton.jit(noinline=True)
def clipped(x, limit):
    if x > limit:
        return limit
    if x < 0:
        return 0
    return x * 2


@triton.jit(noinline=True)
def both(x, y):
    return x + y, x * y


@triton.jit(noinline=True)
def put(out_ptr, place, value):
    tl.store(out_ptr + place, value)


@triton.jit
def calls_kernel(out_ptr, n, limit):
    put(out_ptr, 0, collatz_steps(n))
    put(out_ptr, 1, clipped(n, limit))
    put(out_ptr, 2, clipped(n - 100, limit))
    put(out_ptr, 3, clipped(n - 20, limit))
    total, product = both(n, limit)
    put(out_ptr, 4, total)
    put(out_ptr, 5, product)


def test_functions_that_are_not_inlined():
    (out,) = launch(calls_kernel, (1,), zeros(6), 27, 18)
    assert out.tolist() == [111, 18, 0, 14, 45, 27 * 18]


@triton.jit(noinline=True)
def row_sum(x_ptr, cols, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    return tl.sum(tl.load(x_ptr + i, mask=i < cols, other=0), axis=0)


@triton.jit
def row_sums_kernel(x_ptr, out_ptr, rows, cols, BLOCK: tl.constexpr):
    for row in range(rows):
        tl.store(out_ptr + row, row_sum(x_ptr + row * cols, cols, BLOCK))


def test_a_function_that_is_not_inlined_may_use_tensors_inside():
    x = normal(I32, 5, 13)
    _, out = launch(row_sums_kernel, (1,), x, zeros(5), 5, 13, BLOCK=16)
    assert_same(out, x.sum(1).int())


@triton.jit
def online_kernel(x_ptr, out_ptr, cols, N: tl.constexpr):
    row = tl.program_id(0)
    most = -float("inf")
    total = 0.0
    for start in range(0, cols, N):
        i = start + tl.arange(0, N)
        x = tl.load(x_ptr + row * cols + i, mask=i < cols, other=-float("inf"))
        new = tl.maximum(most, tl.max(x, axis=0))
        total = total * tl.exp(most - new) + tl.sum(tl.exp(x - new), axis=0)
        most = new
    tl.store(out_ptr + row, most + tl.log(total))


def test_scalars_carried_by_a_loop_of_reductions():
    x = normal(torch.float32, 4, 100) * 5
    _, out = launch(online_kernel, (4,), x, torch.zeros(4), 100, N=N)
    torch.testing.assert_close(out, x.logsumexp(1), rtol=1e-5, atol=1e-5)


@triton.jit
def constant_branch_kernel(x_ptr, out_ptr, bias_ptr, N: tl.constexpr, ADD: tl.constexpr):
    i = tl.arange(0, N)
    x = tl.load(x_ptr + i)
    if bias_ptr is not None:
        x += tl.load(bias_ptr + i)
    if ADD:
        x += 1
    tl.store(out_ptr + i, x)


@pytest.mark.parametrize("add", [False, True])
@pytest.mark.parametrize("biased", [False, True])
def test_constant_conditions_choose_at_compile_time(add, biased):
    x, bias = normal(I32, N), normal(I32, N, seed=1)
    out = launch(constant_branch_kernel, (1,), x, zeros(N), bias if biased else None, N=N, ADD=add)[
        1
    ]
    assert_same(out, x + (bias if biased else 0) + int(add))


@triton.jit
def short_circuit_kernel(x_ptr, out_ptr, n):
    if n > 0 and tl.load(x_ptr) > 5:
        tl.store(out_ptr, 1)
    if n > 100 or tl.load(x_ptr + 1) > 5:
        tl.store(out_ptr + 1, 1)
    if not (n > 0):
        tl.store(out_ptr + 2, 1)


@pytest.mark.parametrize("n", [-3, 3, 300])
def test_conditions_combine(n):
    args = torch.tensor([9, 2], dtype=I32), zeros(3), n
    found, expected = (run(short_circuit_kernel, (1,), *args)[1] for run in (launch, interpret))
    assert_same(found, expected)
