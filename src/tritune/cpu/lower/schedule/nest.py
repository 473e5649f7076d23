"""Plans loop nests.

A *nest* is one loop nest over a shape that evaluates some lazy tensors at every point. Three
decisions are made before it is written:

1. Along which dimension do the vector lanes run? The one along which most of what is read and
   written is contiguous.
2. What should be in a buffer? A costly tensor that is broadcast in the nest is computed once before
   it. A costly one that something later needs again is stored on the way, as a *side output*.
3. Which masks are true over the whole tile? Those are checked once, and the nest is written twice:
   without them, and with them for the tiles at the edge.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

from llvmlite import ir as ll

from tritune.cpu import ir
from tritune.cpu.lower.analysis.affine import AffineRanges
from tritune.cpu.lower.analysis.shapes import SHAPE_OPS, to_operand
from tritune.cpu.lower.analysis.usage import ARBITRARY, RUNTIME, Stride, is_eager
from tritune.cpu.lower.context import Buffer, Context, Index, Point
from tritune.cpu.lower.emit.lazy_tensors import Assumptions
from tritune.cpu.lower.gemm.bf16_pairs import PAIR

#: Rough instruction counts of one element; what is not named costs 1, index arithmetic nothing.
_WEIGHTS = {
    "tt.load": 3, "tt.mulhiui": 3, "tt.extern_elementwise": 15,
    "arith.divf": 6, "arith.remf": 40,
    "arith.divsi": 8, "arith.divui": 8, "arith.remsi": 8, "arith.remui": 8,
    "math.sqrt": 6, "math.absf": 1, "math.fma": 1, "math.floor": 1, "math.ceil": 1,
}  # fmt: skip
_MATH_WEIGHT = 12
#: How well vectors along a dimension with this stride are read and written; -1 for others.
_STRIDE_SCORES: dict[Stride, float] = {1: 2.0, 0: 1.0, RUNTIME: -1.5}
_FREE = SHAPE_OPS | {"tt.splat", "arith.constant", "tt.make_range"}
_CHANGES_POINT = SHAPE_OPS | {"tt.join", "tt.split", PAIR}

#: From this cost on it pays to store a tensor rather than to compute it again.
COSTLY = 8
#: A lazy chain longer than this is cut, so that no expression grows without bound.
LONGEST_CHAIN = 150


def weight(ctx: Context, value: ir.Value) -> int:
    """Return the cost of one element of an operation's result, without its operands."""
    op = value.owner
    if op is None or op.name in _FREE:
        return 0
    if not value.type.is_float and ARBITRARY not in ctx.usage.strides(value):
        return 0
    return _WEIGHTS.get(op.name, _MATH_WEIGHT if op.name.startswith("math.") else 1)


def _reached(
    ctx: Context,
    values: list[ir.Value],
    through: Callable[[ir.Op], bool] = lambda op: True,
    known: Collection[ir.Value] = (),
) -> set[ir.Value]:
    """Return the lazy tensors among `values` and, through some operations, their operands."""
    found: set[ir.Value] = set()
    stack = list(values)
    while stack:
        value = stack.pop()
        op = value.owner
        if op is None or value in found or value in known:
            continue
        if value.type.rank == 0 or ctx.get(value) is not None:
            continue
        found.add(value)
        if through(op):
            stack.extend(op.operands)
    return found


def lazy_nodes(ctx: Context, values: list[ir.Value]) -> list[ir.Value]:
    """Return every tensor that evaluating `values` evaluates, users before their operands."""
    number = ctx.usage.number
    found = _reached(ctx, values)
    return sorted(found, key=lambda v: -number[v.owner] if v.owner in number else 1)


def cost(ctx: Context, value: ir.Value, known: Collection[ir.Value] = ()) -> int:
    """Return the cost of one element of a tensor, where `known` tensors cost nothing."""
    return sum(weight(ctx, v) for v in _reached(ctx, [value], known=known))


def loads_in(nodes: list[ir.Value]) -> list[ir.Value]:
    return [v for v in nodes if v.owner is not None and v.owner.name == "tt.load"]


def needed_after(ctx: Context, value: ir.Value, root: ir.Op, kept: set[ir.Value]) -> bool:
    """Return whether anything after `root` in program order evaluates `value`, other than through
    what is kept.

    A reshape is a view of its operand's memory, so users of the one are users of the other.
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
    """Return the tensors that are (also) evaluated elsewhere than at the nest's own point."""
    owners = (v.owner for v in _reached(ctx, values))
    moving = [op for op in owners if op is not None and op.name in _CHANGES_POINT]
    return _with_operands(ctx, [operand for op in moving for operand in op.operands])


def _with_operands(ctx: Context, values: list[ir.Value]) -> set[ir.Value]:
    """Return `values`, and the tensors that evaluating them evaluates or reads."""
    lazy = _reached(ctx, values)
    return {*values, *(o for v in lazy if v.owner for o in v.owner.operands)}


def reads_in_place(ctx: Context, value: ir.Value, buffer: Buffer) -> bool:
    """Return whether evaluating `value` point by point reads `buffer` only at the same point."""
    moved = moved_nodes(ctx, [value])
    for operand in _with_operands(ctx, [value]):
        held = ctx.get(operand)
        if not isinstance(held, Buffer) or held.memory is not buffer.memory:
            continue
        if operand in moved or held.strides != buffer.strides:
            return False
    return True


