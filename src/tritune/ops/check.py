"""Checks of what people pass. All reasons are given at once, before anything is launched."""

from __future__ import annotations

from types import TracebackType

import torch

from tritune import env

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
        # Words are found only for what is wrong: this runs on every call.
        if not isinstance(value, torch.Tensor):
            return self.that(False, f"{name} is a {type(value).__name__}, not a tensor")
        before = len(self.reasons)
        if rank is not None and value.dim() != rank:
            self.reasons.append(f"{name} has {value.dim()} dimensions, allowed: {rank}")
        if value.dtype not in dtypes:
            self.reasons.append(
                f"{name} is {_kind(value.dtype)}, allowed: {', '.join(map(_kind, dtypes))}"
            )
        if value.requires_grad and torch.is_grad_enabled():
            self.reasons.append(
                f"{name} requires a gradient, but this is an inference op: use torch.no_grad() or "
                f"detach {name}"
            )
        return len(self.reasons) == before

    def same_device(self, **tensors: torch.Tensor | None) -> bool:
        given = [(n, t.device) for n, t in tensors.items() if isinstance(t, torch.Tensor)]
        if all(device == given[0][1] for _, device in given):
            return True
        listed = ", ".join(f"{name} on {device}" for name, device in given)
        return self.that(False, f"tensors are on several devices: {listed}")


def _kind(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def looks_inside(tensor: torch.Tensor) -> bool:
    """Whether values are checked: on the CPU always, on a GPU with TRITUNE_CHECK=1."""
    return tensor.device.type == "cpu" or env.CHECK.read() is True
