"""Checks of arguments, before anything is launched. All reasons are given at once.

Messages are formatted only where a check failed: checks run on every slow call, and torch's
compiler traces them, where a message that names a dynamic size would specialize on it.
"""

from __future__ import annotations

from types import TracebackType
from typing import Any

import torch
from torch.autograd import forward_ad
from torch.compiler import is_dynamo_compiling

from tritune import env
from tritune.dtypes import FLOATS, dtype_name
from tritune.errors import ArgumentError

#: Kernels count the columns of a row, in blocks of up to 2^15, with 32 bits.
LONGEST_ROW = 2**31 - 2**16
_torch_c: Any = torch._C
_unpack_dual: Any = forward_ad.unpack_dual


class Check:
    """Collects reasons; leaving the block raises one ArgumentError with all of them.

    Each check returns whether it passed.
    """

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
            raise ArgumentError(f"{self.op}: " + "; ".join(self.reasons))

    def fail(self, reason: str) -> bool:
        """Add a reason, which says what was given and what is allowed."""
        self.reasons.append(reason)
        return False

    def tensor(
        self,
        name: str,
        value: torch.Tensor,
        rank: int | None = None,
        dtypes: tuple[torch.dtype, ...] = FLOATS,
    ) -> bool:
        """Check rank and dtype, that it is dense, and that no gradient is expected of it."""
        if not isinstance(value, torch.Tensor):
            return self.fail(f"{name} is a {type(value).__name__}, not a tensor")
        before = len(self.reasons)
        if not self.dense(name, value):
            return False
        if rank is not None and value.dim() != rank:
            self.fail(f"{name} has {value.dim()} dimensions, allowed: {rank}")
        if value.dtype not in dtypes:
            allowed = ", ".join(map(dtype_name, dtypes))
            self.fail(f"{name} is {dtype_name(value.dtype)}, allowed: {allowed}")
        self.no_gradient(name, value)
        return len(self.reasons) == before

    def dense(self, name: str, value: torch.Tensor) -> bool:
        """Check that a tensor's elements are in memory, at the places that its strides say."""
        if value.layout is torch.strided and not value.is_nested:
            return True
        kind = "a nested tensor" if value.is_nested else dtype_name(value.layout)
        return self.fail(f"{name} is {kind}, allowed: dense tensors")

    def no_gradient(self, name: str, value: torch.Tensor) -> bool:
        """Check that no gradient is expected of a tensor."""
        if not (value.requires_grad and torch.is_grad_enabled()):
            return True
        return self.fail(
            f"{name} requires a gradient, but this is an inference op: use torch.no_grad() or "
            f"detach {name}"
        )

    def no_tangent(self, name: str, value: torch.Tensor) -> bool:
        """Check that forward-mode AD does not use a tensor, which must not be one of vmap's."""
        if forward_ad._current_level < 0 or not _torch_c._is_fwd_grad_enabled():
            return True
        if _unpack_dual(value).tangent is None:
            return True
        return self.fail(
            f"{name} has a tangent (forward-mode AD), but this is an inference op: detach {name}"
        )

    def same_device(self, **tensors: torch.Tensor | None) -> bool:
        present = [(n, t.device) for n, t in tensors.items() if isinstance(t, torch.Tensor)]
        if all(device == present[0][1] for _, device in present):
            return True
        listed = ", ".join(f"{name} on {device}" for name, device in present)
        return self.fail(f"tensors are on several devices: {listed}")

    def same_shape(self, **tensors: torch.Tensor) -> bool:
        first = next(iter(tensors.values()))
        if all(tensor.shape == first.shape for tensor in tensors.values()):
            return True
        listed = ", ".join(f"{name} {shape_of(tensor)}" for name, tensor in tensors.items())
        return self.fail(f"shapes differ, but must be the same: {listed}")

    def same_dtype(self, **tensors: torch.Tensor) -> bool:
        first = next(iter(tensors.values()))
        if all(tensor.dtype == first.dtype for tensor in tensors.values()):
            return True
        listed = ", ".join(f"{name} is {dtype_name(t.dtype)}" for name, t in tensors.items())
        return self.fail(f"dtypes differ, but must be the same: {listed}")

    def rows(self, name: str, tensor: torch.Tensor, weight: torch.Tensor) -> bool:
        """Check that the last dimension of a tensor is as long as the weight."""
        if tensor.dim() == 0:
            return self.fail(f"{name} has no dimensions, allowed: 1 or more")
        if tensor.shape[-1] > LONGEST_ROW:
            return self.fail(f"a row of {name} has more than {LONGEST_ROW} elements")
        if tensor.shape[-1] == weight.shape[0]:
            return True
        return self.fail(
            f"the last dimension of {name} {shape_of(tensor)} must be as long as the weight "
            f"{shape_of(weight)}"
        )

    def writable(self, name: str, tensor: torch.Tensor) -> bool:
        """Check that each element of a tensor has memory of its own, by the strides."""
        sizes = zip(tensor.shape, tensor.stride(), strict=True)
        if any(step == 0 and size > 1 for size, step in sizes):
            return self.fail(f"{name} cannot be written: it is expanded, its elements share memory")
        # Dynamo cannot trace is_neg; this is checked where the compiled op runs.
        if not is_dynamo_compiling() and tensor.is_neg():
            return self.fail(f"{name} cannot be written: it is a negative view of other memory")
        return True


def shape_of(tensor: torch.Tensor) -> str:
    """Return a tensor's shape as messages show it."""
    return f"({', '.join(str(size) for size in tensor.shape)})"


def given(*tensors: torch.Tensor | None) -> tuple[torch.Tensor, ...]:
    """Return the tensors that are not None."""
    return tuple([tensor for tensor in tensors if tensor is not None])


def checks_values(tensor: torch.Tensor) -> bool:
    """Return whether values are checked: on the CPU always, on a GPU with TRITUNE_CHECK=1."""
    return tensor.device.type == "cpu" or env.CHECK.read() is True