def memories_read(ctx: Context, value: ir.Value) -> list[ll.Value]:
    """Return the memory of the buffers that evaluating `value` reads."""
    held = (ctx.get(v) for v in _with_operands(ctx, [value]))
    return [h.memory for h in held if isinstance(h, Buffer)]


@dataclass
class Access:
    """The strides of something the nest reads or writes, along the nest's dimensions."""

    strides: list[Stride]
    weight: float = 1.0


def accesses(ctx: Context, values: list[ir.Value], rank: int) -> list[Access]:
    """Return the memory accesses of a nest. Each of the values has the nest's own shape."""
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
            strides = ctx.usage.strides(op.operands[0])
            found.append(Access(_to_nest(strides, value.type.shape, dims, rank)))
        if op.name in SHAPE_OPS:
            stack.append((op.operands[0], to_operand(op, dims, -1)))
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


def best_lane_dim(ctx: Context, shape: tuple[int, ...], found: list[Access]) -> int:
    """Return the dimension along which vectors are cheapest; the last of equals."""
    return max(range(len(shape)), key=lambda dim: (_lane_score(ctx, shape, found, dim), dim))


def _lane_score(ctx: Context, shape: tuple[int, ...], found: list[Access], dim: int) -> float:
    total = -2.0 * math.log2(max(1.0, ctx.lanes() / shape[dim]))
    for access in found:
        stride = access.strides[dim]
        total += access.weight * _STRIDE_SCORES.get(stride, -1.0)
    return total


def read_along(ctx: Context, value: ir.Value, wanted: int, lanes: int) -> int:
    """Return the dimension along which to read a tensor that becomes contiguous along `wanted`.

    That is another one where it is cheaper and squares of vectors can be transposed in registers.
    """
    shape = value.type.shape
    found = accesses(ctx, [value], len(shape))
    best = best_lane_dim(ctx, shape, found)
    gain = _lane_score(ctx, shape, found, best) - _lane_score(ctx, shape, found, wanted)
    whole = lanes > 1 and shape[best] % lanes == 0 and shape[wanted] % lanes == 0
    # The code of a square is unrolled, so the expression should be small.
    return best if whole and gain > 1 and cost(ctx, value) <= COSTLY else wanted


@dataclass
class NestPlan:
    """The shape, lanes and side outputs of a nest."""

    shape: tuple[int, ...]
    lane_dim: int
    lanes: int
    nodes: list[ir.Value]
    #: Tensors stored on the way, with their buffers.
    side_outputs: dict[ir.Value, Buffer] = field(default_factory=dict)

    def point(self, at: dict[int, ll.Value]) -> Point:
        """Return the point at these positions along the dimensions."""
        wide = self.lanes > 1
        return tuple(Index(at[d], wide and d == self.lane_dim) for d in range(len(self.shape)))


def choose_side_outputs(
    ctx: Context,
    root: ir.Op,
    values: list[ir.Value],
    shape: tuple[int, ...],
    stored: ir.Value | None,
) -> list[ir.Value]:
    """Return costly tensors of the nest's shape that something later needs too, except `stored`."""
    # The tensors that are evaluated at the nest's own point.
    identity = _reached(ctx, values, lambda op: op.name not in _CHANGES_POINT)
    chosen: list[ir.Value] = []
    for value in lazy_nodes(ctx, values):
        if value not in identity or value.type.shape != shape or value is stored:
            continue
        if cost(ctx, value) < COSTLY or not weight(ctx, value):
            continue
        if needed_after(ctx, value, root, set(chosen)):
            chosen.append(value)
    # What is cheap to compute from another one (a wider type of the same numbers) is not stored.
    for value in list(chosen):
        others = [v for v in chosen if v is not value]
        if cost(ctx, value, known=others) < COSTLY:
            chosen = others
    return chosen


def versioned(
    ctx: Context,
    nodes: list[ir.Value],
    masks: list[ir.Value],
    emit: Callable[[Assumptions, bool], None],
    ranges: AffineRanges | None = None,
    conditions: Sequence[ll.Value] = (),
) -> None:
    """Write a nest for whole tiles and, where that takes a check, once more for the others.

    `emit(assumptions, conservative)` writes it. In the conservative version the given conditions
    need not hold.
    """
    if ctx.conservative:
        emit(Assumptions(), True)
        return
    ranges, checks, assumptions = ranges or AffineRanges(ctx), list(conditions), Assumptions()
    for op in (v.owner for v in nodes):
        assert op is not None
        if op.name == "tt.load":
            masks.extend(op.operands[1:2])
        elif op.name in ("arith.remsi", "arith.remui"):
            ranges.form(op.result)
            if op in ranges.remainders:
                condition, taken = ranges.remainders[op]
                checks.append(condition)
                assumptions.remainder_offsets[op] = taken
        elif op.name == "arith.extsi" and ranges.form(op.result) is not None:
            assumptions.exact_extensions.add(op)
    for mask in dict.fromkeys(masks):
        whole = ranges.always_true(mask)
        if whole is not None:
            checks.append(whole)
            assumptions.true_masks.add(mask)
    if checks or assumptions.exact_extensions:
        checks += ranges.checks
    checks = [c for c in checks if not (isinstance(c, ll.Constant) and c.constant in (1, -1, True))]
    if not checks:
        emit(assumptions, False)
        return
    with ctx.b.if_else(functools.reduce(ctx.b.and_, checks)) as (then, otherwise):
        with then, ctx.scope():
            emit(assumptions, False)
        with otherwise, ctx.scope():
            ctx.conservative = True
            emit(Assumptions(), True)
            ctx.conservative = False
