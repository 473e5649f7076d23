"""Products with few rows whose lanes run along k."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from llvmlite import ir as ll

from tritune.cpu.lower.context import Buffer, Context, Index
from tritune.cpu.lower.emit import memory, nests
from tritune.cpu.lower.emit.evaluate import Assumptions, float_bits
from tritune.cpu.lower.emit.horizontal import sum_lanes
from tritune.cpu.lower.emit.lanes import Lane, vector
from tritune.cpu.lower.gemm import bf16_pairs as pairs
from tritune.cpu.lower.gemm.byte_codes import Codes
from tritune.cpu.lower.gemm.skinny_block import Block
from tritune.cpu.lower.gemm.skinny_roles import Thin
from tritune.cpu.lower.gemm.stream import Dealing, Stream
from tritune.cpu.lower.llvm import FLOAT, I16, constant, i64, vector_of

#: Vectors along k in one trip of the loop over k.
_UNROLL = 4
#: Of the few, so many are multiplied with a streamed vector at once where vectors are long: a
#: square block loads least, and such vectors are loaded no faster than they are multiplied.
_ROWS = 4
#: Products that a lane adds up one after the other; longer sums are sums of such sums.
_LONGEST_SUM = 64


@dataclass(frozen=True, eq=False)
class _Part:
    """One of the products that share a block."""

    thin: Thin
    #: How its stream deals out its elements; None if they come in order.
    dealing: Dealing | Codes | None
    #: In the same order, once the block has begun.
    few: Buffer


class Inner(Block):
    """Lanes along k."""

    ROWS_AT_ONCE = 1

    def __init__(
        self,
        ctx: Context,
        thin: Thin,
        few: list[Buffer],
        target: Buffer,
        paired: bool,
        codes: list[Codes],
    ) -> None:
        super().__init__(ctx, thin, target, paired)
        #: What the sums begin with, in a row for each of the few; zero if that is None.
        self.start: Buffer | None = None
        self.lanes = min(ctx.lanes(), thin.depth // 4 if codes else thin.depth)
        self.rows = min(thin.few_count, _ROWS if self.long_vectors else self.budget)
        self.columns = min(thin.many_count, self.budget // self.rows)
        self.unit = min(_UNROLL * self.lanes, thin.depth) // self.width
        self.parts = [
            _Part(part, codes[number] if codes else self.dealing_of(part, scaled=True), held)
            for number, (part, held) in enumerate(zip(thin.parts, few, strict=True))
        ]
        for part in self.parts:
            if part.dealing is not None:
                # What is dealt out stays in a register until the last of its elements is.
                self.columns = max(1, min(self.columns, self.budget // part.dealing.count * 2))

    def begin(self) -> None:
        self.parts = [
            part if part.dealing is None else replace(part, few=self._dealt(part.few, part.dealing))
            for part in self.parts
        ]
        self.start = self._less_surplus()

    def _dealt(self, few: Buffer, dealing: Dealing | Codes) -> Buffer:
        """The few in the order in which the stream deals out its elements, and scaled as it asks
        for.
        """
        ctx, thin, width = self.ctx, self.thin, self.width
        count = dealing.count
        dealt = ctx.new_buffer(few.elem, few.shape, thin.few_k_dim)
        loops = (thin.few_count, 1, "few"), (thin.depth, count * width, "k")
        with ctx.e.loops(*loops) as (row, k):
            places = [
                thin.few_point(Index(row), Index(self.moved(k, n * width), True))
                for n in range(count)
            ]
            vectors = [memory.load_buffer(ctx, few, place, width).x for place in places]
            for place, part, scale in zip(
                places, ctx.e.dealt(vectors), dealing.scales, strict=True
            ):
                scaled = part if scale == 1 else ctx.b.fmul(part, constant(part.type, scale))
                memory.store_buffer(ctx, dealt, place, vector(scaled), width)
        return dealt

    def _less_surplus(self) -> Buffer | None:
        """What is taken off the sums because numbers of the streams are too large, if they are."""
        ctx, thin, lanes = self.ctx, self.thin, self.lanes
        surpluses = [p.dealing.surplus for p in self.parts if isinstance(p.dealing, Codes)]
        if not surpluses:
            return None
        start = ctx.new_buffer("f32", (thin.few_count, lanes))
        kind = vector_of(I16, self.width)
        factors = [constant(kind, float_bits(-surplus, "bf16")) for surplus in surpluses]
        with ctx.e.loop(thin.few_count, 1, "few") as row:

            def less(k: ll.Value, before_it: list[ll.Value]) -> list[ll.Value]:
                [total] = before_it
                for part, factor in zip(self.parts, factors, strict=True):
                    x = self._weight(part.few, row, Index(k, True))
                    total = pairs.multiply_add(ctx.e, x, factor, total)
                return [total]

            zero = constant(vector_of(FLOAT, lanes), 0.0)
            [total] = ctx.e.fold(range(0, thin.depth, self.width), [zero], less, straight=2)
            memory.store_buffer(ctx, start, (Index(row), Index(i64(0), True)), vector(total), lanes)
        return start

    def run(self, assumptions: Assumptions) -> None:
        thin = self.thin
        streams = [self.stream_of(part.thin, part.dealing, assumptions) for part in self.parts]
        for number, stream in enumerate(streams):
            stream.keep_ahead(self.columns, streams[:number])
            stream.ask_at_start()
        loops = (thin.many_count, self.columns, "many"), (thin.few_count, self.rows, "few")
        with self.ctx.e.loops(*loops) as (many, row):
            self._block(streams, many, row)

    def _block(self, streams: list[Stream], many: ll.Value, row: ll.Value) -> None:
        ctx, thin, width, unit = self.ctx, self.thin, self.width, self.unit
        b = ctx.b
        at_few, at_many = self.several(row, self.rows), self.several(many, self.columns)
        trips = thin.depth // (unit * width)
        passes = thin.few_count // self.rows
        before = b.mul(b.udiv(row, i64(self.rows)), i64(trips))

        zeros = [constant(vector_of(FLOAT, self.lanes), 0.0)] * (self.rows * self.columns)

        def trip(k: ll.Value, before_it: list[ll.Value]) -> list[ll.Value]:
            sums = list(before_it)
            part = b.add(before, b.udiv(k, i64(unit * width)))
            for stream in streams:
                stream.fresh()

            def ask(turn: int, turns: int) -> None:
                for stream in streams if turn < turns else ():
                    stream.ask_ahead(many, self.columns, part, trips * passes, turn, turns)

            along = [Index(self.moved(k, n * width), width > 1) for n in range(unit)]
            if self.start is not None:
                return self._add_codes(streams, k, along, at_few, at_many, sums, ask)
            # What is multiplied as it is takes so little that asking is best done with at once.
            turns = 1 if self.paired else len(streams) * unit
            if self.rows == 1:
                # What the stream is multiplied with fits the registers, for all parts at once.
                weights = [self._weight(p.few, at_few[0], at) for p in self.parts for at in along]
                rows = [[v for s in streams for v in s.vectors(n, k, unit)] for n in at_many]
                for number, weight in enumerate(weights):
                    ask(number, turns)
                    sums = self.add_products([weight], [row[number] for row in rows], sums)
                return sums
            for done, (stream, p) in enumerate(zip(streams, self.parts, strict=True)):
                rows = [stream.vectors(n, k, unit) for n in at_many]
                for number, at in enumerate(along):
                    ask(done * unit + number, turns)
                    weights = [self._weight(p.few, f, at) for f in at_few]
                    sums = self.add_products(weights, [row[number] for row in rows], sums)
            return sums

        totals: list[ll.Value] = []
        longest = _LONGEST_SUM * self.lanes // len(streams)
        for first in range(0, thin.depth, longest):
            end = min(first + longest, thin.depth)
            start = zeros if totals or self.start is None else self._starts(at_few)
            sums = ctx.e.fold(range(first, end, unit * width), start, trip, straight=2)
            pairs = zip(totals, sums, strict=True) if totals else ()
            totals = [b.fadd(x, y) for x, y in pairs] or sums
        self._store(totals, row, many)

    def _starts(self, at_few: list[ll.Value]) -> list[ll.Value]:
        """What the sums of a block begin with."""
        assert self.start is not None
        first = Index(i64(0), True)
        loaded = [
            memory.load_buffer(self.ctx, self.start, (Index(row), first), self.lanes).x
            for row in at_few
        ]
        return [each for each in loaded for _ in range(self.columns)]

    def _add_codes(
        self,
        streams: list[Stream],
        k: ll.Value,
        along: list[Index],
        at_few: list[ll.Value],
        at_many: list[ll.Value],
        sums: list[ll.Value],
        ask: Callable[[int, int], None],
    ) -> list[ll.Value]:
        """A trip, column by column: LLVM would begin with all of them, and would not have the
        registers to go on.
        """
        sums = list(sums)
        weights = [
            [[self._weight(part.few, row, at) for row in at_few] for at in along]
            for part in self.parts
        ]
        for column, n in enumerate(at_many):
            ask(column, len(at_many))
            for stream, part, loaded in zip(streams, self.parts, weights, strict=True):
                assert isinstance(part.dealing, Codes)
                for number, v in enumerate(stream.vectors(n, k, self.unit)):
                    for r, x in enumerate(loaded[part.dealing.place(number)]):
                        place = r * self.columns + column
                        sums[place] = self.added(x, v, sums[place])
            for place in range(column, len(sums), self.columns):
                sums[place] = pairs.at_once(self.ctx.e, sums[place])
        return sums

    def _weight(self, few: Buffer, row: ll.Value, k: Index) -> ll.Value:
        point = self.thin.few_point(Index(row), k)
        return memory.load_buffer(self.ctx, few, point, self.width).x

    def _store(self, totals: list[ll.Value], row: ll.Value, many: ll.Value) -> None:
        """Add up the lanes of a block's sums, add C, and store: a row's columns at a time."""
        ctx, columns = self.ctx, self.columns
        wide = columns > 1
        sums = sum_lanes(ctx.e, totals)
        for r in range(self.rows):
            point = self.thin.result_point(Index(self.moved(row, r)), Index(many, wide))
            part = ctx.e.part(sums, r * columns, columns)
            if not nests.is_zero(self.thin.c):
                flags = ("contract",) if ctx.kernel.options.enable_fp_fusion else ()
                part = ctx.b.fadd(self.c_at(point, columns), part, flags=flags)
            held = vector(part) if wide else Lane(part)
            memory.store_buffer(ctx, self.target, point, held, columns)
