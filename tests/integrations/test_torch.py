"""Every op in what torch does with operators: its compiler, export, opcheck, autocast and vmap."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.export import Dim

import tritune

GENERATOR = torch.Generator().manual_seed(0)


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=GENERATOR)


def tokens_of(rows: int) -> dict[str, tuple[torch.Tensor, ...]]:
    """Arguments that have `rows` tokens, by op."""
    heads = normal(2, 4, rows, 16), normal(2, 2, rows, 16), normal(2, 2, rows, 16)
    starts = torch.tensor([0, rows // 2, rows], dtype=torch.int32)
    return {
        "attention": heads,
        "attention_varlen": (normal(rows, 4, 16), normal(rows, 2, 16), normal(rows, 2, 16), starts),
        "rms_norm": (normal(rows, 64), normal(64)),
        "add_rms_norm": (normal(rows, 64), normal(rows, 64), normal(64)),
        "rope": (normal(rows, 4, 16), normal(rows, 2, 16), normal(rows, 16), normal(rows, 16)),
        "silu_mul": (normal(rows, 64), normal(rows, 64)),
        "gelu_mul": (normal(rows, 64), normal(rows, 64)),
        "linear": (normal(rows, 64), normal(32, 64), normal(32)),
        "linear_quantized": (normal(rows, 64),),
    }


QUANTIZED = tritune.quantize_weight(normal(32, 64), bits=8, group=32)
CALLS: dict[str, Callable[..., Any]] = {
    "attention": lambda q, k, v: tritune.attention(q, k, v, causal=True),
    "attention_varlen": lambda q, k, v, starts: tritune.attention_varlen(
        q, k, v, starts, starts, q.shape[0], q.shape[0], causal=True
    ),
    "rms_norm": tritune.rms_norm,
    "add_rms_norm": tritune.add_rms_norm,
    "rope": tritune.rope,
    "silu_mul": tritune.silu_mul,
    "gelu_mul": tritune.gelu_mul,
    "linear": tritune.linear,
    "linear_quantized": lambda x: tritune.linear(x, QUANTIZED),
}


class Layer(torch.nn.Module):
    """A call with something of torch's before and behind it."""

    def __init__(self, op: str) -> None:
        super().__init__()
        self.op = op

    def forward(self, first: torch.Tensor, *rest: torch.Tensor) -> Any:
        result = CALLS[self.op](first * 2, *rest)
        parts = result if isinstance(result, tuple) else (result,)
        return tuple(part + 1 for part in parts)


def check_equal(one: Any, other: Any) -> None:
    assert len(one) == len(other)
    assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("op", CALLS)
def test_compiled_for_any_number_of_tokens(op: str) -> None:
    torch.compiler.reset()  # of what was compiled for the other ops
    compiled = torch.compile(Layer(op), fullgraph=True, dynamic=True, backend="aot_eager")
    for rows in (24, 10):
        arguments = tokens_of(rows)[op]
        check_equal(compiled(*arguments), Layer(op)(*arguments))


@pytest.mark.parametrize("op", CALLS)
def test_exported(op: str) -> None:
    arguments = tokens_of(24)[op]
    program = torch.export.export(Layer(op), arguments)
    assert any(
        "tritune" in str(node.target) for node in program.graph.nodes if node.op == "call_function"
    )
    check_equal(program.module()(*arguments), Layer(op)(*arguments))


def test_exported_with_a_dimension_that_changes() -> None:
    rows = Dim("rows", min=2, max=4096)
    arguments = tokens_of(24)["attention"]
    shapes = ({2: rows}, ({2: rows}, {2: rows}))
    program = torch.export.export(Layer("attention"), arguments, dynamic_shapes=shapes)
    other = tokens_of(10)["attention"]
    check_equal(program.module()(*other), Layer("attention")(*other))


@pytest.mark.parametrize("op", ["attention", "attention_varlen", "linear"])
def test_products_are_computed_in_the_dtype_of_autocast(op: str) -> None:
    arguments = tokens_of(24)[op]
    halves = tuple(a.bfloat16() if a.is_floating_point() else a for a in arguments)
    with torch.autocast("cpu", torch.bfloat16):
        out = CALLS[op](*arguments)
        # As in a model: activations in half precision, weights not.
        mixed = CALLS[op](halves[0], *arguments[1:])
    assert out.dtype == torch.bfloat16
    assert torch.equal(out, CALLS[op](*halves))
    assert torch.equal(out, mixed)


@pytest.mark.parametrize("op", ["rms_norm", "silu_mul", "rope"])
def test_what_is_no_product_keeps_the_dtype_under_autocast(op: str) -> None:
    arguments = tokens_of(24)[op]
    with torch.autocast("cpu", torch.bfloat16):
        out = CALLS[op](*arguments)
    parts = out if isinstance(out, tuple) else (out,)
    assert all(part.dtype == torch.float32 for part in parts)


#: Which arguments have a batch under vmap: the activations, and all that are tensors of floats.
BATCHED = {
    "attention": [(0, 0, 0), (1, None, None)],
    "attention_varlen": [(0, 0, 0, None)],
    "rms_norm": [(0, None), (1, None), (None, 0)],
    "add_rms_norm": [(0, None, None)],
    "rope": [(0, 0, None, None)],
    "silu_mul": [(0, 0), (None, 1)],
    "gelu_mul": [(0, 0)],
    "linear": [(0, None, None), (0, 0, None)],
    "linear_quantized": [(0,)],
}


@pytest.mark.parametrize(
    ("op", "dims"),
    [(op, dims) for op, several in BATCHED.items() for dims in several],
    ids=lambda value: str(value).replace(" ", ""),
)
def test_vmap_is_a_loop_over_the_batch(op: str, dims: tuple[int | None, ...]) -> None:
    one, other = tokens_of(24)[op], tokens_of(24)[op]
    arguments = tuple(
        a if dim is None else torch.stack([a, b], dim)
        for a, b, dim in zip(one, other, dims, strict=True)
    )
    out = torch.vmap(CALLS[op], in_dims=dims)(*arguments)
    second = tuple(a if dim is None else b for a, b, dim in zip(one, other, dims, strict=True))
    expected = [CALLS[op](*each) for each in (one, second)]
    for i in range(2):
        parts, whole = (each if isinstance(each, tuple) else (each,) for each in (expected[i], out))
        for part, all_of_them in zip(parts, whole, strict=True):
            assert torch.allclose(all_of_them[i], part, atol=1e-5)


def test_vmap_of_attention_takes_a_mask_of_each_its_own() -> None:
    q, k, v = (torch.stack([t, t.flip(0)]) for t in tokens_of(24)["attention"])
    mask = torch.rand(2, 24, 24, generator=GENERATOR) < 0.5
    out = torch.vmap(lambda q, k, v, m: tritune.attention(q, k, v, mask=m))(q, k, v, mask)
    for i in range(2):
        expected = tritune.attention(q[i], k[i], v[i], mask=mask[i])
        assert torch.allclose(out[i], expected, atol=1e-5)


def test_opcheck_passes_for_the_ops_that_torch_has_rules_for() -> None:
    q, k, v = tokens_of(24)["attention"]
    flags = (True, 0.25, None, None, None, None, None)
    torch.library.opcheck(torch.ops.tritune.attention.default, (q, k, v, *flags))
    gate, up = tokens_of(24)["silu_mul"]
    torch.library.opcheck(torch.ops.tritune.silu_mul.default, (gate, up))
