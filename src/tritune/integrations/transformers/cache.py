"""A dynamic cache that grows in place: the keys and values of the past are not copied for each
new token.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers.cache_utils import (
    Cache,
    DynamicLayer,
    DynamicSlidingWindowLayer,
    EncoderDecoderCache,
)

#: Tokens for which there is room beyond those that are there, at least; or this part of them.
_LEAST_ROOM = 256
_ROOM = 4


class _Row:
    """Keys or values of a layer, (batch, heads, tokens, size), in a buffer with room behind."""

    def __init__(self) -> None:
        self.buffer: torch.Tensor | None = None
        #: What the layer was given to hold. If it holds another tensor, the program has changed it.
        self.held: torch.Tensor | None = None
        self.start = 0
        self.end = 0

    def append(self, held: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
        """Return what the layer holds, with new tokens behind it."""
        tokens = new.shape[2]
        buffer = self._buffer(held, new)
        buffer.narrow(2, self.end, tokens).copy_(new)
        self.end += tokens
        return buffer.narrow(2, self.start, self.end - self.start)

    def hold(self, held: torch.Tensor) -> torch.Tensor:
        """Note what the layer keeps: the last tokens."""
        self.start, self.held = self.end - held.shape[2], held
        return held

    def _buffer(self, held: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
        """Return a buffer that ends with what is held, and has room for new tokens."""
        buffer = self.buffer
        if (
            buffer is not None
            and held is self.held
            and self.end + new.shape[2] <= buffer.shape[2]
            # Outside of inference mode, what was made inside cannot be written to.
            and (torch.is_inference_mode_enabled() or not buffer.is_inference())
        ):
            return buffer
        past = held.shape[2] if held.numel() else 0
        tokens = past + new.shape[2]
        room = max(_LEAST_ROOM, tokens // _ROOM)
        buffer = new.new_empty(*new.shape[:2], tokens + room, new.shape[3])
        if past:
            buffer.narrow(2, 0, past).copy_(held)
        self.buffer, self.start, self.end = buffer, 0, past
        return buffer


def _appended(
    layer: Any, keys: torch.Tensor, values: torch.Tensor, kept: int = 0
) -> tuple[torch.Tensor, ...] | None:
    """Append to a layer, which keeps the last `kept` tokens or all, and return all of them; None
    where gradients or a compiler have to see what happens.
    """
    if not layer.is_initialized:
        layer.lazy_initialization(keys, values)
    if torch.compiler.is_compiling() or keys.dim() != 4 or keys.dtype != layer.keys.dtype:
        return None
    if torch.is_grad_enabled() and (keys.requires_grad or layer.keys.requires_grad):
        return None
    key_row, value_row = layer.__dict__.setdefault("_tritune_rows", (_Row(), _Row()))
    full = key_row.append(layer.keys, keys), value_row.append(layer.values, values)
    layer.keys = key_row.hold(full[0][:, :, -kept:])
    layer.values = value_row.hold(full[1][:, :, -kept:])
    return full


class GrowingLayer(DynamicLayer):
    """Appends in place; its base copies all keys and values for every token."""

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> Any:
        full = _appended(self, key_states, value_states)
        return full or super().update(key_states, value_states, *args, **kwargs)


class GrowingSlidingWindowLayer(DynamicSlidingWindowLayer):
    """Appends in place; its base copies the keys and values of the window for every token."""

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> Any:
        window = self.sliding_window
        full = None if self.record_past else _appended(self, key_states, value_states, window - 1)
        if full is None:
            return super().update(key_states, value_states, *args, **kwargs)
        self.cumulative_length += key_states.shape[-2]
        return full


_GROWING = {DynamicLayer: GrowingLayer, DynamicSlidingWindowLayer: GrowingSlidingWindowLayer}


def let_grow(cache: object) -> None:
    """Turn the dynamic layers of a cache, and no others, into layers that grow in place."""
    if isinstance(cache, EncoderDecoderCache):
        # The keys of the encoder do not change.
        let_grow(cache.self_attention_cache)
    elif isinstance(cache, Cache):
        for layer in cache.layers:
            kind = _GROWING.get(type(layer))
            if kind is not None:
                layer.__class__ = kind
