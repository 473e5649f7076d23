"""Products of tiles as a register-blocked micro-kernel.

`C[m, n] += A[m, k] * B[k, n]` keeps `rows x vectors` of C in registers while k runs: each step
loads `vectors` vectors of one operand and broadcasts `rows` scalars of the other. The *vector
operand* must be contiguous along the lanes; the *scalar operand* may lie in any order. Either side
can be the vector operand: with A as the vector operand the lanes run along m, which is the
transposed product. `plan_dots` chooses the side that avoids transposing a tile inside a loop: for
attention's first product that is the query, which is packed once before the loop, while the keys
are read as they lie.
"""

from __future__ import annotations

from dataclasses import dataclass

from llvmlite import ir as ll

from .. import ir
from . import memory, nests, schedule
from .context import Buffer, Context, Index, Point
from .convert import narrow, widen
from .evaluate import Nest
from .lanes import Lane, to_vector, vector
from .llvm import constant, i64, scalar_type, vector_of
from .usage import Usage, walk

#: Cost of bringing one element of an operand into place.
_COPY, _TRANSPOSE, _HOISTED = 1.0, 8.0, 0.05


def compute_elem(elem: str) -> str:
    """What products are computed in: f32 for narrow floats, i32 for narrow integers."""
    if elem in ("f64", "i64", "i32", "f32"):
        return elem
    return "i32" if elem.startswith("i") else "f32"


def plan_dots(
    usage: Usage, function: ir.Function, layout: dict[ir.Value, int]
) -> dict[ir.Op, bool]:
    """For every product, whether lanes run along m; and the layouts its operands should be put into
    buffers with.
    """
    transposed: dict[ir.Op, bool] = {}
    depth: dict[ir.Value, int] = {}
    _record_depths(function.body, 0, depth)
    for op in walk(function.body):
        if op.name != "tt.dot":
            continue
        level = _depth_of(op, depth)
        a, b = op.operands[:2]
        rank = a.type.rank

        def place(value: ir.Value, lane_dim: int | None, level: int = level) -> float:
            share = _HOISTED if depth.get(value, 0) < level else 1.0
            if lane_dim is None:
                return share * _COPY * value.type.numel
            contiguous = _contiguous_dim(usage, value, layout)
            good = contiguous is None or contiguous == lane_dim
            return share * (_COPY if good else _TRANSPOSE) * value.type.numel

        lanes_n = place(b, rank - 1) + place(a, None)
        lanes_m = place(a, rank - 2) + place(b, None)
        m, n = op.result.type.shape[-2:]
        along_m = lanes_m < lanes_n if min(m, n) >= 4 else m > n
        transposed[op] = along_m
        lane_dim = rank - 2 if along_m else rank - 1
        layout[op.result] = lane_dim
        chosen = a if along_m else b
        layout.setdefault(chosen, lane_dim)
        if op.operands[2].owner is None:
            layout.setdefault(op.operands[2], lane_dim)
    return transposed


def _record_depths(region: ir.Region, level: int, depth: dict[ir.Value, int]) -> None:
    for block in region.blocks:
        for value in block.args:
            depth[value] = level
        for op in block.ops:
            for value in op.results:
                depth[value] = level
            for inner in op.regions:
                _record_depths(inner, level + (op.name in ("scf.for", "scf.while")), depth)


def _depth_of(op: ir.Op, depth: dict[ir.Value, int]) -> int:
    return depth[op.result]


def _contiguous_dim(usage: Usage, value: ir.Value, layout: dict[ir.Value, int]) -> int | None:
    """The dimension along which a tensor comes contiguously; None if that is not known."""
    if value in layout:
        return layout[value]
    op = value.owner
    if op is None or value.type.rank < 2:
        return None
    if op.name == "tt.load":
        steps = usage.steps(op.operands[0])
        return steps.index(1) if 1 in steps else None
    if op.name == "tt.trans":
        source = _contiguous_dim(usage, op.operands[0], layout)
        return None if source is None else op.attrs["order"].index(source)
    for operand in op.operands:
        if (
            operand.type.shape == value.type.shape
            and operand.type.rank
            and op.name.startswith(("arith", "math", "tt.fp"))
        ):
            found = _contiguous_dim(usage, operand, layout)
            if found is not None:
                return found
    return None


