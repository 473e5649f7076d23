"""`tritune.testing` finds what is wrong with a kernel, and says what."""

import pytest
import torch
import triton
import triton.language as tl

from tritune.testing import (
    FAULTS,
    assert_agrees,
    assert_contained,
    assert_matches_interpreter,
    assert_same_bits,
    assert_within_rule,
    faulty,
    interpret,
    launch,
)
from tritune.testing.interpreter import InterpreterError


@triton.jit
def scale(x, out, n, factor, MISTAKE: tl.constexpr = 0, BLOCK: tl.constexpr = 64):
    """`factor * x`; with a mistake, it reads or writes past the end."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    values = tl.load(x + at, at < n + (MISTAKE == 1), other=0.0)
    if MISTAKE == 1:
        values = tl.where(at % BLOCK == 0, tl.sum(values), values)
    tl.store(out + at, factor * values, at < n + 3 * (MISTAKE == 2))


autotuned = triton.autotune([triton.Config({"BLOCK": 32})], key=["n"])(scale)


def scaled(mistake=0):
    def call(x):
        out = torch.empty(x.shape)
        scale[(triton.cdiv(x.numel(), 64),)](x, out, x.numel(), 2.0, MISTAKE=mistake)
        return out

    return call


def test_a_kernel_that_keeps_to_its_memory_is_contained():
    x = torch.randn(100)
    (out,) = assert_contained(scaled(), x)
    assert_same_bits(out, 2 * x)


def test_a_read_past_the_end_is_found():
    with pytest.raises(AssertionError, match="not the same bits"):
        assert_contained(scaled(mistake=1), torch.randn(100))


def test_a_write_past_the_end_is_found():
    with pytest.raises(AssertionError, match="12 bytes behind a float32 tensor"):
        assert_contained(scaled(mistake=2), torch.randn(100))


def test_the_rule_is_as_strict_as_the_dtype():
    x = torch.randn(100).half()
    exact = 2 * x.float()
    assert_within_rule(2 * x, exact, 2 * x)
    with pytest.raises(AssertionError, match="100 elements are off"):
        assert_within_rule(2 * x + 1, exact, 2 * x)
    with pytest.raises(AssertionError, match="elements are off"):
        assert_agrees(2 * x + 1, 2 * x)


@pytest.mark.parametrize("kernel", [scale, autotuned], ids=["jit", "autotuned"])
def test_the_interpreter_is_asked_in_another_process(kernel):
    x, out = torch.randn(50), torch.zeros(50)
    results = interpret(kernel, (1,), x, out, 50, 3.0, BLOCK=64)
    assert_same_bits(results[1], 3 * x)
    assert out.sum() == 0
    assert_matches_interpreter(scale, (1,), x, out, 50, 3.0)


def test_what_the_interpreter_cannot_run_is_an_error_with_its_trace():
    with pytest.raises(InterpreterError, match=r"scale:\n.*Traceback"):
        interpret(scale, (1,), "no tensor", "neither", 50, 3.0)


def test_a_launch_leaves_its_arguments_alone():
    x, out = torch.randn(50), torch.zeros(50)
    copies = launch(scale, (1,), x, out, 50, 3.0)
    assert_same_bits(copies[1], 3 * x)
    assert out.sum() == 0


def test_a_fault_that_does_not_exist_names_those_that_do():
    with pytest.raises(ValueError, match="allowed: segfaults, aborts, hangs"):
        faulty(triton.Config({}), "explodes")
    assert faulty(triton.Config({"BLOCK": 32}, num_warps=2), "raises").num_warps == 2
    assert set(FAULTS) >= {"segfaults", "wrong result"}
