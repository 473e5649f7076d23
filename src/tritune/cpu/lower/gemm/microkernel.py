"""The micro-kernel of a product: a block of the result in registers while k runs.

The *vector operand* lies in a buffer, contiguous along the lanes. The *scalar operand* lies in a
buffer or is read where it is in memory.
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
from tritune.cpu.lower.emit.evaluate import Nest
from tritune.cpu.lower.emit.lanes import Lanes, to_vector, vector
from tritune.cpu.lower.gemm import bf16_pairs as pairs
from tritune.cpu.lower.llvm import constant, i64, memory_bytes, scalar_type, vector_of


def compute_elem(elem: str) -> str:
    """What products are computed in: f32 for narrow floats, i32 for narrow integers."""
    if elem in ("f64", "i64", "i32", "f32"):
        return elem
    return "i32" if elem.startswith("i") else "f32"


#: Products that are added up one after the other; longer sums are sums of such sums.
_MAX_SUM_LENGTH = 64
#: With fewer sums at a time, two multiplications in each cycle wait for those four cycles before.
_MIN_SUMS = 8


@dataclass
class RegisterTile:
    """A register block and where its operands lie."""

    rows: int
    vectors: int
    lanes: int
    unroll: int


def choose_tile(ctx: Context, rows: int, columns: int, depth: int, elem: str) -> RegisterTile:
    """As many accumulators as the registers hold beside one broadcast and the loaded vectors."""
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
    """The scalar operand of a product: asked for a block of rows, then for one element of each."""

    def rows(self, batch: Point, row: ll.Value, count: int) -> list[Any]: ...

    def element(self, of: Any, k: ll.Value) -> ll.Value: ...


class BufferScalars:
    """In a buffer."""

    def __init__(self, ctx: Context, buffer: Buffer, transposed: bool) -> None:
        self.ctx, self.buffer, self.transposed = ctx, buffer, transposed

    def rows(self, batch: Point, row: ll.Value, count: int) -> list[tuple[Point, Index]]:
        b = self.ctx.b
        return [(batch, Index(b.add(row, i64(r)) if r else row)) for r in range(count)]

    def element(self, of: tuple[Point, Index], k: ll.Value) -> ll.Value:
        batch, row = of
        point = (*batch, Index(k), row) if self.transposed else (*batch, row, Index(k))
        return memory.load_buffer(self.ctx, self.buffer, point, 1).x


class PointerScalars:
    """Where the kernel's pointers say, contiguous along k."""

    def __init__(
        self,
        ctx: Context,
        kind: ir.Type,
        form: AffineForm,
        transposed: bool,
        ahead: int | ll.Value | None,
        align: int,
    ) -> None:
        self.ctx, self.kind, self.form, self.ahead = ctx, kind, form, ahead
        #: Words of two numbers begin wherever a number does.
        self.align = align
        self.row_dim = kind.rank - (1 if transposed else 2)
        self.k_bytes = kind.shape[kind.rank - (2 if transposed else 1)] * memory_bytes(kind.elem)

    def rows(self, batch: Point, row: ll.Value, count: int) -> list[ll.Value]:
        return [self.ctx.e.address(a) for a in self._addresses(batch, row, count)]

    def _addresses(self, batch: Point, row: ll.Value, count: int) -> list[ll.Value]:
        b = self.ctx.b
        start = self.form.base
        for d, index in enumerate(batch):
            start = b.add(start, b.mul(index.at, self._step(d)))
        addresses = []
        for r in range(count):
            down = b.add(row, i64(r)) if r else row
            addresses.append(b.add(start, b.mul(down, self._step(self.row_dim))))
        return addresses

    def prefetch_rows(self, batch: Point, row: ll.Value, count: int) -> None:
        """Prefetch these rows of the next iteration's tile."""
        if self.ahead is None or (isinstance(self.ahead, int) and self.ahead == 0):
            return
        for address in self._addresses(batch, row, count):
            for offset in range(0, self.k_bytes, 64):
                prefetch.emit(self.ctx, self.ctx.b.add(address, i64(offset)), self.ahead)

    def _step(self, dim: int) -> ll.Value:
        step = self.form.steps[dim]
        return i64(step) if isinstance(step, int) else step

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
        if self.op.result.type.rank == 3:
            with self.ctx.e.loop(self.op.result.type.shape[0], 1, "batch") as index:
                self._matrix((Index(index),))
        else:
            self._matrix(())

    def _matrix(self, batch: Point) -> None:
        """Rows outside, so that a row of blocks reads its scalars while they are in the cache."""
        whole = self.rows // self.tile.rows * self.tile.rows
        rest = [self.rows - whole] if whole < self.rows else []
        if rest and whole and rest[0] * self.tile.vectors < _MIN_SUMS:
            # Two blocks of middle height rather than one that waits for its own sums.
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
            self._block(batch, row, column, rows, self.depth)

    def _result_point(self, batch: Point, row: ll.Value, column: ll.Value) -> Point:
        lane = self.tile.lanes > 1
        pair = (
            (Index(column, lane), Index(row))
            if self.transposed
            else (Index(row), Index(column, lane))
        )
        return (*batch, *pair)

    def _block(self, batch: Point, row: ll.Value, column: ll.Value, rows: int, depth: int) -> None:
        """One register block: run over k, then add C.

        Adding C last, and long sums up from shorter ones, keeps rounding errors those of the short
        sums, not of one sum over all of k.
        """
        ctx, tile = self.ctx, self.tile
        b = ctx.b
        cells = [(r, v) for r in range(rows) for v in range(tile.vectors)]

        def at(r: int, v: int) -> Point:
            down = b.add(row, i64(r)) if r else row
            along = b.add(column, i64(v * tile.lanes)) if v else column
            return self._result_point(batch, down, along)

        scalars = self.scalars.rows(batch, row, rows)
        totals = self._sums(batch, 0, min(depth, _MAX_SUM_LENGTH), column, scalars)
        for first in range(_MAX_SUM_LENGTH, depth, _MAX_SUM_LENGTH):
            sums = self._sums(batch, first, min(depth, first + _MAX_SUM_LENGTH), column, scalars)
            totals = [self._add(x, y) for x, y in zip(totals, sums, strict=True)]
        for (r, v), value in zip(cells, totals, strict=True):
            result = self._plus_c(value, at(r, v))
            held = vector(result) if tile.lanes > 1 else Lanes(result)
            memory.store_buffer(ctx, self.target, at(r, v), held, tile.lanes)

    def _add(self, x: ll.Value, y: ll.Value) -> ll.Value:
        return self.ctx.b.add(x, y) if self.acc_elem[0] == "i" else self.ctx.b.fadd(x, y)

    def _sums(
        self, batch: Point, first: int, end: int, column: ll.Value, scalars: list[Any]
    ) -> list[ll.Value]:
        """The block's sums over k from `first` to `end`."""
        b, unroll = self.ctx.b, self.tile.unroll
        zero = constant(self.kind, 0 if self.acc_elem[0] == "i" else 0.0)
        while (end - first) % unroll:
            unroll -= 1

        def steps(k: ll.Value, totals: list[ll.Value]) -> list[ll.Value]:
            for step in range(unroll):
                at_k = b.add(k, i64(step)) if step else k
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
        lane = tile.lanes > 1
        vectors = []
        for v in range(tile.vectors):
            along = Index(b.add(column, i64(v * tile.lanes)) if v else column, lane)
            point = (*batch, along, Index(k)) if self.transposed else (*batch, Index(k), along)
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
        """f64 accumulation of f32 operands and the like: only when the accumulator is wider than
        the operands.
        """
        if self.paired or self.elem == self.acc_elem:
            return x
        lanes = x.type.count if isinstance(x.type, ll.VectorType) else 1
        wide = vector_of(scalar_type(self.acc_elem), lanes)
        if self.elem[0] == "i" and self.acc_elem[0] == "i":
            return self.ctx.b.sext(x, wide) if wide != x.type else x
        if self.elem[0] == "i":
            return self.ctx.b.sitofp(x, wide)
        return self.ctx.b.fpext(x, wide) if self.acc_elem == "f64" else self.ctx.b.fptrunc(x, wide)
