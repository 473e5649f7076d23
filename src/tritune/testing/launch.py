"""Launch a kernel on copies, so that launches can be compared."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils import _pytree as pytree


def launch(kernel: Any, grid: tuple[int, ...], *args: Any, **constants: Any) -> list[torch.Tensor]:
    """Run a kernel on copies of its tensors; return the copies, in the order of the arguments."""
    copies = pytree.tree_map_only(torch.Tensor, fresh, args)
    kernel[grid](*copies, **constants)
    return [each for each in pytree.tree_leaves(copies) if isinstance(each, torch.Tensor)]


def fresh(tensor: torch.Tensor) -> torch.Tensor:
    """Return a copy with its own storage, and the same strides and offset."""
    storage = tensor.untyped_storage().clone()  # type: ignore[no-untyped-call]
    copy = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
    return copy.set_(storage, tensor.storage_offset(), tensor.size(), tensor.stride())
