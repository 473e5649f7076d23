"""Reductions and scans along one axis, with any combine function.

If the lanes run along another dimension than the reduced one, every lane keeps its own accumulator
and the reduction is a plain loop (*vertical*). If they run along the reduced one (*horizontal*),
each lane reduces its share and the lanes are combined in a tree at the end, where the combine
function is known to be commutative; any other one sees the elements in their order.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

from llvmlite import ir as ll

from tritune.cpu import ir
from tritune.cpu.lower.analysis.usage import combined_by
from tritune.cpu.lower.context import Buffer, Context, Index, Point
from tritune.cpu.lower.emit import memory, nests
from tritune.cpu.lower.emit.effects import Assertion
from tritune.cpu.lower.emit.evaluate import Assumptions, Nest, constant_value
from tritune.cpu.lower.emit.horizontal import reduce_lanes
from tritune.cpu.lower.emit.lanes import Lanes, to_vector, vector
from tritune.cpu.lower.llvm import I32, constant, i64, lanes_of, scalar_type, vector_of
from tritune.cpu.lower.schedule import nest as schedule
from tritune.cpu.lower.schedule.nest import NestPlan, versioned
from tritune.errors import CompileError

#: Independent accumulators that hide the latency of the combine function. Costly elements hide it
#: by themselves, and want the registers.
_UNROLL, _UNROLL_COSTLY = 4, 1

_INFINITY = math.inf
_IDENTITIES: dict[str, float | int] = {
    "arith.addf": -0.0, "arith.mulf": 1.0, "arith.addi": 0, "arith.muli": 1,
    "arith.andi": -1, "arith.ori": 0, "arith.xori": 0,
    "arith.maxnumf": math.nan, "arith.minnumf": math.nan,
    "arith.maximumf": -_INFINITY, "arith.minimumf": _INFINITY,
}  # fmt: skip


def combine(nest: Nest, op: ir.Op, first: list[Lanes], second: list[Lanes]) -> list[Lanes]:
    """Call the reduction's region on two partial results."""
    block = op.regions[0].blocks[0]
    if len(op.regions[0].blocks) != 1:
        raise CompileError(op.name, "a combine function with branches", str(op.loc))
    known: dict[ir.Value, Lanes] = dict(zip(block.args, [*first, *second], strict=True))

    def value_of(value: ir.Value) -> Lanes:
        found = known.get(value)
        return found if found is not None else Lanes(nest.ctx.scalar(value))

    for inner in block.ops:
        if inner.name in ("tt.reduce.return", "tt.scan.return"):
            return [value_of(o) for o in inner.operands]
        if inner.name == "arith.constant":
            known[inner.result] = Lanes(constant_value(inner))
        elif inner.name == "tt.assert":
            nest.ctx.assertions[inner].check(value_of(inner.operands[0]).x)
        elif inner.regions or len(inner.results) != 1:
            raise CompileError(inner.name, "not possible inside a combine function", str(inner.loc))
        else:
            known[inner.result] = nest.apply(inner, [value_of(o) for o in inner.operands])
    raise CompileError(op.name, "a combine function without a result", str(op.loc))


@contextmanager
def _asserting(ctx: Context, op: ir.Op) -> Iterator[None]:
    """Inside, the combine function is called; after it, what it asserts is looked at."""
    inside = [inner for inner in op.regions[0].blocks[0].ops if inner.name == "tt.assert"]
    ctx.assertions = {inner: Assertion(ctx, inner) for inner in inside}
    yield
    for assertion in ctx.assertions.values():
        assertion.exit_if_failed()


def _identity(op: ir.Op) -> float | int | None:
    """The neutral element of a combine function that is one known operation."""
    inner, elem = combined_by(op), op.operands[0].type.elem
    if inner is None or elem in ("f8E4M3FN", "f8E5M2", "bf16"):
        return None
    if inner.name in ("arith.maxsi", "arith.minsi", "arith.maxui", "arith.minui"):
        bits = ir.BITS[elem]
        top = (1 << (bits - 1)) - 1
        return {"maxsi": -top - 1, "minsi": top, "maxui": 0, "minui": -1}[inner.name[6:]]
    return _IDENTITIES.get(inner.name)


