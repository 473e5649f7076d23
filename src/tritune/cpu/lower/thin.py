"""Products with few rows: the large operand is read once, where it lies, and nothing is packed.

The *few* rows of one operand lie in a buffer. The *many* rows of the other stream by: each of its
vectors is loaded (and converted, dequantised, masked: whatever the kernel says) in registers and
used for all of the few rows at once. Which way the lanes run follows from how the many lie:

- *Inner*: contiguous along k, as the keys of attention or the weight of a linear layer. A block of
  few x many sums, each a vector along k; the lanes of a whole block are added up together.
- *Outer*: contiguous along the many, as the values of attention. A block of the result is in
  registers while some steps of k run, few enough that the lines they read stay in the cache for all
  blocks of the result.

A product that goes on with another's sums, as where the two halves of a byte are codes of their
own, is written with it: both in one pass over what they are made of.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from llvmlite import ir as ll

from .. import ir
from . import memory, nests, pairs, schedule
from .codes import Codes
from .context import Buffer, Context, Index, Point
from .evaluate import Assumptions, Nest, float_bits
from .horizontal import sum_lanes
from .lanes import Lane, to_vector, vector
from .llvm import FLOAT, I16, I32, constant, i64, memory_bytes, vector_of
from .stream import Dealing, Stream

#: The most rows that are few.
MOST_ROWS = 16
#: Steps of k between two looks at the result, all of them without a loop.
_OUTER_STEPS = 8
#: Where vectors are long and few blocks make a row of the result: as many steps as read so many
#: bytes, or as many as above, in a loop of so many at a time.
_OUTER_BYTES, _OUTER_UNROLL = 4096, 4
#: Vectors along k in one trip of the loop over k.
_INNER_UNROLL = 4
#: Of the few, so many are multiplied with a streamed vector at once where vectors are long: a
#: square block loads least, and such vectors are loaded no faster than they are multiplied.
_INNER_ROWS = 4
#: Bytes along k that are worth to be multiplied as bf16.
_LEAST_CODES = 16
#: Products that a lane adds up one after the other; longer sums are sums of such sums.
_LONGEST_SUM = 64


@dataclass(frozen=True, eq=False)
class Thin:
    """A product whose operands play these roles."""

    op: ir.Op
    #: Whether the few are the rows of the result, as they lie in operand 0; else its columns.
    few_first: bool
    #: Whether the lanes run along k.
    inner: bool
    #: Products whose sums this one goes on with, and nobody else: they are written together.
    before: tuple[Thin, ...] = ()

    @property
    def parts(self) -> tuple[Thin, ...]:
        return *self.before, self

    @property
    def c(self) -> ir.Value:
        """What the sums begin with."""
        return self.parts[0].op.operands[2]

    @property
    def few(self) -> ir.Value:
        return self.op.operands[0 if self.few_first else 1]

    @property
    def many(self) -> ir.Value:
        return self.op.operands[1 if self.few_first else 0]

    @property
    def few_count(self) -> int:
        return self.op.result.type.shape[0 if self.few_first else 1]

    @property
    def many_count(self) -> int:
        return self.op.result.type.shape[1 if self.few_first else 0]

    @property
    def depth(self) -> int:
        return self.op.operands[0].type.shape[1]

    @property
    def many_dim(self) -> int:
        """The dimension of the result along which the many run."""
        return 1 if self.few_first else 0

    @property
    def few_k_dim(self) -> int:
        return 1 if self.few_first else 0

    @property
    def many_lane_dim(self) -> int:
        """The dimension of the large operand that must be contiguous."""
        return (0 if self.few_first else 1) if self.inner else (1 if self.few_first else 0)

    def few_point(self, few: Index, k: Index) -> Point:
        return (few, k) if self.few_first else (k, few)

    def many_point(self, many: Index, k: Index) -> Point:
        return (k, many) if self.few_first else (many, k)

    def result_point(self, few: Index, many: Index) -> Point:
        return (few, many) if self.few_first else (many, few)


def as_thin(op: ir.Op, contiguous: tuple[int | None, int | None]) -> Thin | None:
    """The roles of a product's operands, given along which dimension each is contiguous in memory;
    None if it is not worth it.
    """
    a, b = op.operands[:2]
    if op.result.type.rank != 2 or any(v.type.elem != "f32" for v in (a, b, op.result)):
        return None
    m, n = op.result.type.shape
    few_first = m <= n
    if min(m, n) > MOST_ROWS or max(m, n) < MOST_ROWS:
        return None
    along = contiguous[1 if few_first else 0]
    if along is None:
        return None
    return Thin(op, few_first, inner=along == (0 if few_first else 1))


def joined(first: Thin, second: Thin) -> Thin | None:
    """Both as one, if the second goes on with the sums of the first in the same way."""
    follows = second.op.operands[2] is first.op.result
    alike = first.inner and second.inner and first.depth == second.depth
    return replace(second, before=first.parts) if follows and alike else None


def emit_thin(ctx: Context, thin: Thin, following: Thin | None) -> bool:
    """Write the product, unless its large operand has to be in a buffer for others; and ask for
    what the following one begins with.
    """
    op = thin.op
    if not all(_readable(ctx, part, op) for part in thin.parts):
        return False
    codes = _codes(ctx, thin)
    paired = bool(codes) or _paired(ctx, thin)
    if paired:
        few = [_packed(ctx, part, op) for part in thin.parts]
    else:
        fastest = thin.few_k_dim if thin.inner else None
        few = [nests.materialise(ctx, part.few, op, fastest=fastest) for part in thin.parts]
    values = [part.many for part in thin.parts if ctx.get(part.many) is None]
    nests.prepare(ctx, op, [*values, thin.c])
    read = [held.memory for held in few]
    read += [memory for part in thin.parts for memory in schedule.memories_read(ctx, part.many)]
    target = nests.product_target(ctx, op, thin.c, thin.many_dim, read)
    if thin.inner:
        kernel: _Block = Inner(ctx, thin, few, target, paired, codes)
    else:
        kernel = Outer(ctx, thin, few[0], target, paired)
    kernel.begin()

    def emit(assumptions: Assumptions, careful: bool) -> None:
        kernel.run(assumptions)

    schedule.versioned(ctx, schedule.lazy_nodes(ctx, values), [], emit)
    kernel.end()
    if following is not None:
        later = Inner if following.inner else Outer
        lanes = min(ctx.lanes(), following.many.type.shape[following.many_lane_dim])
        stream = Stream(
            ctx, following.many, 1 - following.many_lane_dim, lanes, None, Assumptions()
        )
        stream.keep_ahead(later.ROWS_AT_ONCE)
        stream.ask_first()
    ctx.set(op.result, target)
    return True


def _paired(ctx: Context, thin: Thin) -> bool:
    """Whether its products are of bf16, and can be added up two at a time."""
    if not _able(ctx) or thin.before or ctx.get(thin.many) is not None:
        return False
    along = thin.depth if thin.inner else thin.many_count
    narrow = all(pairs.narrow(value) is not None for value in (thin.few, thin.many))
    return narrow and along >= 2 * ctx.lanes() and thin.depth > 1


def _able(ctx: Context) -> bool:
    return ctx.kernel.multiplies_bf16 and ctx.lanes32 >= 16


def _codes(ctx: Context, thin: Thin) -> list[Codes]:
    """What the many of all parts are made of, if that is bytes that can be multiplied as bf16."""
    if not _able(ctx) or not thin.inner or thin.depth < _LEAST_CODES:
        return []
    found: list[Codes] = []
    for part in thin.parts:
        few, many = pairs.narrow(part.few), pairs.narrow(part.many)
        if few is None or many is None or ctx.get(part.many) is not None:
            return []
        codes = Codes.of(ctx, many)
        if codes is None:
            return []
        found.append(codes)
    return found


def _packed(ctx: Context, thin: Thin, root: ir.Op) -> Buffer:
    """The few as bf16, pairs of them along k."""
    held, narrow = ctx.get(thin.few), pairs.narrow(thin.few)
    if isinstance(held, Buffer):
        return pairs.packed(ctx, held, thin.few_k_dim)
    assert narrow is not None
    copied = narrow.owner is not None and narrow.owner.name == "tt.load"
    lanes = 2 * ctx.lanes() if copied else None
    return nests.materialise(ctx, narrow, root, fastest=thin.few_k_dim, most_lanes=lanes)


def _readable(ctx: Context, thin: Thin, root: ir.Op) -> bool:
    """Whether the many can be read where they lie."""
    held = ctx.get(thin.many)
    if held is None:
        return not schedule.needed_after(ctx, thin.many, root, set())
    return isinstance(held, Buffer) and held.strides[thin.many_lane_dim] == 1


class _Block:
    """What both ways share: a block of the result, and where its operands are."""

    #: Vectors of a streamed row that are asked for at once.
    unit: int
    #: Lanes of a sum.
    lanes: int

    @property
    def width(self) -> int:
        """Elements in a vector of the stream."""
        return 2 * self.lanes if self.paired else self.lanes

    def __init__(self, ctx: Context, thin: Thin, target: Buffer, paired: bool) -> None:
        self.ctx, self.thin, self.target, self.paired = ctx, thin, target, paired
        self.long_vectors = ctx.lanes32 >= 16
        many_registers = ctx.kernel.cpu.vector_bits >= 512 or "aarch64" in ctx.kernel.cpu.triple
        #: Accumulators that fit the registers beside what is loaded, a power of two.
        self.budget = 16 if many_registers else 8

    def dealing_of(self, thin: Thin, scaled: bool) -> Dealing | None:
        """How a stream deals out its elements, if whole units of them can be."""
        if self.paired:
            return None
        dealing = Dealing.of(self.ctx, thin.many, thin.many_lane_dim, scaled)
        return dealing if dealing is not None and self.unit % dealing.count == 0 else None

    def stream_of(
        self, thin: Thin, dealing: Dealing | Codes | None, assumptions: Assumptions
    ) -> Stream:
        tile = pairs.narrow(thin.many) if self.paired else thin.many
        assert tile is not None
        return Stream(self.ctx, tile, 1 - thin.many_lane_dim, self.width, dealing, assumptions)

    def begin(self) -> None:
        """Write what comes before the product."""

    def end(self) -> None:
        """Write what comes after it."""

    def run(self, assumptions: Assumptions) -> None:
        raise NotImplementedError

    def moved(self, index: ll.Value, by: int) -> ll.Value:
        return self.ctx.b.add(index, i64(by), flags=("nuw", "nsw")) if by else index

    def several(self, first: ll.Value, count: int) -> list[ll.Value]:
        return [self.moved(first, number) for number in range(count)]

    def add_products(
        self, weights: list[ll.Value], streamed: list[ll.Value], sums: list[ll.Value]
    ) -> list[ll.Value]:
        """Every weight times everything streamed, added to the sums in that order."""
        factors = [(x, y) for x in weights for y in streamed]
        return [self._added(x, y, total) for (x, y), total in zip(factors, sums, strict=True)]

    def _added(self, x: ll.Value, y: ll.Value, total: ll.Value) -> ll.Value:
        if self.paired:
            return pairs.multiply_add(self.ctx.e, x, y, total)
        return self.ctx.e.intrinsic("fma", total.type, [x, y, total])

    def c_at(self, point: Point, lanes: int) -> ll.Value:
        return to_vector(self.ctx.e, Nest(self.ctx, lanes).at(self.thin.c, point), lanes)


@dataclass(frozen=True, eq=False)
class _Part:
    """One of the products that share a block."""

    thin: Thin
    #: How its stream deals out its elements; None if they come in order.
    dealing: Dealing | Codes | None
    #: In the same order, once the block has begun.
    few: Buffer


class Inner(_Block):
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
        self.rows = min(thin.few_count, _INNER_ROWS if self.long_vectors else self.budget)
        self.columns = min(thin.many_count, self.budget // self.rows)
        self.unit = min(_INNER_UNROLL * self.lanes, thin.depth) // self.width
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
                stream.ask_ahead(many, self.columns, part, trips * passes)
            along = [Index(self.moved(k, n * width), width > 1) for n in range(unit)]
            if self.start is not None:
                return self._add_codes(streams, k, along, at_few, at_many, sums)
            if self.rows == 1:
                # What the stream is multiplied with fits the registers, for all parts at once.
                weights = [self._weight(p.few, at_few[0], at) for p in self.parts for at in along]
                rows = [[v for s in streams for v in s.vectors(n, k, unit)] for n in at_many]
                for number, weight in enumerate(weights):
                    sums = self.add_products([weight], [row[number] for row in rows], sums)
                return sums
            for stream, p in zip(streams, self.parts, strict=True):
                rows = [stream.vectors(n, k, unit) for n in at_many]
                for number, at in enumerate(along):
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
            for stream, part, loaded in zip(streams, self.parts, weights, strict=True):
                assert isinstance(part.dealing, Codes)
                for number, v in enumerate(stream.vectors(n, k, self.unit)):
                    for r, x in enumerate(loaded[part.dealing.place(number)]):
                        place = r * self.columns + column
                        sums[place] = self._added(x, v, sums[place])
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


class Outer(_Block):
    """Lanes along the many."""

    ROWS_AT_ONCE = _OUTER_STEPS

    def __init__(self, ctx: Context, thin: Thin, few: Buffer, target: Buffer, paired: bool) -> None:
        super().__init__(ctx, thin, target, paired)
        self.few = few
        self.lanes = min(ctx.lanes(), thin.many_count)
        self.rows = min(thin.few_count, self.budget // 2)
        self.unit = min(self.budget // self.rows, thin.many_count // self.lanes)
        self.steps = self.at_once = min(_OUTER_STEPS, thin.depth)
        if self.long_vectors:
            # In a loop over k, the weights are not the same for all blocks of a row, and so are not
            # kept for all of them in registers that are not there.
            size = self.stream_of(thin, None, Assumptions()).element_bytes
            self.steps = min(max(_OUTER_BYTES // (thin.many_count * size), self.steps), thin.depth)
            self.at_once = min(_OUTER_UNROLL, self.steps)
        self.dealing = self.dealing_of(thin, scaled=False)
        #: The sums, in the order in which the stream deals out its elements.
        self.sums = target
        if self.dealing is not None:
            self.sums = ctx.new_buffer("f32", target.shape, thin.many_dim)

    def begin(self) -> None:
        """Sums begin with C, or where they are in another order, with nothing."""
        ctx, thin = self.ctx, self.thin
        if self.dealing is None:
            with ctx.scope():
                nests.materialise(ctx, thin.c, thin.op, into=self.target)
            return
        zero = vector(constant(vector_of(FLOAT, self.lanes), 0.0))
        loops = (thin.few_count, 1, "few"), (thin.many_count, self.lanes, "many")
        with ctx.e.loops(*loops) as (row, many):
            place = thin.result_point(Index(row), Index(many, True))
            memory.store_buffer(ctx, self.sums, place, zero, self.lanes)

    def end(self) -> None:
        if self.dealing is None:
            return
        ctx, thin, lanes = self.ctx, self.thin, self.lanes
        count = self.dealing.count
        loops = (thin.few_count, 1, "few"), (thin.many_count, count * lanes, "many")
        with ctx.e.loops(*loops) as (row, many):
            places = [
                thin.result_point(Index(row), Index(self.moved(many, n * lanes), True))
                for n in range(count)
            ]
            dealt = [memory.load_buffer(ctx, self.sums, place, lanes).x for place in places]
            for place, total in zip(places, ctx.e.in_turn(dealt), strict=True):
                total = ctx.b.fadd(self.c_at(place, lanes), total)
                memory.store_buffer(ctx, self.target, place, vector(total), lanes)

    def run(self, assumptions: Assumptions) -> None:
        thin = self.thin
        stream = self.stream_of(thin, self.dealing, assumptions)
        stream.keep_ahead(self.steps)
        inside = (
            (thin.many_count, self.unit * self.lanes, "many"),
            (thin.few_count, self.rows, "few"),
        )
        with self.ctx.e.loops((thin.depth, self.steps, "k"), *inside) as (k, many, row):
            self._block(stream, k, many, row)

    def _block(self, stream: Stream, k: ll.Value, many: ll.Value, row: ll.Value) -> None:
        ctx, thin, lanes, b = self.ctx, self.thin, self.lanes, self.ctx.b
        at_few = self.several(row, self.rows)
        trips = self.steps // self.at_once
        before = b.mul(self._number(many, row), i64(trips))

        def trip(further: ll.Value, before_it: list[ll.Value]) -> list[ll.Value]:
            sums = list(before_it)
            stream.fresh()
            part = b.add(before, b.udiv(further, i64(self.at_once)))
            stream.ask_ahead(k, self.steps, part, self._blocks * trips)
            steps = self.several(b.add(k, further, flags=("nuw", "nsw")), self.at_once)
            apart = 2 if self.paired else 1
            for step in steps[::apart]:
                weights = [ctx.e.splat(self._weight(f, step), lanes) for f in at_few]
                sums = self.add_products(weights, self._streamed(stream, step, many), sums)
            return sums

        zero = constant(vector_of(FLOAT, lanes), 0.0)
        start = [zero] * (self.rows * self.unit)
        sums = ctx.e.fold(range(0, self.steps, self.at_once), start, trip)
        if self.paired:
            both = zip(sums[::2], sums[1::2], strict=True)
            sums = [each for x, y in both for each in pairs.in_order(ctx.e, x, y)]
        along = [Index(self.moved(many, v * lanes), lanes > 1) for v in range(self.unit)]
        places = [thin.result_point(Index(f), n) for f in at_few for n in along]
        for place, total in zip(places, sums, strict=True):
            held = to_vector(ctx.e, memory.load_buffer(ctx, self.sums, place, lanes), lanes)
            total = b.fadd(held, total)
            after = vector(total) if lanes > 1 else Lane(total)
            memory.store_buffer(ctx, self.sums, place, after, lanes)

    def _weight(self, row: ll.Value, step: ll.Value) -> ll.Value:
        """What a step is multiplied with; of paired products, two of them in 32 bits."""
        point = self.thin.few_point(Index(row), Index(step))
        if not self.paired:
            return memory.load_buffer(self.ctx, self.few, point, 1).x
        place, _ = memory.buffer_place(self.ctx, self.few, point)
        return self.ctx.b.load(place, typ=I32, align=memory_bytes("bf16"))

    def _streamed(self, stream: Stream, step: ll.Value, many: ll.Value) -> list[ll.Value]:
        """The vectors of a step; of paired products, of two steps together."""
        if not self.paired:
            return stream.vectors(step, many, self.unit)
        rows = [stream.vectors(at, many, self.unit // 2) for at in self.several(step, 2)]
        both = zip(*rows, strict=True)
        return [each for x, y in both for each in pairs.interleaved(self.ctx.e, x, y)]

    @property
    def _blocks(self) -> int:
        """Blocks of the result."""
        width = self.unit * self.lanes
        return self.thin.many_count // width * (self.thin.few_count // self.rows)

    def _number(self, many: ll.Value, row: ll.Value) -> ll.Value:
        """Which of them it is."""
        b, passes = self.ctx.b, self.thin.few_count // self.rows
        blocks = b.mul(b.udiv(many, i64(self.unit * self.lanes)), i64(passes))
        return b.add(blocks, b.udiv(row, i64(self.rows)))
