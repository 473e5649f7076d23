"""Products with few rows whose lanes run along the many."""

from __future__ import annotations

from llvmlite import ir as ll

from tritune.cpu.lower.context import Buffer, Context, Index
from tritune.cpu.lower.emit import memory, nests
from tritune.cpu.lower.emit.evaluate import Assumptions
from tritune.cpu.lower.emit.lanes import Lane, to_vector, vector
from tritune.cpu.lower.gemm import bf16_pairs as pairs
from tritune.cpu.lower.gemm.skinny_block import Block
from tritune.cpu.lower.gemm.skinny_roles import Thin
from tritune.cpu.lower.gemm.stream import Stream
from tritune.cpu.lower.llvm import FLOAT, I32, constant, i64, memory_bytes, vector_of

#: Steps of k between two looks at the result, all of them without a loop.
_STEPS = 8
#: Where vectors are long and few blocks make a row of the result: as many steps as read so many
#: bytes, or as many as above, in a loop of so many at a time.
_BYTES, _UNROLL = 4096, 4


class Outer(Block):
    """Lanes along the many."""

    ROWS_AT_ONCE = _STEPS

    def __init__(self, ctx: Context, thin: Thin, few: Buffer, target: Buffer, paired: bool) -> None:
        super().__init__(ctx, thin, target, paired)
        self.few = few
        self.lanes = min(ctx.lanes(), thin.many_count)
        self.rows = min(thin.few_count, self.budget // 2)
        self.unit = min(self.budget // self.rows, thin.many_count // self.lanes)
        self.steps = self.at_once = min(_STEPS, thin.depth)
        if self.long_vectors:
            # In a loop over k, the weights are not the same for all blocks of a row, and so are not
            # kept for all of them in registers that are not there.
            size = self.stream_of(thin, None, Assumptions()).element_bytes
            self.steps = min(max(_BYTES // (thin.many_count * size), self.steps), thin.depth)
            self.at_once = min(_UNROLL, self.steps)
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
