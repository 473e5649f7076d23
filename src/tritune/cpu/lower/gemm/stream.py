"""The large operand of a thin product as it streams by: vectors of f32, made in registers.

Two things keep it at the speed of memory.

- Narrow numbers are not moved to wider lanes one by one. Two bf16 or four bytes in a 32-bit lane
  become as many vectors by shifts and masks. The elements are then *dealt out*: every second (or
  fourth) one to the same vector, and the user of the stream keeps what it multiplies them with in
  the same order. A byte need not even be shifted: where it lies it is 2^8 or 2^16 times as much,
  and the user multiplies with so much less.
- A block of a product reads several rows side by side. The hardware sees that as many short
  streams, and fetches ahead in none of them. So the lines of the rows that come next are asked for
  one after the other, a few with every block; past the end of the tile, those of the next
  iteration's tile, or of a later one's where tiles are small. What nobody could ask for before a
  loop's first iteration is asked for when that begins.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from llvmlite import ir as ll

from tritune.cpu import ir
from tritune.cpu.lower.analysis.usage import is_eager
from tritune.cpu.lower.context import Context, Index, Point
from tritune.cpu.lower.emit import elementwise, prefetch
from tritune.cpu.lower.emit.evaluate import SHAPE_OPS, Assumptions, Nest, move_point
from tritune.cpu.lower.emit.indirect_prefetch import Later, foreseeable
from tritune.cpu.lower.emit.lanes import to_vector, vector
from tritune.cpu.lower.gemm.byte_codes import Codes
from tritune.cpu.lower.llvm import FLOAT, I32, Emitter, constant, i64, memory_bytes, vector_of

#: What memory is brought into the caches in.
_LINE_BYTES = 64
#: How far ahead of the reading it is asked for, unless an option says.
_BYTES_AHEAD = 8192


#: Conversions that deal out elements of a type, and how many together. Signed bytes are not among
#: them: extending their sign in place takes more than moving them.
_DEALT = {("tt.fp_to_fp", "bf16"): 2, ("arith.extf", "bf16"): 2, ("arith.uitofp", "i8"): 4}


def _dealt_by(op: ir.Op) -> int:
    return _DEALT.get((op.name, op.operands[0].type.elem), 0) if op.operands else 0


class Stream:
    def __init__(
        self,
        ctx: Context,
        tile: ir.Value,
        row_dim: int,
        lanes: int,
        dealing: Dealing | Codes | None,
        assumptions: Assumptions,
    ) -> None:
        self.ctx, self.tile, self.row_dim, self.lanes = ctx, tile, row_dim, lanes
        self.dealing = dealing
        self.nest = Nest(ctx, lanes, assumptions)
        self.wide = Nest(ctx, lanes * dealing.count, assumptions) if dealing else self.nest
        self.single = Nest(ctx, 1, assumptions)
        self.sources: list[_Source] = []

    def fresh(self) -> None:
        self.nest.fresh()
        self.wide.fresh()
        self.single.fresh()

    def vectors(self, row: ll.Value, first: ll.Value, count: int) -> list[ll.Value]:
        """Neighbouring vectors of a row, or where elements are dealt out, as many that share their
        elements.
        """
        ctx, width = self.ctx, self.wide.lanes
        found: list[ll.Value] = []
        for start in range(0, count * self.lanes, width):
            at = ctx.b.add(first, i64(start), flags=("nuw", "nsw")) if start else first
            point = self._point(row, at)
            if self.dealing is None:
                found.append(to_vector(ctx.e, self.nest.at(self.tile, point), width))
            else:
                found += self.dealing.vectors(self.wide, self.nest, point)
        return found

    def _point(self, row: ll.Value, along: ll.Value) -> Point:
        lane = Index(along, self.nest.lanes > 1)
        return (Index(row), lane) if self.row_dim == 0 else (lane, Index(row))

    def keep_ahead(self, rows: int, others: Sequence[Stream] = ()) -> None:
        """From now on, be so many rows (or a multiple of them) ahead of the reading; but not of
        what others ask for.
        """
        shape = self.tile.type.shape
        ahead_bytes = self.ctx.kernel.options.prefetch_bytes or _BYTES_AHEAD
        known = {source.pointer for other in others for source in other.sources}
        for pointer, moves in self._pointers():
            if pointer in known:
                continue
            steps = self.ctx.usage.steps(pointer)
            dims = [self.row_dim, 1 - self.row_dim]
            for move in moves:
                dims = [move.attrs["order"][d] for d in dims]
            apart, together = (steps[d] for d in dims)
            if together == 1 and apart != 0:
                assert pointer.type.pointee is not None
                size = memory_bytes(pointer.type.pointee.elem)
                row_bytes = shape[1 - self.row_dim] * size
                blocks = max(1, ahead_bytes // (rows * row_bytes))
                ahead = min(rows * blocks, shape[self.row_dim])
                loop = self.ctx.loop
                told = (
                    loop is not None
                    and prefetch.advance(self.ctx, loop, pointer) is None
                    and foreseeable(self.ctx, loop, pointer)
                )
                tiles = 1 if told else max(1, ahead_bytes // (shape[self.row_dim] * row_bytes))
                self.sources.append(
                    _Source(pointer, moves, ahead, tiles, _LINE_BYTES // size, told)
                )

    def _pointers(self) -> Iterator[tuple[ir.Value, tuple[ir.Op, ...]]]:
        """What the tile is loaded from, element by element, with the transpositions in between."""
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
        """Of what the tile is loaded from; the widest, if that is several things."""
        kinds = [pointer.type.pointee for pointer, _ in self._pointers()]
        return max([memory_bytes(kind.elem) for kind in kinds if kind is not None], default=4)

    def ask_first(self) -> None:
        """Ask for the first rows of a stream that comes next, as far as nobody has done so."""
        for source in self.sources:
            if self._advance(source) is not None or not _at_hand(self.ctx, source.pointer):
                continue
            if source.told:
                assert self.ctx.loop is not None
                with self.ctx.b.if_then(self.ctx.loop.first):
                    self._ask_rows(source, 0)
                self.fresh()
            else:
                self._ask_rows(source, 0)

    def ask_at_start(self) -> None:
        """In the first iteration of a loop, ask for what an earlier one would have asked for."""
        for source in self.sources:
            distance = self._advance(source)
            if distance is None or self.ctx.loop is None:
                continue
            tiles = self.ctx.e.loop(source.tiles_ahead, 1, "tile")
            with self.ctx.b.if_then(self.ctx.loop.first), tiles as tile:
                self._ask_rows(source, prefetch.product(self.ctx, distance, tile))
            self.fresh()

    def _ask_rows(self, source: _Source, further: int | ll.Value) -> None:
        """Ask for as many rows as are kept ahead, from so many bytes further on."""
        in_row = max(1, self.tile.type.shape[1 - self.row_dim] // source.line)
        with self.ctx.e.loop(source.rows_ahead, 1, "row") as row:
            self.fresh()
            for line in range(in_row):
                point = self._source_point(source, row, i64(line * source.line))
                prefetch.emit(self.ctx, self._address(source, point), further)

    def _source_point(self, source: _Source, row: ll.Value, along: ll.Value) -> Point:
        """Where in the tensor that is loaded an element of the stream is."""
        point = self._point(row, along)
        for move in source.moves:
            point = move_point(move, point)
        return point

    def _address(self, source: _Source, point: Point) -> ll.Value:
        """Where the element at a point is loaded from, the first one of a vector."""
        address = self.nest.at(source.pointer, point)
        if address.affine:
            return address.x
        # Every lane has an address of its own. Whose line is asked for makes no difference.
        return self.single.at(source.pointer, tuple(Index(p.at) for p in point)).x

    def ask_ahead(
        self,
        row: ll.Value,
        rows: int,
        part: ll.Value,
        parts: int,
        turn: int = 0,
        turns: int = 1,
    ) -> None:
        """While `rows` rows from `row` on are read in `parts` parts: ask for a part of what comes
        later, in turns.
        """
        b = self.ctx.b
        for source in self.sources:
            in_row = max(1, self.tile.type.shape[1 - self.row_dim] // source.line)
            share = max(1, rows * in_row // parts)
            for number in range(share * turn // turns, share * (turn + 1) // turns):
                line = b.add(b.mul(part, i64(share)), i64(number))
                down = b.add(row, b.udiv(line, i64(in_row)))
                along = b.mul(b.urem(line, i64(in_row)), i64(source.line))
                self._prefetch(source, down, along)

    def _advance(self, source: _Source) -> int | ll.Value | None:
        """How far away the next iteration's tile is, if that is known."""
        loop = self.ctx.loop
        return None if loop is None else prefetch.advance(self.ctx, loop, source.pointer)

    def _prefetch(self, source: _Source, row: ll.Value, along: ll.Value) -> None:
        """Ask for what is read there so many rows later, or where the tile ends, so many tiles."""
        b, rows, loop = self.ctx.b, self.tile.type.shape[self.row_dim], self.ctx.loop
        distance = None if source.told else self._advance(source)
        # In iterations where a table tells, else in bytes.
        ahead = prefetch.product(self.ctx, 1 if source.told else distance or 0, source.tiles_ahead)
        away = i64(ahead) if isinstance(ahead, int) else ahead
        if source.rows_ahead < rows:
            later = b.add(row, i64(source.rows_ahead))
            inside = b.icmp_unsigned("<", later, i64(rows))
            known = source.told or distance is not None
            row = b.select(inside, later, b.sub(later, i64(rows)) if known else i64(rows - 1))
            away = b.select(inside, i64(0), away)
        point = self._source_point(source, row, along)
        if source.told:
            assert loop is not None
            prefetch.emit(self.ctx, Later(self.ctx, loop, away).at(source.pointer, point).x, 0)
        else:
            prefetch.emit(self.ctx, self._address(source, point), away)


