"""Which calls the kernels serve, and attention by its definition, in torch, for all others."""

from __future__ import annotations

import torch
from torch.autograd import forward_ad

from tritune.dtypes import FLOATS
from tritune.kernels.attention import attention_reference
from tritune.ops.attention import LARGEST_HEAD

#: Devices for which Triton makes code; CPUs are tritune's own.
DEVICES = ("cpu", "cuda")


def covers(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *others: torch.Tensor | None) -> bool:
    """Whether the attention kernels take these tensors. They compute no gradients."""
    return (
        q.dtype in FLOATS
        and q.dtype == k.dtype == v.dtype
        and q.shape[-1] <= LARGEST_HEAD
        and v.shape[-1] <= LARGEST_HEAD
        and q.device.type in DEVICES
        and not differentiates(q, k, v, *others)
    )


def differentiates(*tensors: torch.Tensor | None) -> bool:
    """Whether derivatives may be asked for: backwards through one of these, or forwards at all."""
    forwards = forward_ad._current_level >= 0
    return forwards or (torch.is_grad_enabled() and needs_gradient(*tensors))


def needs_gradient(*tensors: torch.Tensor | None) -> bool:
    return any(tensor is not None and tensor.requires_grad for tensor in tensors)


def by_definition(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    causal: bool,
    scale: float,
    window: int | None,
    softcap: float | None,
    mask: torch.Tensor | None,
    alibi_slopes: torch.Tensor | None,
    sinks: torch.Tensor | None,
) -> torch.Tensor:
    """What the op `attention` computes, from torch's own operations: slower, and differentiable."""
    exact = torch.promote_types(q.dtype, torch.float32)
    out, _ = attention_reference(
        q.to(exact), k.to(exact), v.to(exact), causal=causal, scale=scale, window=window,
        softcap=softcap, mask=mask, alibi_slopes=alibi_slopes, sinks=sinks,
    )  # fmt: skip
    return out.to(q.dtype)
