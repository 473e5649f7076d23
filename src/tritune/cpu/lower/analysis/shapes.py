"""The operations that only rearrange dimensions: which dimension of the operand becomes which."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TypeVar

from tritune.cpu import ir

T = TypeVar("T")

SHAPE_OPS = frozenset("tt.expand_dims tt.broadcast tt.trans tt.reshape".split())


def is_trivial_reshape(op: ir.Op) -> bool:
    """Return whether a reshape only adds or drops dimensions of extent 1."""
    source, target = op.operands[0].type.shape, op.result.type.shape
    return [n for n in source if n > 1] == [n for n in target if n > 1]


def source_dims(op: ir.Op) -> tuple[int | None, ...]:
    """Return the operand's dimension for each dimension of the result; None for a new one.

    A reshape must be trivial.
    """
    shape = op.operands[0].type.shape
    if op.name == "tt.expand_dims":
        axis = op.attrs["axis"]
        return (*range(axis), None, *range(axis, len(shape)))
    if op.name == "tt.trans":
        return tuple(op.attrs["order"])
    if op.name == "tt.broadcast":
        return tuple(d if n > 1 else None for d, n in enumerate(shape))
    assert is_trivial_reshape(op)
    kept = iter([d for d, n in enumerate(shape) if n > 1])
    return tuple(next(kept) if n > 1 else None for n in op.result.type.shape)


def to_result(op: ir.Op, values: Sequence[T], new: T) -> tuple[T, ...]:
    """Return something that each dimension of the operand has, for those of the result."""
    return tuple(new if d is None else values[d] for d in source_dims(op))


def to_operand(op: ir.Op, values: Sequence[T], new: T) -> tuple[T, ...]:
    """Return something that each dimension of the result has, for those of the operand."""
    found = [new] * op.operands[0].type.rank
    for value, dim in zip(values, source_dims(op), strict=True):
        if dim is not None:
            found[dim] = value
    return tuple(found)


def origin(
    value: ir.Value, through: Collection[str], stop: Callable[[ir.Value], object] | None = None
) -> ir.Value:
    """Return the value behind a chain of operations that are all in `through`."""
    while value.owner is not None and value.owner.name in through and not (stop and stop(value)):
        value = value.owner.operands[0]
    return value
