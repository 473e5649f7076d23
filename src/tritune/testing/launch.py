"""Launch a kernel on copies, so that launches can be compared."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch


def launch(kernel: Any, grid: tuple[int, ...], *args: Any, **constants: Any) -> list[torch.Tensor]:
    """Run a kernel on copies of its tensors; return the copies, in the order of the arguments."""
    copies = [_copied(arg) for arg in args]
    kernel[grid](*copies, **constants)
    return _tensors(copies)


def fresh(tensor: torch.Tensor) -> torch.Tensor:
    """Return a copy with its own storage, and the same strides and offset."""
    storage = tensor.untyped_storage().clone()  # type: ignore[no-untyped-call]
    copy = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
    return copy.set_(storage, tensor.storage_offset(), tensor.size(), tensor.stride())


def _copied(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return fresh(value)
    if isinstance(value, tuple):
        return tuple(_copied(item) for item in value)
    return value


def _tensors(values: Sequence[Any]) -> list[torch.Tensor]:
    found: list[torch.Tensor] = []
    for value in values:
        if isinstance(value, torch.Tensor):
            found.append(value)
        elif isinstance(value, tuple):
            found.extend(_tensors(value))
    return found
