"""Decides how a consumer of lazy tensors is evaluated: in which direction, what is kept, what is
checked beforehand.

A *nest* is one loop nest over a shape that evaluates some lazy tensors at every point. Three
questions come up before it is written:

1. Along which dimension do the vector lanes run? The one along which most of what is read and
   written is contiguous.
2. What should be in a buffer? A costly tensor that is broadcast in the nest is computed once before
   it. A costly one that something later needs again is stored on the way, as a *side output*.
3. Which masks are true over the whole tile? Those are checked once, and the nest is written twice:
   without them, and with them for the tiles at the edge.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from llvmlite import ir as ll

from tritune.cpu import ir
from tritune.cpu.lower.analysis.affine import AffineRanges
from tritune.cpu.lower.analysis.usage import ARBITRARY, RUNTIME, Stride, is_eager
from tritune.cpu.lower.context import Buffer, Context, Index, Point
from tritune.cpu.lower.emit.evaluate import SHAPE_OPS, Assumptions
from tritune.cpu.lower.gemm.bf16_pairs import PAIR

#: Rough instruction counts of one element; what is not named costs 1, index arithmetic nothing.
_WEIGHTS = {
    "tt.load": 3, "tt.mulhiui": 3, "tt.extern_elementwise": 15,
    "arith.divf": 6, "arith.remf": 40,
    "arith.divsi": 8, "arith.divui": 8, "arith.remsi": 8, "arith.remui": 8,
    "math.sqrt": 6, "math.absf": 1, "math.fma": 1, "math.floor": 1, "math.ceil": 1,
}  # fmt: skip
_MATH_WEIGHT = 12

#: From this cost on it pays to store a tensor rather than to compute it again.
COSTLY = 8
#: A lazy chain longer than this is cut, so that no expression grows without bound.
LONGEST_CHAIN = 150


def weight(ctx: Context, value: ir.Value) -> int:
    op = value.owner
    if (
        op is None
        or op.name in SHAPE_OPS
        or op.name in ("tt.splat", "arith.constant", "tt.make_range")
    ):
        return 0
    if not value.type.is_float and all(s not in (ARBITRARY,) for s in ctx.usage.strides(value)):
        return 0
    if op.name.startswith("math."):
        return _WEIGHTS.get(op.name, _MATH_WEIGHT)
    return _WEIGHTS.get(op.name, 1)


def changes_point(op: ir.Op) -> bool:
    """Whether the operation evaluates its operands at another point than its own."""
    return op.name in SHAPE_OPS or op.name in ("tt.join", "tt.split", PAIR)


def _reached(
    ctx: Context, values: list[ir.Value], through: Callable[[ir.Op], bool]
) -> set[ir.Value]:
    """The lazy tensors among `values` and, through some operations, what they are made of."""
    found: set[ir.Value] = set()
    stack = list(values)
    while stack:
        value = stack.pop()
        op = value.owner
        if op is None or value in found or value.type.rank == 0 or ctx.get(value) is not None:
            continue
        found.add(value)
        if through(op):
            stack.extend(op.operands)
    return found


def lazy_nodes(ctx: Context, values: list[ir.Value]) -> list[ir.Value]:
    """Every tensor that evaluating `values` evaluates, users before what they use."""
    number = ctx.usage.number
    found = _reached(ctx, values, lambda op: True)
    return sorted(found, key=lambda v: -number[v.owner] if v.owner in number else 1)


def identity_nodes(ctx: Context, values: list[ir.Value]) -> set[ir.Value]:
    """The tensors that are evaluated at the nest's own point: reached without a change of it."""
    return _reached(ctx, values, lambda op: not changes_point(op))


def below_shape_ops(ctx: Context, value: ir.Value) -> ir.Value:
    """What a chain of reshaping is made of."""
    while value.owner is not None and ctx.get(value) is None and value.owner.name in SHAPE_OPS:
        value = value.owner.operands[0]
    return value


def cost(ctx: Context, value: ir.Value) -> int:
    return sum(weight(ctx, v) for v in lazy_nodes(ctx, [value]))


def loads_in(nodes: list[ir.Value]) -> list[ir.Value]:
    return [v for v in nodes if v.owner is not None and v.owner.name == "tt.load"]


def needed_after(ctx: Context, value: ir.Value, root: ir.Op, kept: set[ir.Value]) -> bool:
    """Whether anything after `root` in program order evaluates `value`, other than through what is
    kept.

    A reshape only looks at the memory of what it reshapes, so what reads the one reads the other.
    """
    limit = ctx.usage.number[root]
    seen: set[ir.Value] = set()
    stack = [value]
    while stack:
        current = stack.pop()
        for user in ctx.usage.users.get(current, []):
            if is_eager(user) and user.name != "tt.reshape":
                if ctx.usage.number[user] > limit:
                    return True
                continue
            for result in user.results:
                if result in seen or result in kept:
                    continue
                if user.name == "tt.reshape" or ctx.get(result) is None:
                    seen.add(result)
                    stack.append(result)
    return False


