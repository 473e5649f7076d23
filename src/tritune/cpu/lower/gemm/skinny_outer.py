"""Skinny GEMM with the vector lanes along n."""

from __future__ import annotations

from llvmlite import ir as ll

from tritune.cpu.lower.context import Buffer, Context, Index, Point
from tritune.cpu.lower.emit import memory, nests
from tritune.cpu.lower.emit.lanes import in_register, to_vector, vector
from tritune.cpu.lower.emit.lazy_tensors import Assumptions
from tritune.cpu.lower.gemm import bf16_pairs as pairs
from tritune.cpu.lower.gemm.skinny_kernel import SkinnyKernel
from tritune.cpu.lower.gemm.skinny_operands import SkinnyGemm
from tritune.cpu.lower.gemm.streamed_operand import StreamedOperand
from tritune.cpu.lower.llvm import FLOAT, I32, constant, i64, memory_bytes, vector_of

#: Steps of k between two updates of the result, completely unrolled.
_STEPS = 8
#: With long vectors, where a row of the result has few blocks: as many steps as read so many bytes
#: (but at least `_STEPS`), in a loop that is unrolled so many times.
_BYTES, _UNROLL = 4096, 4


class OuterProduct(SkinnyKernel):
    """Keeps a block of the result in registers for a few steps of k, and adds it to memory."""

    ROWS_PER_BLOCK = _STEPS

    def __init__(
        self, ctx: Context, gemm: SkinnyGemm, stationary: Buffer, target: Buffer, paired: bool
    ) -> None:
        super().__init__(ctx, gemm, target, paired)
        self.stationary = stationary
        self.lanes = min(ctx.lanes(), gemm.n)
        self.rows = min(gemm.m, self.budget // 2)
        self.unit = min(self.budget // self.rows, gemm.n // self.lanes)
        self.steps = self.unroll = min(_STEPS, gemm.k)
        if self.long_vectors:
            # In a loop over k, the weights differ from block to block of a row. LLVM would keep
            # weights that are the same for all blocks in registers, and spill.
            size = self.streamed_operand(gemm, None, Assumptions()).element_bytes
            self.steps = min(max(_BYTES // (gemm.n * size), self.steps), gemm.k)
            self.unroll = min(_UNROLL, self.steps)
        self.layout = self.layout_of(gemm, scaled=False)
        #: The sums, in the layout of the streamed operand.
        self.sums = target
        if self.layout is not None:
            self.sums = ctx.new_buffer("f32", target.shape, gemm.n_dim)

    def begin(self) -> None:
        """Initialise the sums: with C, or with zero if they are deinterleaved."""
        ctx, gemm = self.ctx, self.gemm
        if self.layout is None:
            with ctx.scope():
                nests.materialise(ctx, gemm.c, gemm.op, into=self.target)
            return
        zero = vector(constant(vector_of(FLOAT, self.lanes), 0.0))
        with ctx.e.loops((gemm.m, 1, "m"), (gemm.n, self.lanes, "n")) as (row, column):
            memory.store_buffer(ctx, self.sums, self._point(row, column), zero, self.lanes)

    def end(self) -> None:
        """Interleave the sums again and add C."""
        if self.layout is None:
            return
        ctx, gemm, lanes, factor = self.ctx, self.gemm, self.lanes, self.layout.factor
        with ctx.e.loops((gemm.m, 1, "m"), (gemm.n, factor * lanes, "n")) as (row, column):
            points = [self._point(row, at) for at in self.several(column, factor, lanes)]
            sums = [memory.load_buffer(ctx, self.sums, point, lanes).x for point in points]
            for point, total in zip(points, ctx.e.interleave(sums), strict=True):
                total = ctx.b.fadd(self.c_at(point, lanes), total)
                memory.store_buffer(ctx, self.target, point, vector(total), lanes)

    def run(self, assumptions: Assumptions) -> None:
        gemm = self.gemm
        stream = self.streamed_operand(gemm, self.layout, assumptions)
        stream.set_prefetch_distance(self.steps)
        width = self.unit * self.lanes
        loops = (gemm.k, self.steps, "k"), (gemm.n, width, "n"), (gemm.m, self.rows, "m")
        with self.ctx.e.loops(*loops) as (k, column, row):
            self._block(stream, k, column, row)

    def _block(self, stream: StreamedOperand, k: ll.Value, column: ll.Value, row: ll.Value) -> None:
        ctx, gemm, lanes, b = self.ctx, self.gemm, self.lanes, self.ctx.b
        rows = self.several(row, self.rows)
        iterations, passes = self.steps // self.unroll, gemm.m // self.rows
        width = self.unit * lanes
        slots = gemm.n // width * passes * iterations
        block = b.add(b.mul(b.udiv(column, i64(width)), i64(passes)), b.udiv(row, i64(self.rows)))
        first_slot = b.mul(block, i64(iterations))

        def iteration(further: ll.Value, sums: list[ll.Value]) -> list[ll.Value]:
            stream.clear()
            slot = b.add(first_slot, b.udiv(further, i64(self.unroll)))
            stream.prefetch_ahead(k, self.steps, slot, slots)
            steps = self.several(b.add(k, further, flags=("nuw", "nsw")), self.unroll)
            for step in steps[:: 2 if self.paired else 1]:
                weights = [ctx.e.splat(self._weight(at, step), lanes) for at in rows]
                sums = self.add_products(weights, self._streamed(stream, step, column), sums)
            return sums

        start = [constant(vector_of(FLOAT, lanes), 0.0)] * (self.rows * self.unit)
        sums = ctx.e.fold(range(0, self.steps, self.unroll), start, iteration)
        if self.paired:
            both = zip(sums[::2], sums[1::2], strict=True)
            sums = [each for x, y in both for each in pairs.restore_order(ctx.e, x, y)]
        columns = self.several(column, self.unit, lanes)
        points = [self._point(r, n) for r in rows for n in columns]
        for point, total in zip(points, sums, strict=True):
            held = to_vector(ctx.e, memory.load_buffer(ctx, self.sums, point, lanes), lanes)
            total = in_register(b.fadd(held, total))
            memory.store_buffer(ctx, self.sums, point, total, lanes)

    def _point(self, row: ll.Value, column: ll.Value) -> Point:
        return self.gemm.point(Index(row), Index(column, self.lanes > 1))

    def _weight(self, row: ll.Value, step: ll.Value) -> ll.Value:
        """Return the factor of a step; of paired products, two of them in 32 bits."""
        point = self.gemm.point(Index(row), Index(step))
        if not self.paired:
            return memory.load_buffer(self.ctx, self.stationary, point, 1).x
        place, _ = memory.buffer_address(self.ctx, self.stationary, point)
        return self.ctx.b.load(place, typ=I32, align=memory_bytes("bf16"))

    def _streamed(
        self, stream: StreamedOperand, step: ll.Value, column: ll.Value
    ) -> list[ll.Value]:
        """Return the vectors of a step; of paired products, of two steps together."""
        if not self.paired:
            return stream.vectors(step, column, self.unit)
        rows = [stream.vectors(at, column, self.unit // 2) for at in self.several(step, 2)]
        both = zip(*rows, strict=True)
        return [each for x, y in both for each in pairs.unpack_low_high(self.ctx.e, x, y)]
