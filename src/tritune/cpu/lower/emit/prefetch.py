"""Prefetching in loops: how far an address moves from one iteration to the next.

A tile that is packed for a product is read once per iteration, in rows that lie far apart, which
the hardware prefetcher does not follow. While one tile is packed, the lines of the next are
prefetched, and arrive during the product. Streamed operands of skinny GEMM are prefetched by
`gemm/streamed_operand.py`, which sets the prefetch distance.
"""

from __future__ import annotations

from dataclasses import dataclass

from llvmlite import ir as ll

from tritune.cpu import ir
from tritune.cpu.lower.analysis.shapes import SHAPE_OPS, origin
from tritune.cpu.lower.analysis.usage import constant_of, walk
from tritune.cpu.lower.context import Context
from tritune.cpu.lower.llvm import I32, I64, Number, as_i64, element_bytes

_SAME_STRIDE = SHAPE_OPS | {"tt.splat", "arith.extsi", "tt.bitcast"}


@dataclass(eq=False)
class LoopInfo:
    """The variables of a `scf.for` and what its iterations compute."""

    #: What each scalar variable grows by in an iteration, if that is the same every time.
    increments: dict[ir.Value, ir.Value]
    defined_inside: set[ir.Value]
    #: The operations that every iteration reaches.
    ops: set[ir.Op]
    #: Whether this iteration is the first one.
    is_first: ll.Value
    #: The induction variable's step, and its distance from the upper bound.
    step: ll.Value
    remaining: ll.Value


def loop_info(op: ir.Op, is_first: ll.Value, step: ll.Value, remaining: ll.Value) -> LoopInfo:
    body, inside = op.regions[0].blocks[0], list(walk(op.regions[0]))
    increments = {body.args[0]: op.operands[2]}
    for arg, following in zip(body.args[1:], body.ops[-1].operands, strict=True):
        owner = following.owner if arg.type.rank == 0 else None
        if owner is None or owner.name not in ("arith.addi", "tt.addptr"):
            continue
        if owner.operands[0] is arg:
            increments[arg] = owner.operands[1]
    blocks = [block for each in [op, *inside] for region in each.regions for block in region.blocks]
    defined = {a for block in blocks for a in block.args} | {r for i in inside for r in i.results}
    return LoopInfo(increments, defined, set(body.ops), is_first, step, remaining)


def stride(ctx: Context, loop: LoopInfo, value: ir.Value) -> Number | None:
    """Return what an iteration adds to `value` (bytes for pointers); None if it is not known."""
    if value in loop.increments:
        return increment(ctx, loop, value)
    if value not in loop.defined_inside:
        return 0
    op = value.owner
    if op is None:
        return None
    if op.name in _SAME_STRIDE:
        return stride(ctx, loop, op.operands[0])
    strides = [stride(ctx, loop, o) for o in op.operands]
    if all(s == 0 for s in strides):
        return 0
    if len(strides) != 2:
        return None
    x, y = strides
    if x is None or y is None:
        return None
    if op.name == "arith.addi":
        return _sum(ctx, x, y)
    if op.name == "tt.addptr":
        return _sum(ctx, x, _in_bytes(ctx, y, value))
    if op.name == "arith.muli":
        growing, factor = (x, op.operands[1]) if y == 0 else (y, op.operands[0])
        known = _scalar(ctx, factor)
        return None if known is None or (x != 0 and y != 0) else multiply(ctx, growing, known)
    return None


def increment(ctx: Context, loop: LoopInfo, variable: ir.Value) -> Number | None:
    """Return what an iteration adds to a loop variable, if it is known."""
    step = _scalar(ctx, loop.increments[variable])
    return None if step is None else _in_bytes(ctx, step, variable)


def emit(ctx: Context, address: ll.Value, offset: Number) -> None:
    """Prefetch the line at `address + offset` into the second-level cache."""
    place = ctx.e.address(ctx.b.add(address, as_i64(offset)))
    flags = [ll.Constant(I32, n) for n in (0, 2, 1)]  # read; keep in the second level; data
    ctx.e.intrinsic("prefetch", ll.VoidType(), [place, *flags], [place.type])


def _scalar(ctx: Context, value: ir.Value) -> Number | None:
    """Return the number that every element has, if it is a constant or already computed."""
    known = constant_of(value)
    if known is not None:
        return known
    value = origin(value, _SAME_STRIDE, stop=ctx.get)
    held = ctx.get(value)
    if value.type.rank or held is None or not isinstance(held.type, ll.IntType):  # type: ignore[union-attr]
        return None
    return held if held.type.width == 64 else ctx.b.sext(held, I64)  # type: ignore[union-attr]


def _in_bytes(ctx: Context, count: Number, value: ir.Value) -> Number:
    """Return a count of elements in bytes if `value` is a pointer."""
    return multiply(ctx, count, element_bytes(value)) if value.type.pointee else count


def _sum(ctx: Context, x: Number, y: Number) -> Number:
    if x == 0 or y == 0:
        return y if x == 0 else x
    return ctx.e.sum(x, y)


def multiply(ctx: Context, x: Number, y: Number) -> Number:
    return x if y == 1 else ctx.e.product(x, y)
