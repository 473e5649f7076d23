"""rope against its definition."""

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
    FP32,
    LAYOUTS,
    far_apart,
    normal,
    rearranged,
    wide,
)
from tritune.kernels import rope as kernel
from tritune.ops.rope import rope
from tritune.testing import around, assert_within_rule, surrounded

Tensors = tuple[torch.Tensor, torch.Tensor]


def tables(rows: int, rotary: int, interleaved: bool = False, dtype: torch.dtype = FP32) -> Tensors:
    """As models make them: one angle for each pair, at falling frequencies."""
    frequencies = 10000.0 ** -(torch.arange(0, rotary, 2) / rotary)
    angles = torch.arange(rows)[:, None] * frequencies
    if interleaved:
        angles = angles.repeat_interleave(2, dim=-1)
    else:
        angles = torch.cat((angles, angles), dim=-1)
    return angles.cos().to(dtype), angles.sin().to(dtype)


def heads(
    *leading: int, q: int = 6, k: int = 2, size: int = 32, dtype: torch.dtype = FP32
) -> Tensors:
    return normal(*leading, q, size, dtype=dtype), normal(*leading, k, size, dtype=dtype, seed=1)


def rows_of(table: torch.Tensor, x: torch.Tensor, positions: torch.Tensor | None) -> torch.Tensor:
    """The table's rows for the tokens of x, to be broadcast over its heads."""
    if positions is not None:
        table = table[positions]
    elif table.dim() == 2:
        table = table[: x.shape[-3]]
    return table.unsqueeze(-2)


def check(
    q: torch.Tensor,
    k: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    positions: torch.Tensor | None = None,
    interleaved: bool = False,
) -> Tensors:
    """New tensors under the rule; the same bits in a second run, and in place."""
    options = {"positions": positions, "interleaved": interleaved}
    outs = rope(q, k, cos, sin, **options)
    for out, x in zip(outs, (q, k), strict=True):
        assert out.dtype == x.dtype
        chosen = [rows_of(table, x, positions) for table in (cos, sin)]
        exact = kernel.rope(wide(x), *(wide(t) for t in chosen), interleaved)
        plain = kernel.rope(x, *(t.to(x.dtype) for t in chosen), interleaved)
        assert_within_rule(out, exact.to(wide(x).dtype), plain)
    again = rope(q, k, cos, sin, **options)
    assert all(map(torch.equal, again, outs))
    copies = q.clone(), k.clone()
    assert rope(*copies, cos, sin, **options, inplace=True) == copies
    assert all(map(torch.equal, copies, outs))
    return outs


@settings(max_examples=18)
@given(
    leading=st.sampled_from(((1,), (7,), (33,), (2, 5), (2, 0), (2, 2, 3))),
    counts=st.sampled_from(((1, 1), (6, 2), (5, 1))),
    sizes=st.sampled_from(((32, 32), (80, 80), (96, 24))),
    dtype=st.sampled_from(DTYPES),
    interleaved=st.booleans(),
    table=st.sampled_from(("rows", "positions", "positions of one sequence")),
)
def test_any_shape_and_dtype(
    leading: tuple[int, ...],
    counts: tuple[int, int],
    sizes: tuple[int, int],
    dtype: torch.dtype,
    interleaved: bool,
    table: str,
) -> None:
    size, rotary = sizes
    q, k = heads(*leading, q=counts[0], k=counts[1], size=size, dtype=dtype)
    positions = None
    if table != "rows":
        shape = leading if table == "positions" else leading[-1:]
        positions = torch.randint(0, 40, shape, generator=torch.Generator().manual_seed(3))
    check(q, k, *tables(40, rotary, interleaved), positions, interleaved)


def test_elements_past_the_rotary_size_are_kept_to_the_bit() -> None:
    q, k = heads(5, size=48, dtype=BF16)
    for out, x in zip(rope(q, k, *tables(5, 16)), (q, k), strict=True):
        assert torch.equal(out[..., 16:], x[..., 16:])
        assert not torch.equal(out[1:, :, :16], x[1:, :, :16])


def test_position_zero_turns_nothing() -> None:
    q, k = heads(3)
    outs = rope(q, k, *tables(9, 32), positions=torch.zeros(3, dtype=torch.int32))
    assert torch.equal(outs[0], q) and torch.equal(outs[1], k)


def test_the_two_layouts_are_the_same_up_to_the_order_of_elements() -> None:
    q, k = heads(5)
    order = torch.arange(32).reshape(2, 16).T.flatten()
    halves = rope(q, k, *tables(5, 32))
    pairs = rope(q[..., order], k[..., order], *tables(5, 32, True), interleaved=True)
    for one, two in zip(halves, pairs, strict=True):
        torch.testing.assert_close(one[..., order], two)


