"""rms_norm and add_rms_norm against their definition."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.ops.layouts import (
    BF16,
    DTYPES,
    FP16,
    LAYOUTS,
    far_apart,
    normal,
    rearranged,
    wide,
)
from tritune.kernels import rms_norm as kernel
from tritune.ops.rms_norm import add_rms_norm, rms_norm
from tritune.policy import forced
from tritune.space import Config
from tritune.testing import around, assert_within_rule, surrounded
from tritune.workloads.case import OpCase
from tritune.workloads.catalog import workload_named

#: Short and long, powers of two and not: each takes a way of its own through the kernel.
COLUMNS = (1, 64, 100, 1024, 1536, 5000)
LEADING = ((), (1,), (7,), (40,), (3, 5), (2, 3, 4), (0,), (3, 0, 2))


def check_norm(x: torch.Tensor, weight: torch.Tensor, eps: float = 1e-6) -> torch.Tensor:
    out = rms_norm(x, weight, eps)
    assert out.dtype == x.dtype and out.shape == x.shape
    exact = kernel.rms_norm(wide(x), wide(weight.to(x.dtype)), eps)
    assert_within_rule(out, exact, kernel.rms_norm(x, weight.to(x.dtype), eps))
    assert torch.equal(rms_norm(x, weight, eps), out)
    return out


def check_add(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor) -> None:
    out, total = add_rms_norm(x, residual, weight)
    assert torch.equal(total, x + residual)
    # What is normalised is the sum that comes back.
    plain, _ = kernel.add_rms_norm(x, residual, weight)
    assert_within_rule(out, kernel.rms_norm(wide(total), wide(weight)), plain)
    again = add_rms_norm(x, residual, weight)
    assert torch.equal(again[0], out) and torch.equal(again[1], total)


@settings(max_examples=25)
@given(
    leading=st.sampled_from(LEADING),
    columns=st.sampled_from(COLUMNS),
    dtype=st.sampled_from(DTYPES),
    eps=st.sampled_from((1e-6, 1e-5, 0.1)),
)
def test_any_shape_and_dtype(
    leading: tuple[int, ...], columns: int, dtype: torch.dtype, eps: float
) -> None:
    check_norm(normal(*leading, columns, dtype=dtype), normal(columns, dtype=dtype, seed=1), eps)


@settings(max_examples=20)
@given(
    leading=st.sampled_from(LEADING),
    columns=st.sampled_from((64, 100, 1024, 1536)),
    dtype=st.sampled_from(DTYPES),
)
def test_adding_any_shape_and_dtype(
    leading: tuple[int, ...], columns: int, dtype: torch.dtype
) -> None:
    x, residual = (normal(*leading, columns, dtype=dtype, seed=seed) for seed in (0, 1))
    check_add(x, residual, normal(columns, dtype=dtype, seed=2))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("columns", [96, 300])
def test_any_strides(layout: str, columns: int) -> None:
    x = rearranged(normal(2, 3, 4, columns, dtype=BF16), layout)
    weight = rearranged(normal(columns, dtype=BF16, seed=1), "columns apart")
    check_norm(x, weight)
    residual = rearranged(normal(2, 3, 4, columns, dtype=BF16, seed=2), "rows apart")
    check_add(x, residual, weight)


def test_a_dense_layout_is_kept() -> None:
    x = normal(3, 64, 5).transpose(1, 2)
    assert rms_norm(x, normal(64, seed=1)).stride() == x.stride()


def test_each_config_of_the_cpu_gives_the_same_within_the_rule(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    x, residual, weight = normal(6, 160), normal(6, 160, seed=1), normal(160, seed=2)
    problem = kernel.RmsNormProblem(rows=8, columns=160, dtype="float32", adds=True)
    configs = list(kernel.SPACE.configs("cpu", problem=problem.fields()))
    assert len(configs) > 10
    for config in configs[:: len(configs) // 5]:
        monkeypatch.setattr(
            "tritune.ops.call.trace.config_for", lambda *_, config=config: config.as_kwargs()
        )
        check_add(x, residual, weight)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("columns", [100, 1536])
def test_in_place_is_the_same_to_the_bit(dtype: torch.dtype, columns: int) -> None:
    x, residual = (normal(9, columns, dtype=dtype, seed=seed) for seed in (0, 1))
    weight = normal(columns, dtype=dtype, seed=2)
    expected = rms_norm(x, weight)
    itself = x.clone()
    assert rms_norm(itself, weight, out=itself) is itself
    assert torch.equal(itself, expected)

    normed, total = add_rms_norm(x, residual, weight)
    x_memory, residual_memory = x.clone(), residual.clone()
    results = add_rms_norm(x_memory, residual_memory, weight, inplace=True)
    assert results[0] is x_memory and results[1] is residual_memory
    assert torch.equal(x_memory, normed) and torch.equal(residual_memory, total)


def test_out_is_written_and_nothing_around_it() -> None:
    x, weight = normal(5, 100), normal(100, seed=1)
    out = surrounded(torch.zeros(5, 100), filler=7.0)
    before = around(out)
    assert rms_norm(x, weight, out=out) is out
    assert torch.equal(out, rms_norm(x, weight))
    assert torch.equal(around(out), before)


@pytest.mark.parametrize("columns", [100, 1536])
def test_memory_around_the_rows_is_not_read(columns: int) -> None:
    x, residual, weight = normal(5, columns), normal(5, columns, seed=1), normal(columns, seed=2)
    results = [
        torch.cat(add_rms_norm(*(surrounded(t, filler) for t in (x, residual, weight))))
        for filler in (0.0, float("nan"))
    ]
    assert torch.equal(*results)


def test_a_residual_and_a_weight_of_more_bits_keep_them() -> None:
    x, residual, weight = normal(4, 64, dtype=BF16), normal(4, 64, seed=1), normal(64, seed=2)
    normed, total = add_rms_norm(x, residual, weight)
    assert normed.dtype == BF16 and torch.equal(total, x + residual)
    expected = kernel.rms_norm(total.double(), weight.double())
    assert (normed - expected).abs().max() <= 2**-8 * expected.abs().max()


def test_squares_that_overflow_fp16_do_no_harm() -> None:
    x, weight = torch.full((2, 64), 3000.0, dtype=FP16), torch.ones(64, dtype=FP16)
    assert torch.equal(rms_norm(x, weight), torch.ones(2, 64, dtype=FP16))


def test_a_row_of_zeros_stays_zero() -> None:
    assert torch.equal(rms_norm(torch.zeros(2, 64), torch.ones(64)), torch.zeros(2, 64))


@pytest.mark.parametrize("dim", [0, 1, 2])
def test_offsets_past_32_bits(dim: int) -> None:
    x, weight = normal(3, 2, 64, dtype=BF16), normal(64, dtype=BF16, seed=1)
    far = far_apart(x, dim)
    assert_within_rule(
        rms_norm(far, weight), kernel.rms_norm(wide(x), wide(weight)), kernel.rms_norm(x, weight)
    )
    expected = rms_norm(x, weight)
    assert_within_rule(rms_norm(far, weight, out=far), expected, expected)


def test_opcheck() -> None:
    x, residual, weight = normal(3, 4, 64), normal(3, 4, 64, seed=1), normal(64, seed=2)
    ops = torch.ops.tritune
    torch.library.opcheck(ops.rms_norm.default, (x, weight, 1e-6))
    torch.library.opcheck(ops.rms_norm.default, (x.transpose(0, 1), weight, 1e-6))
    torch.library.opcheck(ops.rms_norm_out.default, (x, weight, 1e-6, torch.empty_like(x)))
    torch.library.opcheck(ops.rms_norm_inplace.default, (x, weight, 1e-6))
    torch.library.opcheck(ops.add_rms_norm.default, (x, residual, weight, 1e-6))
    torch.library.opcheck(ops.add_rms_norm_inplace.default, (x, residual, weight, 1e-6))


def every_way(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor) -> Any:
    normed, total = add_rms_norm(x, residual, weight)
    second = rms_norm(normed, weight, out=torch.empty_like(normed))
    # In place on what was made here: the caller's tensors stay as they are.
    mine = total.clone()
    rms_norm(mine, weight, out=mine)
    add_rms_norm(mine, second, weight, inplace=True)
    return normed, total, second, mine


@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.cxx)])
def test_compiles_as_one_graph_with_dynamic_shapes(backend: str) -> None:
    compiled = torch.compile(every_way, fullgraph=True, dynamic=True, backend=backend)
    weight = normal(64, seed=2)
    for tokens in (3, 10):
        x, residual = normal(tokens, 64), normal(tokens, 64, seed=1)
        expected = every_way(x, residual, weight)
        assert all(map(torch.equal, compiled(x, residual, weight), expected))


def test_exports() -> None:
    class Module(torch.nn.Module):
        def forward(self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor) -> Any:
            return every_way(x, residual, weight)

    tokens = torch.export.Dim("tokens", min=2, max=64)
    example = (normal(3, 64), normal(3, 64, seed=1), normal(64, seed=2))
    program = torch.export.export(
        Module(), example, dynamic_shapes=({0: tokens}, {0: tokens}, None)
    )
    given = (normal(9, 64), normal(9, 64, seed=1), normal(64, seed=2))
    assert all(map(torch.equal, program.module()(*given), every_way(*given)))


@pytest.mark.parametrize(
    ("call", "reasons"),
    [
        (lambda x, w: rms_norm(x, normal(60)), ["x (4, 64)", "weight (60)"]),
        (lambda x, w: rms_norm(x.double(), w), ["x is float64", "float32, float16, bfloat16"]),
        (lambda x, w: rms_norm(x.int(), w[None]), ["x is int32", "weight has 2 dimensions"]),
        (lambda x, w: rms_norm(x[0, 0], w), ["x has no dimensions"]),
        (lambda x, w: rms_norm(x, w.to("meta")), ["x on cpu", "weight on meta"]),
        (lambda x, w: rms_norm(x.requires_grad_(), w), ["x requires a gradient", "no_grad"]),
        (lambda x, w: rms_norm(x, w, out=x[:3]), ["x (4, 64)", "out (3, 64)"]),
        (lambda x, w: rms_norm(x, w, out=x.half()), ["out is float16, allowed: float32"]),
        (lambda x, w: rms_norm(x, w, out=x[:1].expand(4, 64)), ["out", "share memory"]),
        (lambda x, w: rms_norm([1.0], w), ["x is a list, not a tensor"]),
        (lambda x, w: add_rms_norm(x, x[:3], w), ["x (4, 64)", "residual (3, 64)"]),
        (lambda x, w: add_rms_norm(x, x, w, inplace=True), ["one tensor"]),
    ],
)
def test_what_does_not_fit_is_refused_with_all_reasons(
    call: Callable[..., Any], reasons: list[str]
) -> None:
    x, weight = normal(4, 64), normal(64, seed=1)
    kept = x.clone()
    with pytest.raises(ValueError, match=r"^(add_)?rms_norm: ") as error:
        call(x, weight)
    for reason in reasons:
        assert reason in str(error.value)
    assert torch.equal(x, kept)


def test_an_input_that_requires_grad_is_fine_without_grad_mode() -> None:
    x, weight = normal(4, 64), normal(64, seed=1)
    with torch.no_grad():
        assert torch.equal(rms_norm(x.clone().requires_grad_(), weight), rms_norm(x, weight))


@pytest.mark.parametrize("columns", [64, 100, 1536])
@pytest.mark.parametrize("dtype", DTYPES)
def test_results_that_go_past_the_caches_are_the_same_to_the_bit(
    columns: int, dtype: torch.dtype
) -> None:
    x, residual = normal(40, columns, dtype=dtype), normal(40, columns, dtype=dtype, seed=1)
    weight = normal(columns, dtype=dtype, seed=2)
    results = []
    for stream in (False, True):
        config = Config.of(ROWS=2, BLOCK=64, STREAM=stream)
        with forced(kernel.KERNEL, config):
            results.append(add_rms_norm(x, residual, weight))
            results.append(add_rms_norm(x.clone(), residual.clone(), weight, inplace=True))
    for out, total in results[1:]:
        assert torch.equal(out, results[0][0]) and torch.equal(total, results[0][1])


def test_what_is_to_go_past_the_caches_does() -> None:
    """The total, too, where there is one."""

    def past_caches(op: str, stream: bool) -> int:
        workload = workload_named(op)
        problem = workload.parse("rows=4 columns=64 dtype=float32")
        case = OpCase(workload, problem, torch.device("cpu"), 0)
        (launch,) = case.compile(Config.of(ROWS=2, BLOCK=64, STREAM=stream))
        return str(launch.compiled.asm["llir"]).count("!nontemporal")

    assert past_caches("rms_norm", False) == past_caches("add_rms_norm", False) == 0
    assert 0 < past_caches("rms_norm", True) < past_caches("add_rms_norm", True)


def test_large_results_of_a_cpu_go_past_the_caches_by_default() -> None:
    for rows, dtype, stream in (
        (64, "float32", False),
        (256, "float32", True),
        (1024, "bfloat16", False),
    ):
        problem = kernel.RmsNormProblem(rows=rows, columns=4096, dtype=dtype, adds=True)
        assert kernel.default(problem, "cpu", "x")["STREAM"] == stream
        assert not kernel.default(problem, "cuda", 90)["STREAM"]


@pytest.mark.parametrize("family", ["cuda", "hip", "cpu"])
@pytest.mark.parametrize("rows", [1, 2048])
@pytest.mark.parametrize("columns", [1, 80, 128, 4096, 5120, 50000])
def test_the_default_is_a_point_of_the_space(family: str, rows: int, columns: int) -> None:
    problem = kernel.RmsNormProblem(rows=rows, columns=columns, dtype="float16", adds=True)
    kernel.SPACE.check(kernel.default(problem, family, 0), family, 0, problem.fields())
