"""Products with few rows: a block of the result, whichever way its lanes run."""

from __future__ import annotations

from llvmlite import ir as ll

from tritune.cpu.lower.context import Buffer, Context, Point
from tritune.cpu.lower.emit.evaluate import Assumptions, Nest
from tritune.cpu.lower.emit.lanes import to_vector
from tritune.cpu.lower.gemm import bf16_pairs as pairs
from tritune.cpu.lower.gemm.byte_codes import Codes
from tritune.cpu.lower.gemm.skinny_roles import Thin
from tritune.cpu.lower.gemm.stream import Dealing, Stream
from tritune.cpu.lower.llvm import i64


class Block:
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
        return [self.added(x, y, total) for (x, y), total in zip(factors, sums, strict=True)]

    def added(self, x: ll.Value, y: ll.Value, total: ll.Value) -> ll.Value:
        if self.paired:
            return pairs.multiply_add(self.ctx.e, x, y, total)
        return self.ctx.e.intrinsic("fma", total.type, [x, y, total])

    def c_at(self, point: Point, lanes: int) -> ll.Value:
        return to_vector(self.ctx.e, Nest(self.ctx, lanes).at(self.thin.c, point), lanes)
