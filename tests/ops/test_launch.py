"""Launching again: what may be taken from an earlier call, and what may not."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

import tritune
from tritune.kernels.rms_norm import KERNEL, rms_norm_kernel
from tritune.policy import forced
from tritune.targets.device import target_of
from tritune.workloads.case import compiling


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Counts launches that go the long way, through Triton's own `run`."""
    counted: list[int] = []
    run = rms_norm_kernel.run

    def counting(*args: object, **kwargs: object) -> object:
        counted.append(1)
        return run(*args, **kwargs)

    monkeypatch.setattr(rms_norm_kernel, "run", counting)
    return counted


def check(x: torch.Tensor, weight: torch.Tensor) -> None:
    torch.testing.assert_close(
        tritune.rms_norm(x, weight), torch.nn.functional.rms_norm(x, weight.shape, weight, 1e-6)
    )


def test_only_the_first_of_equal_calls_asks_triton(launches: list[int]) -> None:
    for _ in range(3):
        check(torch.randn(3, 208), torch.randn(208))
    assert len(launches) == 1


def test_other_memory_is_another_launch(launches: list[int]) -> None:
    weight = torch.randn(176)
    check(torch.randn(5, 176), weight)
    moved = torch.randn(5 * 176 + 1)[1:].view(5, 176)
    assert moved.data_ptr() % 16
    check(moved, weight)
    check(torch.randn(5, 176), torch.randn(176, dtype=torch.float64).float())
    assert len(launches) == 2


def test_another_dtype_of_the_weight_is_another_launch(launches: list[int]) -> None:
    x = torch.randn(5, 144)
    for dtype in (torch.float32, torch.bfloat16, torch.float32, torch.bfloat16):
        weight = torch.randn(144).to(dtype)
        expected = torch.nn.functional.rms_norm(x, weight.shape, weight.float(), 1e-6)
        torch.testing.assert_close(tritune.rms_norm(x, weight), expected)
    assert len(launches) == 2


def test_another_config_is_another_launch(launches: list[int]) -> None:
    x, weight = torch.randn(5, 112), torch.randn(112)
    check(x, weight)
    problem = KERNEL.problem(rows=8, columns=112, dtype="float32", adds=False)
    target = target_of(x.device)
    points = KERNEL.space.on(target.family, target.arch, problem.fields())
    default = KERNEL.default(problem, target.family, target.arch)
    other = next(config for config in points.configs() if config["ROWS"] != default["ROWS"])
    for _ in range(3):
        with forced(KERNEL, other):
            check(x, weight)
    check(x, weight)
    assert len(launches) == 2


@pytest.mark.parametrize("eps", [1, torch.tensor(0.5)])
def test_torch_converts_what_is_not_a_float(eps: Any) -> None:
    x, weight = torch.randn(3, 48), torch.randn(48)
    expected = torch.nn.functional.rms_norm(x, (48,), weight, float(eps))
    torch.testing.assert_close(tritune.rms_norm(x, weight, eps), expected)


@pytest.mark.parametrize(
    "call",
    [
        lambda x: tritune.rms_norm(x, x[0], "small"),
        lambda x: tritune.rms_norm(x, x[0], None),
        lambda x: tritune.attention(
            x[None, :, None], x[None, :, None], x[None, :, None], window=2.5
        ),
    ],
)
def test_torch_refuses_other_types_in_its_words(call: Any) -> None:
    with pytest.raises(RuntimeError, match="Expected a value of type"):
        call(torch.randn(16, 16))


def test_a_profiler_sees_the_op() -> None:
    x = torch.randn(3, 48)
    with torch.profiler.profile() as seen:
        tritune.rms_norm(x, x[0])
    assert "tritune::rms_norm" in {event.key for event in seen.key_averages()}


def test_a_fake_tensor_stays_fake() -> None:
    with FakeTensorMode():
        fake = torch.empty(3, 48)
    assert isinstance(tritune.rms_norm(fake, fake[0]), FakeTensor)


def test_who_stands_in_for_triton_sees_known_launches() -> None:
    x, weight = torch.randn(3, 240), torch.randn(240)
    for _ in range(2):
        check(x, weight)
    with compiling() as seen:
        tritune.rms_norm(x, weight)
    assert len(seen) == 1
