"""The GEMM micro-kernel: a block of the result stays in registers while k runs.

The *vector operand* lies in a buffer, contiguous along the lanes. The *scalar operand* is broadcast
from a buffer or from the kernel's own memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from llvmlite import ir as ll

from tritune.cpu import ir
from tritune.cpu.lower.analysis.affine import AffineForm
from tritune.cpu.lower.context import Buffer, Context, Index, Point
from tritune.cpu.lower.emit import memory, nests, prefetch
from tritune.cpu.lower.emit.convert import narrow, widen
from tritune.cpu.lower.emit.lanes import in_register, to_vector
from tritune.cpu.lower.emit.lazy_tensors import Nest
from tritune.cpu.lower.gemm import bf16_pairs as pairs
from tritune.cpu.lower.llvm import (
    Number,
    as_i64,
    constant,
    i64,
    lanes_of,
    memory_bytes,
    scalar_type,
    vector_of,
)


def compute_elem(elem: str) -> str:
    """Return the type products are computed in: f32 for narrow floats, i32 for narrow integers."""
    if elem in ("f64", "i64", "i32", "f32"):
        return elem
    return "i32" if elem.startswith("i") else "f32"


#: Products that are added up one after the other; longer sums are sums of such sums.
_MAX_SUM_LENGTH = 64
#: With fewer sums, two multiplications per cycle wait for the results of those before.
_MIN_SUMS = 8


@dataclass
class RegisterTile:
    """The size of a register block and the unrolling of the loop over k."""

    rows: int
    vectors: int
    lanes: int
    unroll: int


def choose_tile(ctx: Context, rows: int, columns: int, depth: int, elem: str) -> RegisterTile:
    """Return a tile whose accumulators fit the registers beside a broadcast and the vectors."""
    options = ctx.kernel.options
    lanes = min(ctx.lanes(ir.BITS[elem]), columns)
    many_registers = ctx.kernel.many_registers
    vectors = options.micro_n or (4 if many_registers else 2)
    vectors = max(1, min(vectors, columns // lanes))
    while (columns // lanes) % vectors:
        vectors -= 1
    budget = 24 if many_registers else 12
    tile_rows = options.micro_m or max(1, min(budget // vectors, 12 if many_registers else 6))
    tile_rows = min(tile_rows, rows)
    if not options.micro_m and rows % tile_rows:
        even = 1 << (tile_rows.bit_length() - 1)
        blocks = -(-rows // tile_rows)
        # Blocks of one height, if they have sums enough to hide the latency of adding them.
        tile_rows = even if even * vectors >= 2 * _MIN_SUMS else -(-rows // blocks)
    unroll = options.unroll or 4
    return RegisterTile(tile_rows, vectors, lanes, max(1, min(unroll, depth)))


class Scalars(Protocol):
    """The scalar operand of a product: `element` takes what `rows` returns for a row."""

    #: The memory of the buffer, if it is in one.
    memory: list[ll.Value]

    def rows(self, batch: Point, row: ll.Value, count: int) -> list[Any]: ...

    def element(self, of: Any, k: ll.Value) -> ll.Value: ...


class BufferScalars:
    """The scalar operand in a buffer."""

    def __init__(self, ctx: Context, buffer: Buffer, transposed: bool) -> None:
        self.ctx, self.buffer, self.transposed = ctx, buffer, transposed
        self.memory = [buffer.memory]

    def rows(self, batch: Point, row: ll.Value, count: int) -> list[tuple[Point, Index]]:
        return [(batch, Index(self.ctx.e.plus(row, r, ()))) for r in range(count)]

    def element(self, of: tuple[Point, Index], k: ll.Value) -> ll.Value:
        batch, row = of
        point = (*batch, Index(k), row) if self.transposed else (*batch, row, Index(k))
        return memory.load_buffer(self.ctx, self.buffer, point, 1).x


class PointerScalars:
    """The scalar operand where the kernel's pointers say, contiguous along k."""

    def __init__(
        self,
        ctx: Context,
        kind: ir.Type,
        form: AffineForm,
        transposed: bool,
        stride: Number | None,
        align: int,
    ) -> None:
        self.ctx, self.kind, self.form, self.stride = ctx, kind, form, stride
        self.memory: list[ll.Value] = []
        #: Words of two numbers are aligned as a number.
        self.align = align
        self.row_dim = kind.rank - (1 if transposed else 2)
        self.k_bytes = kind.shape[kind.rank - (2 if transposed else 1)] * memory_bytes(kind.elem)

    def rows(self, batch: Point, row: ll.Value, count: int) -> list[ll.Value]:
        return [self.ctx.e.address(a) for a in self._addresses(batch, row, count)]

    def _addresses(self, batch: Point, row: ll.Value, count: int) -> list[ll.Value]:
        e, b = self.ctx.e, self.ctx.b
        start, steps = self.form.base, [as_i64(step) for step in self.form.steps]
        for index, step in zip(batch, steps, strict=False):
            start = b.add(start, b.mul(index.at, step))
        rows = (e.plus(row, r, ()) for r in range(count))
        return [b.add(start, b.mul(down, steps[self.row_dim])) for down in rows]

    def prefetch_rows(self, batch: Point, row: ll.Value, count: int) -> None:
        """Prefetch these rows of the next iteration's tile."""
        if self.stride is None or self.stride == 0:
            return
        for address in self._addresses(batch, row, count):
            for offset in range(0, self.k_bytes, 64):
                prefetch.emit(self.ctx, self.ctx.b.add(address, i64(offset)), self.stride)

    def element(self, of: ll.Value, k: ll.Value) -> ll.Value:
        b, kind = self.ctx.b, scalar_type(self.kind.elem)
        place = b.gep(of, [k], inbounds=True, source_etype=kind)
        return b.load(place, typ=kind, align=self.align)


