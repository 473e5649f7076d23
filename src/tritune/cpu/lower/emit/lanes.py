"""The value of a tensor in all vector lanes at one point of a loop nest.

It is *uniform* (the same in every lane), *affine* (integers and addresses that grow by a fixed step
from lane to lane) or a *vector*. Index arithmetic stays in the first two forms, so loads of
consecutive addresses need no separate analysis.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from llvmlite import ir as ll

from tritune.cpu.lower.llvm import Emitter, constant, element_of, vector_of

#: A step between lanes: a number known now, or one computed by the program.
LaneStride: TypeAlias = "int | ll.Value"


@dataclass(frozen=True, eq=False)
class Lanes:
    """The value of lane 0 and the step between lanes, or a whole vector and no step."""

    x: ll.Value
    step: LaneStride | None = 0

    @property
    def uniform(self) -> bool:
        return isinstance(self.step, int) and self.step == 0

    @property
    def affine(self) -> bool:
        """Return whether the value is affine; uniform values are."""
        return self.step is not None


def vector(x: ll.Value) -> Lanes:
    return Lanes(x, None)


def in_register(x: ll.Value) -> Lanes:
    """Return the lanes of a register: a vector, or a scalar where there is one lane."""
    return Lanes(x, None if isinstance(x.type, ll.VectorType) else 0)


def to_vector(e: Emitter, lane: Lanes, lanes: int) -> ll.Value:
    """Return all lanes in one register (a scalar if there is one lane)."""
    if lane.step is None or lanes == 1:
        return lane.x
    base = e.splat(lane.x, lanes)
    if lane.uniform:
        return base
    kind = vector_of(lane.x.type, lanes)
    ramp = ll.Constant(kind, list(range(lanes)))
    if isinstance(lane.step, int):
        width = lane.x.type.width
        ramp = ll.Constant(kind, [_signed(lane.step * i, width) for i in range(lanes)])
        return e.b.add(base, ramp)
    return e.b.add(base, e.b.mul(ramp, e.splat(lane.step, lanes)))


def add(e: Emitter, x: Lanes, y: Lanes, negate: bool = False) -> Lanes | None:
    """Return x + y (or x - y) if both are affine."""
    if x.step is None or y.step is None:
        return None
    base = e.b.sub(x.x, y.x) if negate else e.b.add(x.x, y.x)
    if isinstance(x.step, int) and isinstance(y.step, int):
        return Lanes(base, x.step - y.step if negate else x.step + y.step)
    first, second = (_as_value(s, x.x.type) for s in (x.step, y.step))
    return Lanes(base, e.b.sub(first, second) if negate else e.b.add(first, second))


def multiply(e: Emitter, x: Lanes, y: Lanes) -> Lanes | None:
    """Return x * y if one of them is uniform and the other affine."""
    if y.uniform and x.affine:
        x, y = y, x
    if not x.uniform or y.step is None:
        return None
    base = e.b.mul(x.x, y.x)
    if isinstance(y.step, int):
        if y.step == 0:
            return Lanes(base, 0)
        if isinstance(x.x, ll.Constant) and isinstance(x.x.constant, int):
            return Lanes(base, _signed(x.x.constant, x.x.type.width) * y.step)
    return Lanes(base, e.b.mul(x.x, _as_value(y.step, x.x.type)))


def resize(e: Emitter, x: Lanes, target: ll.Type, signed: bool) -> Lanes | None:
    """Extend or truncate an affine value, which is assumed not to wrap within a tile."""
    if x.step is None:
        return None

    def narrower(value: ll.Value) -> bool:
        return bool(value.type.width < target.width)

    def change(value: ll.Value) -> ll.Value:
        extend = e.b.sext if signed else e.b.zext
        return extend(value, target) if narrower(value) else e.b.trunc(value, target)

    base = change(x.x)
    if isinstance(x.step, int):
        return Lanes(base, x.step)
    return Lanes(base, e.b.sext(x.step, target) if narrower(x.step) else change(x.step))


def _as_value(step: LaneStride, kind: ll.Type) -> ll.Value:
    return constant(element_of(kind), step) if isinstance(step, int) else step


def _signed(number: int, width: int) -> int:
    number &= (1 << width) - 1
    return number - (1 << width) if number >> (width - 1) else number