class _Accumulators:
    """Partial results in stack slots, which LLVM turns into registers."""

    def __init__(self, nest: Nest, op: ir.Op, lanes: int, start: float | int | None) -> None:
        self.nest, self.op, self.lanes = nest, op, lanes
        ctx = nest.ctx
        self.kinds = [vector_of(scalar_type(o.type.elem), lanes) for o in op.operands]
        self.slots = [ctx.e.slot(kind, align=64) for kind in self.kinds]
        if start is not None:
            ctx.b.store(constant(self.kinds[0], start), self.slots[0])

    def get(self) -> list[Lanes]:
        lanes = [
            self.nest.ctx.b.load(s, typ=k) for s, k in zip(self.slots, self.kinds, strict=True)
        ]
        return [Lanes(x) if self.lanes == 1 else vector(x) for x in lanes]

    def put(self, values: list[Lanes]) -> None:
        for slot, value in zip(self.slots, values, strict=True):
            self.nest.ctx.b.store(to_vector(self.nest.ctx.e, value, self.lanes), slot)

    def add(self, values: list[Lanes]) -> None:
        wide = [_widened(self.nest, v, self.lanes) for v in values]
        self.put(combine(self.nest, self.op, self.get(), wide))


def _widened(nest: Nest, value: Lanes, lanes: int) -> Lanes:
    x = to_vector(nest.ctx.e, value, lanes)
    return Lanes(x) if lanes == 1 else vector(x)


def emit_reduce(ctx: Context, op: ir.Op) -> None:
    shape, axis = op.operands[0].type.shape, op.attrs["axis"]
    values = list(op.operands)
    bits = max(v.type.bits if v.type.is_float else 32 for v in values)
    plan = nests.plan_nest(ctx, op, values, shape, None, None, bits)
    outputs = [
        ctx.new_buffer(r.type.elem, r.type.shape or (1,), _output_layout(ctx, plan, axis, r))
        for r in op.results
    ]

    def emit(assumptions: Assumptions, conservative: bool) -> None:
        nest = Nest(ctx, plan.lanes, assumptions)
        if plan.lane_dim == axis:
            _horizontal(nest, op, plan, outputs)
        else:
            _vertical(nest, op, plan, outputs)

    with _asserting(ctx, op):
        versioned(ctx, plan.nodes, [], emit)
    nests.bind_side_outputs(ctx, plan)
    for result, buffer in zip(op.results, outputs, strict=True):
        if result.type.rank:
            ctx.set(result, buffer)
        else:
            ctx.set(result, memory.load_buffer(ctx, buffer, (Index(i64(0)),), 1).x)


def _output_layout(ctx: Context, plan: NestPlan, axis: int, result: ir.Value) -> int | None:
    if not result.type.rank or plan.lane_dim == axis:
        return None
    return plan.lane_dim - (plan.lane_dim > axis)


def _without(point: Point, axis: int) -> Point:
    """The place in the result; a result without dimensions lies in a buffer of one element."""
    return (*point[:axis], *point[axis + 1 :]) or (Index(i64(0)),)


def _read(nest: Nest, op: ir.Op, plan: NestPlan, point: Point) -> list[Lanes]:
    nest.clear()
    values = [nest.at(v, point) for v in op.operands]
    nests.store_side_outputs(nest, plan, point)
    return values


def _unroll(nest: Nest, op: ir.Op) -> int:
    costs = sum(schedule.cost(nest.ctx, v) for v in op.operands)
    return _UNROLL_COSTLY if costs >= schedule.COSTLY else _UNROLL


