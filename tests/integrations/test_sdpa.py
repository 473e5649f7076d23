"""`tritune.sdpa` is torch's scaled_dot_product_attention, with all of its arguments."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

import tritune
from tritune.integrations import sdpa as module
from tritune.testing import assert_within_rule

torch_sdpa = functional.scaled_dot_product_attention


def tensors(
    queries: int, keys: int, kv_heads: int = 4, dtype: torch.dtype = torch.float32
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(2, 4, queries, 16, generator=generator)
    k = torch.randn(2, kv_heads, keys, 16, generator=generator)
    v = torch.randn(2, kv_heads, keys, 16, generator=generator)
    return q.to(dtype), k.to(dtype), v.to(dtype)


def check(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **arguments: Any) -> None:
    exact = torch.float64 if q.dtype == torch.float32 else torch.float32
    mask = arguments.get("attn_mask")
    wide = dict(arguments)
    if mask is not None and mask.dtype != torch.bool:
        wide["attn_mask"] = mask.to(exact)
    out = tritune.sdpa(q, k, v, **arguments)
    reference = torch_sdpa(q.to(exact), k.to(exact), v.to(exact), **wide)
    assert_within_rule(out, reference, torch_sdpa(q, k, v, **arguments))


GENERATOR = torch.Generator().manual_seed(1)
CASES: dict[str, tuple[int, int, dict[str, Any]]] = {
    "all keys": (24, 40, {}),
    "causal": (40, 40, {"is_causal": True}),
    "causal, more keys than queries": (24, 40, {"is_causal": True}),
    "causal, fewer keys than queries": (40, 24, {"is_causal": True}),
    "scaled": (24, 40, {"scale": 0.3}),
    "boolean mask": (24, 40, {"attn_mask": torch.rand(24, 40, generator=GENERATOR) < 0.5}),
    "added mask": (24, 40, {"attn_mask": torch.randn(2, 1, 24, 40, generator=GENERATOR)}),
    "one query": (1, 40, {}),
}


@pytest.mark.parametrize("case", CASES)
def test_the_result_is_that_of_torch(case: str) -> None:
    queries, keys, arguments = CASES[case]
    check(*tensors(queries, keys), **arguments)


def test_heads_may_share_keys() -> None:
    check(*tensors(24, 40, kv_heads=2), enable_gqa=True)


def test_tensors_may_lack_the_batch() -> None:
    q, k, v = tensors(24, 40)
    check(q[0], k[0], v[0], attn_mask=torch.ones(24, 40, dtype=torch.bool).tril(diagonal=3))


def test_autocast_decides_the_dtype_as_it_does_for_torch() -> None:
    q, k, v = tensors(24, 40)
    with torch.autocast("cpu", torch.bfloat16):
        out, theirs = tritune.sdpa(q, k, v), torch_sdpa(q, k, v)
    assert out.dtype == theirs.dtype == torch.bfloat16
    assert_within_rule(out, torch_sdpa(q, k, v), theirs)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Who was called, beside doing what they do."""
    log: list[str] = []

    def noting(name: str, function: Any) -> Any:
        def noted(*args: Any, **kwargs: Any) -> Any:
            log.append(name)
            return function(*args, **kwargs)

        return noted

    monkeypatch.setattr(module, "_attention", noting("tritune", module._attention))
    monkeypatch.setattr(module, "_torch_sdpa", noting("torch", module._torch_sdpa))
    return log


def test_what_the_kernels_do_not_cover_is_left_to_torch(calls: list[str]) -> None:
    q, k, v = tensors(24, 40)
    tritune.sdpa(q, k, v, dropout_p=0.5)
    tritune.sdpa(q.double(), k.double(), v.double())
    tritune.sdpa(q.requires_grad_(), k, v).sum().backward()
    assert q.grad is not None
    assert calls == ["torch"] * 3
    with pytest.raises(RuntimeError):
        tritune.sdpa(q.detach(), k[:, :2], v[:, :2])  # heads are shared where asked only
    assert calls == ["torch"] * 4
    tritune.sdpa(q.detach(), k, v)
    assert calls[4:] == ["tritune"]


def test_routed_calls_of_unchanged_code_reach_the_kernels(calls: list[str]) -> None:
    layer = torch.nn.MultiheadAttention(64, 4, batch_first=True).eval()
    x = torch.randn(2, 24, 64, generator=torch.Generator().manual_seed(2))
    # With gradients enabled, but not needed, torch does not take its fused path around sdpa.
    for parameter in layer.parameters():
        parameter.requires_grad_(False)
    plain = layer(x, x, x + 1, need_weights=False)[0]
    assert calls == []
    with module.route():
        routed = layer(x, x, x + 1, need_weights=False)[0]
        with module.route():  # a second time changes nothing
            assert functional.scaled_dot_product_attention is not torch_sdpa
    assert calls == ["tritune"]
    assert torch.allclose(plain, routed, atol=1e-5)
    assert functional.scaled_dot_product_attention is torch_sdpa


def test_forward_derivatives_are_those_of_torch() -> None:
    q, k, v = tensors(24, 40)

    def tangent() -> torch.Tensor:
        function = functional.scaled_dot_product_attention
        found: torch.Tensor = torch.func.jvp(lambda q: function(q, k, v), (q,), (q + 1,))[1]
        return found

    with sdpa_kernel(SDPBackend.MATH):  # torch's others know no forward derivatives
        expected = tangent()
        with module.route():
            assert torch.equal(tangent(), expected)


def test_routed_calls_can_be_compiled() -> None:
    q, k, v = tensors(24, 40)

    def layer(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return functional.scaled_dot_product_attention(q, k, v, is_causal=True) * 2

    plain = layer(q, k, v)
    with module.route():
        compiled = torch.compile(layer, fullgraph=True, dynamic=True, backend="aot_eager")
        assert torch.allclose(compiled(q, k, v), plain, atol=1e-5)
