"""Cached calls are replayed where that is safe, and take the slow path where it is not."""

from __future__ import annotations

import random
from itertools import product
from typing import Any

import pytest
import torch
import triton
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

import tritune
from tests.workloads.small import SMALL
from tritune.kernels.rms_norm import KERNEL, rms_norm_kernel
from tritune.ops.call import call_cache
from tritune.ops.call.call_cache import CallCache
from tritune.policy import forced, forget
from tritune.targets.device import target_of
from tritune.workloads.case import OpCase, compiling
from tritune.workloads.catalog import WORKLOADS


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Counts launches on the slow path, through Triton's own `run`."""
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


@pytest.mark.parametrize("name", [name for name in WORKLOADS if name != "attention_varlen"])
def test_cached_calls_give_the_right_results(name: str) -> None:
    """Calls with other numbers each time; the last one is repeated with an empty cache."""
    workload = WORKLOADS[name]
    for text in SMALL[name]:
        outputs = []
        for seed, known in ((0, 0), (1, 0), (2, 1), (3, 1), (3, 0)):
            case = OpCase(workload, workload.parse(text), torch.device("cpu"), seed)
            assert sum(len(op._entries) for op in CallCache.instances) == known, text
            outputs.append(workload.run(case.inputs))
            if known and seed == 3:
                forget_calls()
        assert all(map(torch.equal, *outputs[-2:]))
        assert not all(map(torch.equal, *outputs[-3:-1]))
        forget_calls()


def forget_calls() -> None:
    for op in CallCache.instances:
        op.clear()


def test_only_the_first_two_of_equal_calls_ask_triton(launches: list[int]) -> None:
    for _ in range(5):
        check(torch.randn(3, 208), torch.randn(208))
    assert len(launches) == 2


def test_other_memory_is_another_launch(launches: list[int]) -> None:
    weight = torch.randn(176)
    for _ in range(2):
        check(torch.randn(5, 176), weight)
    moved = torch.randn(5 * 176 + 1)[1:].view(5, 176)
    assert moved.data_ptr() % 16
    check(moved, weight)
    check(torch.randn(5, 176), torch.randn(176, dtype=torch.float64).float())
    assert len(launches) == 3


def test_another_dtype_of_the_weight_is_another_launch(launches: list[int]) -> None:
    x = torch.randn(5, 144)
    for dtype in (torch.float32, torch.bfloat16) * 4:
        weight = torch.randn(144).to(dtype)
        expected = torch.nn.functional.rms_norm(x, weight.shape, weight.float(), 1e-6)
        torch.testing.assert_close(tritune.rms_norm(x, weight), expected)
    assert len(launches) == 3


def test_another_config_is_another_launch(launches: list[int]) -> None:
    x, weight = torch.randn(5, 112), torch.randn(112)
    for _ in range(2):
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
    assert len(launches) == 3


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
    x, weight = torch.randn(3, 48), torch.randn(48)
    for _ in range(3):
        check(x, weight)
    with torch.profiler.profile() as seen:
        tritune.rms_norm(x, weight)
    assert "tritune::rms_norm" in {event.key for event in seen.key_averages()}


def test_calls_of_compiled_code_are_cached_too(launches: list[int]) -> None:
    x, weight = torch.randn(3, 272), torch.randn(272)
    compiled = torch.compile(tritune.rms_norm, backend="eager", fullgraph=True)
    expected = torch.nn.functional.rms_norm(x, weight.shape, weight, 1e-6)
    for _ in range(5):
        torch.testing.assert_close(compiled(x, weight), expected)
    assert len(launches) == 2


def test_new_winners_are_used_by_cached_calls(launches: list[int]) -> None:
    x, weight = torch.randn(5, 304), torch.randn(304)
    for expected in (1, 2, 2):
        check(x, weight)
        assert len(launches) == expected
    forget()
    for _ in range(2):
        check(x, weight)
        assert len(launches) == 3


def test_one_tensor_in_two_places_is_no_measure_for_two() -> None:
    gate, up = torch.randn(2, 5, 336).unbind()
    silu = torch.nn.functional.silu
    for _ in range(3):
        torch.testing.assert_close(tritune.silu_mul(gate, gate), silu(gate) * gate)
        torch.testing.assert_close(tritune.silu_mul(gate, up), silu(gate) * up)


