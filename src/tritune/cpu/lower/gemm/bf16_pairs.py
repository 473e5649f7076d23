"""Products of bf16 numbers, two at a time.

AVX-512 BF16 has one instruction that multiplies two pairs of bf16 in each 32-bit lane and adds both
products to an f32. It does in a cycle what two multiplications of f32 do, and nothing is widened.

Operands are then *words*: `PAIR` is a lazy operation that joins the neighbours 2k and 2k + 1 along
k into one 32-bit number, so that a product over K numbers is one over K / 2 words, written by the
same micro-kernel. An operand that lies contiguously along k in memory is made of words already, and
is read as such. Thin products (`thin.py`) leave numbers as they lie; words of those that lie across
k are made of two rows. The instruction takes numbers below the smallest normal one for 0.
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


#: Lanes that a shuffle of pairs leaves together: those of 128 bits.
_TOGETHER = 4


def split_words(e: Emitter, numbers: ll.Value) -> ll.Value:
    """Numbers that lie side by side, as words."""
    return e.b.bitcast(numbers, vector_of(I32, lanes_of(numbers.type) // 2))


def join_words(e: Emitter, low: ll.Value, high: ll.Value) -> ll.Value:
    """A word of each two bf16."""
    kind = vector_of(I32, lanes_of(low.type))
    shifted = e.b.shl(e.b.zext(high, kind), constant(kind, 16))
    return e.b.or_(e.b.zext(low, kind), shifted)


def round_to_words(e: Emitter, low: ll.Value, high: ll.Value) -> ll.Value:
    """A word of each two f32, rounded to nearest."""
    lanes = lanes_of(low.type)
    one_after_other = _call(e, "cvtne2ps2bf16", lanes, vector_of(_BFLOAT, 2 * lanes), [high, low])
    halves = e.b.bitcast(one_after_other, vector_of(I16, 2 * lanes))
    in_turn = [place for lane in range(lanes) for place in (lane, lane + lanes)]
    order = ll.Constant(ll.VectorType(I32, 2 * lanes), in_turn)
    return split_words(e, e.b.shuffle_vector(halves, halves, order))


def multiply_add(e: Emitter, x: ll.Value, y: ll.Value, total: ll.Value) -> ll.Value:
    """`total` plus both products of each lane's words."""
    lanes = lanes_of(total.type)
    kind = vector_of(_BFLOAT, 2 * lanes)
    factors = [e.b.bitcast(words, kind) for words in (x, y)]
    return _call(e, "dpbf16ps", lanes, vector_of(FLOAT, lanes), [total, *factors])


def at_once(e: Emitter, total: ll.Value) -> ll.Value:
    """The same number, as an instruction that is none but might do anything: LLVM's scheduler moves
    neither what leads to it behind it, nor what is loaded behind it before it.
    """
    kind = ll.FunctionType(total.type, [total.type])
    return e.b.asm(kind, "", "=v,0", [total], side_effect=True)


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


def _call(e: Emitter, name: str, lanes: int, result: ll.Type, args: list[ll.Value]) -> ll.Value:
    kind = ll.FunctionType(result, [arg.type for arg in args])
    full = f"llvm.x86.avx512bf16.{name}.{32 * lanes}"
    return e.b.call(declare(e.module, full, kind), args)
