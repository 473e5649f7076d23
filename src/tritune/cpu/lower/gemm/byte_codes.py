"""Bytes, or some of their bits, as bf16 for products of pairs (`pairs.py`), without a conversion.

A bf16 has seven bits behind its leading one, so from 128 to 255 it holds every integer: seven bits
of a byte below the exponent of 128 are 128 more than they stand for. One instruction masks them and
puts the exponent there. The eighth bit of a byte, if it is wanted, becomes the sign of 64, for one
more product. What all that is too much is the same for every number, and so goes into the start of
the sums: less the surplus times what the numbers are multiplied with.

Two bytes share 16 bits. The elements are dealt out: the even ones are one vector, the odd ones,
shifted down, another.

The sums lose what a few more bits would have held: the surplus is up to 192 for each number. Where
what they are multiplied with is not finite, or more than 2^118, the result is NaN.
"""

from __future__ import annotations

from dataclasses import dataclass

from llvmlite import ir as ll

from tritune.cpu import ir
from tritune.cpu.lower.analysis.usage import constant_of
from tritune.cpu.lower.context import Context, Point
from tritune.cpu.lower.emit.evaluate import Nest, move_point
from tritune.cpu.lower.emit.lanes import to_vector
from tritune.cpu.lower.llvm import I16, constant, vector_of

#: The bits of a bf16: the exponent of 128, and 64 with either sign.
_BITS_128, _BITS_64, _BITS_MINUS_64 = 0x4300, 0x4280, 0xC280
_SIGN = 0x8000
_SEVEN, _EIGHTH = 0x7F, 0x80


@dataclass(frozen=True, eq=False)
class Codes:
    """A tile of bf16 that are integers: bits of bytes."""

    #: The bytes, and the transpositions between them and the tile.
    source: ir.Value
    moves: tuple[ir.Op, ...]
    #: The integer is `(byte >> shift) & mask`, of eight bits.
    shift: int
    mask: int
    #: Whether the eighth bit of that is worth -128.
    signed: bool

    #: Vectors to which the elements are dealt out.
    count = 2
    #: What each of them has to be multiplied with.
    scales = (1, 1)

    @staticmethod
    def of(ctx: Context, tile: ir.Value) -> Codes | None:
        """What a tile of bf16 is made of, if it is this."""
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
            return Codes(source, tuple(moves), shift, mask, op.name == "arith.sitofp")
        return None

    @property
    def pieces(self) -> int:
        """Numbers that add up to an integer and the surplus."""
        return 2 if self.mask & _EIGHTH else 1

    @property
    def surplus(self) -> float:
        """What they add up to where the integer is 0."""
        if self.pieces == 1:
            return 128.0
        return 128.0 + (64.0 if self.signed else -64.0)

    def place(self, number: int) -> int:
        """Which vector of the elements, dealt out, the vector of that number belongs to."""
        return number // (self.count * self.pieces) * self.count + number % self.count

    def vectors(self, wide: Nest, nest: Nest, point: Point) -> list[ll.Value]:
        """Of as many elements as `wide` has lanes, from the point on: even ones and odd ones, once
        for every piece.
        """
        e, b = nest.ctx.e, nest.ctx.b
        for op in self.moves:
            point = move_point(op, point)
        kind = vector_of(I16, nest.lanes)
        both = b.bitcast(to_vector(e, wide.at(self.source, point), wide.lanes), kind)

        def seven(shift: int) -> ll.Value:
            shifted = b.lshr(both, constant(kind, shift)) if shift else both
            kept = b.and_(shifted, constant(kind, self.mask & _SEVEN))
            return b.or_(kept, constant(kind, _BITS_128))

        def eighth(shift: int) -> ll.Value:
            shifted = b.shl(both, constant(kind, shift)) if shift else both
            sign = b.and_(shifted, constant(kind, _SIGN))
            return b.xor(sign, constant(kind, _BITS_64 if self.signed else _BITS_MINUS_64))

        found = [seven(self.shift), seven(self.shift + 8)]
        return found if self.pieces == 1 else [*found, eighth(8), eighth(0)]


def _bits(ctx: Context, value: ir.Value) -> tuple[ir.Value, int, int]:
    """Bytes, a shift and a mask that give the value."""
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
