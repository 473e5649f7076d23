"""Bytes, or some of their bits, as bf16 factors (`bf16_pairs.py`), without a conversion.

From 128 to 255 a bf16 holds every integer, in its seven bits behind the leading one. Seven bits of
a byte, below the exponent of 128, are therefore 128 more than they stand for: one instruction masks
them and sets the exponent. An eighth bit becomes the sign of 64, in a product of its own. The total
excess is the same for every number, the *bias*. The sums start with a bias correction: minus the
bias times the sum of the other factors.

Two bytes share 16 bits. The vectors come out deinterleaved: the even elements in one, the odd ones,
shifted down, in another.

The sums lose what a few more bits would have held: the bias is up to 192 for each number. Where the
other factor is not finite, or more than 2^118, the result is NaN.
"""

from __future__ import annotations

from dataclasses import dataclass

from llvmlite import ir as ll

from tritune.cpu import ir
from tritune.cpu.lower.analysis.usage import constant_of
from tritune.cpu.lower.context import Context, Point
from tritune.cpu.lower.emit.lanes import to_vector
from tritune.cpu.lower.emit.lazy_tensors import Nest, move_point
from tritune.cpu.lower.llvm import I16, constant, vector_of

#: The bits of a bf16: the exponent of 128, and 64 with either sign.
_BITS_128, _BITS_64, _BITS_MINUS_64 = 0x4300, 0x4280, 0xC280
_SIGN = 0x8000
_SEVEN, _EIGHTH = 0x7F, 0x80


@dataclass(frozen=True, eq=False)
class QuantizedBytes:
    """A tile of bf16 that are integers made of the bits of bytes."""

    #: The bytes, and the transpositions between them and the tile.
    source: ir.Value
    moves: tuple[ir.Op, ...]
    #: The integer is `(byte >> shift) & mask`, of eight bits.
    shift: int
    mask: int
    #: Whether the eighth bit of that is worth -128.
    signed: bool

    #: Vectors into which the elements are deinterleaved.
    factor = 2
    #: What each of them has to be multiplied with.
    scales = (1, 1)

    @staticmethod
    def of(ctx: Context, tile: ir.Value) -> QuantizedBytes | None:
        """Return the bytes that a tile of bf16 is made of, or None if it is not."""
        moves: list[ir.Op] = []
        value = tile
        while ctx.get(value) is None and value.owner is not None:
            op = value.owner
            if op.name == "tt.trans":
                moves.append(op)
                value = op.operands[0]
                continue
            known = op.name in ("arith.uitofp", "arith.sitofp")
            if not known or op.operands[0].type.elem != "i8":
                return None
            source, shift, mask = _bits(ctx, op.operands[0])
            return QuantizedBytes(source, tuple(moves), shift, mask, op.name == "arith.sitofp")
        return None

    @property
    def terms(self) -> int:
        """Return the number of bf16 that add up to an integer and the bias."""
        return 2 if self.mask & _EIGHTH else 1

    @property
    def bias(self) -> float:
        """Return the sum of the terms where the integer is 0."""
        if self.terms == 1:
            return 128.0
        return 128.0 + (64.0 if self.signed else -64.0)

    def place(self, number: int) -> int:
        """Return which vector of deinterleaved elements a vector of terms belongs to."""
        return number // (self.factor * self.terms) * self.factor + number % self.factor

    def vectors(self, wide: Nest, nest: Nest, point: Point) -> list[ll.Value]:
        """Return the even and the odd elements from the point on, once for every term."""
        e, b = nest.ctx.e, nest.ctx.b
        for op in self.moves:
            point = move_point(op, point)
        kind = vector_of(I16, nest.lanes)
        both = b.bitcast(to_vector(e, wide.at(self.source, point), wide.lanes), kind)

        def seven_bits(shift: int) -> ll.Value:
            shifted = b.lshr(both, constant(kind, shift)) if shift else both
            kept = b.and_(shifted, constant(kind, self.mask & _SEVEN))
            return b.or_(kept, constant(kind, _BITS_128))

        def eighth_bit(shift: int) -> ll.Value:
            shifted = b.shl(both, constant(kind, shift)) if shift else both
            sign = b.and_(shifted, constant(kind, _SIGN))
            return b.xor(sign, constant(kind, _BITS_64 if self.signed else _BITS_MINUS_64))

        found = [seven_bits(self.shift), seven_bits(self.shift + 8)]
        return found if self.terms == 1 else [*found, eighth_bit(8), eighth_bit(0)]


def _bits(ctx: Context, value: ir.Value) -> tuple[ir.Value, int, int]:
    """Return bytes, a shift and a mask that give the value."""
    shift, mask = 0, 0xFF
    while ctx.get(value) is None and value.owner is not None:
        op = value.owner
        number = constant_of(op.operands[1]) if len(op.operands) == 2 else None
        if number is None:
            break
        if op.name == "arith.andi":
            mask &= (number & 0xFF) >> shift
        elif op.name == "arith.shrui" and 0 <= shift + number < 8:
            shift += number
            mask &= 0xFF >> shift
        else:
            break
        value = op.operands[0]
    return value, shift, mask
