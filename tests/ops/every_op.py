"""One small call of every op, in every form that writes its result elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

import tritune
from tests.ops.layouts import normal


@dataclass(frozen=True)
class Call:
    name: str
    function: Callable[..., Any]
    #: Arguments by their names, in order.
    tensors: dict[str, torch.Tensor]
    #: Those that the op writes to.
    writes: tuple[str, ...] = ()

    def run(self, **others: torch.Tensor) -> list[torch.Tensor]:
        """The results, for copies of the tensors and for others instead of some of them."""
        tensors = {name: tensor.clone() for name, tensor in self.tensors.items()}
        result = self.function(**{**tensors, **others})
        return [result] if isinstance(result, torch.Tensor) else list(result)


def _int32(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def _quantized(
    x: torch.Tensor,
    packed: torch.Tensor,
    scales: torch.Tensor,
    zeros: torch.Tensor,
    bias: torch.Tensor,
) -> torch.Tensor:
    return tritune.linear(x, tritune.QuantizedWeight(packed, scales, zeros, 8, 32), bias)


_ROWS = {"x": normal(4, 64), "weight": normal(64, seed=1)}
_GATED = {"gate": normal(4, 64), "up": normal(4, 64, seed=1)}
_ROPE = {
    "q": normal(2, 5, 4, 32),
    "k": normal(2, 5, 2, 32, seed=1),
    "cos": normal(9, 32, seed=2),
    "sin": normal(9, 32, seed=3),
}
_PER_HEAD = {"alibi_slopes": normal(4, seed=4).abs(), "sinks": normal(4, seed=5)}
_ATTENTION = {
    "q": normal(2, 4, 6, 32),
    "k": normal(2, 2, 7, 32, seed=1),
    "v": normal(2, 2, 7, 32, seed=2),
    "mask": normal(6, 7, seed=3),
    **_PER_HEAD,
}
_VARLEN = {
    "q": normal(6, 4, 32),
    "k": normal(7, 2, 32, seed=1),
    "v": normal(7, 2, 32, seed=2),
    "cu_seqlens_q": _int32(0, 2, 6),
    "cu_seqlens_k": _int32(0, 3, 7),
    **_PER_HEAD,
}
_PAGED = {
    "q": normal(6, 4, 32),
    "k_cache": normal(5, 4, 2, 32, seed=1),
    "v_cache": normal(5, 4, 2, 32, seed=2),
    "block_table": _int32(0, 1, 2, 3).reshape(2, 2),
    "seq_lens": _int32(7, 8),
    "cu_seqlens_q": _int32(0, 2, 6),
    **_PER_HEAD,
    "k_scale": normal(1, seed=6).abs(),
    "v_scale": normal(2, seed=7).abs(),
}
_W = tritune.quantize_weight(normal(32, 64, seed=1), bits=8, group=32, zero_points=True)
assert _W.zeros is not None

CALLS = (
    Call("rms_norm", tritune.rms_norm, _ROWS),
    Call("rms_norm_out", tritune.rms_norm, {**_ROWS, "out": normal(4, 64, seed=2)}, ("out",)),
    Call("rms_norm_inplace", lambda x, weight: tritune.rms_norm(x, weight, out=x), _ROWS, ("x",)),
    Call("add_rms_norm", tritune.add_rms_norm, {**_ROWS, "residual": normal(4, 64, seed=2)}),
    Call(
        "add_rms_norm_inplace",
        lambda **tensors: tritune.add_rms_norm(**tensors, inplace=True),
        {**_ROWS, "residual": normal(4, 64, seed=2)},
        ("x", "residual"),
    ),
    Call("silu_mul", tritune.silu_mul, _GATED),
    Call("gelu_mul", tritune.gelu_mul, _GATED),
    Call("rope", tritune.rope, _ROPE),
    Call("rope_positions", tritune.rope, {**_ROPE, "positions": torch.arange(5)}),
    Call(
        "rope_inplace",
        lambda **tensors: tritune.rope(**tensors, inplace=True),
        _ROPE,
        ("q", "k"),
    ),
    Call(
        "linear",
        tritune.linear,
        {"x": normal(4, 64), "weight": normal(32, 64, seed=1), "bias": normal(32, seed=2)},
    ),
    Call(
        "linear_quantized",
        _quantized,
        {
            "x": normal(4, 64),
            "packed": _W.packed,
            "scales": _W.scales,
            "zeros": _W.zeros,
            "bias": normal(32, seed=2),
        },
    ),
    Call("attention", tritune.attention, _ATTENTION),
    Call(
        "attention_lse", lambda **tensors: tritune.attention(**tensors, return_lse=True), _ATTENTION
    ),
    Call(
        "attention_varlen",
        lambda **tensors: tritune.attention_varlen(**tensors, max_seqlen_q=4, max_seqlen_k=4),
        _VARLEN,
    ),
    Call("paged_attention", tritune.paged_attention, _PAGED, ("its result",)),
    Call(
        "paged_attention_out",
        tritune.paged_attention,
        {**_PAGED, "out": normal(6, 4, 32)},
        ("out",),
    ),
)