def test_tables_with_the_leading_dimensions_of_q() -> None:
    q, k = heads(2, 5)
    cos, sin = tables(40, 32)
    positions = torch.tensor([[3, 4, 5, 6, 7], [0, 1, 2, 3, 39]])
    expected = rope(q, k, cos, sin, positions=positions)
    assert all(map(torch.equal, rope(q, k, cos[positions], sin[positions]), expected))
    one_sequence = rope(q, k, cos[positions][:1], sin[positions][:1])
    assert torch.equal(one_sequence[0][0], expected[0][0])
    assert torch.equal(one_sequence[0][1], rope(q, k, cos[3:], sin[3:])[0][1])


def test_each_config_of_the_cpu_gives_the_same_within_the_rule(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    problem = kernel.RopeProblem(16, 6, 2, 32, 32, False, False, "float32")
    configs = list(kernel.SPACE.configs("cpu", problem=problem.fields()))
    assert len(configs) > 10
    for config in configs[:: len(configs) // 6]:
        monkeypatch.setattr(
            "tritune.ops.call.trace.config_for", lambda *_, config=config: config.as_kwargs()
        )
        check(*heads(11), *tables(11, 32))


@pytest.mark.parametrize("layout", [l for l in LAYOUTS if l != "expanded"])
@pytest.mark.parametrize("interleaved", [False, True])
def test_any_strides(layout: str, interleaved: bool) -> None:
    q, k = heads(2, 3, 4, dtype=BF16)
    cos, sin = tables(50, 24, interleaved)
    positions = torch.arange(24).reshape(4, 3, 2).permute(2, 1, 0)
    q, k, cos = (rearranged(t, layout) for t in (q, k, cos))
    check(q, k, cos, sin, positions, interleaved)
    check(q, k, cos, sin, None, interleaved)
    expected = rope(q, k, cos, sin)
    rope(q, k, cos, sin, inplace=True)
    assert torch.equal(q, expected[0]) and torch.equal(k, expected[1])


def test_q_and_k_as_parts_of_one_tensor_in_place() -> None:
    qkv = surrounded(normal(7, 10, 32), filler=7.0)
    q, k, v = qkv.split((6, 2, 2), dim=1)
    expected = rope(q.clone(), k.clone(), *tables(7, 32))
    kept, before = v.clone(), around(qkv)
    rope(q, k, *tables(7, 32), inplace=True)
    assert torch.equal(q, expected[0]) and torch.equal(k, expected[1])
    assert torch.equal(v, kept) and torch.equal(around(qkv), before)


@pytest.mark.parametrize("interleaved", [False, True])
def test_memory_around_the_rows_is_not_read(interleaved: bool) -> None:
    q, k = heads(5, q=3, k=1, size=40)
    cos, sin = tables(9, 24, interleaved)
    results = [
        rope(*(surrounded(t, filler) for t in (q, k, cos, sin)), interleaved=interleaved)
        for filler in (0.0, float("nan"))
    ]
    assert all(map(torch.equal, *results))


@pytest.mark.parametrize("dim", [0, 1, 2])
def test_offsets_past_32_bits(dim: int) -> None:
    q, k = heads(5, dtype=BF16)
    cos, sin = tables(5, 32)
    far = far_apart(q, dim)
    expected = rope(q, k, cos, sin)
    rope(far, k.clone(), cos, sin, inplace=True)
    torch.testing.assert_close(far, expected[0])
    if dim < 2:
        again = rope(q, k, far_apart(cos, dim), sin, positions=torch.arange(5))
        torch.testing.assert_close(again, expected)


def test_no_tokens_and_no_heads() -> None:
    cos, sin = tables(4, 32)
    assert rope(*heads(0), cos, sin)[0].shape == (0, 6, 32)
    empty = torch.empty(0, dtype=torch.int64)
    assert rope(*heads(0), cos, sin, positions=empty)[1].shape == (0, 2, 32)
    q, k = heads(4, k=0)
    outs = rope(q, k, cos, sin)
    assert outs[1].shape == (4, 0, 32)
    assert torch.equal(outs[0], rope(q, heads(4)[1], cos, sin)[0])


def test_opcheck() -> None:
    q, k = heads(5)
    cos, sin = tables(9, 16)
    for op in (torch.ops.tritune.rope.default, torch.ops.tritune.rope_inplace.default):
        torch.library.opcheck(op, (q, k, cos, sin, None, False))
        torch.library.opcheck(op, (q, k, cos, sin, torch.arange(5), True))


def every_way(
    q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, positions: torch.Tensor
) -> tuple[torch.Tensor, ...]:
    first = rope(q, k, cos, sin)
    # In place on what was made here: the caller's tensors stay as they are.
    second = rope(*first, cos, sin, positions=positions, interleaved=True)
    mine = second[0].clone(), second[1].clone()
    rope(*mine, cos, sin, positions=positions, inplace=True)
    return *first, *second, *mine


@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.cxx)])
def test_compiles_as_one_graph_with_dynamic_shapes(backend: str) -> None:
    compiled = torch.compile(every_way, fullgraph=True, dynamic=True, backend=backend)
    for tokens in (3, 10):
        given = (*heads(tokens), *tables(40, 16), torch.arange(tokens) + 7)
        assert all(map(torch.equal, compiled(*given), every_way(*given)))


