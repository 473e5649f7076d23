"""Changing a whole model, and changing it back."""

from __future__ import annotations

import inspect
import weakref
from typing import Any

import torch
from transformers import PreTrainedModel

from tritune.integrations.enabled import Enabled
from tritune.integrations.errors import IntegrationError
from tritune.integrations.transformers.attention_layers import use_attention
from tritune.integrations.transformers.cache import let_grow
from tritune.integrations.transformers.gated import patch_gated
from tritune.integrations.transformers.linears import patch_linear
from tritune.integrations.transformers.norms import patch_norm
from tritune.integrations.transformers.rotary import patch_rotary

_enabled: weakref.WeakKeyDictionary[torch.nn.Module, Enabled] = weakref.WeakKeyDictionary()


def enable_model(
    model: torch.nn.Module,
    *,
    attention: bool = True,
    cache: bool = True,
    norms: bool = True,
    rotary: bool = True,
    gated: bool = True,
    linear: bool = False,
    bits: int | None = None,
    group: int = 128,
) -> Enabled:
    """Let a transformers model compute with tritune's ops; what is returned takes it back.

    attention: as `attn_implementation="tritune"`.
    cache: dynamic caches grow in place; by default they are copied for every token.
    norms, rotary, gated: RMS norms, rotary embeddings, activations of gated feed-forward layers.
    linear: linear layers too.
    bits: 8 or 4, for linear layers whose weights are rounded to so many bits, every `group`
        neighbours sharing a scale; the layer that makes the logits keeps its weight.
    """
    _check(model, bits)
    disable_model(model)
    enabled = Enabled()
    try:
        if attention:
            use_attention(enabled, model)
        if cache and _takes_cache(model):
            hook = model.register_forward_pre_hook(_grow, with_kwargs=True)
            enabled.add("caches", hook.remove)
        output = _output_layer(model)
        for module in model.modules():
            if norms:
                patch_norm(enabled, module)
            if rotary:
                patch_rotary(enabled, module)
            if gated:
                patch_gated(enabled, module)
        # The last, as the probes of the others compare with layers as they were.
        for module in model.modules():
            if linear or (bits is not None and module is not output):
                patch_linear(enabled, module, None if module is output else bits, group)
    except BaseException:
        enabled.disable()
        raise
    _enabled[model] = enabled
    return enabled


def is_enabled(model: torch.nn.Module) -> bool:
    """Return whether `enable_model` has changed a model, and it is not undone."""
    enabled = _enabled.get(model)
    return enabled is not None and enabled.active


def disable_model(model: torch.nn.Module) -> None:
    """Take back what `enable_model` changed; a model that was not changed is left alone."""
    enabled = _enabled.pop(model, None)
    if enabled is not None:
        enabled.disable()


def _check(model: torch.nn.Module, bits: int | None) -> None:
    if not isinstance(model, torch.nn.Module):
        raise IntegrationError(
            f"enable got a {type(model).__name__}, allowed: a model (torch.nn.Module), "
            'or "transformers"'
        )
    if bits not in (None, 8, 4):
        raise IntegrationError(f"bits is {bits!r}, allowed: 8, 4, None")


def _takes_cache(model: torch.nn.Module) -> bool:
    """Return whether a forward takes a cache, as that of a wrapper around a model does."""
    if isinstance(model, PreTrainedModel):
        return "past_key_values" in inspect.signature(model.forward).parameters
    return hasattr(model, "generate")


def _grow(module: torch.nn.Module, args: Any, kwargs: dict[str, Any]) -> None:
    if not torch.compiler.is_compiling():
        let_grow(kwargs.get("past_key_values"))


def _output_layer(model: Any) -> torch.nn.Module | None:
    find = getattr(model, "get_output_embeddings", None)
    return find() if callable(find) else None