def moved_nodes(ctx: Context, values: list[ir.Value]) -> set[ir.Value]:
    """The tensors that are (also) evaluated elsewhere than at the nest's own point."""
    seen: set[tuple[ir.Value, bool]] = set()
    stack = [(v, False) for v in values]
    while stack:
        value, moved = stack.pop()
        if (value, moved) in seen or value.type.rank == 0:
            continue
        seen.add((value, moved))
        op = value.owner
        if op is None or ctx.get(value) is not None:
            continue
        moves = moved or changes_point(op)
        stack.extend((operand, moves) for operand in op.operands)
    return {value for value, moved in seen if moved}


def reads_in_place(ctx: Context, value: ir.Value, buffer: Buffer) -> bool:
    """Whether evaluating `value` point by point reads `buffer` only at the point in question."""
    moved = moved_nodes(ctx, [value])
    touched = {value}
    for node in lazy_nodes(ctx, [value]):
        assert node.owner is not None
        touched.update(node.owner.operands)
    for operand in touched:
        held = ctx.get(operand)
        same = isinstance(held, Buffer) and held.memory is buffer.memory
        if same and (operand in moved or held.strides != buffer.strides):  # type: ignore[union-attr]
            return False
    return True


def memories_read(ctx: Context, value: ir.Value) -> list[ll.Value]:
    """The memory of the buffers that evaluating `value` reads."""
    touched = {value: None}
    for node in lazy_nodes(ctx, [value]):
        assert node.owner is not None
        touched.update(dict.fromkeys(node.owner.operands))
    held = (ctx.get(v) for v in touched)
    return [h.memory for h in held if isinstance(h, Buffer)]


@dataclass
class Access:
    """How something the nest reads or writes moves along the nest's dimensions."""

    strides: list[Stride]
    weight: float = 1.0


def accesses(ctx: Context, values: list[ir.Value], rank: int) -> list[Access]:
    """What the nest touches in memory. Each value of the list has the nest's own shape."""
    found: list[Access] = []
    seen: set[ir.Value] = set()
    stack: list[tuple[ir.Value, tuple[int, ...]]] = [(v, tuple(range(rank))) for v in values]
    while stack:
        value, dims = stack.pop()
        if value in seen or value.type.rank == 0:
            continue
        seen.add(value)
        held = ctx.get(value)
        if isinstance(held, Buffer):
            found.append(Access(_to_nest(held.strides, held.shape, dims, rank)))
            continue
        op = value.owner
        if op is None or held is not None:
            continue
        if op.name == "tt.load":
            pointer = op.operands[0]
            found.append(
                Access(_to_nest(ctx.usage.strides(pointer), pointer.type.shape, dims, rank))
            )
        if op.name in SHAPE_OPS:
            stack.append((op.operands[0], _move_dims(op, dims)))
        elif op.name == "tt.join":
            stack.extend((o, dims[:-1]) for o in op.operands)
        elif op.name == "tt.split":
            stack.append((op.operands[0], (*dims, -1)))
        else:
            stack.extend((o, dims) for o in op.operands)
    return found


def _to_nest(
    steps: tuple[Stride, ...], shape: tuple[int, ...], dims: tuple[int, ...], rank: int
) -> list[Stride]:
    nest: list[Stride] = [0] * rank
    for step, extent, dim in zip(steps, shape, dims, strict=True):
        if dim >= 0 and extent > 1:
            nest[dim] = step
    return nest


def _move_dims(op: ir.Op, dims: tuple[int, ...]) -> tuple[int, ...]:
    """`move_point` for dimensions instead of positions; -1 is a dimension the nest does not move
    along.
    """
    shape = op.operands[0].type.shape
    if op.name == "tt.expand_dims":
        axis = op.attrs["axis"]
        return (*dims[:axis], *dims[axis + 1 :])
    if op.name == "tt.broadcast":
        return tuple(-1 if n == 1 else d for n, d in zip(shape, dims, strict=True))
    if op.name == "tt.trans":
        moved = [-1] * len(dims)
        for out, source in enumerate(op.attrs["order"]):
            moved[source] = dims[out]
        return tuple(moved)
    moving = iter([d for n, d in zip(op.result.type.shape, dims, strict=True) if n > 1])
    return tuple(next(moving) if n > 1 else -1 for n in shape)


def best_lane_dim(ctx: Context, shape: tuple[int, ...], found: list[Access]) -> int:
    """The dimension along which vectors are cheapest; the last of equals."""
    return max(range(len(shape)), key=lambda dim: (_lane_score(ctx, shape, found, dim), dim))


def _lane_score(ctx: Context, shape: tuple[int, ...], found: list[Access], dim: int) -> float:
    total = -2.0 * math.log2(max(1.0, ctx.lanes() / shape[dim]))
    for access in found:
        step = access.strides[dim]
        total += access.weight * (
            2 if step == 1 else 1 if step == 0 else -1.5 if step == RUNTIME else -1
        )
    return total


