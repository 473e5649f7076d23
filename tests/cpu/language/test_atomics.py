"""Atomic updates: every operation and dtype that Triton allows, alone and contended."""

import numpy as np
import pytest
import torch
import triton
import triton.language as tl

from tests.cpu.values import assert_same, difference, dtype_of, edge_pairs, normal
from tritune.testing import launch

N = 64
WHOLE = ["int32", "uint32", "int64", "uint64"]
REAL = ["float16", "bfloat16", "float32", "float64"]


@triton.jit
def update_kernel(x_ptr, y_ptr, old_ptr, N: tl.constexpr, OP: tl.constexpr):
    i = tl.arange(0, N)
    y = tl.load(y_ptr + i)
    if OP == "add":
        old = tl.atomic_add(x_ptr + i, y)
    elif OP == "max":
        old = tl.atomic_max(x_ptr + i, y)
    elif OP == "min":
        old = tl.atomic_min(x_ptr + i, y)
    elif OP == "and":
        old = tl.atomic_and(x_ptr + i, y)
    elif OP == "or":
        old = tl.atomic_or(x_ptr + i, y)
    elif OP == "xor":
        old = tl.atomic_xor(x_ptr + i, y)
    else:
        old = tl.atomic_xchg(x_ptr + i, y)
    tl.store(old_ptr + i, old)


