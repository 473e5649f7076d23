"""Folding dimensions: any number of them becomes as few as the strides allow."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch

Strides = tuple[int, ...]


class Folded(NamedTuple):
    """Dimensions that tensors share, after folding."""

    sizes: tuple[int, ...]
    #: One tuple per tensor; zeros for one that is not there.
    strides: tuple[Strides, ...]


def fold(shape: Sequence[int], strides: Sequence[Strides | None]) -> Folded:
    """Put dimensions in the order of the first tensor's strides, and merge neighbours where every
    tensor allows it. None stands for a tensor that is not there.
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
    """At most two values as exactly two, outer and inner: what is missing, is missing inside."""
    outer, inner = (*values, missing, missing)[:2]
    return outer, inner


def split(tensors: Sequence[torch.Tensor | None], leading: int) -> Iterator[list[Any]]:
    """The tensors for each index of one of the `leading` dimensions that they share.

    For strides that do not fold so far as a kernel needs: launching more often saves a copy.
    """
    shape = next(t for t in tensors if t is not None).shape[:leading]
    # Fewest parts: along the shortest dimension that is one at all.
    shortest = min((d for d in range(leading) if shape[d] > 1), key=lambda d: shape[d])
    for i in range(shape[shortest]):
        yield [None if t is None else t.select(shortest, i) for t in tensors]