def test_exports() -> None:
    class Module(torch.nn.Module):
        def forward(self, *given: torch.Tensor) -> tuple[torch.Tensor, ...]:
            return every_way(*given)

    tokens = torch.export.Dim("tokens", min=2, max=32)
    shapes = (({0: tokens}, {0: tokens}, None, None, {0: tokens}),)
    example = (*heads(3), *tables(40, 16), torch.arange(3))
    program = torch.export.export(Module(), example, dynamic_shapes=shapes)
    given = (*heads(9), *tables(40, 16), torch.arange(9) + 5)
    assert all(map(torch.equal, program.module()(*given), every_way(*given)))


@pytest.mark.parametrize(
    ("call", "reasons"),
    [
        (lambda q, k, c, s: rope(q, k[:4], c, s), ["q (5, 6, 32)", "k (4, 2, 32)", "heads"]),
        (lambda q, k, c, s: rope(q, k[..., :16], c, s), ["k (5, 2, 16)"]),
        (lambda q, k, c, s: rope(q[0], k[0], c, s), ["q has 2 dimensions and k 2"]),
        (lambda q, k, c, s: rope(q.int(), k.double(), c, s), ["q is int32", "k is float64"]),
        (lambda q, k, c, s: rope(q, k.half(), c, s[:4]), ["k is float16", "sin (4, 32)"]),
        (lambda q, k, c, s: rope(q, k, c[:4], s[:4]), ["cos (4, 32)", "give positions"]),
        (lambda q, k, c, s: rope(q, k, c[:, :9], s[:, :9]), ["cos is (9, 9)", "even"]),
        (lambda q, k, c, s: rope(q[..., :8], k[..., :8], c, s), ["cos is (9, 32)", "at most"]),
        (lambda q, k, c, s: rope(q, k.to("meta"), c, s), ["q on cpu", "k on meta"]),
        (lambda q, k, c, s: rope(q.requires_grad_(), k, c, s), ["q requires a gradient"]),
        (
            lambda q, k, c, s: rope(q, k, c, s, positions=torch.arange(4)),
            ["positions (4)", "q (5, 6, 32)"],
        ),
        (
            lambda q, k, c, s: rope(q, k, c, s, positions=torch.arange(5.0)),
            ["positions is float32", "int32, int64"],
        ),
        (
            lambda q, k, c, s: rope(q, k, c, s, positions=torch.arange(5) + 6, inplace=True),
            ["positions are from 6 to 10", "0 to 8"],
        ),
        (
            lambda q, k, c, s: rope(q, k, c, s, positions=torch.arange(5) - 1),
            ["positions are from -1 to 3"],
        ),
        (
            lambda q, k, c, s: rope(q[:1].expand(5, 6, 32), k, c, s, inplace=True),
            ["q cannot be written"],
        ),
    ],
)
def test_what_does_not_fit_is_refused_with_all_reasons(
    call: Callable[..., Any], reasons: list[str]
) -> None:
    q, k = heads(5)
    kept = q.clone()
    with pytest.raises(ValueError, match=r"^rope: ") as error:
        call(q, k, *tables(9, 32))
    for reason in reasons:
        assert reason in str(error.value)
    assert torch.equal(q, kept)


@pytest.mark.parametrize("family", ["cuda", "hip", "cpu"])
@pytest.mark.parametrize("tokens", [1, 2048])
@pytest.mark.parametrize("counts", [(1, 1), (5, 1), (32, 8), (128, 128), (4, 0)])
@pytest.mark.parametrize("size", [16, 80, 128, 256])
def test_the_default_is_a_point_of_the_space(
    family: str, tokens: int, counts: tuple[int, int], size: int
) -> None:
    problem = kernel.RopeProblem(tokens, *counts, size, size, False, False, "float16")
    kernel.SPACE.check(kernel.default(problem, family, 0), family, 0, problem.fields())