def read_along(ctx: Context, value: ir.Value, wanted: int, lanes: int) -> int:
    """Along which dimension a tensor is read that shall be contiguous along the `wanted` one: that
    one, or another, if whole blocks of vectors are then transposed in registers.
    """
    shape = value.type.shape
    found = accesses(ctx, [value], len(shape))
    best = best_lane_dim(ctx, shape, found)
    gain = _lane_score(ctx, shape, found, best) - _lane_score(ctx, shape, found, wanted)
    whole = lanes > 1 and shape[best] % lanes == 0 and shape[wanted] % lanes == 0
    # A block is written out for each of its vectors, so what is done to them should be little.
    return best if whole and gain > 1 and cost(ctx, value) <= COSTLY else wanted


@dataclass
class NestPlan:
    """How one nest will be written."""

    shape: tuple[int, ...]
    lane_dim: int
    lanes: int
    nodes: list[ir.Value]
    #: Tensors stored on the way, with the buffers they go to.
    side_outputs: dict[ir.Value, Buffer] = field(default_factory=dict)

    def point(self, at: dict[int, ll.Value]) -> Point:
        """The point with these positions along the dimensions."""
        wide = self.lanes > 1
        return tuple(Index(at[d], wide and d == self.lane_dim) for d in range(len(self.shape)))


def choose_side_outputs(
    ctx: Context,
    root: ir.Op,
    values: list[ir.Value],
    shape: tuple[int, ...],
    stored: ir.Value | None,
) -> list[ir.Value]:
    """Costly tensors of the nest's shape that something later needs too, except `stored`."""
    kept: set[ir.Value] = set()
    identity = identity_nodes(ctx, values)
    side_outputs: list[ir.Value] = []
    for value in lazy_nodes(ctx, values):
        if value not in identity or value.type.shape != shape or value is stored:
            continue
        if (
            cost(ctx, value) >= COSTLY
            and weight(ctx, value)
            and needed_after(ctx, value, root, kept | set(side_outputs))
        ):
            side_outputs.append(value)
            kept.add(value)
    # What is cheap to compute from another one (a wider type of the same numbers) is not stored.
    for side_output in list(side_outputs):
        others = [t for t in side_outputs if t is not side_output]
        if _cost_beyond(ctx, side_output, others) < COSTLY:
            side_outputs = others
    return side_outputs


def _cost_beyond(ctx: Context, value: ir.Value, known: list[ir.Value]) -> int:
    """The cost of a tensor where some of what it is made of is at hand."""
    found: set[ir.Value] = set()
    stack = [value]
    while stack:
        current = stack.pop()
        if current in found or current in known or current.type.rank == 0:
            continue
        if current.owner is None or ctx.get(current) is not None:
            continue
        found.add(current)
        stack.extend(current.owner.operands)
    return sum(weight(ctx, v) for v in found)


def versioned(
    ctx: Context,
    nodes: list[ir.Value],
    masks: list[ir.Value],
    emit: Callable[[Assumptions, bool], None],
    ranges: AffineRanges | None = None,
    conditions: list[ll.Value] | None = None,
) -> None:
    """Write the nest for whole tiles and, where that takes a check, once more for the others.

    `emit(assumptions, conservative)` writes it. In the conservative version the given conditions
    need not hold.
    """
    if ctx.conservative:
        emit(Assumptions(), True)
        return
    ranges = ranges or AffineRanges(ctx)
    conditions = list(conditions or [])
    assumptions = Assumptions()
    for op in (v.owner for v in nodes):
        assert op is not None
        if op.name == "tt.load" and len(op.operands) > 1:
            masks.append(op.operands[1])
        if (
            op.name in ("arith.remsi", "arith.remui")
            and ranges.form(op.result) is not None
            and op in ranges.remainders
        ):
            condition, taken = ranges.remainders[op]
            conditions.append(condition)
            assumptions.remainder_offsets[op] = taken
        if op.name == "arith.extsi" and ranges.form(op.result) is not None:
            assumptions.exact_extensions.add(op)
    for mask in dict.fromkeys(masks):
        condition = ranges.always_true(mask)
        if condition is not None:
            conditions.append(condition)
            assumptions.true_masks.add(mask)
    if conditions or assumptions.exact_extensions:
        conditions += ranges.checks
    conditions = [
        c for c in conditions if not (isinstance(c, ll.Constant) and c.constant in (1, -1, True))
    ]
    if not conditions:
        emit(assumptions, False)
        return
    whole = conditions[0]
    for condition in conditions[1:]:
        whole = ctx.b.and_(whole, condition)
    with ctx.b.if_else(whole) as (then, otherwise):
        with then, ctx.scope():
            emit(assumptions, False)
        with otherwise, ctx.scope():
            ctx.conservative = True
            emit(Assumptions(), True)
            ctx.conservative = False
