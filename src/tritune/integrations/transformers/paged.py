"""Continuous batching: packed requests, whose keys and values are in transformers' paged cache."""

from __future__ import annotations

import functools
from typing import Any

import torch
from transformers.generation.continuous_batching import ContinuousBatchingManager, initialization
from transformers.generation.continuous_batching.cache import PagedAttentionCache

from tritune.integrations.errors import IntegrationError
from tritune.integrations.support import supports_attention
from tritune.ops.attention import attention_varlen
from tritune.ops.paged_attention import LARGEST_PAGE, paged_attention

__all__ = ["PagedAttentionCache", "allow_continuous_batching", "attend_paged"]


def attend_paged(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    cache: Any,
    inputs: dict[str, Any],
    **flags: Any,
) -> tuple[torch.Tensor, None]:
    """Compute attention of packed queries (1, H, tokens, D): ((1, tokens, H, D), None).

    `inputs` are the keyword arguments of the call, which the cache completes; `flags` those of
    `tritune.attention`.
    """
    if not supports_attention(query, key, value, flags["sinks"]):
        raise IntegrationError(
            'continuous batching with attn_implementation="tritune" takes float32, float16 and '
            f"bfloat16 tensors without gradients, given {str(query.dtype).removeprefix('torch.')}: "
            'use model.set_attn_implementation("sdpa")'
        )
    key, value = cache.update(
        key_states=key, value_states=value, layer_idx=module.layer_idx, kwargs=inputs
    )
    # (1, heads, tokens, size) -> (tokens, heads, size), without a copy.
    q, k, v = (tensor[0].transpose(0, 1) for tensor in (query, key, value))
    starts, k_starts = inputs["cu_seq_lens_q"], inputs["cu_seq_lens_k"]
    if inputs.get("block_table") is not None:
        out = _in_pages(q, k, v, starts, k_starts, inputs, flags)
    else:
        longest = int(inputs["max_length_q"]), int(inputs["max_length_k"])
        out = attention_varlen(q, k, v, starts, k_starts, *longest, **flags)
    return out[None], None


def _in_pages(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    starts: torch.Tensor,
    k_starts: torch.Tensor,
    inputs: dict[str, Any],
    flags: dict[str, Any],
) -> torch.Tensor:
    """Attend with one query of each request, whose key and value are written to the cache first."""
    pages, k_cache, v_cache = (inputs[name] for name in ("block_table", "k_cache", "v_cache"))
    lengths = k_starts.diff()
    place, offset = (lengths - 1) // k_cache.shape[1], (lengths - 1) % k_cache.shape[1]
    page = pages.gather(1, place[:, None].long())[:, 0]
    k_cache[page, offset] = k
    v_cache[page, offset] = v
    return paged_attention(q, k_cache, v_cache, pages, lengths, starts, **flags)


def allow_continuous_batching(name: str) -> None:
    """Let transformers batch continuously with this attention, and decode from pages.

    It has a list of the attentions that it knows for either.
    """
    if hasattr(ContinuousBatchingManager.switch_to_cb_friendly_attn, "__wrapped__"):
        return
    ContinuousBatchingManager.switch_to_cb_friendly_attn = _unless(
        name, ContinuousBatchingManager.switch_to_cb_friendly_attn, lambda _, model, *__: model
    )
    initialization.ensure_decode_fast_path_is_available = _unless(
        name,
        initialization.ensure_decode_fast_path_is_available,
        lambda config, batching, *_: config if _pages_serve(config, batching) else None,
    )


def _unless(name: str, original: Any, about: Any) -> Any:
    """Return `original`, but doing nothing for a model or config that uses the attention `name`."""

    @functools.wraps(original)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        it = about(*args, **kwargs)
        if getattr(getattr(it, "config", it), "_attn_implementation", None) != name:
            return original(*args, **kwargs)
        return None

    return wrapped


def _pages_serve(config: Any, batching: Any) -> bool:
    """Return whether every layer's cache can be read in pages, of a size that the op takes."""
    kinds = initialization.group_layers_by_attn_type(config)
    allocators = initialization.ATTN_TYPE_TO_ALLOCATOR
    return batching.page_size <= LARGEST_PAGE and all(
        allocators[kind].supports_block_table for kind in kinds
    )
