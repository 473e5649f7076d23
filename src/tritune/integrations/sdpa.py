"""A drop-in for torch's `scaled_dot_product_attention`, and a way to route all calls to it."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch.nn import functional

import tritune.ops.attention  # noqa: F401  (defines the op)
from tritune.integrations.enabled import Enabled
from tritune.integrations.support import differentiates, supports_attention
from tritune.ops.call.autocast import autocast, autocasts
from tritune.tuning.autotune.run_log import ATTENTION, ROUTED, SKIPPED, Event, log_once

_attention: Any = torch.ops.tritune.attention.default
_torch_sdpa = functional.scaled_dot_product_attention
#: Printed at the end of `tritune run`.
_ROUTED = Event(ATTENTION, ROUTED)
_DROPOUT = Event(ATTENTION, SKIPPED, reason="there is dropout")
_GRADIENTS = Event(ATTENTION, SKIPPED, reason="gradients are needed")
_UNKNOWN = Event(ATTENTION, SKIPPED, reason="the kernels do not know its shapes, dtypes or mask")


def sdpa(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """`torch.nn.functional.scaled_dot_product_attention`, by tritune's kernels where they can.

    The arguments and the result are torch's: causal attention has its first query at the first key.
    Dropout, gradients, dtypes and shapes that the kernels do not know are left to torch.
    """
    supported = _is_supported(query, key, value, attn_mask, dropout_p, is_causal, enable_gqa)
    if not torch.compiler.is_compiling():
        log_once(_ROUTED if supported else _skipped((query, key, value, attn_mask), dropout_p))
    if not supported:
        return _torch_sdpa(
            query, key, value, attn_mask=attn_mask, dropout_p=dropout_p, is_causal=is_causal,
            scale=scale, enable_gqa=enable_gqa,
        )  # fmt: skip
    tensors = [query, key, value]
    if autocasts(query):
        tensors = [autocast(tensor) for tensor in tensors]
    q, k, v = (tensor if tensor.dim() == 4 else tensor[None] for tensor in tensors)
    queries, keys = q.shape[2], k.shape[2]
    if is_causal and queries < keys:
        # torch aligns the first query with the first key, the op the last with the last.
        k, v = k[:, :, :queries], v[:, :, :queries]
    elif is_causal and queries > keys:
        attn_mask = torch.ones(queries, keys, dtype=torch.bool, device=q.device).tril()
        is_causal = False
    factor = q.shape[-1] ** -0.5 if scale is None else scale
    out: torch.Tensor = _attention(q, k, v, is_causal, factor, None, None, attn_mask, None, None)
    return out if query.dim() == 4 else out[0]


def _is_supported(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    mask: torch.Tensor | None,
    dropout: float,
    causal: bool,
    grouped: bool,
) -> bool:
    """Return whether the op computes what torch would; torch refuses what it refuses itself."""
    return (
        dropout == 0.0
        and supports_attention(q, k, v, mask)
        and q.dim() == k.dim() == v.dim()
        and q.dim() in (3, 4)
        and k.shape[:-1] == v.shape[:-1]
        and q.shape[-1] == k.shape[-1]
        and q.shape[:-3] == k.shape[:-3]
        and (
            q.shape[-3] == k.shape[-3] or (grouped and k.shape[-3] > 0 == q.shape[-3] % k.shape[-3])
        )
        and k.shape[-2] > 0
        and (mask is None or _supports_mask(mask, q, k, causal))
        and all(type(t) in (torch.Tensor, torch.nn.Parameter) for t in (q, k, v))
    )


def _skipped(tensors: tuple[torch.Tensor | None, ...], dropout: float) -> Event:
    """Return the event of a call that is left to torch."""
    if dropout:
        return _DROPOUT
    return _GRADIENTS if differentiates(*tensors) else _UNKNOWN


def _supports_mask(mask: torch.Tensor, q: torch.Tensor, k: torch.Tensor, causal: bool) -> bool:
    shape = (*q.shape[:-1], k.shape[-2])
    return (
        not causal
        and mask.dtype in (torch.bool, q.dtype)
        and mask.dim() <= q.dim()
        and all(n in (1, m) for n, m in zip(reversed(mask.shape), reversed(shape), strict=False))
    )


def route() -> Enabled:
    """Route every call of torch's function to `sdpa`, until this is undone.

    The function is found by its name in torch.nn.functional: code that took hold of it before keeps
    torch's.
    """
    enabled = Enabled()
    before = functional.scaled_dot_product_attention
    if before is _routed:
        return enabled
    functional.scaled_dot_product_attention = _routed

    def restore() -> None:
        functional.scaled_dot_product_attention = before

    enabled.add("scaled_dot_product_attention", restore)
    return enabled


@functools.wraps(sdpa, assigned=("__doc__",))
def _routed(*args: Any, **kwargs: Any) -> torch.Tensor:
    return sdpa(*args, **kwargs)
