"""Printing, assertions, and hints that must not change a result."""

import subprocess
import sys

import pytest
import torch
import triton
import triton.language as tl
from triton.compiler.errors import CompilationError

from tests.cpu.programs import ROOT
from tests.cpu.values import assert_same, normal
from tritune.errors import DeviceAssertionError
from tritune.testing import launch

N = 16


@triton.jit
def print_kernel(x_ptr, n, N: tl.constexpr):
    i = tl.arange(0, N)
    x = tl.load(x_ptr + i)
    tl.device_print("values ", x)
    tl.device_print("scalar", n, n * 2.5)
    tl.device_print("program", tl.program_id(0))
    tl.device_print("only words")
    rows, columns = tl.arange(0, 2)[:, None], tl.arange(0, 16)[None, :]
    tl.device_print("table", rows * 100 + columns)


PRINTING = """
import torch
from tests.cpu.language.test_debug import print_kernel
print_kernel[(2,)](torch.tensor([11, 22, 33, 44], dtype=torch.int32), 7, N=4)
"""


@pytest.fixture(scope="module")
def printed() -> str:
    command = [sys.executable, "-c", PRINTING]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
    return result.stdout


@pytest.mark.parametrize("value", ["11", "22", "33", "44", "7", "17.5"])
def test_device_print_shows_every_value(printed, value):
    assert value in printed


@pytest.mark.parametrize("prefix", ["values", "scalar", "program", "only words"])
def test_device_print_shows_its_prefix(printed, prefix):
    assert prefix in printed


@pytest.mark.parametrize(
    "line",
    [
        "pid (0, 0, 0) idx (0) values: 11",
        "pid (1, 0, 0) idx () program: 1",
        "pid (0, 0, 0) idx (0,  3) table: 3",
        "pid (1, 0, 0) idx (1, 15) table: 115",
    ],
)
def test_device_print_pads_an_index_to_the_width_of_the_last_one(printed, line):
    assert line in printed.splitlines()


@triton.jit
def assert_kernel(x_ptr, out_ptr, limit, N: tl.constexpr):
    i = tl.arange(0, N)
    x = tl.load(x_ptr + i)
    tl.device_assert(x < limit, "x is beyond the limit")
    tl.store(out_ptr + i, x)


def test_a_failed_device_assert_is_a_python_exception_with_the_message():
    x = torch.arange(N, dtype=torch.int32)
    with pytest.raises(DeviceAssertionError, match="x is beyond the limit"):
        launch(assert_kernel, (1,), x, torch.zeros_like(x), 10, N=N, debug=True)


def test_a_failed_device_assert_names_the_file_and_line():
    x = torch.arange(N, dtype=torch.int32)
    with pytest.raises(DeviceAssertionError) as failure:
        launch(assert_kernel, (1,), x, torch.zeros_like(x), 10, N=N, debug=True)
    line = assert_kernel.fn.__code__.co_firstlineno + 4
    assert f"test_debug.py:{line}" in str(failure.value)


def test_the_launch_after_a_failed_assert_works():
    x = torch.arange(N, dtype=torch.int32)
    with pytest.raises(DeviceAssertionError):
        launch(assert_kernel, (4,), x, torch.zeros_like(x), 10, N=N, debug=True)
    _, out = launch(assert_kernel, (4,), x, torch.zeros_like(x), 100, N=N, debug=True)
    assert_same(out, x)


def test_a_device_assert_holds_in_one_lane_of_one_program_only():
    with pytest.raises(DeviceAssertionError, match=r"\b37\b"):
        launch(program_assert_kernel, (64,), torch.zeros(64, dtype=torch.int32), debug=True)


@triton.jit
def program_assert_kernel(out_ptr):
    program = tl.program_id(0)
    tl.device_assert(program != 37, "not this one")
    tl.store(out_ptr + program, 1)


def test_a_masked_device_assert_looks_at_the_lanes_that_are_on():
    x = torch.arange(N, dtype=torch.int32)
    launch(masked_assert_kernel, (1,), x, 5, N=N, debug=True)
    with pytest.raises(DeviceAssertionError):
        launch(masked_assert_kernel, (1,), x, 12, N=N, debug=True)


