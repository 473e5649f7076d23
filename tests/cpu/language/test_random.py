"""Random numbers: Philox, bit for bit as Triton's interpreter computes it."""

import pytest
import torch
import triton
import triton.language as tl
from hypothesis import given
from hypothesis import strategies as st

from tests.cpu.values import assert_rows, assert_same, prop
from tritune.testing import interpret, launch

N = 64


@triton.jit
def integers_kernel(out_ptr, seed, N: tl.constexpr):
    i = tl.arange(0, N)
    a, b, c, d = tl.randint4x(seed, i)
    tl.store(out_ptr + 0 * N + i, tl.randint(seed, i))
    tl.store(out_ptr + 1 * N + i, a)
    tl.store(out_ptr + 2 * N + i, b)
    tl.store(out_ptr + 3 * N + i, c)
    tl.store(out_ptr + 4 * N + i, d)


@pytest.mark.parametrize("seed", [0, 42, 2**31 - 1, -5, 2**40 + 7])
def test_randint_and_randint4x_are_the_same_bits_as_the_interpreter(seed):
    out = torch.zeros(5, N, dtype=torch.int32)
    (found,), (expected,) = (
        run(integers_kernel, (1,), out, seed, N=N) for run in (launch, interpret)
    )
    assert_rows(
        ("randint", "4x first", "4x second", "4x third", "4x fourth"), found, list(expected)
    )


@triton.jit
def uniform_kernel(out_ptr, seed, offset, N: tl.constexpr):
    i = tl.arange(0, N)
    a, b, c, d = tl.rand4x(seed, offset + i)
    tl.store(out_ptr + 0 * N + i, tl.rand(seed, offset + i))
    tl.store(out_ptr + 1 * N + i, a)
    tl.store(out_ptr + 2 * N + i, b)
    tl.store(out_ptr + 3 * N + i, c)
    tl.store(out_ptr + 4 * N + i, d)


@prop
@given(seed=st.integers(2, 2**31 - 1), offset=st.integers(0, 2**30))
def test_rand_is_the_same_bits_as_the_interpreter(seed, offset):
    out = torch.zeros(5, N)
    (found,), (expected,) = (
        run(uniform_kernel, (1,), out, seed, offset, N=N) for run in (launch, interpret)
    )
    assert_rows(("rand", "4x first", "4x second", "4x third", "4x fourth"), found, list(expected))


def test_rand_lies_between_zero_and_one_and_fills_the_range():
    (out,) = launch(uniform_kernel, (1,), torch.zeros(5, 4096), 3, 0, N=4096)
    assert ((out >= 0) & (out < 1)).all()
    assert abs(out[0].mean().item() - 0.5) < 0.03


@triton.jit
def normal_kernel(out_ptr, seed, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out_ptr + i, tl.randn(seed, i))


@pytest.mark.parametrize("seed", [0, 1234])
def test_randn_is_that_of_the_interpreter_up_to_the_rounding_of_its_functions(seed):
    (found,), (expected,) = (
        run(normal_kernel, (1,), torch.zeros(N), seed, N=N) for run in (launch, interpret)
    )
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


@triton.jit
def philox_kernel(out_ptr, seed, c1, N: tl.constexpr):
    i = tl.arange(0, N)
    a, b, c, d = tl.philox(seed, i, c1, i * 3, 7, n_rounds=6)
    tl.store(out_ptr + 0 * N + i, a.to(tl.int32, bitcast=True))
    tl.store(out_ptr + 1 * N + i, b.to(tl.int32, bitcast=True))
    tl.store(out_ptr + 2 * N + i, c.to(tl.int32, bitcast=True))
    tl.store(out_ptr + 3 * N + i, d.to(tl.int32, bitcast=True))


def test_philox_with_all_counters_and_other_rounds():
    out = torch.zeros(4, N, dtype=torch.int32)
    (found,), (expected,) = (
        run(philox_kernel, (1,), out, 99, 5, N=N) for run in (launch, interpret)
    )
    assert_same(found, expected)


@triton.jit
def sequence_kernel(out_ptr, seed, N: tl.constexpr):
    i = tl.program_id(0) * N + tl.arange(0, N)
    tl.store(out_ptr + i, tl.rand(seed, i.to(tl.int64)))


def test_the_numbers_do_not_depend_on_how_programs_divide_them():
    whole, parts = torch.zeros(256), torch.zeros(256)
    (whole,) = launch(sequence_kernel, (1,), whole, 7, N=256)
    (parts,) = launch(sequence_kernel, (16,), parts, 7, N=16)
    assert_same(parts, whole)
