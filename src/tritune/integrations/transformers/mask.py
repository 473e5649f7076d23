"""The mask that a transformers model makes once for all layers that share it.

Four forms leave here. None: a query sees all keys that it may see by its place. (batch, keys):
padding, and no key past the last column; the tensor carries a `Pattern`. (batch, 1, queries, keys),
boolean: the whole truth, for what the kernels do not know by themselves. The same as numbers that
are added to the scores, as `eager` has it: for models that also read the mask themselves.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from transformers.masking_utils import (
    and_masks,
    bidirectional_mask_function,
    causal_mask_function,
    eager_mask,
    sdpa_mask,
    sliding_window_overlay,
)

from tritune.integrations.transformers.model_support import takes_short_masks

#: The attribute of a (batch, keys) mask that holds its pattern.
_ATTRIBUTE = "_tritune_pattern"


class Pattern(NamedTuple):
    """The keys that a query sees, padding aside; the last query is at the last key."""

    causal: bool
    window: int | None = None
    #: Whether there is padding at all: if not, the mask need not be read.
    padded: bool = True


def make_mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: Any = 0,
    kv_offset: int = 0,
    mask_function: Callable[..., Any] = causal_mask_function,
    attention_mask: torch.Tensor | None = None,
    allow_is_causal_skip: bool = True,
    allow_is_bidirectional_skip: bool = False,
    config: object = None,
    **kwargs: Any,
) -> torch.Tensor | None:
    """Return the mask in its shortest form; called by transformers with these names.

    Key j is at position kv_offset + j, query i at q_offset + i. `attention_mask` is the user's, by
    position, and False where there is padding.
    """
    given: dict[str, Any] = {
        "batch_size": batch_size,
        "q_length": q_length,
        "kv_length": kv_length,
        "q_offset": q_offset,
        "kv_offset": kv_offset,
        "attention_mask": attention_mask,
    }
    if not takes_short_masks(config):
        return eager_mask(mask_function=mask_function, **given, **kwargs)
    pattern = _pattern(mask_function)
    if pattern is not None and (
        allow_is_causal_skip if pattern.causal else allow_is_bidirectional_skip
    ):
        found, mask = _short_form(pattern, **given)
        if found:
            return mask
    full: torch.Tensor | None = sdpa_mask(
        mask_function=mask_function,
        allow_is_causal_skip=False,
        allow_is_bidirectional_skip=False,
        **given,
        **kwargs,
    )
    return full


def pattern_of(mask: torch.Tensor) -> Pattern | None:
    """Return the pattern that `make_mask` gave a (batch, keys) mask."""
    if torch.compiler.is_compiling():
        return None
    pattern: Pattern | None = getattr(mask, _ATTRIBUTE, None)
    return pattern


def _short_form(
    pattern: Pattern,
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: Any,
    kv_offset: int,
    attention_mask: torch.Tensor | None,
) -> tuple[bool, torch.Tensor | None]:
    """Return whether there is a short form, and if so None or a (batch, keys) mask."""
    compiling = torch.compiler.is_compiling()
    if isinstance(q_offset, torch.Tensor):
        if compiling:
            return False, None
        q_offset = int(q_offset)
    # A cache of a fixed size has keys that are not written yet: those after the last query's.
    exist = q_offset + q_length - kv_offset if pattern.causal else kv_length
    if exist > kv_length:
        return False, None
    padding = None
    if attention_mask is not None:
        if attention_mask.shape[-1] < kv_offset + exist:
            return False, None
        padding = attention_mask[:, kv_offset : kv_offset + exist]
    if compiling:
        # A traced tensor cannot be looked into, nor can it carry more than its elements.
        return exist == kv_length or padding is not None, padding
    padded = padding is not None and not bool(padding.all())
    narrow = pattern.window is not None and pattern.window < exist
    if not padded and not narrow and exist == kv_length:
        return True, None
    if padding is None or not padded:
        padding = torch.ones((), dtype=torch.bool).expand(batch_size, exist)
    setattr(padding, _ATTRIBUTE, pattern._replace(padded=padded))
    return True, padding


def _pattern(mask_function: Callable[..., Any]) -> Pattern | None:
    if mask_function is causal_mask_function:
        return Pattern(causal=True)
    if mask_function is bidirectional_mask_function:
        return Pattern(causal=False)
    if torch.compiler.is_compiling():
        return None
    both = _captured(mask_function, and_masks, "mask_functions")
    if isinstance(both, tuple) and len(both) == 2 and both[1] is causal_mask_function:
        window = _captured(both[0], sliding_window_overlay, "sliding_window")
        if isinstance(window, int):
            return Pattern(causal=True, window=window)
    return None


def _captured(function: Callable[..., Any], maker: Callable[..., Any], name: str) -> Any:
    """Return a variable of `maker` that the function it returned has kept, or None.

    transformers describes a mask by functions only: there is no other way to learn the window.
    """
    code = getattr(function, "__code__", None)
    cells = getattr(function, "__closure__", None)
    if code is None or cells is None or code not in getattr(maker, "__code__", code).co_consts:
        return None
    return dict(zip(code.co_freevars, (cell.cell_contents for cell in cells), strict=True)).get(
        name
    )
