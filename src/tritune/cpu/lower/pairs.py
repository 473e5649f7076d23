"""Products of bf16 numbers, two at a time.

AVX-512 BF16 has one instruction that multiplies two pairs of bf16 in each 32-bit lane and adds both
products to an f32. It does in a cycle what two multiplications of f32 do, and nothing is widened.

Operands are then *words*: `PAIR` is a lazy operation that joins the neighbours 2k and 2k + 1 along
k into one 32-bit number, so that a product over K numbers is one over K / 2 words, written by the
same micro-kernel. An operand that lies contiguously along k in memory is made of words already, and
is read as such. The instruction takes numbers below the smallest normal one for 0.
"""

from __future__ import annotations

from llvmlite import ir as ll

from ..features import Cpu
from .llvm import FLOAT, I16, I32, Emitter, constant, declare, lanes_of, vector_of

#: The operation: attribute `axis` says which dimension is k.
PAIR = "tritune.pair"


class _BFloat(ll.Type):
    """LLVM's own bf16, which its intrinsics take; numbers are i16 everywhere else."""

    def _to_string(self) -> str:
        return "bfloat"


_BFLOAT = _BFloat()


def can_multiply(cpu: Cpu) -> bool:
    return cpu.has("avx512bf16") and cpu.has("avx512vl")


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


def _call(e: Emitter, name: str, lanes: int, result: ll.Type, args: list[ll.Value]) -> ll.Value:
    kind = ll.FunctionType(result, [arg.type for arg in args])
    full = f"llvm.x86.avx512bf16.{name}.{32 * lanes}"
    return e.b.call(declare(e.module, full, kind), args)