def _at_hand(ctx: Context, value: ir.Value) -> bool:
    """Whether a tensor can be evaluated before its operation is reached."""
    if ctx.get(value) is not None:
        return True
    op = value.owner
    if op is None or value.type.rank == 0 or is_eager(op):
        return False
    return all(_at_hand(ctx, operand) for operand in op.operands)


@dataclass(frozen=True, eq=False)
class Dealing:
    """A tile of f32 that is made of narrow numbers: converted, and then something done to each."""

    conversion: ir.Op
    #: What is done after it, with the operand that comes from it.
    after: tuple[tuple[ir.Op, int], ...]
    #: Whether bytes are taken where they lie, too large by a power of two.
    in_place: bool

    @property
    def count(self) -> int:
        return _dealt_by(self.conversion)

    @property
    def scales(self) -> tuple[float, ...]:
        """What each vector has to be multiplied with. That is exact, but for numbers so small that
        they lose bits: those below 2^-110.
        """
        return (1, 2**-8, 2**-16, 1) if self.in_place else (1,) * self.count

    @staticmethod
    def of(ctx: Context, tile: ir.Value, lane_dim: int, scaled: bool) -> Dealing | None:
        """How the elements of a tile can be dealt out, if they can; scaled, where that is allowed
        and nothing but a product is made of them.
        """
        after: list[tuple[ir.Op, int]] = []
        value, dim = tile, lane_dim
        while ctx.get(value) is None and value.owner is not None:
            op = value.owner
            if _dealt_by(op):
                plain = all(later.name == "tt.trans" for later, _ in after)
                return Dealing(op, tuple(reversed(after)), scaled and plain and _dealt_by(op) == 4)
            if op.name == "tt.trans":
                dim = op.attrs["order"][dim]
                after.append((op, 0))
            elif op.name in SHAPE_OPS or not elementwise.supported(op.name):
                return None
            else:
                varying = [i for i, o in enumerate(op.operands) if not _uniform(ctx, o, dim)]
                if len(varying) != 1 or op.results[0].type.elem != "f32":
                    return None
                after.append((op, varying[0]))
            value = op.operands[after[-1][1]]
        return None

    def vectors(self, wide: Nest, nest: Nest, point: Point) -> list[ll.Value]:
        """The `count` vectors whose elements begin at the point."""
        points = [point]
        for op, _ in reversed(self.after):
            points.append(move_point(op, points[-1]) if op.name == "tt.trans" else points[-1])
        narrow = to_vector(nest.ctx.e, wide.at(self.conversion.operands[0], points[-1]), wide.lanes)
        dealt = [vector(part) for part in self._widened(nest.ctx.e, narrow, nest.lanes)]
        for (op, place), at in zip(self.after, reversed(points[:-1]), strict=True):
            if op.name == "tt.trans":
                continue
            others = [None if i == place else nest.at(o, at) for i, o in enumerate(op.operands)]
            dealt = [nest.apply(op, [o or part for o in others]) for part in dealt]
        return [to_vector(nest.ctx.e, part, nest.lanes) for part in dealt]

    def _widened(self, e: Emitter, narrow: ll.Value, lanes: int) -> list[ll.Value]:
        b, kind, real = e.b, vector_of(I32, lanes), vector_of(FLOAT, lanes)
        words = b.bitcast(narrow, kind)
        if self.count == 2:
            halves = b.shl(words, constant(kind, 16)), b.and_(words, constant(kind, 0xFFFF0000))
            return [b.bitcast(half, real) for half in halves]
        if self.in_place:
            bytes_of = [b.and_(words, constant(kind, 0xFF << shift)) for shift in (0, 8, 16)]
        else:
            shifted = [b.lshr(words, constant(kind, shift)) for shift in (0, 8, 16)]
            bytes_of = [b.and_(each, constant(kind, 0xFF)) for each in shifted]
        bytes_of.append(b.lshr(words, constant(kind, 24)))
        # Converted as signed numbers, which machines find easier.
        return [b.sitofp(byte, real) for byte in bytes_of]


def _uniform(ctx: Context, value: ir.Value, dim: int) -> bool:
    """Whether a tensor is plainly the same along a dimension."""
    op = value.owner
    if value.type.rank == 0 or value.type.shape[dim] == 1:
        return True
    if op is None or ctx.get(value) is not None:
        return False
    if op.name in ("tt.splat", "arith.constant"):
        return not isinstance(op.attrs.get("value"), list)
    if op.name == "tt.broadcast":
        return op.operands[0].type.shape[dim] == 1
    return elementwise.supported(op.name) and all(_uniform(ctx, o, dim) for o in op.operands)


@dataclass(frozen=True, eq=False)
class _Source:
    """Where a stream comes from."""

    pointer: ir.Value
    #: The transpositions between the stream and what is loaded.
    moves: tuple[ir.Op, ...]
    #: Rows that are asked for before they are read: some of a tile, or all of it and of so many
    #: iterations.
    rows_ahead: int
    tiles_ahead: int
    #: Elements in a line of the cache.
    line: int
    #: Whether something that is read on the way tells where the later tiles are.
    told: bool
