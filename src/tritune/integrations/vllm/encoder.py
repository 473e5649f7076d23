"""Attention of an encoder: every token sees its whole sequence, and nothing is cached."""

from __future__ import annotations

import itertools

import torch

from tritune.ops.attention import attention_varlen


def encoder_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    starts: torch.Tensor,
    longest: int,
    scale: float,
    window: int | None,
    softcap: float | None,
) -> torch.Tensor:
    """Compute attention within sequences that are packed: (tokens, heads, size)."""
    if window is None:
        out: torch.Tensor = attention_varlen(
            query, key, value, starts, starts, longest, longest, scale=scale, softcap=softcap
        )
        return out
    if softcap is not None:
        raise NotImplementedError("TRITUNE has no softcap for encoders with sliding windows")
    # The kernels' windows look back only; these look both ways.
    parts = []
    bounds = starts.tolist()
    for begin, end in itertools.pairwise(bounds):
        at = torch.arange(end - begin, device=query.device)
        near = (at[:, None] - at[None, :]).abs() < window
        q, k, v = (each[begin:end].transpose(0, 1) for each in (query, key, value))
        groups = q.shape[0] // k.shape[0]
        k, v = (each.repeat_interleave(groups, 0) for each in (k, v))
        attended = torch.nn.functional.scaled_dot_product_attention(q, k, v, near, scale=scale)
        parts.append(attended.transpose(0, 1))
    return torch.cat(parts) if parts else query
