"""Replacing the forward of a module, and putting it back.

Modules are recognized by what they compute, not by their names alone: a replacement is used only
where it gives the module's own result for random inputs. What it does not support (gradients,
unusual dtypes) goes to the module as it was.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import torch

from tritune.integrations.enabled import Enabled
from tritune.integrations.support import supports

#: A function whose first argument is the module.
Forward = Callable[..., Any]


def patch_forward(enabled: Enabled, kind: str, module: torch.nn.Module, forward: Forward) -> None:
    """Call `forward`, a method without its class, where the module's own was called."""
    # A bound method, as that is what a copy of the module gets right.
    module.forward = types.MethodType(forward, module)
    enabled.add(kind, lambda: module.__dict__.pop("forward", None))


def leave(enabled: Enabled, kind: str, module: torch.nn.Module) -> None:
    """Note a layer that looked as if it could be replaced."""
    enabled.leave(kind, f"{type(module).__name__} computes something else")


def is_unpatched(module: torch.nn.Module) -> bool:
    """Return whether the module's forward is that of its class."""
    return "forward" not in module.__dict__


def replaces(forward: Forward, module: torch.nn.Module, x: torch.Tensor) -> bool:
    """Return whether a forward gives the module's result for an input."""
    with torch.no_grad():
        return supports(x) and same_result(forward(module, x), module(x))


def same_result(ours: Any, theirs: Any) -> bool:
    """Return whether two results are the same but for rounding."""
    if isinstance(theirs, (tuple, list)):
        return len(ours) == len(theirs) and all(map(same_result, ours, theirs))
    if ours.shape != theirs.shape or ours.dtype != theirs.dtype:
        return False
    # A few units in the last place: the module may round between its steps.
    tolerance = 16 * torch.finfo(theirs.dtype).eps
    ours, theirs = ours.double(), theirs.double()
    return bool((ours - theirs).abs().max() <= tolerance * theirs.abs().max())


def probe(*shape: int, like: torch.Tensor) -> torch.Tensor:
    """Return random numbers, without touching the state of torch's generators."""
    generator = torch.Generator().manual_seed(0)
    return torch.randn(shape, generator=generator).to(like)
