"""Indirect prefetching: addresses of later iterations that a table holds, as in a paged cache.

They are evaluated as that iteration will evaluate them, with its variables. The loads on the way
(of the table) are made by that iteration in any case, and nothing in the loop writes, so they
cannot fail.
"""

from __future__ import annotations

from llvmlite import ir as ll

from tritune.cpu import ir
from tritune.cpu.lower.context import Buffer, Context, Point
from tritune.cpu.lower.emit import prefetch
from tritune.cpu.lower.emit.lanes import Lanes
from tritune.cpu.lower.emit.lazy_tensors import Nest, can_evaluate
from tritune.cpu.lower.emit.prefetch import LoopInfo
from tritune.cpu.lower.llvm import I64, i64


def can_evaluate_later(ctx: Context, loop: LoopInfo, value: ir.Value) -> bool:
    """Return whether a value can be evaluated as of a later iteration of the loop."""
    if value in loop.increments:
        return prefetch.increment(ctx, loop, value) is not None
    if value not in loop.defined_inside:
        return True
    op = value.owner
    # What is deeper inside need not be reached by that iteration.
    if op is None or op not in loop.ops:
        return False
    if op.name == "tt.load":
        # A mask has to be that iteration's, and so has what is loaded.
        written = any(ctx.usage.writes(other) for other in loop.ops)
        if written or len(op.operands) > 1:
            return False
    return can_evaluate(op) and all(can_evaluate_later(ctx, loop, o) for o in op.operands)


class LaterIteration(Nest):
    """Evaluates tensors as of a later iteration, or of this one if that is past the last."""

    def __init__(self, ctx: Context, loop: LoopInfo, iterations: ll.Value) -> None:
        super().__init__(ctx, 1)
        self._loop = loop
        b = ctx.b
        bounds = loop.step, loop.remaining
        step, remaining = (b.zext(x, I64) if x.type.width < 64 else x for x in bounds)
        exists = b.icmp_unsigned("<", b.mul(iterations, step), remaining)
        self._iterations = b.select(exists, iterations, i64(0))

    def _held(self, value: ir.Value) -> ll.Value | Buffer | None:
        return None if value in self._loop.defined_inside else super()._held(value)

    def _evaluate(self, value: ir.Value, point: Point) -> Lanes:
        if value not in self._loop.increments:
            return super()._evaluate(value, point)
        ctx, b = self.ctx, self.ctx.b
        now, increment = ctx.scalar(value), prefetch.increment(ctx, self._loop, value)
        assert increment is not None
        more = prefetch.multiply(ctx, increment, self._iterations)
        assert isinstance(more, ll.Value)
        return Lanes(b.add(now, more if now.type.width == 64 else b.trunc(more, now.type)))