def _vertical(nest: Nest, op: ir.Op, plan: NestPlan, outputs: list[Buffer]) -> None:
    """Lanes along a kept dimension: `_UNROLL` neighbouring vectors at a time, the reduced axis
    innermost.
    """
    ctx, axis, lane_dim, lanes = nest.ctx, op.attrs["axis"], plan.lane_dim, plan.lanes
    group = max(1, min(_unroll(nest, op), plan.shape[lane_dim] // lanes))
    start = _identity(op)
    outer = [d for d in range(len(plan.shape)) if d not in (axis, lane_dim)]
    ranges = [(plan.shape[d], 1, f"d{d}") for d in outer]
    ranges.append((plan.shape[lane_dim], lanes * group, "lanes"))
    with ctx.e.loops(*ranges) as indices:
        at = dict(zip([*outer, lane_dim], indices, strict=True))

        def point_of(chunk: int, along: ll.Value) -> Point:
            first = ctx.b.add(at[lane_dim], i64(chunk * lanes)) if chunk else at[lane_dim]
            return plan.point({**at, axis: along, lane_dim: first})

        sums = [_Accumulators(nest, op, lanes, start) for _ in range(group)]
        skipped = 0
        if start is None:
            skipped = 1
            for chunk, partial in enumerate(sums):
                values = _read(nest, op, plan, point_of(chunk, i64(0)))
                partial.put([_widened(nest, v, lanes) for v in values])
        if plan.shape[axis] > skipped:
            with ctx.e.loop(plan.shape[axis] - skipped, 1, "reduce") as index:
                along = ctx.b.add(index, i64(skipped)) if skipped else index
                for chunk, partial in enumerate(sums):
                    partial.add(_read(nest, op, plan, point_of(chunk, along)))
        for chunk, partial in enumerate(sums):
            place = _without(point_of(chunk, i64(0)), axis)
            for buffer, value in zip(outputs, partial.get(), strict=True):
                memory.store_buffer(ctx, buffer, place, value, lanes)


def _horizontal(nest: Nest, op: ir.Op, plan: NestPlan, outputs: list[Buffer]) -> None:
    """Lanes along the reduced axis: `_UNROLL` accumulators per row, combined when the row ends."""
    start = _identity(op)
    if start is None:
        _in_order(nest, op, plan, outputs)
    else:
        _in_lanes(nest, op, plan, outputs[0], start)


def _in_lanes(nest: Nest, op: ir.Op, plan: NestPlan, output: Buffer, start: float | int) -> None:
    """A combine function known to be commutative: every lane reduces its own elements of a row, and
    the lanes of several rows are combined together.
    """
    ctx, axis, lanes = nest.ctx, op.attrs["axis"], plan.lanes
    group = max(1, min(_unroll(nest, op), plan.shape[axis] // lanes))
    outer = [d for d in range(len(plan.shape)) if d != axis]
    rows = min(lanes, plan.shape[outer[-1]]) if outer else 1
    kind = vector_of(scalar_type(op.operands[0].type.elem), lanes)
    partials = ctx.e.slot(kind, rows, align=64)

    def reduce_row(at: dict[int, ll.Value]) -> Lanes:
        sums = [_Accumulators(nest, op, lanes, start) for _ in range(group)]
        with ctx.e.loop(plan.shape[axis], group * lanes, "reduce") as index:
            for chunk, partial in enumerate(sums):
                along = ctx.b.add(index, i64(chunk * lanes)) if chunk else index
                partial.add(_read(nest, op, plan, plan.point({**at, axis: along})))
        total = sums[0].get()
        for partial in sums[1:]:
            total = combine(nest, op, total, partial.get())
        return total[0]

    def join(x: ll.Value, y: ll.Value) -> ll.Value:
        count = lanes_of(x.type)
        pair = [[Lanes(v) if count == 1 else vector(v)] for v in (x, y)]
        (joined,) = combine(Nest(ctx, count, nest.assumptions), op, *pair)
        return joined.x

    ranges = [(plan.shape[d], 1, f"d{d}") for d in outer[:-1]]
    if outer:
        ranges.append((plan.shape[outer[-1]], rows, "rows"))
    with ctx.e.loops(*ranges) as indices:
        at = dict(zip(outer, indices, strict=True))
        with ctx.e.loop(rows, 1, "row") as row:
            here = {**at, outer[-1]: ctx.b.add(at[outer[-1]], row)} if outer else at
            total = to_vector(ctx.e, reduce_row(here), lanes)
            ctx.b.store(total, ctx.b.gep(partials, [row], inbounds=True, source_etype=kind))
        totals = [
            ctx.b.load(ctx.b.gep(partials, [i64(r)], inbounds=True, source_etype=kind), typ=kind)
            for r in range(rows)
        ]
        reduced = reduce_lanes(ctx.e, totals, join)
        last = [Index(at[d], rows > 1 and d == outer[-1]) for d in outer]
        place = tuple(last) or (Index(i64(0)),)
        held = vector(reduced) if rows > 1 else Lanes(reduced)
        memory.store_buffer(ctx, output, place, held, rows)


def _in_order(nest: Nest, op: ir.Op, plan: NestPlan, outputs: list[Buffer]) -> None:
    """Any other combine function: neighbours are combined with neighbours, so that the order of the
    elements is kept.
    """
    ctx, axis, lanes = nest.ctx, op.attrs["axis"], plan.lanes
    outer = [d for d in range(len(plan.shape)) if d != axis]
    with ctx.e.loops(*[(plan.shape[d], 1, f"d{d}") for d in outer]) as indices:
        at = dict(zip(outer, indices, strict=True))

        def read(along: ll.Value) -> list[Lanes]:
            values = _read(nest, op, plan, plan.point({**at, axis: along}))
            return _across_lanes(nest, op, values, lanes)

        running = _Accumulators(nest, op, 1, None)
        running.put(read(i64(0)))
        if plan.shape[axis] > lanes:
            with ctx.e.loop(plan.shape[axis] - lanes, lanes, "reduce") as index:
                running.add(read(ctx.b.add(index, i64(lanes))))
        place = tuple(Index(at[d]) for d in outer) or (Index(i64(0)),)
        for buffer, value in zip(outputs, running.get(), strict=True):
            memory.store_buffer(ctx, buffer, place, value, 1)


def _across_lanes(nest: Nest, op: ir.Op, values: list[Lanes], lanes: int) -> list[Lanes]:
    """Combine every even lane with the odd lane after it until one is left."""
    ctx = nest.ctx

    def every_second(x: ll.Value, first: int, width: int) -> Lanes:
        if width == 1:
            return Lanes(ctx.e.extract(x, first))
        chosen = ll.Constant(ll.VectorType(I32, width), list(range(first, 2 * width, 2)))
        return vector(ctx.b.shuffle_vector(x, ll.Constant(x.type, ll.Undefined), chosen))

    while lanes > 1:
        wide = [to_vector(ctx.e, v, lanes) for v in values]
        lanes //= 2
        halves = [[every_second(x, first, lanes) for x in wide] for first in (0, 1)]
        values = combine(Nest(ctx, lanes, nest.assumptions), op, *halves)
    return values


def emit_scan(ctx: Context, op: ir.Op) -> None:
    """An inclusive scan: in order along the axis, vector lanes along another dimension where there
    is one.
    """
    shape, axis = op.operands[0].type.shape, op.attrs["axis"]
    others = [d for d in range(len(shape)) if d != axis and shape[d] > 1]
    lane_dim = max(others, key=lambda d: shape[d]) if others else axis
    plan = nests.plan_nest(ctx, op, list(op.operands), shape, lane_dim)
    if not others:
        plan.lanes = 1
    outputs = [ctx.new_buffer(r.type.elem, shape, plan.lane_dim) for r in op.results]

    def emit(assumptions: Assumptions, conservative: bool) -> None:
        nest = Nest(ctx, plan.lanes, assumptions)
        outer = [d for d in range(len(shape)) if d != axis]
        ranges = [(shape[d], plan.lanes if d == lane_dim else 1, f"d{d}") for d in outer]
        with ctx.e.loops(*ranges) as indices:
            _scan(nest, op, plan, dict(zip(outer, indices, strict=True)), outputs)

    with _asserting(ctx, op):
        versioned(ctx, plan.nodes, [], emit)
    nests.bind_side_outputs(ctx, plan)
    for result, buffer in zip(op.results, outputs, strict=True):
        ctx.set(result, buffer)


def _scan(
    nest: Nest, op: ir.Op, plan: NestPlan, at: dict[int, ll.Value], outputs: list[Buffer]
) -> None:
    """One scan along the axis, at fixed positions of the other dimensions."""
    ctx, axis = nest.ctx, op.attrs["axis"]
    count = plan.shape[axis]

    def point_of(along: ll.Value) -> Point:
        place = ctx.b.sub(i64(count - 1), along) if op.attrs.get("reverse") else along
        return plan.point({**at, axis: place})

    def put(point: Point, values: list[Lanes]) -> None:
        for buffer, value in zip(outputs, values, strict=True):
            memory.store_buffer(ctx, buffer, point, value, plan.lanes)

    running = _Accumulators(nest, op, plan.lanes, None)
    first = point_of(i64(0))
    running.put([_widened(nest, v, plan.lanes) for v in _read(nest, op, plan, first)])
    put(first, running.get())
    if count > 1:
        with ctx.e.loop(count - 1, 1, "scan") as index:
            point = point_of(ctx.b.add(index, i64(1)))
            running.add(_read(nest, op, plan, point))
            put(point, running.get())
