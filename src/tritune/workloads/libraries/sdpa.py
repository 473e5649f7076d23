"""Calls of torch's fused `scaled_dot_product_attention` for the inputs of attention ops."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

from tritune.workloads.reference.attention import hidden_keys, with_mask


def sdpa_for(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, inputs: dict[str, Any]
) -> Callable[[], torch.Tensor] | None:
    """Return the call for (batch, heads, tokens, size) tensors; None if torch has none.

    What takes no time in a model, such as a mask that all layers share, is made beforehand.
    """
    if "softcap" in inputs or "sinks" in inputs:
        return None
    queries, window = q.shape[2], inputs.get("window")
    if queries == 1 and window is not None and not {"alibi_slopes", "mask"} & set(inputs):
        # A single query sees the latest keys and nothing else.
        k, v = k[:, :, -window:], v[:, :, -window:]
        inputs = {**inputs, "window": None}
    bias = _bias(q, k.shape[2], inputs)
    # A single query sees all keys; torch would let it see the first one only.
    causal = bias is None and inputs["causal"] and queries > 1
    options: dict[str, Any] = {"attn_mask": bias, "is_causal": causal}
    return functools.partial(
        functional.scaled_dot_product_attention, q, k, v, enable_gqa=True, **options
    )


def folded_sdpa(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, inputs: dict[str, Any]
) -> Callable[[], torch.Tensor] | None:
    """Return the call for one query, with the heads of a group folded into the query dimension.

    torch then reads keys and values once per group; it does not fold by itself.
    """
    if q.shape[2] > 1 or q.shape[1] == k.shape[1] or {"alibi_slopes", "mask"} & set(inputs):
        return None
    folded = q.reshape(q.shape[0], k.shape[1], -1, q.shape[3])
    call = sdpa_for(folded, k, v, {**inputs, "causal": False, "window": None})
    if call is None or inputs.get("window") is not None:
        return None
    return lambda: call().view(*q.shape[:3], v.shape[3])


def packed_sdpa(
    tensors: tuple[torch.Tensor, torch.Tensor, torch.Tensor], inputs: dict[str, Any]
) -> Callable[[], torch.Tensor] | None:
    """Return the same for the (tokens, heads, size) tensors q, k and v of one sequence."""
    q, k, v = (tensor.transpose(0, 1)[None] for tensor in tensors)
    call = sdpa_for(q, k, v, inputs)
    return None if call is None else lambda: call()[0].transpose(0, 1)


def padded_sdpa(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, visible: torch.Tensor
) -> torch.Tensor:
    """Attend with one query per sequence, (sequences, heads, size), to padded keys and values.

    Those are (sequences, keys, heads, size); `visible`, (sequences, keys), masks the padding.
    """
    folded = q.reshape(q.shape[0], k.shape[2], -1, q.shape[2])
    out = functional.scaled_dot_product_attention(
        folded, k.transpose(1, 2), v.transpose(1, 2), attn_mask=visible[:, None, None]
    )
    return out.reshape(*q.shape[:2], v.shape[3])


def _bias(q: torch.Tensor, keys: int, inputs: dict[str, Any]) -> torch.Tensor | None:
    """Return the mask where `is_causal`, which aligns query 0 with key 0, does not do."""
    queries, slopes, mask = q.shape[2], inputs.get("alibi_slopes"), inputs.get("mask")
    window = inputs.get("window")
    simple = window is None and (not inputs["causal"] or queries in (1, keys))
    if slopes is None and mask is None and simple:
        return None
    rows = torch.arange(keys - queries, keys, device=q.device)
    distance = torch.arange(keys, device=q.device) - rows[:, None]
    hidden = hidden_keys(distance, inputs)
    if slopes is None and mask is None and hidden is not None:
        return ~hidden
    bias = torch.zeros(1, 1, queries, keys, dtype=q.dtype, device=q.device)
    if slopes is not None:
        bias = (slopes[:, None, None] * distance).to(q.dtype)[None]
    if mask is not None:
        bias = with_mask(bias, mask)
    return bias if hidden is None else bias.masked_fill(hidden, float("-inf"))
