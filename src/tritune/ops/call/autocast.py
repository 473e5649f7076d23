"""What `torch.autocast` asks of ops that are mostly products, as it does of torch's own."""

from __future__ import annotations

from typing import TypeVar

import torch

from tritune.dtypes import FLOATS

_Tensor = TypeVar("_Tensor", torch.Tensor, torch.Tensor | None)
_DEVICES = ("cpu", "cuda")


def autocasts(tensor: torch.Tensor) -> bool:
    """Whether autocast is on for the tensor's device; no, for what is not a tensor."""
    return (
        isinstance(tensor, torch.Tensor)
        and tensor.device.type in _DEVICES
        and torch.is_autocast_enabled(tensor.device.type)
    )


def autocast(tensor: _Tensor) -> _Tensor:
    """A float tensor in autocast's dtype, where that is on."""
    if not isinstance(tensor, torch.Tensor) or tensor.dtype not in FLOATS:
        return tensor
    return tensor.to(torch.get_autocast_dtype(tensor.device.type))