@triton.jit
def masked_assert_kernel(x_ptr, count, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.device_assert(tl.load(x_ptr + i) < 7, "too large", mask=i < count)


@triton.jit
def add_below_hundred(a, b):
    tl.device_assert(a + b < 100, "a hundred or more")
    return a + b


@triton.jit
def combine_assert_kernel(x_ptr, out_ptr, N: tl.constexpr, AXIS: tl.constexpr, SCAN: tl.constexpr):
    i = tl.arange(0, N)[:, None] * N + tl.arange(0, N)[None, :]
    x = tl.load(x_ptr + i)
    if SCAN:
        tl.store(out_ptr + i, tl.associative_scan(x, AXIS, add_below_hundred))
    else:
        tl.store(out_ptr + tl.arange(0, N), tl.reduce(x, AXIS, add_below_hundred))


@pytest.mark.parametrize("scan", [False, True], ids=["reduction", "scan"])
@pytest.mark.parametrize("axis", [0, 1])
def test_a_device_assert_in_a_combine_function_looks_at_every_call(axis, scan):
    x = torch.ones(N, N, dtype=torch.int32)
    out = torch.zeros_like(x)
    arguments = {"N": N, "AXIS": axis, "SCAN": scan, "debug": True}
    _, found = launch(combine_assert_kernel, (1,), x, out, **arguments)
    assert_same(found if scan else found[0], x.cumsum(axis).int() if scan else x.sum(axis).int())
    x[5, 7] = 90
    with pytest.raises(DeviceAssertionError, match="a hundred or more") as failure:
        launch(combine_assert_kernel, (1,), x, out, **arguments)
    line = add_below_hundred.fn.__code__.co_firstlineno + 2
    assert f"test_debug.py:{line}" in str(failure.value)


@triton.jit
def sum_kernel(x_ptr, out_ptr, N: tl.constexpr):
    tl.store(out_ptr, tl.sum(tl.load(x_ptr + tl.arange(0, N))))


def test_debug_finds_a_sum_that_overflows():
    x, out = torch.full((N,), 1 << 26, dtype=torch.int32), torch.zeros(1, dtype=torch.int32)
    _, found = launch(sum_kernel, (1,), x, out, N=N, debug=True)
    assert found.item() == N << 26
    with pytest.raises(DeviceAssertionError, match="overflow"):
        launch(sum_kernel, (1,), x * 2, out, N=N, debug=True)


def test_device_assert_is_off_without_debug():
    x = torch.arange(N, dtype=torch.int32)
    _, out = launch(assert_kernel, (1,), x, torch.zeros_like(x), 10, N=N)
    assert_same(out, x)


@triton.jit
def static_assert_kernel(out_ptr, N: tl.constexpr):
    tl.static_assert(N % 2 == 0, "N must be even")
    tl.static_print("compiling for", N)
    tl.store(out_ptr + tl.arange(0, N), 1)


def test_static_assert_holds_or_ends_compilation():
    (out,) = launch(static_assert_kernel, (1,), torch.zeros(4, dtype=torch.int32), N=4)
    assert out.tolist() == [1, 1, 1, 1]
    with pytest.raises(CompilationError, match="N must be even"):
        launch(static_assert_kernel, (1,), torch.zeros(4, dtype=torch.int32), N=1)


@triton.jit
def hints_kernel(x_ptr, out_ptr, n, stride, N: tl.constexpr):
    tl.assume(n > 0)
    tl.assume(stride % 4 == 0)
    i = tl.arange(0, N)
    i = tl.max_contiguous(tl.multiple_of(i, N), N)
    rows = tl.max_constancy(i // 4, 4)
    x = tl.load(x_ptr + rows * stride + i % 4, mask=i < n)
    tl.debug_barrier()
    tl.store(out_ptr + i, x, mask=i < n)


def test_hints_change_nothing():
    x = normal(torch.float32, 4, 8)
    _, out = launch(hints_kernel, (1,), x, torch.zeros(N), 13, 8, N=N)
    expected = x[:, :4].flatten().clone()
    expected[13:] = 0
    assert_same(out, expected)
