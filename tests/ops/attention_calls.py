"""Calls of attention, and their comparison with the reference."""

from __future__ import annotations

import math
from typing import Any

import torch

from tests.ops.layouts import FP32, normal
from tritune.kernels.attention import attention_reference, attention_varlen_reference
from tritune.ops.attention import attention, attention_varlen
from tritune.testing import assert_within_rule

Tensors = tuple[torch.Tensor, ...]


def inputs(
    batch: int = 1,
    heads: int = 2,
    kv_heads: int | None = None,
    queries: int = 70,
    keys: int | None = None,
    size: int = 32,
    value_size: int | None = None,
    dtype: torch.dtype = FP32,
    seed: int = 0,
) -> Tensors:
    keys = queries if keys is None else keys
    kv_heads = heads if kv_heads is None else kv_heads
    return (
        normal(batch, heads, queries, size, dtype=dtype, seed=seed),
        normal(batch, kv_heads, keys, size, dtype=dtype, seed=seed + 1),
        normal(batch, kv_heads, keys, value_size or size, dtype=dtype, seed=seed + 2),
    )


def check(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **flags: Any) -> torch.Tensor:
    """The op under the rule, its log-sum-exp, and that a second run gives the same bits."""
    out, lse = attention(q, k, v, return_lse=True, **flags)
    assert out.is_contiguous() and lse.dtype == FP32
    exact, exact_lse = attention_reference(*(t.double() for t in (q, k, v)), **flags)
    plain, _ = attention_reference(q, k, v, **flags)
    judge(out, lse, exact, exact_lse, plain, flags)
    assert torch.equal(attention(q, k, v, return_lse=True, **flags)[0], out)
    return out


def check_varlen(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *starts: torch.Tensor, **flags: Any
) -> torch.Tensor:
    lengths = [int(s.diff().max()) for s in starts]
    out, lse = attention_varlen(q, k, v, *starts, *lengths, return_lse=True, **flags)
    exact, exact_lse = attention_varlen_reference(
        *(t.double() for t in (q, k, v)), *starts, **flags
    )
    plain, _ = attention_varlen_reference(q, k, v, *starts, **flags)
    judge(out, lse, exact, exact_lse, plain, flags)
    return out


def judge(
    out: torch.Tensor,
    lse: torch.Tensor,
    exact: torch.Tensor,
    exact_lse: torch.Tensor,
    plain: torch.Tensor,
    flags: dict[str, Any],
) -> None:
    # The rule wants the exact result in fp32 for 16-bit inputs; float64 is stricter.
    assert_within_rule(out, exact, plain, slack=3.0 if flags.get("softcap") else 2.0)
    torch.testing.assert_close(lse.double(), exact_lse, rtol=1e-5, atol=1e-5)


def materialise(flags: dict[str, Any], shape: tuple[int, ...], seed: int) -> dict[str, Any]:
    """Tensors for the flags that are ones: masks that broadcast, and numbers per head."""
    flags = dict(flags)
    if kind := flags.get("mask"):
        batch, heads, queries, keys = shape
        sizes = (batch, 1, 1) if seed % 2 else (heads, queries)
        # Rows of an odd length: how strides divide would make another kernel of it.
        mask = normal(*sizes, keys + 1 + keys % 2, seed=seed)[..., :keys]
        flags["mask"] = (
            mask > -0.5 if kind == "boolean" else mask.masked_fill(mask > 1.5, -math.inf)
        )
    for name in ("alibi_slopes", "sinks"):
        if flags.get(name):
            flags[name] = normal(shape[1], seed=seed + len(name)) * 0.5
    return flags


def packed(
    q_lengths: list[int],
    k_lengths: list[int],
    heads: int = 4,
    kv_heads: int = 2,
    dtype: torch.dtype = FP32,
    integer: torch.dtype = torch.int32,
) -> Tensors:
    starts = [
        torch.tensor([0, *lengths], dtype=integer).cumsum(0, dtype=integer)
        for lengths in (q_lengths, k_lengths)
    ]
    return (
        normal(sum(q_lengths), heads, 32, dtype=dtype),
        normal(sum(k_lengths), kv_heads, 32, dtype=dtype, seed=1),
        normal(sum(k_lengths), kv_heads, 32, dtype=dtype, seed=2),
        *starts,
    )
