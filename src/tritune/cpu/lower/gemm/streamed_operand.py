"""The streamed operand of a skinny GEMM: vectors of f32, made in registers.

Two things keep it at the speed of memory.

- *Deinterleaving.* Narrow numbers are not moved to wider lanes one by one. Two bf16 or four bytes
  in a 32-bit lane become as many vectors by shifts and masks. The elements are then deinterleaved:
  every second (or fourth) one is in the same vector, and the stationary operand is kept in the same
  order. A byte need not even be shifted: where it lies it is 2^8 or 2^16 times as large, and the
  stationary operand is scaled by the inverse.
- *Prefetching.* A block of a product reads several rows side by side. The hardware prefetcher sees
  that as many short streams, and follows none of them. So the lines of the rows that come next are
  prefetched in the order of their addresses, a few with every block; past the end of the tile,
  those of the tile of the next iteration, or of a later one where tiles are small. A prologue in
  the loop's first iteration prefetches what an earlier iteration would have.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass

from llvmlite import ir as ll

from tritune.cpu import ir
from tritune.cpu.lower.analysis.shapes import SHAPE_OPS
from tritune.cpu.lower.analysis.usage import is_eager
from tritune.cpu.lower.context import Context, Index, Point
from tritune.cpu.lower.emit import elementwise, prefetch
from tritune.cpu.lower.emit.indirect_prefetch import LaterIteration, can_evaluate_later
from tritune.cpu.lower.emit.lanes import to_vector, vector
from tritune.cpu.lower.emit.lazy_tensors import Assumptions, Nest, move_point
from tritune.cpu.lower.gemm.quantized_bytes import QuantizedBytes
from tritune.cpu.lower.llvm import (
    FLOAT,
    I32,
    Emitter,
    Number,
    as_i64,
    constant,
    element_bytes,
    i64,
    vector_of,
)

_CACHE_LINE_BYTES = 64
#: The prefetch distance, unless the option `prefetch_bytes` sets one.
_PREFETCH_DISTANCE_BYTES = 8192

#: How many vectors a conversion deinterleaves. Signed bytes are not among them: extending their
#: sign in place takes more instructions than moving them.
_DEINTERLEAVE_FACTORS = {
    ("tt.fp_to_fp", "bf16"): 2,
    ("arith.extf", "bf16"): 2,
    ("arith.uitofp", "i8"): 4,
}


def _deinterleave_factor(op: ir.Op) -> int:
    return _DEINTERLEAVE_FACTORS.get((op.name, op.operands[0].type.elem), 0) if op.operands else 0


@dataclass(frozen=True, eq=False)
class _PrefetchedPointer:
    """A pointer that the streamed operand is loaded from."""

    pointer: ir.Value
    #: The transpositions between the operand and what is loaded.
    moves: tuple[ir.Op, ...]
    #: The prefetch distance: rows of this tile, or where it ends, iterations of the loop.
    rows_ahead: int
    tiles_ahead: int
    #: Elements in a cache line.
    line: int
    #: Whether the addresses of later tiles have to be loaded from a table first.
    indirect: bool


class StreamedOperand:
    """Loads, converts and prefetches the streamed operand."""

    def __init__(
        self,
        ctx: Context,
        tile: ir.Value,
        row_dim: int,
        lanes: int,
        layout: Deinterleaved | QuantizedBytes | None,
        assumptions: Assumptions,
    ) -> None:
        self.ctx, self.tile, self.row_dim, self.lanes = ctx, tile, row_dim, lanes
        self.layout = layout
        self.nest = Nest(ctx, lanes, assumptions)
        self.wide = Nest(ctx, lanes * layout.factor, assumptions) if layout else self.nest
        self.single = Nest(ctx, 1, assumptions)
        self.sources: list[_PrefetchedPointer] = []

    def clear(self) -> None:
        """Forget the values computed so far: the code that follows may not be dominated by them."""
        self.nest.clear()
        self.wide.clear()
        self.single.clear()

    def vectors(self, row: ll.Value, first: ll.Value, count: int) -> list[ll.Value]:
        """Return `count` vectors of a row, deinterleaved if there is a layout."""
        ctx, width = self.ctx, self.wide.lanes
        found: list[ll.Value] = []
        for start in range(0, count * self.lanes, width):
            point = self._point(row, ctx.e.plus(first, start))
            if self.layout is None:
                found.append(to_vector(ctx.e, self.nest.at(self.tile, point), width))
            else:
                found += self.layout.vectors(self.wide, self.nest, point)
        return found

    def _point(self, row: ll.Value, along: ll.Value) -> Point:
        lane = Index(along, self.nest.lanes > 1)
        return (Index(row), lane) if self.row_dim == 0 else (lane, Index(row))

    def set_prefetch_distance(self, rows: int, others: Sequence[StreamedOperand] = ()) -> None:
        """Prefetch a multiple of `rows` rows ahead from now on, except what `others` prefetch."""
        count, length = self.tile.type.shape[self.row_dim], self.tile.type.shape[1 - self.row_dim]
        distance = self.ctx.kernel.options.prefetch_bytes or _PREFETCH_DISTANCE_BYTES
        known = {source.pointer for other in others for source in other.sources}
        for pointer, moves in self._pointers():
            if pointer in known:
                continue
            dims = [self.row_dim, 1 - self.row_dim]
            for move in moves:
                dims = [move.attrs["order"][d] for d in dims]
            between_rows, within_row = (self.ctx.usage.strides(pointer)[d] for d in dims)
            if within_row != 1 or between_rows == 0:
                continue
            size = element_bytes(pointer)
            ahead = min(rows * max(1, distance // (rows * length * size)), count)
            indirect = self._is_indirect(pointer)
            tiles = 1 if indirect else max(1, distance // (count * length * size))
            line = _CACHE_LINE_BYTES // size
            self.sources.append(_PrefetchedPointer(pointer, moves, ahead, tiles, line, indirect))

    def _is_indirect(self, pointer: ir.Value) -> bool:
        loop = self.ctx.loop
        if loop is None or self._stride(pointer) is not None:
            return False
        return can_evaluate_later(self.ctx, loop, pointer)

    def _pointers(self) -> Iterator[tuple[ir.Value, tuple[ir.Op, ...]]]:
        """Yield the pointers of the loads behind the tile, and the transpositions in between."""
        seen = set()
        stack: list[tuple[ir.Value, tuple[ir.Op, ...]]] = [(self.tile, ())]
        while stack:
            value, moves = stack.pop()
            op = value.owner
            if op is None or value in seen or value.type.rank != 2 or self.ctx.get(value):
                continue
            seen.add(value)
            if op.name == "tt.load":
                yield op.operands[0], moves
            elif op.name == "tt.trans":
                stack.append((op.operands[0], (*moves, op)))
            elif op.name not in SHAPE_OPS:
                stack.extend((operand, moves) for operand in op.operands)

    @property
    def element_bytes(self) -> int:
        """Return the size of the widest element that the tile is loaded from."""
        return max((element_bytes(pointer) for pointer, _ in self._pointers()), default=4)

    def prefetch_first_rows(self) -> None:
        """Prefetch the first rows of the product that comes next, unless a loop does so."""
        for source in self.sources:
            if self._stride(source.pointer) is not None:
                continue
            if not _can_evaluate_now(self.ctx, source.pointer):
                continue
            loop = self.ctx.loop if source.indirect else None
            with self.ctx.b.if_then(loop.is_first) if loop is not None else nullcontext():
                self._prefetch_rows(source, 0)

    def emit_prefetch_prologue(self) -> None:
        """In a loop's first iteration, prefetch what an earlier one would have."""
        for source in self.sources:
            stride = self._stride(source.pointer)
            if stride is None or self.ctx.loop is None:
                continue
            tiles = self.ctx.e.loop(source.tiles_ahead, 1, "tile")
            with self.ctx.b.if_then(self.ctx.loop.is_first), tiles as tile:
                self._prefetch_rows(source, prefetch.multiply(self.ctx, stride, tile))
            self.clear()

    def _prefetch_rows(self, source: _PrefetchedPointer, offset: Number) -> None:
        """Prefetch `rows_ahead` rows, `offset` bytes further on."""
        with self.ctx.e.loop(source.rows_ahead, 1, "row") as row:
            self.clear()
            for line in range(self._lines_in_row(source)):
                point = self._source_point(source, row, i64(line * source.line))
                prefetch.emit(self.ctx, self._address(source, point), offset)

    def _lines_in_row(self, source: _PrefetchedPointer) -> int:
        return max(1, self.tile.type.shape[1 - self.row_dim] // source.line)

    def _source_point(self, source: _PrefetchedPointer, row: ll.Value, along: ll.Value) -> Point:
        """Return where in the loaded tensor an element of the operand is."""
        point = self._point(row, along)
        for move in source.moves:
            point = move_point(move, point)
        return point

    def _address(self, source: _PrefetchedPointer, point: Point) -> ll.Value:
        """Return the address of the first element of the vector at a point."""
        address = self.nest.at(source.pointer, point)
        if address.affine:
            return address.x
        # Every lane has an address of its own. Whose line is prefetched makes no difference.
        return self.single.at(source.pointer, tuple(Index(p.at) for p in point)).x

    def prefetch_ahead(
        self,
        row: ll.Value,
        rows: int,
        slot: ll.Value,
        slots: int,
        share: int = 0,
        shares: int = 1,
    ) -> None:
        """Prefetch a part of what is read later, while `rows` rows from `row` on are read.

        The lines are spread over `slots` slots, and those of this slot over `shares` calls.
        """
        b = self.ctx.b
        for source in self.sources:
            in_row = self._lines_in_row(source)
            lines = max(1, rows * in_row // slots)
            for number in range(lines * share // shares, lines * (share + 1) // shares):
                line = b.add(b.mul(slot, i64(lines)), i64(number))
                down = b.add(row, b.udiv(line, i64(in_row)))
                along = b.mul(b.urem(line, i64(in_row)), i64(source.line))
                self._prefetch(source, down, along)

    def _stride(self, pointer: ir.Value) -> Number | None:
        """Return the distance to the next iteration's tile in bytes, if it is known."""
        loop = self.ctx.loop
        return None if loop is None else prefetch.stride(self.ctx, loop, pointer)

    def _prefetch(self, source: _PrefetchedPointer, row: ll.Value, along: ll.Value) -> None:
        """Prefetch what is read at this place `rows_ahead` rows later, or if the tile ends before
        that, `tiles_ahead` iterations later.
        """
        b, rows, loop = self.ctx.b, self.tile.type.shape[self.row_dim], self.ctx.loop
        stride = None if source.indirect else self._stride(source.pointer)
        # In iterations if the prefetch is indirect, else in bytes.
        unit = 1 if source.indirect else stride or 0
        ahead = as_i64(prefetch.multiply(self.ctx, unit, source.tiles_ahead))
        if source.rows_ahead < rows:
            later = b.add(row, i64(source.rows_ahead))
            inside = b.icmp_unsigned("<", later, i64(rows))
            known = source.indirect or stride is not None
            row = b.select(inside, later, b.sub(later, i64(rows)) if known else i64(rows - 1))
            ahead = b.select(inside, i64(0), ahead)
        point = self._source_point(source, row, along)
        if source.indirect:
            assert loop is not None
            address = LaterIteration(self.ctx, loop, ahead).at(source.pointer, point).x
            prefetch.emit(self.ctx, address, 0)
        else:
            prefetch.emit(self.ctx, self._address(source, point), ahead)


def _can_evaluate_now(ctx: Context, value: ir.Value) -> bool:
    """Return whether a tensor can be evaluated before its operation is reached."""
    if ctx.get(value) is not None:
        return True
    op = value.owner
    if op is None or value.type.rank == 0 or is_eager(op):
        return False
    return all(_can_evaluate_now(ctx, operand) for operand in op.operands)


@dataclass(frozen=True, eq=False)
class Deinterleaved:
    """A tile of f32 that is converted from narrow numbers, with elementwise operations after it."""

    conversion: ir.Op
    #: The operations after it, and which of their operands comes from it.
    after: tuple[tuple[ir.Op, int], ...]
    #: Whether bytes are taken where they lie, too large by a power of two.
    in_place: bool

    @property
    def factor(self) -> int:
        """Return the number of vectors that the elements are deinterleaved into."""
        return _deinterleave_factor(self.conversion)

    @property
    def scales(self) -> tuple[float, ...]:
        """Return the factors that the vectors' products need.

        They are exact, except for numbers below 2^-110, which lose bits.
        """
        return (1, 2**-8, 2**-16, 1) if self.in_place else (1,) * self.factor

    @staticmethod
    def of(ctx: Context, tile: ir.Value, lane_dim: int, scaled: bool) -> Deinterleaved | None:
        """Return how a tile can be deinterleaved, or None if it cannot.

        `scaled` allows bytes in place, if nothing but a product is made of them.
        """
        after: list[tuple[ir.Op, int]] = []
        value, dim = tile, lane_dim
        while ctx.get(value) is None and value.owner is not None:
            op = value.owner
            if factor := _deinterleave_factor(op):
                plain = all(later.name == "tt.trans" for later, _ in after)
                return Deinterleaved(op, tuple(reversed(after)), scaled and plain and factor == 4)
            if op.name == "tt.trans":
                dim = op.attrs["order"][dim]
                after.append((op, 0))
            elif op.name in SHAPE_OPS or not elementwise.supported(op.name):
                return None
            else:
                varying = [i for i, o in enumerate(op.operands) if not _is_uniform(ctx, o, dim)]
                if len(varying) != 1 or op.results[0].type.elem != "f32":
                    return None
                after.append((op, varying[0]))
            value = op.operands[after[-1][1]]
        return None

    def vectors(self, wide: Nest, nest: Nest, point: Point) -> list[ll.Value]:
        """Return the `factor` vectors whose elements begin at the point."""
        points = [point]
        for op, _ in reversed(self.after):
            points.append(move_point(op, points[-1]) if op.name == "tt.trans" else points[-1])
        narrow = to_vector(nest.ctx.e, wide.at(self.conversion.operands[0], points[-1]), wide.lanes)
        parts = [vector(part) for part in self._widened(nest.ctx.e, narrow, nest.lanes)]
        for (op, place), at in zip(self.after, reversed(points[:-1]), strict=True):
            if op.name == "tt.trans":
                continue
            others = [None if i == place else nest.at(o, at) for i, o in enumerate(op.operands)]
            parts = [nest.apply(op, [o or part for o in others]) for part in parts]
        return [to_vector(nest.ctx.e, part, nest.lanes) for part in parts]

    def _widened(self, e: Emitter, narrow: ll.Value, lanes: int) -> list[ll.Value]:
        b, kind, real = e.b, vector_of(I32, lanes), vector_of(FLOAT, lanes)
        words = b.bitcast(narrow, kind)
        if self.factor == 2:
            halves = b.shl(words, constant(kind, 16)), b.and_(words, constant(kind, 0xFFFF0000))
            return [b.bitcast(half, real) for half in halves]
        if self.in_place:
            bytes_of = [b.and_(words, constant(kind, 0xFF << shift)) for shift in (0, 8, 16)]
        else:
            shifted = [b.lshr(words, constant(kind, shift)) for shift in (0, 8, 16)]
            bytes_of = [b.and_(each, constant(kind, 0xFF)) for each in shifted]
        bytes_of.append(b.lshr(words, constant(kind, 24)))
        # Converted as signed numbers, which takes fewer instructions.
        return [b.sitofp(byte, real) for byte in bytes_of]


def _is_uniform(ctx: Context, value: ir.Value, dim: int) -> bool:
    """Return whether a tensor is known to be the same along a dimension."""
    op = value.owner
    if value.type.rank == 0 or value.type.shape[dim] == 1:
        return True
    if op is None or ctx.get(value) is not None:
        return False
    if op.name in ("tt.splat", "arith.constant"):
        return not isinstance(op.attrs.get("value"), list)
    if op.name == "tt.broadcast":
        return op.operands[0].type.shape[dim] == 1
    return elementwise.supported(op.name) and all(_is_uniform(ctx, o, dim) for o in op.operands)