class MicroKernel:
    """The loops over blocks of C, and one block."""

    def __init__(
        self,
        ctx: Context,
        op: ir.Op,
        packed: Buffer,
        scalars: Scalars,
        target: Buffer,
        transposed: bool,
    ) -> None:
        self.ctx, self.op, self.transposed = ctx, op, transposed
        self.packed, self.scalars, self.target = packed, scalars, target
        #: Whether the operands are words of two bf16 each.
        self.paired = "paired" in op.attrs
        self.elem = compute_elem(op.operands[0].type.elem)
        self.acc_elem = compute_elem(op.result.type.elem)
        m, n = op.result.type.shape[-2:]
        self.rows, self.columns = (n, m) if transposed else (m, n)
        self.depth = op.operands[0].type.shape[-1]
        self.tile = choose_tile(ctx, self.rows, self.columns, self.depth, self.acc_elem)
        self.kind = vector_of(scalar_type(self.acc_elem), self.tile.lanes)

    def run(self) -> None:
        batches = [(n, 1, "batch") for n in self.op.result.type.shape[:-2]]
        with self.ctx.e.loops(*batches) as indices:
            self._matrix(tuple(Index(index) for index in indices))

    def _matrix(self, batch: Point) -> None:
        """Loop over rows outside, so that a row of blocks finds its scalars in the cache."""
        whole = self.rows // self.tile.rows * self.tile.rows
        rest = [self.rows - whole] if whole < self.rows else []
        if rest and whole and rest[0] * self.tile.vectors < _MIN_SUMS:
            # Two blocks of middle height rather than one with too few sums.
            whole -= self.tile.rows
            left = self.rows - whole
            rest = [left - left // 2, left // 2]
        with self.ctx.e.loop(whole, self.tile.rows, "rows") as row:
            self._row_of_blocks(batch, row, self.tile.rows)
        for rows in rest:
            self._row_of_blocks(batch, i64(whole), rows)
            whole += rows

    def _row_of_blocks(self, batch: Point, row: ll.Value, rows: int) -> None:
        tile = self.tile
        if isinstance(self.scalars, PointerScalars):
            self.scalars.prefetch_rows(batch, row, rows)
        with self.ctx.e.loop(self.columns, tile.vectors * tile.lanes, "columns") as column:
            self._block(batch, row, column, rows)

    def _point(self, batch: Point, row: ll.Value, column: ll.Value) -> Point:
        """Return a point of the result, or with k for the row, of the vector operand."""
        along = Index(column, self.tile.lanes > 1)
        return (*batch, along, Index(row)) if self.transposed else (*batch, Index(row), along)

    def _block(self, batch: Point, row: ll.Value, column: ll.Value, rows: int) -> None:
        """Write a register block: run over k, then add C.

        C is added last, and long sums are sums of short ones: the rounding errors are those of the
        short sums.
        """
        ctx, tile, depth = self.ctx, self.tile, self.depth
        cells = [(r, v) for r in range(rows) for v in range(tile.vectors)]

        def at(r: int, v: int) -> Point:
            down = ctx.e.plus(row, r, ())
            return self._point(batch, down, ctx.e.plus(column, v * tile.lanes, ()))

        scalars = self.scalars.rows(batch, row, rows)
        totals = self._sums(batch, 0, min(depth, _MAX_SUM_LENGTH), column, scalars)
        for first in range(_MAX_SUM_LENGTH, depth, _MAX_SUM_LENGTH):
            sums = self._sums(batch, first, min(depth, first + _MAX_SUM_LENGTH), column, scalars)
            add = ctx.b.add if self.acc_elem[0] == "i" else ctx.b.fadd
            totals = [add(x, y) for x, y in zip(totals, sums, strict=True)]
        for (r, v), value in zip(cells, totals, strict=True):
            result = in_register(self._plus_c(value, at(r, v)))
            memory.store_buffer(ctx, self.target, at(r, v), result, tile.lanes)

    def _sums(
        self, batch: Point, first: int, end: int, column: ll.Value, scalars: list[Any]
    ) -> list[ll.Value]:
        """Return the block's sums over k from `first` to `end`."""
        unroll = self.tile.unroll
        zero = constant(self.kind, 0 if self.acc_elem[0] == "i" else 0.0)
        while (end - first) % unroll:
            unroll -= 1

        def steps(k: ll.Value, totals: list[ll.Value]) -> list[ll.Value]:
            for step in range(unroll):
                at_k = self.ctx.e.plus(k, step, ())
                totals = self._step(batch, at_k, column, scalars, totals)
            return totals

        start = [zero] * (len(scalars) * self.tile.vectors)
        return self.ctx.e.fold(range(first, end, unroll), start, steps)

    def _plus_c(self, total: ll.Value, point: Point) -> ll.Value:
        ctx, c = self.ctx, self.op.operands[2]
        if not nests.is_zero(c):
            before = to_vector(ctx.e, Nest(ctx, self.tile.lanes).at(c, point), self.tile.lanes)
            if self.acc_elem[0] == "i":
                total = ctx.b.add(before, total)
            else:
                flags = ("contract",) if ctx.kernel.options.enable_fp_fusion else ()
                total = ctx.b.fadd(widen(ctx.e, before, c.type.elem), total, flags=flags)
        return narrow(ctx.e, total, self.op.result.type.elem)

    def _step(
        self,
        batch: Point,
        k: ll.Value,
        column: ll.Value,
        scalars: list[Any],
        totals: list[ll.Value],
    ) -> list[ll.Value]:
        ctx, tile = self.ctx, self.tile
        e, b = ctx.e, ctx.b
        vectors = []
        for v in range(tile.vectors):
            point = self._point(batch, k, e.plus(column, v * tile.lanes, ()))
            loaded = memory.load_buffer(ctx, self.packed, point, tile.lanes)
            vectors.append(self._to_acc(to_vector(e, loaded, tile.lanes)))
        result = []
        for r, of in enumerate(scalars):
            scalar = e.splat(self._to_acc(self.scalars.element(of, k)), tile.lanes)
            for v in range(tile.vectors):
                total = totals[r * tile.vectors + v]
                if self.paired:
                    result.append(pairs.multiply_add(e, scalar, vectors[v], total))
                elif self.acc_elem[0] == "i":
                    result.append(b.add(total, b.mul(scalar, vectors[v])))
                else:
                    result.append(e.intrinsic("fma", self.kind, [scalar, vectors[v], total]))
        return result

    def _to_acc(self, x: ll.Value) -> ll.Value:
        """Convert an operand if the accumulator has another type, such as f64 for f32."""
        if self.paired or self.elem == self.acc_elem:
            return x
        wide = vector_of(scalar_type(self.acc_elem), lanes_of(x.type))
        if self.elem[0] == "i" and self.acc_elem[0] == "i":
            return self.ctx.b.sext(x, wide) if wide != x.type else x
        if self.elem[0] == "i":
            return self.ctx.b.sitofp(x, wide)
        return self.ctx.b.fpext(x, wide) if self.acc_elem == "f64" else self.ctx.b.fptrunc(x, wide)
