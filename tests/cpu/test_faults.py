"""What cannot be done is a clear error, and the next launch works."""

import pickle
from collections.abc import Callable

import pytest
import torch
import triton
import triton.language as tl

from tests.cpu.values import assert_same
from tritune.cpu import codegen, lower, ttir
from tritune.cpu.lower.emit import control, effects
from tritune.cpu.ttir import operations
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
def histogram_kernel(x_ptr, out_ptr, SALT: tl.constexpr, N: tl.constexpr):
    """The number SALT makes a kernel that no test has compiled before."""
    x = tl.load(x_ptr + tl.arange(0, N)) % N + SALT
    counts = tl.histogram(x, N)
    tl.store(out_ptr + tl.arange(0, N), counts)


def broken(error: Exception) -> Callable[..., None]:
    def breaks(*_: object, **__: object) -> None:
        raise error

    return breaks


def histogram_failure(salt: int) -> CompileError:
    x = torch.zeros(N, dtype=torch.int32)
    with pytest.raises(CompileError) as failure:
        histogram_kernel[(1,)](x, torch.zeros_like(x), salt, N)
    return failure.value


ERRORS = [ValueError("no"), KeyError("no"), AssertionError("no"), RecursionError("no"), TypeError()]
HISTOGRAM_LINE = histogram_kernel.fn.__code__.co_firstlineno + 4


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("stage", ["reading", "lowering"])
def test_a_fault_of_the_backend_names_the_operation_and_the_line(monkeypatch, stage, error):
    if stage == "reading":
        monkeypatch.setitem(operations.READERS, "tt.histogram", broken(error))
    else:
        monkeypatch.setattr(effects, "emit_histogram", broken(error))
    failure = histogram_failure(1 + ERRORS.index(error))
    assert failure.operation == "tt.histogram"
    assert failure.loc.endswith(f"test_faults.py:{HISTOGRAM_LINE}")
    assert failure.__cause__ is error
    assert "fault of the CPU backend" in str(failure)
    assert type(error).__name__ in str(failure)


PARTS = {
    "Triton's passes": (ttir, "optimise"),
    "the change of the IR": (lower, "rewrite"),
    "the analysis of a function": (lower, "Usage"),
    "the plan of its products": (control, "plan_dots"),
    "the entry point": (lower, "emit_launch"),
    "LLVM's optimiser": (codegen, "optimise"),
    "code generation": (codegen, "assembly"),
    "assembling": (codegen, "object_code"),
}


@pytest.mark.parametrize("part", PARTS)
def test_a_fault_that_no_operation_causes_names_the_kernel(monkeypatch, part):
    error = IndexError("out of range")
    module, name = PARTS[part]
    monkeypatch.setattr(module, name, broken(error))
    failure = histogram_failure(100 + list(PARTS).index(part))
    assert failure.operation == "tt.func @histogram_kernel"
    assert failure.loc.endswith(f"test_faults.py:{histogram_kernel.fn.__code__.co_firstlineno + 1}")
    assert failure.__cause__ is error
    assert "fault of the CPU backend" in str(failure)


def test_code_that_llvm_refuses_names_the_kernel(monkeypatch):
    monkeypatch.setattr(lower, "lower", lambda *_: "define void @f() { ret i32 0 }")
    failure = histogram_failure(200)
    assert failure.operation == "tt.func @histogram_kernel"
    assert isinstance(failure.__cause__, RuntimeError)
    assert "LLVM IR parsing error" in str(failure)


def test_an_error_from_the_compiler_survives_pickling(monkeypatch):
    monkeypatch.setattr(effects, "emit_histogram", broken(ValueError("no")))
    failure = histogram_failure(201)
    assert str(pickle.loads(pickle.dumps(failure))) == str(failure)


CONFIGS = [triton.Config({"HISTOGRAM": flag}) for flag in (True, False)]


@triton.autotune(CONFIGS, key=[])
@triton.jit
def tuned_kernel(x_ptr, out_ptr, ASSEMBLY: tl.constexpr, N: tl.constexpr, HISTOGRAM: tl.constexpr):
    i = tl.arange(0, N)
    x = tl.load(x_ptr + i)
    if HISTOGRAM:
        if ASSEMBLY:
            x = tl.inline_asm_elementwise(
                "mov $0, $1;", "=r,r", [x], dtype=tl.int32, is_pure=True, pack=1
            )
        x = tl.histogram(x, N)
    tl.store(out_ptr + i, x + 1)


@pytest.mark.parametrize("assembly", [False, True], ids=["a fault", "an unsupported operation"])
def test_autotune_leaves_out_a_config_that_cannot_be_compiled(monkeypatch, assembly):
    monkeypatch.setattr(effects, "emit_histogram", broken(ValueError("no")))
    monkeypatch.setattr(tuned_kernel, "cache", {})
    x = torch.arange(N, dtype=torch.int32)
    out = torch.zeros_like(x)
    tuned_kernel[(1,)](x, out, assembly, N)
    assert not tuned_kernel.best_config.kwargs["HISTOGRAM"]
    assert_same(out, x + 1)


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
