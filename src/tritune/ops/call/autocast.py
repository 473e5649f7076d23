"""Autocast for ops that are mostly matrix products, as torch casts for its own."""

from __future__ import annotations

from typing import TypeVar

import torch

from tritune.dtypes import FLOATS

_Tensor = TypeVar("_Tensor", torch.Tensor, torch.Tensor | None)
_DEVICES = ("cpu", "cuda")


def autocasts(tensor: torch.Tensor) -> bool:
    """Return whether autocast is on for the tensor's device; False for other objects."""
    return (
        isinstance(tensor, torch.Tensor)
        and tensor.device.type in _DEVICES
        and torch.is_autocast_enabled(tensor.device.type)
    )


def autocast(tensor: _Tensor) -> _Tensor:
    """Cast a float tensor to autocast's dtype."""
    if not isinstance(tensor, torch.Tensor) or tensor.dtype not in FLOATS:
        return tensor
    return tensor.to(torch.get_autocast_dtype(tensor.device.type))
