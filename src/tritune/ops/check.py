"""Checks of what people pass. All reasons are given at once, before anything is launched."""

from __future__ import annotations

import os
from types import TracebackType

import torch

FLOATS = (torch.float32, torch.float16, torch.bfloat16)


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
        """Rank, dtype, and that no gradient is expected of it."""
        if not self.that(
            isinstance(value, torch.Tensor), f"{name} is a {type(value).__name__}, not a tensor"
        ):
            return False
        good = rank is None or self.that(
            value.dim() == rank, f"{name} has {value.dim()} dimensions, allowed: {rank}"
        )
        names = ", ".join(str(d).removeprefix("torch.") for d in dtypes)
        kind = str(value.dtype).removeprefix("torch.")
        good &= self.that(value.dtype in dtypes, f"{name} is {kind}, allowed: {names}")
        good &= self.that(
            not (value.requires_grad and torch.is_grad_enabled()),
            f"{name} requires a gradient, but this is an inference op: use torch.no_grad() or "
            f"detach {name}",
        )
        return good

    def same_device(self, **tensors: torch.Tensor | None) -> bool:
        devices = {n: str(t.device) for n, t in tensors.items() if isinstance(t, torch.Tensor)}
        listed = ", ".join(f"{n} on {d}" for n, d in devices.items())
        return self.that(
            len(set(devices.values())) <= 1, f"tensors are on several devices: {listed}"
        )


def looks_inside(tensor: torch.Tensor) -> bool:
    """Whether values are checked: on the CPU always, on a GPU with TRITUNE_CHECK=1."""
    return tensor.device.type == "cpu" or os.environ.get("TRITUNE_CHECK") == "1"
