"""Catch kernels that read or write outside of their tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from tritune.testing.rule import assert_same_bits
from tritune.tuning.measure.guard import NAN_BYTE, OTHER_BYTE, Guard

#: A call's result: one tensor, or several.
Result = torch.Tensor | Sequence[torch.Tensor]


def surrounded(tensor: torch.Tensor, filler: float, gap: int = 16) -> torch.Tensor:
    """Return the same values, with `filler` before, between and after the rows."""
    larger = tensor.new_full([size + 2 * gap for size in tensor.shape], filler)
    inside = larger[tuple(slice(gap, gap + size) for size in tensor.shape)]
    return inside.copy_(tensor)


def around(inside: torch.Tensor, gap: int = 16) -> torch.Tensor:
    """Return the memory around a tensor that `surrounded` made; its elements are 0."""
    whole = torch.as_strided(
        inside, [size + 2 * gap for size in inside.shape], inside.stride(), storage_offset=0
    ).clone()
    whole[tuple(slice(gap, gap + size) for size in inside.shape)] = 0
    return whole


def assert_contained(call: Callable[..., Result], *tensors: torch.Tensor) -> list[torch.Tensor]:
    """Fail if a call reads or writes memory that is not its own; its results otherwise.

    `call` gets copies of the tensors and returns what it computes. What it allocates lies between
    canaries, and is full of NaN at first. The memory around the tensors is NaN in one run and zeros
    in another: neither may change one bit of the result.
    """
    results = []
    for garbage, filler in ((NAN_BYTE, float("nan")), (OTHER_BYTE, 0.0)):
        placed = [_placed(tensor, filler) for tensor in tensors]
        with Guard(garbage) as guard:
            found = call(*placed)
        damage = guard.damage()
        assert damage is None, damage
        results.append([found] if isinstance(found, torch.Tensor) else list(found))
    first, second = results
    assert len(first) == len(second), "two runs return different numbers of tensors"
    for one, other in zip(first, second, strict=True):
        assert_same_bits(one, other)
    return first


def _placed(tensor: torch.Tensor, filler: float) -> torch.Tensor:
    """Copy a tensor with something else around it; integers may be indices and stay as they are."""
    if not tensor.is_floating_point() or not tensor.dim():
        return tensor.clone()
    inside: Any = surrounded(tensor.detach(), filler)
    return inside.requires_grad_(tensor.requires_grad)
