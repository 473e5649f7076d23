"""Folding of dimensions: as many as the strides allow are merged."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch

Strides = tuple[int, ...]


class Folded(NamedTuple):
    """The dimensions that tensors share, after folding."""

    sizes: tuple[int, ...]
    #: One tuple per tensor; zeros for an absent one.
    strides: tuple[Strides, ...]


def fold(shape: Sequence[int], strides: Sequence[Strides | None]) -> Folded:
    """Sort dimensions by the first tensor's strides, and merge neighbours where all tensors allow.

    None stands for an absent tensor.
    """
    if 0 in shape:
        return Folded((0,), ((0,),) * len(strides))
    steps = [each or (0,) * len(shape) for each in strides]
    order = sorted(
        (d for d, size in enumerate(shape) if size != 1), key=lambda d: steps[0][d], reverse=True
    )
    folded: list[tuple[int, Strides]] = []
    for d in order:
        size, step = shape[d], tuple(each[d] for each in steps)
        if folded and folded[-1][1] == tuple(s * size for s in step):
            size *= folded.pop()[0]
        folded.append((size, step))
    return Folded(
        tuple(size for size, _ in folded),
        tuple(tuple(step[i] for _, step in folded) for i in range(len(strides))),
    )


def pair(values: Strides, missing: int) -> tuple[int, int]:
    """Pad at most two values, outer and inner, with `missing`."""
    outer, inner = (*values, missing, missing)[:2]
    return outer, inner


def split(tensors: Sequence[torch.Tensor | None], leading: int) -> Iterator[list[Any]]:
    """Yield the tensors for each index of one of the `leading` dimensions that they share.

    For strides that do not fold as far as a kernel needs: several launches are faster than a copy.
    """
    shape = next(t for t in tensors if t is not None).shape[:leading]
    # The shortest dimension gives the fewest parts; one of size 1 gives nothing smaller.
    shortest = min((d for d in range(leading) if shape[d] > 1), key=lambda d: shape[d])
    for i in range(shape[shortest]):
        yield [None if t is None else t.select(shortest, i) for t in tensors]
