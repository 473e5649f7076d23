"""The base class of the two kernels of skinny GEMM."""

from __future__ import annotations

from llvmlite import ir as ll

from tritune.cpu.lower.context import Buffer, Context, Point
from tritune.cpu.lower.emit.lanes import to_vector
from tritune.cpu.lower.emit.lazy_tensors import Assumptions, Nest
from tritune.cpu.lower.gemm import bf16_pairs as pairs
from tritune.cpu.lower.gemm.quantized_bytes import QuantizedBytes
from tritune.cpu.lower.gemm.skinny_operands import SkinnyGemm
from tritune.cpu.lower.gemm.streamed_operand import Deinterleaved, StreamedOperand


class SkinnyKernel:
    """Writes the loops over register blocks of the result."""

    #: Vectors of a streamed row that are loaded together.
    unit: int
    #: Lanes of an accumulator.
    lanes: int

    def __init__(self, ctx: Context, gemm: SkinnyGemm, target: Buffer, paired: bool) -> None:
        self.ctx, self.gemm, self.target, self.paired = ctx, gemm, target, paired
        self.long_vectors = ctx.lanes() >= 16
        #: Accumulators that fit the registers beside what is loaded, a power of two.
        self.budget = 16 if ctx.kernel.many_registers else 8

    @property
    def width(self) -> int:
        """Return the number of elements in a vector of the streamed operand."""
        return 2 * self.lanes if self.paired else self.lanes

    def layout_of(self, gemm: SkinnyGemm, scaled: bool) -> Deinterleaved | None:
        """Return how the streamed operand is deinterleaved, if whole units of it can be."""
        if self.paired:
            return None
        layout = Deinterleaved.of(self.ctx, gemm.streamed, gemm.streamed_lane_dim, scaled)
        return layout if layout is not None and self.unit % layout.factor == 0 else None

    def streamed_operand(
        self,
        gemm: SkinnyGemm,
        layout: Deinterleaved | QuantizedBytes | None,
        assumptions: Assumptions,
    ) -> StreamedOperand:
        tile = pairs.bf16_source(gemm.streamed) if self.paired else gemm.streamed
        assert tile is not None
        row_dim = 1 - gemm.streamed_lane_dim
        return StreamedOperand(self.ctx, tile, row_dim, self.width, layout, assumptions)

    def begin(self) -> None:
        """Write what comes before the product."""

    def end(self) -> None:
        """Write what comes after it."""

    def run(self, assumptions: Assumptions) -> None:
        raise NotImplementedError

    def several(self, first: ll.Value, count: int, step: int = 1) -> list[ll.Value]:
        """Return `count` indices from `first` on, `step` apart."""
        return [self.ctx.e.plus(first, number * step) for number in range(count)]

    def add_products(
        self, weights: list[ll.Value], streamed: list[ll.Value], sums: list[ll.Value]
    ) -> list[ll.Value]:
        """Return the sums plus the products of every weight with every streamed vector."""
        factors = [(x, y) for x in weights for y in streamed]
        return [self.added(x, y, total) for (x, y), total in zip(factors, sums, strict=True)]

    def added(self, x: ll.Value, y: ll.Value, total: ll.Value) -> ll.Value:
        if self.paired:
            return pairs.multiply_add(self.ctx.e, x, y, total)
        return self.ctx.e.intrinsic("fma", total.type, [x, y, total])

    def c_at(self, point: Point, lanes: int) -> ll.Value:
        return to_vector(self.ctx.e, Nest(self.ctx, lanes).at(self.gemm.c, point), lanes)
