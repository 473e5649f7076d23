"""Replacing what a module computes, and putting it back.

Modules are told by what they compute, not by their names alone: a replacement is used only where it
gives the module's own answer to a question at random. Whatever it cannot serve (gradients, unusual
dtypes) goes to the module as it was.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import torch

from tritune.dtypes import FLOATS
from tritune.integrations.covered import DEVICES
from tritune.integrations.enabled import Enabled

#: A function whose first argument is the module.
Forward = Callable[..., Any]


def swap_forward(enabled: Enabled, kind: str, module: torch.nn.Module, forward: Forward) -> None:
    """Call `forward`, a method without its class, where the module's own was called."""
    # A bound method, as that is what a copy of the module gets right.
    module.forward = types.MethodType(forward, module)
    enabled.add(kind, lambda: module.__dict__.pop("forward", None))


def leave(enabled: Enabled, kind: str, module: torch.nn.Module) -> None:
    """Note a layer that looked as if it could be replaced."""
    enabled.leave(kind, f"{type(module).__name__} computes something else")


def is_plain(module: torch.nn.Module) -> bool:
    """Whether nobody else has replaced the module's forward."""
    return "forward" not in module.__dict__


def serves(x: torch.Tensor, *parameters: torch.Tensor | None) -> bool:
    """Whether the ops take these tensors: floats of which no gradient is expected."""
    if x.dtype not in FLOATS or x.device.type not in DEVICES:
        return False
    return not torch.is_grad_enabled() or not any(
        tensor is not None and tensor.requires_grad for tensor in (x, *parameters)
    )


def agree(ours: Any, theirs: Any) -> bool:
    """Whether two answers are the same but for rounding."""
    if isinstance(theirs, (tuple, list)):
        return len(ours) == len(theirs) and all(map(agree, ours, theirs))
    if ours.shape != theirs.shape or ours.dtype != theirs.dtype:
        return False
    # A few units in the last place: the module may round between its steps.
    tolerance = 16 * torch.finfo(theirs.dtype).eps
    ours, theirs = ours.double(), theirs.double()
    return bool((ours - theirs).abs().max() <= tolerance * theirs.abs().max())


def question(*shape: int, like: torch.Tensor) -> torch.Tensor:
    """Numbers at random that leave the state of torch's generators alone."""
    generator = torch.Generator().manual_seed(0)
    return torch.randn(shape, generator=generator).to(like)
