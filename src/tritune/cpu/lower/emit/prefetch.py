"""How far an address moves from one iteration of a loop to the next.

A tile that is packed for a multiply is read once per iteration, in rows that lie far apart: the
hardware does not see the next tile coming. While one tile is packed, the lines of the next are
asked for, and arrive during the multiply.
"""

from __future__ import annotations

from dataclasses import dataclass

from llvmlite import ir as ll

from tritune.cpu import ir
from tritune.cpu.lower.analysis.usage import constant_of
from tritune.cpu.lower.context import Context
from tritune.cpu.lower.llvm import I32, I64, i64, memory_bytes

_FORWARDS_STRIDE = frozenset(
    "tt.splat tt.broadcast tt.expand_dims tt.trans tt.reshape arith.extsi tt.bitcast".split()
)


@dataclass(eq=False)
class LoopInfo:
    """What one iteration of a `scf.for` changes."""

    #: How much each scalar variable grows in an iteration, where that is the same every time.
    increments: dict[ir.Value, ir.Value]
    defined_inside: set[ir.Value]
    #: The operations that every iteration reaches.
    ops: set[ir.Op]
    #: Whether it is the first one.
    is_first: ll.Value
    #: What its variable grows by, and how far the end is from it.
    step: ll.Value
    remaining: ll.Value


def loop_info(
    op: ir.Op,
    defined_inside: set[ir.Value],
    is_first: ll.Value,
    step: ll.Value,
    remaining: ll.Value,
) -> LoopInfo:
    body = op.regions[0].blocks[0]
    increments = {body.args[0]: op.operands[2]}
    for arg, following in zip(body.args[1:], body.ops[-1].operands, strict=True):
        owner = following.owner if arg.type.rank == 0 else None
        adds = owner is not None and owner.name in ("arith.addi", "tt.addptr")
        if owner is not None and adds and owner.operands[0] is arg:
            increments[arg] = owner.operands[1]
    return LoopInfo(increments, defined_inside, set(body.ops), is_first, step, remaining)


def stride(ctx: Context, loop: LoopInfo, value: ir.Value) -> int | ll.Value | None:
    """What the next iteration adds to `value` (bytes for pointers); None if that is not known."""
    if value in loop.increments:
        return increment(ctx, loop, value)
    if value not in loop.defined_inside:
        return 0
    op = value.owner
    if op is None:
        return None
    if op.name in _FORWARDS_STRIDE:
        return stride(ctx, loop, op.operands[0])
    moves = [stride(ctx, loop, o) for o in op.operands]
    if all(isinstance(m, int) and m == 0 for m in moves):
        return 0
    if any(m is None for m in moves) or len(moves) != 2:
        return None
    x, y = moves
    if op.name == "arith.addi":
        return _sum(ctx, x, y)
    if op.name == "tt.addptr":
        assert y is not None
        return _sum(ctx, x, _scaled(ctx, y, value.type))
    if op.name == "arith.muli":
        moving, factor = (x, op.operands[1]) if y == 0 else (y, op.operands[0])
        known = _scalar(ctx, factor)
        return None if known is None or (x != 0 and y != 0) else multiply(ctx, moving, known)
    return None


def increment(ctx: Context, loop: LoopInfo, variable: ir.Value) -> int | ll.Value | None:
    """What the next iteration adds to one of the loop's variables, if that is known."""
    step = _scalar(ctx, loop.increments[variable])
    return None if step is None else _scaled(ctx, step, variable.type)


def emit(ctx: Context, address: ll.Value, distance: int | ll.Value) -> None:
    """Ask for the line at `address + distance`, to be kept in the second-level cache."""
    b = ctx.b
    offset = i64(distance) if isinstance(distance, int) else distance
    place = ctx.e.address(b.add(address, offset))
    flags = [ll.Constant(I32, n) for n in (0, 2, 1)]  # read; keep in the second level; data
    ctx.e.intrinsic("prefetch", ll.VoidType(), [place, *flags], [place.type])


def _scalar(ctx: Context, value: ir.Value) -> int | ll.Value | None:
    """The number that a scalar, or every element of a tensor, has: known now, or held already."""
    known = constant_of(value)
    if known is not None:
        return known
    while (
        value.owner is not None and value.owner.name in _FORWARDS_STRIDE and ctx.get(value) is None
    ):
        value = value.owner.operands[0]
    held = ctx.get(value)
    if value.type.rank or held is None or not isinstance(held.type, ll.IntType):  # type: ignore[union-attr]
        return None
    return held if held.type.width == 64 else ctx.b.sext(held, I64)  # type: ignore[union-attr]


def _scaled(ctx: Context, count: int | ll.Value, kind: ir.Type) -> int | ll.Value:
    """Elements to bytes, for a pointer."""
    return multiply(ctx, count, memory_bytes(kind.pointee.elem) if kind.pointee else 1)


def _sum(ctx: Context, x: int | ll.Value | None, y: int | ll.Value | None) -> int | ll.Value:
    if isinstance(x, int) and isinstance(y, int):
        return x + y
    if x == 0 or y == 0:
        return y if x == 0 else x
    first, second = (i64(v) if isinstance(v, int) else v for v in (x, y))
    return ctx.b.add(first, second)


def multiply(ctx: Context, x: int | ll.Value, y: int | ll.Value) -> int | ll.Value:
    if isinstance(x, int) and isinstance(y, int):
        return x * y
    if y == 1:
        return x
    first, second = (i64(v) if isinstance(v, int) else v for v in (x, y))
    return ctx.b.mul(first, second)
