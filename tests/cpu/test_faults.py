"""What cannot be done is a clear error, and the next launch works."""

import pytest
import torch
import triton
import triton.language as tl

from tests.cpu.values import assert_same
from tritune.errors import CompileError, DeviceAssertionError, LaunchError, TrituneError

N = 16


@triton.jit
def assembly_kernel(x_ptr, out_ptr, N: tl.constexpr):
    i = tl.arange(0, N)
    x = tl.load(x_ptr + i)
    y = tl.inline_asm_elementwise("mov $0, $1;", "=r,r", [x], dtype=tl.int32, is_pure=True, pack=1)
    tl.store(out_ptr + i, y)


def compile_failure() -> CompileError:
    x = torch.zeros(N, dtype=torch.int32)
    with pytest.raises(CompileError) as failure:
        assembly_kernel[(1,)](x, x, N=N)
    return failure.value


def test_an_unsupported_operation_is_named():
    assert "elementwise_inline_asm" in str(compile_failure())


def test_an_unsupported_operation_is_found_by_file_and_line():
    line = assembly_kernel.fn.__code__.co_firstlineno + 4
    assert f"test_faults.py:{line}" in str(compile_failure())


@triton.jit
def double_kernel(x_ptr, out_ptr, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out_ptr + i, tl.load(x_ptr + i) * 2)


def test_a_launch_after_a_compile_error_works():
    compile_failure()
    x = torch.arange(N, dtype=torch.int32)
    out = torch.zeros_like(x)
    double_kernel[(1,)](x, out, N=N)
    assert_same(out, x * 2)


def test_a_tensor_that_is_not_on_the_cpu_is_refused_before_anything_runs():
    out = torch.full((N,), -1.0)
    with pytest.raises(LaunchError, match="meta"):
        double_kernel[(1,)](torch.zeros(N, device="meta"), out, N=N)
    assert (out == -1).all()


@triton.jit
def assert_kernel(x_ptr):
    tl.device_assert(tl.load(x_ptr) == 0, "not zero")


def test_a_failed_assert_in_a_kernel_is_raised_after_the_launch():
    with pytest.raises(DeviceAssertionError, match="not zero"):
        assert_kernel[(8,)](torch.ones(1), debug=True)
    assert_kernel[(8,)](torch.zeros(1), debug=True)


@pytest.mark.parametrize("error", [CompileError, DeviceAssertionError, LaunchError])
def test_every_fault_can_be_caught_as_one(error):
    assert issubclass(error, TrituneError)
