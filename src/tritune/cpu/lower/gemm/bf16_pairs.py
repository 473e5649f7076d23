"""Products of bf16 with AVX-512 BF16, whose instruction multiplies pairs of numbers.

`vdpbf16ps` multiplies the two bf16 in each 32-bit lane with two others and adds both products to an
f32. It does in a cycle what two multiplications of f32 do, and nothing is widened.

Operands are then *words* of 32 bits: the lazy operation `PAIR` joins the neighbours 2k and 2k + 1
along k. A product over K numbers becomes one over K / 2 words, written by the same micro-kernel. An
operand that is contiguous along k in memory consists of words already and is read as such. Skinny
GEMM makes words of two rows if the operand is contiguous the other way. The instruction flushes
denormals to zero.
"""

from __future__ import annotations

from llvmlite import ir as ll

from tritune.cpu import ir
from tritune.cpu.lower.context import Buffer, Context, Index
from tritune.cpu.lower.emit import memory
from tritune.cpu.lower.emit.lanes import vector
from tritune.cpu.lower.llvm import FLOAT, I16, I32, Emitter, constant, declare, lanes_of, vector_of

#: The operation: attribute `axis` says which dimension is k.
PAIR = "tritune.pair"


class _BFloat(ll.Type):
    """LLVM's own bf16, which its intrinsics take; numbers are i16 everywhere else."""

    def _to_string(self) -> str:
        return "bfloat"


_BFLOAT = _BFloat()


#: 32-bit lanes in the 128 bits that an unpack instruction works within.
_UNPACK_LANES = 4


def split_words(e: Emitter, numbers: ll.Value) -> ll.Value:
    """Return neighbouring numbers as words."""
    return e.b.bitcast(numbers, vector_of(I32, lanes_of(numbers.type) // 2))


def join_words(e: Emitter, low: ll.Value, high: ll.Value) -> ll.Value:
    """Return words made of two vectors of bf16."""
    kind = vector_of(I32, lanes_of(low.type))
    shifted = e.b.shl(e.b.zext(high, kind), constant(kind, 16))
    return e.b.or_(e.b.zext(low, kind), shifted)


def round_to_words(e: Emitter, low: ll.Value, high: ll.Value) -> ll.Value:
    """Return words made of two vectors of f32, rounded to nearest."""
    lanes = lanes_of(low.type)
    rounded = _call(e, "cvtne2ps2bf16", lanes, vector_of(_BFLOAT, 2 * lanes), [high, low])
    halves = e.b.bitcast(rounded, vector_of(I16, 2 * lanes))
    order = [place for lane in range(lanes) for place in (lane, lane + lanes)]
    return split_words(e, e.shuffle(halves, halves, order))


def multiply_add(e: Emitter, x: ll.Value, y: ll.Value, total: ll.Value) -> ll.Value:
    """Return `total` plus both products of each lane's words."""
    lanes = lanes_of(total.type)
    kind = vector_of(_BFLOAT, 2 * lanes)
    factors = [e.b.bitcast(words, kind) for words in (x, y)]
    return _call(e, "dpbf16ps", lanes, vector_of(FLOAT, lanes), [total, *factors])


def scheduling_barrier(e: Emitter, total: ll.Value) -> ll.Value:
    """Return the value from an empty side-effecting asm; keeps LLVM from reordering across it."""
    kind = ll.FunctionType(total.type, [total.type])
    return e.b.asm(kind, "", "=v,0", [total], side_effect=True)


def bf16_source(value: ir.Value) -> ir.Value | None:
    """Return the bf16 tensor that an f32 tensor was converted from, if it was."""
    op = value.owner
    if op is None or op.name not in ("tt.fp_to_fp", "arith.extf"):
        return None
    return op.operands[0] if op.operands[0].type.elem == "bf16" else None


def pack_bf16(ctx: Context, wide: Buffer, along: int) -> Buffer:
    """Return a matrix of f32 that were bf16 as bf16, contiguous along a dimension."""
    b, lanes = ctx.b, min(ctx.lanes(), wide.shape[along])
    buffer = ctx.new_buffer("bf16", wide.shape, along)
    loops = (wide.shape[1 - along], 1, "row"), (wide.shape[along], lanes, "k")
    with ctx.e.loops(*loops) as (row, k):
        at = Index(k, lanes > 1)
        point = (at, Index(row)) if along == 0 else (Index(row), at)
        bits = b.bitcast(memory.load_buffer(ctx, wide, point, lanes).x, vector_of(I32, lanes))
        upper = b.lshr(bits, constant(bits.type, 16))
        half = vector(b.trunc(upper, vector_of(I16, lanes)))
        memory.store_buffer(ctx, buffer, point, half, lanes)
    return buffer


def unpack_low_high(e: Emitter, x: ll.Value, y: ll.Value) -> list[ll.Value]:
    """Interleave x and y within each 128 bits: the lower halves, then the upper halves."""
    count, group = lanes_of(x.type), 2 * _UNPACK_LANES
    lower = [i for i in range(count) if i % group < _UNPACK_LANES]
    halves = lower, [i + _UNPACK_LANES for i in lower]
    return [e.shuffle(x, y, [i for at in half for i in (at, at + count)]) for half in halves]


def restore_order(e: Emitter, lower: ll.Value, upper: ll.Value) -> list[ll.Value]:
    """Return sums over the lanes of `unpack_low_high` in the order of x and y."""
    lanes = lanes_of(lower.type)
    order = [
        first + start + i
        for start in range(0, lanes, _UNPACK_LANES)
        for first in (0, lanes)
        for i in range(_UNPACK_LANES)
    ]
    return [e.shuffle(lower, upper, half) for half in (order[:lanes], order[lanes:])]


def _call(e: Emitter, name: str, lanes: int, result: ll.Type, args: list[ll.Value]) -> ll.Value:
    kind = ll.FunctionType(result, [arg.type for arg in args])
    full = f"llvm.x86.avx512bf16.{name}.{32 * lanes}"
    return e.b.call(declare(e.module, full, kind), args)