def test_one_tensor_in_several_places_is_cached_for_these_places_only() -> None:
    calls = [
        tensors for tensors in product(torch.randn(3, 1, 2, 8, 16), repeat=3) for _ in range(3)
    ]
    random.Random(0).shuffle(calls)
    same = torch.randn(1, 2, 8, 16)
    entries = []
    for q, k, v in [(same, same, same)] * 3 + calls:
        expected = torch.nn.functional.scaled_dot_product_attention(q, k, v)
        torch.testing.assert_close(tritune.attention(q, k, v), expected)
        entries.append(sum(len(op._entries) for op in CallCache.instances))
    assert entries[:3] == [0, 1, 1]
    assert entries[-1] > 1


def test_parts_of_one_tensor_that_start_together_are_told_apart() -> None:
    wide = torch.randn(1, 2, 8, 32)
    for _ in range(4):
        q, k, v = torch.randn(1, 2, 8, 16), wide[..., :16], wide
        expected = torch.nn.functional.scaled_dot_product_attention(q, k, v)
        torch.testing.assert_close(tritune.attention(q, k, v), expected)


def test_what_wants_a_gradient_is_refused_though_cached() -> None:
    x, weight = torch.randn(5, 368), torch.nn.Parameter(torch.randn(368))
    with torch.no_grad():
        for _ in range(3):
            check(x, weight)
    with pytest.raises(ValueError, match="weight requires a gradient"):
        tritune.rms_norm(x, weight)


def test_transforms_of_cached_calls() -> None:
    x, weight = torch.randn(4, 3, 400), torch.randn(400)
    for _ in range(3):
        check(x[0], weight)
    expected = torch.nn.functional.rms_norm(x, (400,), weight, 1e-6)
    torch.testing.assert_close(torch.vmap(lambda one: tritune.rms_norm(one, weight))(x), expected)
    with torch.inference_mode():
        for _ in range(3):
            check(x[0], weight)


def test_hooks_hear_of_cached_launches() -> None:
    x, weight = torch.randn(3, 432), torch.randn(432)
    for _ in range(3):
        check(x, weight)
    heard: list[str] = []
    hook = triton.knobs.runtime.launch_enter_hook
    listen = lambda metadata: heard.append(metadata.get()["name"])  # noqa: E731
    hook.add(listen)
    try:
        check(x, weight)
    finally:
        hook.remove(listen)
    assert heard == ["rms_norm_kernel"]


def test_torch_hears_of_what_is_written_in_place() -> None:
    q, k = torch.randn(3, 2, 16), torch.randn(3, 1, 16)
    cos, sin = torch.randn(2, 3, 16).unbind()
    for count in (1, 2, 3, 4):
        tritune.rope(q, k, cos, sin, inplace=True)
        assert (q._version, k._version) == (count, count)


def test_torch_hears_of_what_is_written_in_inference_mode() -> None:
    x, weight, out = torch.randn(3, 48), torch.randn(48), torch.empty(3, 48)
    with torch.inference_mode():
        tritune.rms_norm(x, weight, out=out)
    assert out._version == 1


def test_positions_are_checked_in_cached_calls() -> None:
    q, k = torch.randn(3, 2, 32), torch.randn(3, 1, 32)
    cos, sin = torch.randn(2, 9, 32).unbind()
    good = torch.tensor([8, 0, 5])
    for _ in range(3):
        tritune.rope(q, k, cos, sin, positions=good)
    torch.testing.assert_close(
        tritune.rope(q, k, cos, sin, positions=good)[0],
        tritune.rope(q, k, cos[good], sin[good])[0],
    )
    with pytest.raises(ValueError, match="positions are from 0 to 9, allowed: 0 to 8"):
        tritune.rope(q, k, cos, sin, positions=torch.tensor([9, 0, 5]))


def test_what_is_no_tensor_is_refused_after_cached_calls() -> None:
    x = torch.randn(3, 464)
    for _ in range(3):
        check(x, x[0])
    with pytest.raises(ValueError, match="weight is a list, not a tensor"):
        tritune.rms_norm(x, [1.0] * 464)


def test_a_fake_tensor_stays_fake() -> None:
    with FakeTensorMode():
        fake = torch.empty(3, 48)
    assert isinstance(tritune.rms_norm(fake, fake[0]), FakeTensor)


def test_who_stands_in_for_triton_sees_cached_launches() -> None:
    x, weight = torch.randn(3, 240), torch.randn(240)
    for _ in range(3):
        check(x, weight)
    with compiling() as seen:
        tritune.rms_norm(x, weight)
    assert len(seen) == 1


def test_where_torch_has_no_guards_nothing_is_cached(
    launches: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(call_cache, "_Guards", None)
    for _ in range(4):
        check(torch.randn(3, 368), torch.randn(368))
    assert len(launches) == 4
