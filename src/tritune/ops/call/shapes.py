"""Checks of shapes and memory that several ops make.

A message is written only once a check failed: torch's compiler traces these checks, and a message
that names a dynamic size would pin it.
"""

from __future__ import annotations

import torch
from torch.compiler import is_dynamo_compiling

from tritune.ops.call.checks import Check

#: Kernels count the columns of a row, in blocks of up to 2^15, with 32 bits.
LONGEST_ROW = 2**31 - 2**16


def described(tensor: torch.Tensor) -> str:
    return f"({', '.join(str(size) for size in tensor.shape)})"


def same_shape(check: Check, **tensors: torch.Tensor) -> bool:
    first = next(iter(tensors.values()))
    if all(tensor.shape == first.shape for tensor in tensors.values()):
        return True
    listed = ", ".join(f"{name} {described(tensor)}" for name, tensor in tensors.items())
    return check.that(False, f"shapes differ, but must be the same: {listed}")


def same_dtype(check: Check, **tensors: torch.Tensor) -> bool:
    first = next(iter(tensors.values()))
    if all(tensor.dtype == first.dtype for tensor in tensors.values()):
        return True
    listed = ", ".join(
        f"{name} is {str(tensor.dtype).removeprefix('torch.')}" for name, tensor in tensors.items()
    )
    return check.that(False, f"dtypes differ, but must be the same: {listed}")


def rows_of(check: Check, name: str, tensor: torch.Tensor, weight: torch.Tensor) -> bool:
    """That the last dimension of a tensor is as long as the weight."""
    if tensor.dim() == 0:
        return check.that(False, f"{name} has no dimensions, allowed: 1 or more")
    if tensor.shape[-1] > LONGEST_ROW:
        return check.that(False, f"a row of {name} has more than {LONGEST_ROW} elements")
    if tensor.shape[-1] == weight.shape[0]:
        return True
    return check.that(
        False,
        f"the last dimension of {name} {described(tensor)} must be as long as the weight "
        f"{described(weight)}",
    )


def writable(check: Check, name: str, tensor: torch.Tensor) -> bool:
    """That each element of a tensor has a place of its own, as far as is seen from strides."""
    spread = all(
        step != 0 for size, step in zip(tensor.shape, tensor.stride(), strict=True) if size > 1
    )
    if not check.that(
        spread, f"{name} cannot be written: it is expanded, its elements share memory"
    ):
        return False
    # Compiled code has no word for the question; torch answers it where the op runs.
    negative = not is_dynamo_compiling() and tensor.is_neg()
    return check.that(
        not negative, f"{name} cannot be written: it is a negative view of other memory"
    )


def given(*tensors: torch.Tensor | None) -> tuple[torch.Tensor, ...]:
    """Those that are there."""
    return tuple([tensor for tensor in tensors if tensor is not None])
