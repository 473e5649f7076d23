"""Skinny GEMM with the vector lanes along k."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from llvmlite import ir as ll

from tritune.cpu import floats
from tritune.cpu.lower.context import Buffer, Context, Index
from tritune.cpu.lower.emit import memory, nests
from tritune.cpu.lower.emit.horizontal import reduce_lanes
from tritune.cpu.lower.emit.lanes import in_register, vector
from tritune.cpu.lower.emit.lazy_tensors import Assumptions
from tritune.cpu.lower.gemm import bf16_pairs as pairs
from tritune.cpu.lower.gemm.quantized_bytes import QuantizedBytes
from tritune.cpu.lower.gemm.skinny_kernel import SkinnyKernel
from tritune.cpu.lower.gemm.skinny_operands import SkinnyGemm
from tritune.cpu.lower.gemm.streamed_operand import Deinterleaved, StreamedOperand
from tritune.cpu.lower.llvm import FLOAT, I16, constant, i64, vector_of

#: Vectors along k in one iteration of the loop over k.
_UNROLL = 4
#: Rows of a register block where vectors are long: a square block needs the fewest loads, and such
#: vectors are loaded no faster than they are multiplied.
_ROWS = 4
#: Products that a lane adds up one after the other; longer sums are sums of such sums.
_MAX_SUM_LENGTH = 64


@dataclass(frozen=True, eq=False)
class _Part:
    """One of the fused products."""

    gemm: SkinnyGemm
    #: How the streamed operand is deinterleaved; None if its elements come in order.
    layout: Deinterleaved | QuantizedBytes | None
    #: In the same layout, once `begin` has been called.
    stationary: Buffer


class InnerProduct(SkinnyKernel):
    """Keeps a block of rows x columns sums in registers, each a vector along k."""

    ROWS_PER_BLOCK = 1

    def __init__(
        self,
        ctx: Context,
        gemm: SkinnyGemm,
        stationary: list[Buffer],
        target: Buffer,
        paired: bool,
        quantized: list[QuantizedBytes],
    ) -> None:
        super().__init__(ctx, gemm, target, paired)
        #: The initial vector of each row's sums; None for zero.
        self.start: Buffer | None = None
        self.lanes = min(ctx.lanes(), gemm.k // 4 if quantized else gemm.k)
        self.rows = min(gemm.m, _ROWS if self.long_vectors else self.budget)
        self.columns = min(gemm.n, self.budget // self.rows)
        self.unit = min(_UNROLL * self.lanes, gemm.k) // self.width
        layouts: Sequence[Deinterleaved | QuantizedBytes | None] = quantized
        if not quantized:
            layouts = [self.layout_of(part, scaled=True) for part in gemm.parts]
        self.parts = list(map(_Part, gemm.parts, layouts, stationary))
        for layout in layouts:
            if layout is not None:
                # A loaded vector stays in a register until all vectors made of it are used.
                self.columns = max(1, min(self.columns, self.budget // layout.factor * 2))

    def begin(self) -> None:
        for number, part in enumerate(self.parts):
            if part.layout is not None:
                reordered = self._reordered(part.stationary, part.layout)
                self.parts[number] = replace(part, stationary=reordered)
        self.start = self._bias_correction()

    def _reordered(self, stationary: Buffer, layout: Deinterleaved | QuantizedBytes) -> Buffer:
        """Return the stationary operand deinterleaved and scaled as the streamed one requires."""
        ctx, gemm, width = self.ctx, self.gemm, self.width
        reordered = ctx.new_buffer(stationary.elem, stationary.shape, gemm.n_dim)
        with ctx.e.loops((gemm.m, 1, "m"), (gemm.k, layout.factor * width, "k")) as (row, k):
            points = [
                gemm.point(Index(row), Index(at, True))
                for at in self.several(k, layout.factor, width)
            ]
            vectors = [memory.load_buffer(ctx, stationary, point, width).x for point in points]
            parts = ctx.e.deinterleave(vectors)
            for point, part, scale in zip(points, parts, layout.scales, strict=True):
                scaled = part if scale == 1 else ctx.b.fmul(part, constant(part.type, scale))
                memory.store_buffer(ctx, reordered, point, vector(scaled), width)
        return reordered

    def _bias_correction(self) -> Buffer | None:
        """Return minus the bias of quantized bytes times the sum of each row, if they have any."""
        ctx, gemm, lanes = self.ctx, self.gemm, self.lanes
        biases = [p.layout.bias for p in self.parts if isinstance(p.layout, QuantizedBytes)]
        if not biases:
            return None
        start = ctx.new_buffer("f32", (gemm.m, lanes))
        kind = vector_of(I16, self.width)
        factors = [constant(kind, floats.to_bits(-bias, "bf16")) for bias in biases]
        with ctx.e.loop(gemm.m, 1, "m") as row:

            def subtract(k: ll.Value, sums: list[ll.Value]) -> list[ll.Value]:
                [total] = sums
                for part, factor in zip(self.parts, factors, strict=True):
                    x = self._weight(part, row, Index(k, True))
                    total = pairs.multiply_add(ctx.e, x, factor, total)
                return [total]

            zero = constant(vector_of(FLOAT, lanes), 0.0)
            [total] = ctx.e.fold(range(0, gemm.k, self.width), [zero], subtract, unroll_up_to=2)
            memory.store_buffer(ctx, start, (Index(row), Index(i64(0), True)), vector(total), lanes)
        return start

    def run(self, assumptions: Assumptions) -> None:
        streams = [self.streamed_operand(p.gemm, p.layout, assumptions) for p in self.parts]
        for number, stream in enumerate(streams):
            stream.set_prefetch_distance(self.columns, streams[:number])
            stream.emit_prefetch_prologue()
        loops = (self.gemm.n, self.columns, "n"), (self.gemm.m, self.rows, "m")
        with self.ctx.e.loops(*loops) as (column, row):
            self._block(streams, column, row)

    def _block(self, streams: list[StreamedOperand], column: ll.Value, row: ll.Value) -> None:
        b, k_size, step = self.ctx.b, self.gemm.k, self.unit * self.width
        rows, columns = self.several(row, self.rows), self.several(column, self.columns)
        iterations = k_size // step
        slots = iterations * (self.gemm.m // self.rows)
        first_slot = b.mul(b.udiv(row, i64(self.rows)), i64(iterations))

        def iteration(k: ll.Value, sums: list[ll.Value]) -> list[ll.Value]:
            slot = b.add(first_slot, b.udiv(k, i64(step)))
            for stream in streams:
                stream.clear()

            def prefetch(share: int, shares: int) -> None:
                for stream in streams if share < shares else ():
                    stream.prefetch_ahead(column, self.columns, slot, slots, share, shares)

            along = [Index(at, self.width > 1) for at in self.several(k, self.unit, self.width)]
            add = self._add_quantized if self.start is not None else self._add
            return add(streams, k, along, rows, columns, sums, prefetch)

        totals: list[ll.Value] = []
        longest = _MAX_SUM_LENGTH * self.lanes // len(streams)
        zeros = [constant(vector_of(FLOAT, self.lanes), 0.0)] * (self.rows * self.columns)
        for first in range(0, k_size, longest):
            span = range(first, min(first + longest, k_size), step)
            start = zeros if totals or self.start is None else self._starts(rows)
            sums = self.ctx.e.fold(span, start, iteration, unroll_up_to=2)
            both = zip(totals, sums, strict=True) if totals else ()
            totals = [b.fadd(x, y) for x, y in both] or sums
        self._store(totals, row, column)

    def _starts(self, rows: list[ll.Value]) -> list[ll.Value]:
        """Return the initial sums of a block that corrects a bias."""
        assert self.start is not None
        points = [(Index(row), Index(i64(0), True)) for row in rows]
        loaded = [memory.load_buffer(self.ctx, self.start, p, self.lanes).x for p in points]
        return [each for each in loaded for _ in range(self.columns)]

    def _add(
        self,
        streams: list[StreamedOperand],
        k: ll.Value,
        along: list[Index],
        rows: list[ll.Value],
        columns: list[ll.Value],
        sums: list[ll.Value],
        prefetch: Callable[[int, int], None],
    ) -> list[ll.Value]:
        """Return the sums after one iteration of the loop over k."""
        # Pairs of bf16 take so little work that prefetching is best done at once.
        shares = 1 if self.paired else len(streams) * self.unit
        if self.rows == 1:
            # The weights fit in registers, for all fused products at once.
            weights = [self._weight(part, rows[0], at) for part in self.parts for at in along]
            streamed = [[v for s in streams for v in s.vectors(n, k, self.unit)] for n in columns]
            for number, weight in enumerate(weights):
                prefetch(number, shares)
                sums = self.add_products([weight], [each[number] for each in streamed], sums)
            return sums
        for done, (stream, part) in enumerate(zip(streams, self.parts, strict=True)):
            streamed = [stream.vectors(n, k, self.unit) for n in columns]
            for number, at in enumerate(along):
                prefetch(done * self.unit + number, shares)
                weights = [self._weight(part, row, at) for row in rows]
                sums = self.add_products(weights, [each[number] for each in streamed], sums)
        return sums

    def _add_quantized(
        self,
        streams: list[StreamedOperand],
        k: ll.Value,
        along: list[Index],
        rows: list[ll.Value],
        columns: list[ll.Value],
        sums: list[ll.Value],
        prefetch: Callable[[int, int], None],
    ) -> list[ll.Value]:
        """Return the same for quantized bytes, column by column: LLVM would begin with the loads of
        all columns, and spill.
        """
        sums = list(sums)
        weights = [
            [[self._weight(part, row, at) for row in rows] for at in along] for part in self.parts
        ]
        for column, n in enumerate(columns):
            prefetch(column, len(columns))
            for stream, part, loaded in zip(streams, self.parts, weights, strict=True):
                assert isinstance(part.layout, QuantizedBytes)
                for number, v in enumerate(stream.vectors(n, k, self.unit)):
                    for r, x in enumerate(loaded[part.layout.place(number)]):
                        place = r * self.columns + column
                        sums[place] = self.added(x, v, sums[place])
            for place in range(column, len(sums), self.columns):
                sums[place] = pairs.scheduling_barrier(self.ctx.e, sums[place])
        return sums

    def _weight(self, part: _Part, row: ll.Value, k: Index) -> ll.Value:
        point = self.gemm.point(Index(row), k)
        return memory.load_buffer(self.ctx, part.stationary, point, self.width).x

    def _store(self, totals: list[ll.Value], row: ll.Value, column: ll.Value) -> None:
        """Reduce the lanes of a block's sums, add C and store the result, row by row."""
        ctx, columns = self.ctx, self.columns
        sums = reduce_lanes(ctx.e, totals, ctx.b.fadd)
        for r in range(self.rows):
            at = Index(ctx.e.plus(row, r)), Index(column, columns > 1)
            point = self.gemm.point(*at)
            result = ctx.e.slice_lanes(sums, r * columns, columns)
            if not nests.is_zero(self.gemm.c):
                flags = ("contract",) if ctx.kernel.options.enable_fp_fusion else ()
                result = ctx.b.fadd(self.c_at(point, columns), result, flags=flags)
            memory.store_buffer(ctx, self.target, point, in_register(result), columns)
