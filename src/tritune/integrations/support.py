"""The tensors that tritune's ops support, and attention in plain torch for all others."""

from __future__ import annotations

import torch
from torch.autograd import forward_ad

from tritune.dtypes import FLOATS
from tritune.kernels.attention import attention_reference
from tritune.ops.attention import LARGEST_HEAD

#: Devices for which Triton makes code; CPUs are tritune's own.
_DEVICES = ("cpu", "cuda")


def supports(x: torch.Tensor, *others: torch.Tensor | None) -> bool:
    """Return whether ops take x; they compute no gradients, for it or any of the others."""
    return x.dtype in FLOATS and x.device.type in _DEVICES and not differentiates(x, *others)


def supports_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *others: torch.Tensor | None
) -> bool:
    """Return whether the attention kernels take these tensors. They compute no gradients."""
    return (
        q.dtype == k.dtype == v.dtype
        and q.shape[-1] <= LARGEST_HEAD
        and v.shape[-1] <= LARGEST_HEAD
        and supports(q, k, v, *others)
    )


def differentiates(*tensors: torch.Tensor | None) -> bool:
    """Return whether derivatives may be needed: backwards through one of these, or forwards."""
    if forward_ad._current_level >= 0:
        return True
    return torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors)


def reference_attention(
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
    """Compute the op `attention` with torch's own operations: slower, and differentiable."""
    exact = torch.promote_types(q.dtype, torch.float32)
    out, _ = attention_reference(
        q.to(exact), k.to(exact), v.to(exact), causal=causal, scale=scale, window=window,
        softcap=softcap, mask=mask, alibi_slopes=alibi_slopes, sinks=sinks,
    )  # fmt: skip
    return out.to(q.dtype)
