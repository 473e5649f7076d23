"""Checks of what people pass. All reasons are given at once, before anything is launched."""

from __future__ import annotations

from types import TracebackType
from typing import Any

import torch
from torch.autograd import forward_ad

from tritune import env
from tritune.dtypes import FLOATS, dtype_name

_torch_c: Any = torch._C
_unpack_dual: Any = forward_ad.unpack_dual


class Check:
    """Collects reasons; leaving the block raises one ValueError with all of them."""

    def __init__(self, op: str) -> None:
        self.op = op
        self.reasons: list[str] = []

    def __enter__(self) -> Check:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None and self.reasons:
            raise ValueError(f"{self.op}: " + "; ".join(self.reasons))

    def that(self, holds: bool, reason: str) -> bool:
        """Note the reason if the condition does not hold; `reason` says what was given and what is
        allowed.
        """
        if not holds:
            self.reasons.append(reason)
        return holds

    def tensor(
        self,
        name: str,
        value: torch.Tensor,
        rank: int | None = None,
        dtypes: tuple[torch.dtype, ...] = FLOATS,
    ) -> bool:
        """Rank, dtype, that its elements lie in memory, and that no gradient is expected of it."""
        # Words are found only for what is wrong: this runs on every call.
        if not isinstance(value, torch.Tensor):
            return self.that(False, f"{name} is a {type(value).__name__}, not a tensor")
        before = len(self.reasons)
        if not self.dense(name, value):
            return False
        if rank is not None and value.dim() != rank:
            self.reasons.append(f"{name} has {value.dim()} dimensions, allowed: {rank}")
        if value.dtype not in dtypes:
            allowed = ", ".join(map(dtype_name, dtypes))
            self.reasons.append(f"{name} is {dtype_name(value.dtype)}, allowed: {allowed}")
        self.no_gradient(name, value)
        return len(self.reasons) == before

    def dense(self, name: str, value: torch.Tensor) -> bool:
        """That a tensor's elements lie in memory, at the places that its strides say."""
        if value.layout is torch.strided and not value.is_nested:
            return True
        kind = "a nested tensor" if value.is_nested else dtype_name(value.layout)
        return self.that(False, f"{name} is {kind}, allowed: dense tensors")

    def no_gradient(self, name: str, value: torch.Tensor) -> bool:
        """That no gradient is expected of a tensor."""
        if not (value.requires_grad and torch.is_grad_enabled()):
            return True
        return self.that(
            False,
            f"{name} requires a gradient, but this is an inference op: use torch.no_grad() or "
            f"detach {name}",
        )

    def no_tangent(self, name: str, value: torch.Tensor) -> bool:
        """That forward-mode AD does not go through a tensor, which must not be one of vmap's."""
        if forward_ad._current_level < 0 or not _torch_c._is_fwd_grad_enabled():
            return True
        if _unpack_dual(value).tangent is None:
            return True
        return self.that(
            False,
            f"{name} has a tangent (forward-mode AD), but this is an inference op: detach {name}",
        )

    def same_device(self, **tensors: torch.Tensor | None) -> bool:
        given = [(n, t.device) for n, t in tensors.items() if isinstance(t, torch.Tensor)]
        if all(device == given[0][1] for _, device in given):
            return True
        listed = ", ".join(f"{name} on {device}" for name, device in given)
        return self.that(False, f"tensors are on several devices: {listed}")


def looks_inside(tensor: torch.Tensor) -> bool:
    """Whether values are checked: on the CPU always, on a GPU with TRITUNE_CHECK=1."""
    return tensor.device.type == "cpu" or env.CHECK.read() is True