def updated(op: str, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    if op == "xchg":
        return y
    if x.dtype.is_floating_point:
        return {"add": lambda: x + y, "max": lambda: x.maximum(y), "min": lambda: x.minimum(y)}[
            op
        ]()
    function = {
        "add": np.add, "max": np.maximum, "min": np.minimum,
        "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor,
    }[op]  # fmt: skip
    with np.errstate(all="ignore"):
        return torch.from_numpy(function(x.numpy(), y.numpy()))


#: Triton 3.7 gives the result of a float `atomic_min` the wrong type in its front end.
FLOAT_MIN_RETURNS = tuple(int(part) for part in triton.__version__.split(".")[:2]) >= (3, 9)


def check_update(op: str, x: torch.Tensor, y: torch.Tensor, *, returns: bool = True) -> None:
    changed, _, old = launch(update_kernel, (1,), x, y, torch.zeros_like(x), N=len(x), OP=op)
    assert not (problem := difference(changed, updated(op, x, y))), f"memory: {problem}"
    if not returns:
        return
    assert not (problem := difference(old, x)), f"returned: {problem}"


@pytest.mark.parametrize("op", ["add", "max", "min", "and", "or", "xor", "xchg"])
@pytest.mark.parametrize("dtype", WHOLE)
def test_integer_updates_and_the_values_that_they_return(dtype, op):
    check_update(op, *edge_pairs(dtype_of(dtype), 256))


@pytest.mark.parametrize("dtype", REAL)
def test_float_addition_and_the_values_that_it_returns(dtype):
    check_update("add", normal(dtype_of(dtype), N), normal(dtype_of(dtype), N, seed=1))


@pytest.mark.parametrize("op", ["max", "min", "xchg"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_float_max_min_and_exchange(dtype, op):
    returns = op != "min" or FLOAT_MIN_RETURNS
    check_update(
        op, normal(dtype_of(dtype), N), normal(dtype_of(dtype), N, seed=1), returns=returns
    )


@triton.jit
def masked_kernel(x_ptr, old_ptr, count, N: tl.constexpr):
    i = tl.arange(0, N)
    old = tl.atomic_add(x_ptr + i, 5, mask=i < count)
    tl.store(old_ptr + i, old, mask=i < count)


def test_a_mask_turns_lanes_off():
    x = torch.arange(N, dtype=torch.int32)
    changed, old = launch(masked_kernel, (1,), x, torch.full_like(x, -1), 37, N=N)
    on = torch.arange(N) < 37
    assert_same(changed, torch.where(on, x + 5, x))
    assert_same(old, torch.where(on, x, torch.full_like(x, -1)))


@triton.jit
def scalar_kernel(x_ptr, old_ptr, turn):
    old = tl.atomic_add(x_ptr, 2)
    tl.atomic_max(x_ptr + 1, 50)
    tl.atomic_xchg(x_ptr + 2, 7, mask=turn > 0)
    tl.store(old_ptr, old)


@pytest.mark.parametrize("turn", [0, 5])
def test_scalar_updates(turn):
    x = torch.tensor([10, 20, 30], dtype=torch.int32)
    changed, old = launch(scalar_kernel, (1,), x, torch.zeros(1, dtype=torch.int32), turn)
    assert changed.tolist() == [12, 50, 7 if turn else 30]
    assert old.item() == 10


@triton.jit
def swap_kernel(x_ptr, expected_ptr, y_ptr, old_ptr, N: tl.constexpr):
    i = tl.arange(0, N)
    old = tl.atomic_cas(x_ptr + i, tl.load(expected_ptr + i), tl.load(y_ptr + i))
    tl.store(old_ptr + i, old)


@pytest.mark.parametrize("dtype", [*WHOLE, "float32", "float64"])
def test_compare_and_swap_changes_only_what_was_expected(dtype):
    x = torch.from_numpy(np.arange(1, N + 1).astype(dtype))
    expected = torch.from_numpy(np.where(np.arange(N) % 2 == 0, x.numpy(), 0).astype(dtype))
    y = torch.from_numpy(np.arange(101, N + 101).astype(dtype))
    changed, _, _, old = launch(swap_kernel, (1,), x, expected, y, torch.zeros_like(x), N=N)
    assert_same(changed, torch.from_numpy(np.where(np.arange(N) % 2 == 0, y.numpy(), x.numpy())))
    assert_same(old, x)


@triton.jit
def collision_kernel(index_ptr, out_ptr, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.atomic_add(out_ptr + tl.load(index_ptr + i), 1)


def test_lanes_of_one_program_may_collide():
    index = torch.from_numpy(np.random.default_rng(0).integers(0, 7, 128).astype(np.int32))
    _, out = launch(collision_kernel, (1,), index, torch.zeros(7, dtype=torch.int32), N=128)
    assert_same(out, torch.bincount(index, minlength=7).int())


@triton.jit
def contended_kernel(count_ptr, sum_ptr, most_ptr, bits_ptr, tickets_ptr):
    program = tl.program_id(0)
    ticket = tl.atomic_add(count_ptr, 1)
    tl.atomic_add(sum_ptr, 0.5)
    tl.atomic_max(most_ptr, program)
    tl.atomic_or(bits_ptr + program // 32, (1 << (program % 32)).to(tl.int32))
    tl.store(tickets_ptr + ticket, program)


def test_many_programs_on_one_address_lose_nothing():
    programs = 1024
    count, most = torch.zeros(1, dtype=torch.int32), torch.full((1,), -1, dtype=torch.int32)
    total, bits = torch.zeros(1), torch.zeros(programs // 32, dtype=torch.int32)
    tickets = torch.full((programs,), -1, dtype=torch.int32)
    count, total, most, bits, tickets = launch(
        contended_kernel, (programs,), count, total, most, bits, tickets
    )
    assert count.item() == programs
    assert total.item() == programs / 2
    assert most.item() == programs - 1
    assert (bits == -1).all()
    assert_same(tickets.sort().values, torch.arange(programs, dtype=torch.int32))


@triton.jit
def contended_half_kernel(x_ptr):
    tl.atomic_add(x_ptr + tl.arange(0, 4), tl.full([4], 1.0, x_ptr.dtype.element_ty))


@pytest.mark.parametrize("dtype", REAL)
def test_contended_float_addition_in_every_dtype(dtype):
    (x,) = launch(contended_half_kernel, (256,), torch.zeros(4, dtype=dtype_of(dtype)))
    assert x.tolist() == [256.0] * 4


@triton.jit
def lock_kernel(lock_ptr, value_ptr, N: tl.constexpr):
    i = tl.arange(0, N)
    while tl.atomic_cas(lock_ptr, 0, 1) == 1:
        pass
    tl.store(value_ptr + i, tl.load(value_ptr + i) * 3 + 1)
    tl.debug_barrier()
    tl.atomic_xchg(lock_ptr, 0)


def test_a_lock_made_of_compare_and_swap_excludes_other_programs():
    lock, value = launch(
        lock_kernel,
        (100,),
        torch.zeros(1, dtype=torch.int32),
        torch.zeros(16, dtype=torch.int32),
        N=16,
    )
    expected = np.int32(0)
    with np.errstate(all="ignore"):
        for _ in range(100):
            expected = np.int32(expected * np.int32(3) + np.int32(1))
    assert lock.item() == 0
    assert value.tolist() == [int(expected)] * 16


@triton.jit
def orders_kernel(x_ptr):
    tl.atomic_add(x_ptr, 1, sem="relaxed")
    tl.atomic_add(x_ptr, 1, sem="acquire", scope="cta")
    tl.atomic_add(x_ptr, 1, sem="release", scope="sys")
    tl.atomic_add(x_ptr, 1, sem="acq_rel", scope="gpu")


def test_every_memory_order_and_scope_is_accepted():
    (x,) = launch(orders_kernel, (10,), torch.zeros(1, dtype=torch.int32))
    assert x.item() == 40


@triton.jit
def matrix_kernel(x_ptr, rows, cols, M: tl.constexpr, N: tl.constexpr):
    m = tl.arange(0, M)[:, None]
    n = tl.arange(0, N)[None, :]
    tl.atomic_add(x_ptr + m * cols + n, (m * 100 + n).to(tl.float32), mask=(m < rows) & (n < cols))


def test_a_masked_matrix_of_additions():
    (x,) = launch(matrix_kernel, (8,), torch.zeros(5, 13), 5, 13, M=8, N=16)
    expected = torch.arange(5)[:, None] * 100 + torch.arange(13)[None, :]
    assert_same(x, expected.float() * 8)