@dataclass
class _Tile:
    """A register block and where its operands lie."""

    rows: int
    vectors: int
    lanes: int
    unroll: int


def _choose_tile(ctx: Context, rows: int, columns: int, depth: int, elem: str) -> _Tile:
    """As many accumulators as the registers hold beside one broadcast and the loaded vectors."""
    options = ctx.kernel.options
    lanes = min(ctx.lanes(ir.BITS[elem]), columns)
    many_registers = ctx.kernel.cpu.vector_bits >= 512 or "aarch64" in ctx.kernel.cpu.triple
    vectors = options.micro_n or (4 if many_registers else 2)
    vectors = max(1, min(vectors, columns // lanes))
    while (columns // lanes) % vectors:
        vectors -= 1
    budget = 24 if many_registers else 12
    tile_rows = options.micro_m or max(1, min(budget // vectors, 12 if many_registers else 6))
    tile_rows = min(tile_rows, rows)
    if not options.micro_m and rows % tile_rows:
        blocks = -(-rows // tile_rows)
        tile_rows = -(-rows // blocks)
    unroll = options.unroll or 4
    return _Tile(tile_rows, vectors, lanes, max(1, min(unroll, depth)))


def emit_dot(ctx: Context, op: ir.Op, transposed: bool) -> None:
    a, b, c = op.operands[:3]
    rank = a.type.rank
    elem = compute_elem(a.type.elem)
    acc_elem = compute_elem(op.result.type.elem)
    lane_dim = rank - 2 if transposed else rank - 1
    vector_side, scalar_side = (a, b) if transposed else (b, a)
    packed = nests.materialise(ctx, vector_side, op, fastest=lane_dim)
    scalars = nests.materialise(ctx, scalar_side, op)
    if ctx.get(c) is None:
        nests.prepare(ctx, op, [c], op.result.type.shape)
    target = ctx.destination.get(op.result)
    if (
        target is None
        or target.strides[lane_dim] != 1
        or target.memory in (packed.memory, scalars.memory)
        or not schedule.reads_in_place(ctx, c, target)
    ):
        target = ctx.new_buffer(op.result.type.elem, op.result.type.shape, lane_dim)
    m, n = op.result.type.shape[-2:]
    k = a.type.shape[-1]
    rows, columns = (n, m) if transposed else (m, n)
    tile = _choose_tile(ctx, rows, columns, k, acc_elem)
    kernel = _MicroKernel(ctx, op, packed, scalars, target, tile, transposed, elem, acc_elem)
    if rank == 3:
        with ctx.e.loop(a.type.shape[0], 1, "batch") as index:
            kernel.run(rows, columns, k, (Index(index),))
    else:
        kernel.run(rows, columns, k, ())
    ctx.set(op.result, target)


class _MicroKernel:
    def __init__(
        self, ctx: Context, op: ir.Op, packed: Buffer, scalars: Buffer, target: Buffer, tile: _Tile,
        transposed: bool, elem: str, acc_elem: str,
    ) -> None:  # fmt: skip
        self.ctx, self.op = ctx, op
        self.packed, self.scalars, self.target = packed, scalars, target
        self.tile, self.transposed, self.elem, self.acc_elem = tile, transposed, elem, acc_elem
        self.kind = vector_of(scalar_type(acc_elem), tile.lanes)

    def run(self, rows: int, columns: int, depth: int, batch: Point) -> None:
        tile, e = self.tile, self.ctx.e
        whole = rows // tile.rows * tile.rows
        with e.loop(columns, tile.vectors * tile.lanes, "columns") as column:
            with e.loop(whole, tile.rows, "rows") as row:
                self._block(batch, row, column, tile.rows, depth)
            if whole < rows:
                self._block(batch, i64(whole), column, rows - whole, depth)

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

        Adding C last keeps the partial sums short: over many tiles the rounding errors stay those
        of the tiles, not of one sum over all of k.
        """
        ctx, tile = self.ctx, self.tile
        b = ctx.b
        cells = [(r, v) for r in range(rows) for v in range(tile.vectors)]

        def at(r: int, v: int) -> Point:
            down = b.add(row, i64(r)) if r else row
            along = b.add(column, i64(v * tile.lanes)) if v else column
            return self._result_point(batch, down, along)

        zero = constant(self.kind, 0 if self.acc_elem[0] == "i" else 0.0)
        start = [zero] * len(cells)
        before = b.block
        unroll = tile.unroll
        while depth % unroll:
            unroll -= 1
        if depth == unroll:
            totals = start
            for step in range(depth):
                totals = self._step(batch, i64(step), row, column, rows, totals)
        else:
            head = b.append_basic_block("k.head")
            b.branch(head)
            b.position_at_end(head)
            index = b.phi(i64(0).type, "k")
            index.add_incoming(i64(0), before)
            totals = []
            for value in start:
                phi = b.phi(self.kind)
                phi.add_incoming(value, before)
                totals.append(phi)
            phis = list(totals)
            for step in range(unroll):
                at_k = b.add(index, i64(step)) if step else index
                totals = self._step(batch, at_k, row, column, rows, totals)
            following = b.add(index, i64(unroll), flags=("nuw", "nsw"))
            index.add_incoming(following, b.block)
            for phi, value in zip(phis, totals, strict=True):
                phi.add_incoming(value, b.block)
            end = b.append_basic_block("k.end")
            b.cbranch(b.icmp_unsigned("<", following, i64(depth)), head, end)
            b.position_at_end(end)
        for (r, v), value in zip(cells, totals, strict=True):
            result = self._plus_c(value, at(r, v))
            held = vector(result) if tile.lanes > 1 else Lane(result)
            memory.store_buffer(ctx, self.target, at(r, v), held, tile.lanes)

    def _plus_c(self, total: ll.Value, point: Point) -> ll.Value:
        ctx, c = self.ctx, self.op.operands[2]
        if not _is_zero(c):
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
        row: ll.Value,
        column: ll.Value,
        rows: int,
        totals: list[ll.Value],
    ) -> list[ll.Value]:
        ctx, tile = self.ctx, self.tile
        e, b = ctx.e, ctx.b
        lane = tile.lanes > 1
        vectors = []
        for v in range(tile.vectors):
            along = Index(b.add(column, i64(v * tile.lanes)) if v else column, lane)
            point = (*batch, along, Index(k)) if self.transposed else (*batch, Index(k), along)
            vectors.append(
                self._to_acc(
                    to_vector(
                        e, memory.load_buffer(ctx, self.packed, point, tile.lanes), tile.lanes
                    )
                )
            )
        result = []
        for r in range(rows):
            down = Index(b.add(row, i64(r)) if r else row)
            point = (*batch, Index(k), down) if self.transposed else (*batch, down, Index(k))
            scalar = e.splat(
                self._to_acc(memory.load_buffer(ctx, self.scalars, point, 1).x), tile.lanes
            )
            for v in range(tile.vectors):
                total = totals[r * tile.vectors + v]
                if self.acc_elem[0] == "i":
                    result.append(b.add(total, b.mul(scalar, vectors[v])))
                else:
                    result.append(e.intrinsic("fma", self.kind, [scalar, vectors[v], total]))
        return result

    def _to_acc(self, x: ll.Value) -> ll.Value:
        """f64 accumulation of f32 operands and the like: only when the accumulator is wider than
        the operands.
        """
        if self.elem == self.acc_elem:
            return x
        lanes = x.type.count if isinstance(x.type, ll.VectorType) else 1
        wide = vector_of(scalar_type(self.acc_elem), lanes)
        if self.elem[0] == "i" and self.acc_elem[0] == "i":
            return self.ctx.b.sext(x, wide) if wide != x.type else x
        if self.elem[0] == "i":
            return self.ctx.b.sitofp(x, wide)
        return self.ctx.b.fpext(x, wide) if self.acc_elem == "f64" else self.ctx.b.fptrunc(x, wide)


def _is_zero(value: ir.Value) -> bool:
    op = value.owner
    if op is not None and op.name == "tt.splat":
        op = op.operands[0].owner
    return op is not None and op.name == "arith.constant" and op.attrs["value"] == 0
