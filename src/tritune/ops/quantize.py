"""Weights in 8 or 4 bits for `linear`."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch.utils import _pytree as pytree

from tritune.dtypes import dtype_name
from tritune.kernels.linear_quantized import dequantize, pack, zero_without_points
from tritune.ops.call.checks import Check, shape_of

GROUPS = (32, 64, 128)


@dataclass(frozen=True, repr=False, eq=False)
class QuantizedWeight:
    """A weight (N, K) in integers, with a scale for every group of neighbours along K.

    Its elements are `(code - zero) * scale`.
    """

    #: Codes: (N, K) bytes, or (N, K / 2) of two codes each; see kernels/linear_quantized.py.
    packed: torch.Tensor
    #: (N, K / group), in the dtype of the weight.
    scales: torch.Tensor
    #: (N, K / group) bytes; None where every zero is in the middle of the range.
    zeros: torch.Tensor | None
    bits: int
    group: int

    @property
    def shape(self) -> torch.Size:
        return torch.Size((self.packed.shape[0], self.packed.shape[1] * 8 // self.bits))

    @property
    def dtype(self) -> torch.dtype:
        """Return the dtype of the weight before, which `dequantize` returns."""
        return self.scales.dtype

    @property
    def device(self) -> torch.device:
        return self.packed.device

    @property
    def nbytes(self) -> int:
        tensors = (self.packed, self.scales, self.zeros)
        return sum(t.nbytes for t in tensors if t is not None)

    def dequantize(self, dtype: torch.dtype | None = None) -> torch.Tensor:
        """Return the weight as a tensor (N, K), computed in fp32 and rounded once."""
        # References are computed in fp64.
        exact = torch.float64 if dtype == torch.float64 else torch.float32
        weight = dequantize(self.packed, self.scales, self.zeros, self.bits, self.group, exact)
        return weight.to(self.dtype if dtype is None else dtype)

    def to(self, device: torch.device | str) -> QuantizedWeight:
        """Return the same weight on another device."""
        return replace(
            self,
            packed=self.packed.to(device),
            scales=self.scales.to(device),
            zeros=None if self.zeros is None else self.zeros.to(device),
        )

    def __repr__(self) -> str:
        n, k = self.shape
        kind = dtype_name(self.dtype)
        zeros = "no zero points" if self.zeros is None else "zero points"
        return (
            f"QuantizedWeight({n} x {k}, {self.bits} bits, groups of {self.group}, {kind} scales, "
            f"{zeros}, {self.nbytes} bytes on {self.device})"
        )


def quantize_weight(
    weight: torch.Tensor, bits: int = 8, group: int = 128, *, zero_points: bool = False
) -> QuantizedWeight:
    """Round a weight (N, K) to integers of 8 or 4 bits, for `linear` to use as its weight.

    Every `group` (32, 64 or 128) neighbours along K share a scale. With zero points the integers
    cover what lies between a group's least and largest element, and zero; without, a range that is
    symmetric about zero, which `linear` reads a little faster.
    """
    with Check("quantize_weight") as check:
        if bits not in (8, 4):
            check.fail(f"bits is {bits!r}, allowed: 8, 4")
        if group not in GROUPS:
            check.fail(f"group is {group!r}, allowed: {', '.join(map(str, GROUPS))}")
        if check.tensor("weight", weight, rank=2) and group in GROUPS and weight.shape[1] % group:
            check.fail(
                f"weight {shape_of(weight)} has {weight.shape[1]} columns, which groups of "
                f"{group} do not divide: choose a smaller group or pad with zeros"
            )
    n, k = weight.shape
    groups = weight.float().reshape(n, k // group, group)
    codes = 2**bits
    if zero_points:
        # Zero is always in the range, so that it stays exact.
        low = groups.amin(2).clamp(max=0)
        high = groups.amax(2).clamp(min=0)
        scales = ((high - low) / (codes - 1)).to(weight.dtype)
        least, largest = 0, codes - 1
        zero = (-low / _divisors(scales)).round().clamp(least, largest)
    else:
        # One code less below zero than there is, for the sake of symmetry.
        scales = (groups.abs().amax(2) / (codes // 2 - 1)).to(weight.dtype)
        middle = zero_without_points(bits)
        least, largest = middle - codes // 2 + 1, middle + codes // 2 - 1
        zero = torch.full_like(scales, middle, dtype=torch.float32)
    rounded = (groups / _divisors(scales)[:, :, None]).round() + zero[:, :, None]
    kind = torch.int8 if least < 0 else torch.uint8
    return QuantizedWeight(
        packed=pack(rounded.clamp(least, largest).to(kind).reshape(n, k), bits, group),
        scales=scales,
        zeros=zero.to(torch.uint8) if zero_points else None,
        bits=bits,
        group=group,
    )


def _divisors(scales: torch.Tensor) -> torch.Tensor:
    """Return scales to divide by: 1 where the scale is 0."""
    return torch.where(scales > 0, scales, torch.ones_like(scales)).float()


_TENSORS = ("packed", "scales", "zeros")

# Traced programs take a QuantizedWeight apart into its tensors; bits and group belong to the form.
pytree.register_pytree_node(
    QuantizedWeight,
    lambda w: ([getattr(w, name) for name in _TENSORS], (w.bits, w.group)),
    lambda tensors, form: QuantizedWeight(*tensors, *form),
    serialized_type_name="tritune.QuantizedWeight",
    to_dumpable_context=list,
    from_dumpable_context=tuple,
    flatten_with_keys_fn=lambda w: (
        [(pytree.GetAttrKey(name), getattr(w, name)) for name in _TENSORS],
        (w.bits, w.group),
    ),
)
