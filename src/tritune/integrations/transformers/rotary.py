"""Rotary embedding: attention modules that call a function `apply_rotary_pos_emb` of their file."""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable
from typing import Any

import torch

import tritune.ops.rope  # noqa: F401  (defines the op)
from tritune.integrations.enabled import Enabled
from tritune.integrations.support import supports
from tritune.integrations.transformers.patch import (
    is_unpatched,
    leave,
    patch_forward,
    probe,
    same_result,
)

_NAME = "apply_rotary_pos_emb"
_rope: Any = torch.ops.tritune.rope.default


def patch_rotary(enabled: Enabled, module: torch.nn.Module) -> None:
    """Let an attention module rotate its queries and keys with `tritune.rope`."""
    forward = type(module).forward
    if not isinstance(forward, types.FunctionType) or _NAME not in forward.__code__.co_names:
        return
    theirs = forward.__globals__.get(_NAME)
    if not callable(theirs) or not is_unpatched(module) or not _is_usual(theirs):
        leave(enabled, "rotary embeddings", module)
        return
    patch_forward(enabled, "rotary embeddings", module, _with_rope(forward, theirs))


@functools.cache
def _with_rope(forward: types.FunctionType, theirs: Callable[..., Any]) -> types.FunctionType:
    """Return a copy of `forward` that finds tritune's function by the name of `theirs`.

    One for all modules of a class, and with a code object of its own: torch's compiler keeps what
    it compiled by the code object, and finds the parts of it among the function's globals. These
    have no name, by which it would take those of the model's file for them.
    """
    own_globals = {**forward.__globals__, _NAME: _replacement(theirs)}
    own_globals.pop("__name__", None)
    own = types.FunctionType(
        forward.__code__.replace(),
        own_globals,
        forward.__name__,
        forward.__defaults__,
        forward.__closure__,
    )
    own.__kwdefaults__ = forward.__kwdefaults__
    return own


@functools.cache
def _is_usual(theirs: Callable[..., Any]) -> bool:
    """Return whether a function rotates (batch, heads, tokens, size) by (batch, tokens, size)."""
    names = list(inspect.signature(theirs).parameters)
    if names[:4] != ["q", "k", "cos", "sin"]:
        return False
    like = torch.empty(0)
    q, k = probe(2, 3, 5, 8, like=like), probe(2, 1, 5, 8, like=like)
    # The two halves of a row differ, so that a function which reads one of them only is found out.
    cos, sin = probe(2, 5, 8, like=like), probe(2, 5, 8, like=like).flip(-1)
    try:
        return same_result(_replacement(theirs)(q, k, cos, sin), theirs(q, k, cos, sin))
    except (RuntimeError, TypeError, IndexError):
        return False


def _replacement(theirs: Callable[..., Any]) -> Callable[..., Any]:
    def apply_rotary_pos_emb(
        q: torch.Tensor,
        k: torch.Tensor,
        cos: torch.Tensor,
        sin: torch.Tensor,
        unsqueeze_dim: int = 1,
        **kwargs: Any,
    ) -> Any:
        if (
            unsqueeze_dim != 1
            or kwargs
            or not supports(q, k, cos)
            or q.dtype != k.dtype
            or not q.dim() == 4 == cos.dim() + 1
        ):
            return theirs(q, k, cos, sin, unsqueeze_dim=unsqueeze_dim, **kwargs)
        q, k = _rope(q.transpose(1, 2), k.transpose(1, 2), cos, sin, None, False)
        return q.transpose(1, 2), k.transpose(1, 2)

    return apply_rotary_pos_emb
