"""Traces are replayed with other tensors, and refused where that is not safe."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
import triton
import triton.language as tl

from tritune.kernels.rms_norm import KERNEL, RmsNormProblem
from tritune.ops.call import fast_path
from tritune.ops.call.fast_path import compile_replay
from tritune.ops.call.trace import Trace

SIZE = 64


@triton.jit
def add_kernel(a, b, out, scale, BLOCK: tl.constexpr):
    places = tl.arange(0, BLOCK)
    value = tl.load(a + places) * scale
    if b is not None:
        value += tl.load(b + places)
    tl.store(out + places, value)


def new_trace() -> Trace:
    """Return the trace of a call of some op."""
    return Trace(KERNEL, RmsNormProblem(1, SIZE, "float32", False), torch.device("cpu"))


def added(call: Trace, a: Any, b: Any, out: torch.Tensor) -> None:
    call.launch(add_kernel, (1,), (a, b, out), (2.0,), BLOCK=SIZE)


@pytest.fixture(params=["by address", "by Triton"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ways to launch a kernel of a cached call."""
    if request.param == "by Triton":
        monkeypatch.setattr(fast_path, "_prepared", lambda *_: None)


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("with_b", [True, False])
def test_the_same_steps_with_other_tensors(with_b: bool) -> None:
    def tensors() -> tuple[torch.Tensor, ...]:
        return tuple(torch.randn(1 + with_b, SIZE).unbind())

    call, inputs, out = new_trace(), tensors(), torch.empty(SIZE)
    added(call, inputs[0], inputs[1] if with_b else None, out)
    replay = compile_replay(call, inputs, (out,))
    assert replay is not None
    others = tensors()
    [found] = replay(*others)
    torch.testing.assert_close(found, 2 * others[0] + (others[1] if with_b else 0))
    assert found.data_ptr() != out.data_ptr()


@pytest.mark.usefixtures("way")
def test_scratch_and_conversions_are_allocated_anew() -> None:
    call, a, out = new_trace(), torch.randn(SIZE, dtype=torch.float64), torch.empty(SIZE)
    single, between = call.converted(a, torch.float32), call.scratch(SIZE)
    added(call, single, None, between)
    added(call, between, single, out)
    replay = compile_replay(call, (a,), (out,))
    assert replay is not None
    other = torch.randn(SIZE, dtype=torch.float64)
    torch.testing.assert_close(replay(other)[0], 5 * other.float())


def test_tensors_that_the_call_was_not_given_are_not_replayed() -> None:
    a, elsewhere, out = torch.randn(3, SIZE).unbind()
    call = new_trace()
    added(call, a, elsewhere, out)
    assert compile_replay(call, (a,), (out,)) is None
    call = new_trace()
    added(call, call.converted(elsewhere, torch.float64), None, out)
    assert compile_replay(call, (a,), (out,)) is None


def test_a_trace_with_unaligned_tensors_is_not_replayed() -> None:
    a, out = torch.randn(SIZE + 1)[1:], torch.empty(SIZE)
    call = new_trace()
    added(call, a, None, out)
    assert compile_replay(call, (a,), (out,)) is None


def test_empty_tensors_cannot_be_told_apart_by_their_address() -> None:
    a, out, nothing = torch.randn(SIZE), torch.empty(SIZE), torch.empty(0)
    assert nothing.data_ptr() == 0
    call = new_trace()
    added(call, a, None, out)
    assert compile_replay(call, (a, nothing), (out,)) is None


def test_an_argument_that_is_no_tensor_is_not_replayed() -> None:
    a, out = torch.randn(SIZE), torch.empty(SIZE)
    call = new_trace()
    # It has the address of a tensor of the call, as a descriptor has that of its base.
    added(call, SimpleNamespace(data_ptr=a.data_ptr, dtype=a.dtype), None, out)
    assert compile_replay(call, (a,), (out,)) is None
