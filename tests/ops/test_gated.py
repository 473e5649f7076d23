"""silu_mul and gelu_mul against torch's activations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.ops.layouts import BF16, DTYPES, LAYOUTS, far_apart, normal, rearranged, wide
from tritune.kernels import gated as kernel
from tritune.ops.gated import gelu_mul, silu_mul
from tritune.space import Config
from tritune.testing import assert_within_rule, surrounded
from tritune.workloads.case import OpCase
from tritune.workloads.catalog import workload_named

OPS: dict[str, Callable[..., torch.Tensor]] = {
    "silu": silu_mul,
    "gelu_tanh": gelu_mul,
    "gelu": lambda gate, up: gelu_mul(gate, up, approximate="none"),
}


def check(activation: str, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    out = OPS[activation](gate, up)
    assert out.dtype == gate.dtype and out.shape == gate.shape
    exact = kernel.gated(wide(gate), wide(up), activation)
    assert_within_rule(out, exact, kernel.gated(gate, up, activation))
    assert torch.equal(OPS[activation](gate, up), out)
    return out


@settings(max_examples=25)
@given(
    leading=st.sampled_from(((), (1,), (5,), (40,), (3, 5), (2, 0), (2, 3, 4))),
    columns=st.sampled_from((1, 80, 256, 1000)),
    dtype=st.sampled_from(DTYPES),
    activation=st.sampled_from(tuple(OPS)),
    halves=st.booleans(),
)
def test_any_shape_and_dtype(
    leading: tuple[int, ...], columns: int, dtype: torch.dtype, activation: str, halves: bool
) -> None:
    # Gate and up are often the halves of what one matrix product gave.
    both = 3 * normal(*leading, 2 * columns, dtype=dtype)
    gate, up = both.chunk(2, dim=-1)
    check(activation, *((gate, up) if halves else (gate.contiguous(), up.contiguous())))


@pytest.mark.parametrize("gate_layout", LAYOUTS)
@pytest.mark.parametrize("up_layout", ["contiguous", "columns apart", "reversed dimensions"])
def test_any_strides(gate_layout: str, up_layout: str) -> None:
    gate = rearranged(normal(2, 3, 4, 40, dtype=BF16), gate_layout)
    check("silu", gate, rearranged(normal(2, 3, 4, 40, dtype=BF16, seed=1), up_layout))


def test_no_dimensions_at_all() -> None:
    assert check("silu", torch.tensor(2.0), torch.tensor(3.0)).shape == ()


def test_a_dense_layout_is_kept() -> None:
    gate = normal(8, 5, 3).transpose(0, 2)
    assert silu_mul(gate, normal(3, 5, 8)).stride() == gate.stride()


@pytest.mark.parametrize("activation", OPS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_whole_range_of_the_gate(activation: str, dtype: torch.dtype) -> None:
    largest = torch.finfo(dtype).max
    gate = torch.cat((torch.linspace(-30, 30, 4001), torch.tensor([-1e4, 1e4, -0.0, 0.0]))).to(
        dtype
    )
    check(activation, gate, torch.ones_like(gate))
    ends = torch.tensor([largest, -largest], dtype=dtype)
    out = OPS[activation](ends, torch.ones_like(ends))
    assert out.tolist() == [largest, 0.0]


def test_nan_comes_through() -> None:
    nan, one = torch.tensor([float("nan"), 1.0]), torch.tensor([1.0, float("nan")])
    for op in OPS.values():
        assert op(nan, one).isnan().all()


def test_each_config_of_the_cpu_gives_the_same_within_the_rule(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gate, up = normal(9, 600).chunk(2, dim=1)
    problem = kernel.GatedProblem(rows=16, columns=300, dtype="float32", activation="silu")
    configs = list(kernel.SPACE.configs("cpu", problem=problem.fields()))
    assert len(configs) > 10
    for config in configs[:: len(configs) // 5]:
        monkeypatch.setattr(
            "tritune.ops.call.trace.config_for", lambda *_, config=config: config.as_kwargs()
        )
        check("silu", gate, up)


def test_memory_around_the_rows_is_not_read() -> None:
    gate, up = normal(5, 100), normal(5, 100, seed=1)
    results = [
        silu_mul(surrounded(gate, filler), surrounded(up, filler)) for filler in (0.0, float("nan"))
    ]
    assert torch.equal(*results)


@pytest.mark.parametrize("dim", [0, 1, 2])
def test_offsets_past_32_bits(dim: int) -> None:
    gate, up = normal(3, 2, 80, dtype=BF16), normal(3, 2, 80, dtype=BF16, seed=1)
    check("silu", far_apart(gate, dim), up)
    check("silu", gate, far_apart(up, dim))


def test_opcheck() -> None:
    gate, up = normal(3, 4, 64), normal(3, 4, 64, seed=1)
    torch.library.opcheck(torch.ops.tritune.silu_mul.default, (gate, up))
    torch.library.opcheck(
        torch.ops.tritune.silu_mul.default, (gate.transpose(0, 2), up.transpose(0, 2))
    )
    for approximate in ("tanh", "none"):
        torch.library.opcheck(torch.ops.tritune.gelu_mul.default, (gate, up, approximate))


def all_of_them(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    return gelu_mul(silu_mul(gate, up), gelu_mul(gate, up), approximate="none")


@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.cxx)])
def test_compiles_as_one_graph_with_dynamic_shapes(backend: str) -> None:
    compiled = torch.compile(all_of_them, fullgraph=True, dynamic=True, backend=backend)
    for tokens in (3, 10):
        gate, up = normal(tokens, 64), normal(tokens, 64, seed=1)
        assert torch.equal(compiled(gate, up), all_of_them(gate, up))


def test_exports() -> None:
    class Module(torch.nn.Module):
        def forward(self, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
            return all_of_them(gate, up)

    tokens = torch.export.Dim("tokens", min=2, max=64)
    example = (normal(3, 64), normal(3, 64, seed=1))
    program = torch.export.export(Module(), example, dynamic_shapes=({0: tokens}, {0: tokens}))
    given = (normal(9, 64), normal(9, 64, seed=1))
    assert torch.equal(program.module()(*given), all_of_them(*given))


@pytest.mark.parametrize(
    ("call", "reasons"),
    [
        (lambda g, u: silu_mul(g, u[:3]), ["gate (4, 64)", "up (3, 64)"]),
        (lambda g, u: silu_mul(g, u.half()), ["gate is float32", "up is float16"]),
        (lambda g, u: silu_mul(g.double(), u.int()), ["gate is float64", "up is int32"]),
        (lambda g, u: silu_mul(g, u.to("meta")), ["gate on cpu", "up on meta"]),
        (lambda g, u: gelu_mul(g, u.requires_grad_()), ["up requires a gradient"]),
        (
            lambda g, u: gelu_mul(g, u[0], approximate="erf"),
            ["approximate is 'erf'", "'tanh', 'none'", "up (64)"],
        ),
    ],
)
def test_what_does_not_fit_is_refused_with_all_reasons(
    call: Callable[..., Any], reasons: list[str]
) -> None:
    with pytest.raises(ValueError, match=r"^(silu|gelu)_mul: ") as error:
        call(normal(4, 64), normal(4, 64, seed=1))
    for reason in reasons:
        assert reason in str(error.value)


@pytest.mark.parametrize("family", ["cuda", "hip", "cpu"])
@pytest.mark.parametrize("rows", [1, 2048])
@pytest.mark.parametrize("columns", [1, 128, 4096, 11008, 2**22])
def test_the_default_is_a_point_of_the_space(family: str, rows: int, columns: int) -> None:
    problem = kernel.GatedProblem(rows=rows, columns=columns, dtype="float16", activation="silu")
    kernel.SPACE.check(kernel.default(problem, family, 0), family, 0, problem.fields())


def test_large_results_of_a_cpu_go_past_the_caches() -> None:
    for rows, dtype, stream in (
        (64, "float32", False),
        (256, "float32", True),
        (256, "bfloat16", False),
    ):
        problem = kernel.GatedProblem(rows=rows, columns=4096, dtype=dtype, activation="silu")
        assert kernel.default(problem, "cpu", "x")["STREAM"] == stream
    workload = workload_named("silu_mul")
    case = OpCase(
        workload, workload.parse("rows=4 columns=64 dtype=float32"), torch.device("cpu"), 0
    )
    for stream in (False, True):
        (launch,) = case.compile(Config.of(ROWS=2, BLOCK=64, STREAM=stream))
        assert ("!nontemporal" in launch.compiled.asm["llir"]) == stream
