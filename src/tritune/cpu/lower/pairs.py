"""Sums of products of bf16, two at a time: an instruction that some CPUs have.

Each 32-bit lane of both operands holds two numbers, and their products are added to the lane of an
f32 sum. That is twice the arithmetic of a fused multiply and add, and nothing has to be converted.
Numbers below 2^-126 count as zero.
"""

from __future__ import annotations

from llvmlite import ir as ll

from .. import ir
from . import memory
from .context import Buffer, Context, Index
from .lanes import vector
from .llvm import I16, I32, Emitter, declare, lanes_of, vector_of

#: Lanes that a shuffle of pairs leaves together: those of 128 bits.
_TOGETHER = 4


def available(ctx: Context) -> bool:
    return ctx.kernel.cpu.multiplies_bf16 and 32 * ctx.lanes32 == ctx.kernel.cpu.vector_bits


def narrow(value: ir.Value) -> ir.Value | None:
    """The bf16 that a tensor of f32 was made of, if that is all there is to it."""
    op = value.owner
    if op is None or op.name not in ("tt.fp_to_fp", "arith.extf"):
        return None
    return op.operands[0] if op.operands[0].type.elem == "bf16" else None


def packed(ctx: Context, wide: Buffer, along: int) -> Buffer:
    """A matrix of f32 that were bf16, as bf16; contiguous along a dimension."""
    b, lanes = ctx.b, min(ctx.lanes(), wide.shape[along])
    buffer = ctx.new_buffer("bf16", wide.shape, along)
    with ctx.e.loops((wide.shape[1 - along], 1, "row"), (wide.shape[along], lanes, "k")) as (
        row,
        k,
    ):
        at = Index(k, lanes > 1)
        point = (at, Index(row)) if along == 0 else (Index(row), at)
        bits = b.bitcast(memory.load_buffer(ctx, wide, point, lanes).x, vector_of(I32, lanes))
        upper = b.lshr(bits, ctx.e.splat(ll.Constant(I32, 16), lanes))
        half = vector(b.trunc(upper, vector_of(I16, lanes)))
        memory.store_buffer(ctx, buffer, point, half, lanes)
    return buffer


def add_products(e: Emitter, x: ll.Value, y: ll.Value, total: ll.Value) -> ll.Value:
    """The sum with both products of every lane; x and y are vectors of 32 or of 16 bits."""
    lanes = lanes_of(total.type)
    kind = vector_of(_BFLOAT, 2 * lanes)
    name = f"llvm.x86.avx512bf16.dpbf16ps.{32 * lanes}"
    function = declare(e.module, name, ll.FunctionType(total.type, [total.type, kind, kind]))
    return e.b.call(function, [total, e.b.bitcast(x, kind), e.b.bitcast(y, kind)])


def interleaved(e: Emitter, x: ll.Value, y: ll.Value) -> list[ll.Value]:
    """Pairs of an element of x and the one of y in its place, in two vectors; of each 128 bits of
    a vector, the first gets the lower half, so that nothing crosses them.
    """
    count = lanes_of(x.type)
    group = 2 * _TOGETHER
    lower = [i for i in range(count) if i % group < _TOGETHER]
    halves = lower, [i + _TOGETHER for i in lower]
    kind = ll.VectorType(I32, count)
    chosen = [ll.Constant(kind, [i for at in half for i in (at, at + count)]) for half in halves]
    return [e.b.shuffle_vector(x, y, each) for each in chosen]


def in_order(e: Emitter, lower: ll.Value, upper: ll.Value) -> list[ll.Value]:
    """The lanes of what `interleaved` has dealt out to two vectors, in the order of x and y."""
    lanes = lanes_of(lower.type)
    order = [
        first + start + i
        for start in range(0, lanes, _TOGETHER)
        for first in (0, lanes)
        for i in range(_TOGETHER)
    ]
    kind = ll.VectorType(I32, lanes)
    halves = order[:lanes], order[lanes:]
    return [e.b.shuffle_vector(lower, upper, ll.Constant(kind, half)) for half in halves]


class _BFloat(ll.Type):
    """LLVM's own bf16, which llvmlite does not know: the instruction wants it by this name."""

    def _to_string(self) -> str:
        return "bfloat"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _BFloat)

    def __hash__(self) -> int:
        return hash(_BFloat)


_BFLOAT = _BFloat()
