"""The attention function that transformers calls for `attn_implementation="tritune"`."""

from __future__ import annotations

import warnings
from typing import Any

import torch

from tritune.integrations.errors import TrainingError
from tritune.integrations.support import reference_attention, supports_attention
from tritune.integrations.transformers.mask import Pattern, pattern_of
from tritune.integrations.transformers.model_support import takes_short_masks
from tritune.integrations.transformers.paged import PagedAttentionCache, attend_paged

NAME = "tritune"

_TRAINING = (
    'attn_implementation="tritune" is for inference, and this model is in training mode: call '
    'model.eval() for inference, or model.set_attn_implementation("sdpa") ("eager" if the model '
    "does not know that) for training"
)

_NO_WEIGHTS = (
    'attn_implementation="tritune" makes no attention weights: use '
    'model.set_attn_implementation("eager") for output_attentions'
)

# The op without the checks of `tritune.attention`: a model's tensors belong together.
_attention: Any = torch.ops.tritune.attention.default


def attend(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    is_causal: bool | None = None,
    s_aux: torch.Tensor | None = None,
    position_bias: torch.Tensor | None = None,
    cache: Any = None,
    indices: torch.Tensor | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Compute attention of q (B, H, Sq, D) to k, v (B, Hkv, Skv, D): ((B, Sq, H, D), None).

    Called by transformers, with these names.
    """
    if module.training:
        raise TrainingError(_TRAINING)
    if kwargs.get("output_attentions"):
        warnings.warn(_NO_WEIGHTS, stacklevel=2)
    if is_causal is None:
        is_causal = getattr(module, "is_causal", True)
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    if isinstance(cache, PagedAttentionCache):
        return attend_paged(
            module, query, key, value, cache, kwargs,
            causal=is_causal, scale=scale, window=sliding_window, softcap=softcap, sinks=s_aux
        )  # fmt: skip
    pattern, mask = Pattern(is_causal, sliding_window), attention_mask
    if mask is not None and mask.dim() == 2:
        pattern = pattern_of(mask) or pattern
        key, value = key[:, :, : mask.shape[1]], value[:, :, : mask.shape[1]]
        mask = (mask if mask.dtype == torch.bool else mask != 0)[:, None, None]
        mask = mask if pattern.padded else None
    elif mask is not None or not takes_short_masks(getattr(module, "config", None)):
        # The mask says all, as it does for `eager`; without one, every key is seen.
        pattern = Pattern(causal=False)
    if pattern.window is not None and not pattern.causal:
        mask, pattern = _within(mask, query, key, pattern.window), Pattern(causal=False)
    if indices is not None:
        mask, pattern = _selected(mask, indices, key.shape[2]), Pattern(causal=False)
    if position_bias is not None:
        mask = _with_bias(mask, position_bias)
    run = _attention if supports_attention(query, key, value, mask, s_aux) else reference_attention
    out = run(query, key, value, pattern.causal, scale, pattern.window, softcap, mask, None, s_aux)
    return out.transpose(1, 2).contiguous(), None


def _within(
    mask: torch.Tensor | None, query: torch.Tensor, key: torch.Tensor, window: int
) -> torch.Tensor | None:
    """Return a mask that also hides keys that are `window` or more away, on either side."""
    queries, keys = query.shape[2], key.shape[2]
    if keys <= window:
        return mask
    at = torch.arange(keys - queries, keys, device=query.device)
    near = (at[:, None] - torch.arange(keys, device=query.device)).abs() < window
    return near[None, None] if mask is None else mask & near


def _selected(mask: torch.Tensor | None, indices: torch.Tensor, keys: int) -> torch.Tensor:
    """Return a mask that also hides all keys but those at `indices`, (batch, queries, selected)."""
    selected = torch.zeros(*indices.shape[:2], keys, dtype=torch.bool, device=indices.device)
    selected = selected.scatter(-1, indices.long(), True)[:, None]
    if mask is None or mask.dtype == torch.bool:
        return selected if mask is None else mask & selected
    return mask.masked_fill(~selected, torch.finfo(mask.dtype).min)


def _with_bias(mask: torch.Tensor | None, bias: torch.Tensor) -> torch.Tensor:
    """Return a mask that also adds a bias to the scores."""
    if mask is None:
        return bias
    if mask.dtype == torch.bool:
        return torch.where(mask, bias, float("-inf"))
    return bias + mask
