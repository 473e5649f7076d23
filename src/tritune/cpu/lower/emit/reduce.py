"""Writes reductions and scans along one axis, with any combine function.

If the lanes run along another dimension than the reduced one, every lane has its own accumulator
and the reduction is a plain loop (*vertical*). If they run along the reduced one (*horizontal*),
each lane reduces its elements, and the lanes are combined in a tree at the end if the combine
function is known to be commutative; otherwise the elements are combined in order.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

from llvmlite import ir as ll

from tritune.cpu import ir
from tritune.cpu.lower.analysis.usage import combined_by
from tritune.cpu.lower.context import ZERO, Buffer, Context, Index, Point
from tritune.cpu.lower.emit import memory, nests
from tritune.cpu.lower.emit.effects import Assertion
from tritune.cpu.lower.emit.horizontal import reduce_lanes
from tritune.cpu.lower.emit.lanes import Lanes, in_register, to_vector, vector
from tritune.cpu.lower.emit.lazy_tensors import Assumptions, Nest, constant_value
from tritune.cpu.lower.llvm import constant, i64, lanes_of, scalar_type, vector_of
from tritune.cpu.lower.schedule import nest as schedule
from tritune.cpu.lower.schedule.nest import NestPlan, versioned
from tritune.errors import CompileError

#: Independent accumulators, which hide the latency of the combine function. Costly elements hide it
#: by themselves and need the registers.
_UNROLL, _UNROLL_COSTLY = 4, 1

_INFINITY = math.inf
_IDENTITIES: dict[str, float | int] = {
    "arith.addf": -0.0, "arith.mulf": 1.0, "arith.addi": 0, "arith.muli": 1,
    "arith.andi": -1, "arith.ori": 0, "arith.xori": 0,
    "arith.maxnumf": math.nan, "arith.minnumf": math.nan,
    "arith.maximumf": -_INFINITY, "arith.minimumf": _INFINITY,
}  # fmt: skip


def combine(nest: Nest, op: ir.Op, first: list[Lanes], second: list[Lanes]) -> list[Lanes]:
    """Write the combine function on two partial results, and return its results."""
    block = op.regions[0].blocks[0]
    if len(op.regions[0].blocks) != 1:
        raise CompileError(op.name, "a combine function with branches", str(op.loc))
    known: dict[ir.Value, Lanes] = dict(zip(block.args, [*first, *second], strict=True))

    def value_of(value: ir.Value) -> Lanes:
        return known[value] if value in known else Lanes(nest.ctx.scalar(value))

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
    """Write a combine function inside, and the check of its assertions after it."""
    inside = [inner for inner in op.regions[0].blocks[0].ops if inner.name == "tt.assert"]
    ctx.assertions = {inner: Assertion(ctx, inner) for inner in inside}
    yield
    for assertion in ctx.assertions.values():
        assertion.exit_if_failed()


def _identity(op: ir.Op) -> float | int | None:
    """Return the neutral element of a combine function that is one known operation."""
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
        self.kinds = [vector_of(scalar_type(o.type.elem), lanes) for o in op.operands]
        self.slots = [nest.ctx.e.slot(kind, align=64) for kind in self.kinds]
        if start is not None:
            nest.ctx.b.store(constant(self.kinds[0], start), self.slots[0])

    def get(self) -> list[Lanes]:
        b = self.nest.ctx.b
        return [
            in_register(b.load(slot, typ=kind))
            for slot, kind in zip(self.slots, self.kinds, strict=True)
        ]

    def put(self, values: list[Lanes]) -> None:
        for slot, value in zip(self.slots, values, strict=True):
            self.nest.ctx.b.store(to_vector(self.nest.ctx.e, value, self.lanes), slot)

    def add(self, values: list[Lanes]) -> None:
        wide = self._wide(values)
        self.put(combine(self.nest, self.op, self.get(), wide))

    def start(self, values: list[Lanes]) -> None:
        self.put(self._wide(values))

    def _wide(self, values: list[Lanes]) -> list[Lanes]:
        return [in_register(to_vector(self.nest.ctx.e, v, self.lanes)) for v in values]

    def store(self, buffers: list[Buffer], point: Point) -> None:
        """Write the partial results to a point of the outputs, or to the only element."""
        for buffer, value in zip(buffers, self.get(), strict=True):
            memory.store_buffer(self.nest.ctx, buffer, point or (ZERO,), value, self.lanes)


def emit_reduce(ctx: Context, op: ir.Op) -> None:
    shape, axis = op.operands[0].type.shape, op.attrs["axis"]
    bits = max(ctx.lane_bits(v.type) for v in op.operands)
    plan = nests.plan_nest(ctx, op, list(op.operands), shape, elem_bits=bits)
    horizontal = plan.lane_dim == axis
    outputs = []
    for result in op.results:
        in_order = horizontal or not result.type.rank
        fastest = None if in_order else plan.lane_dim - (plan.lane_dim > axis)
        outputs.append(ctx.buffer_of(result, fastest))
    start = _identity(op)

    def emit(assumptions: Assumptions, conservative: bool) -> None:
        nest = Nest(ctx, plan.lanes, assumptions)
        if not horizontal:
            _vertical(nest, op, plan, outputs, start)
        elif start is not None:
            _in_lanes(nest, op, plan, outputs[0], start)
        else:
            _in_order(nest, op, plan, outputs)

    with _asserting(ctx, op):
        versioned(ctx, plan.nodes, [], emit)
    nests.bind_side_outputs(ctx, plan)
    for result, buffer in zip(op.results, outputs, strict=True):
        ctx.set(result, buffer if result.type.rank else memory.load_first(ctx, buffer))


def _read(nest: Nest, op: ir.Op, plan: NestPlan, point: Point) -> list[Lanes]:
    """Evaluate the operands at a point."""
    nest.clear()
    values = [nest.at(v, point) for v in op.operands]
    nests.store_side_outputs(nest, plan, point)
    return values


def _unroll(nest: Nest, op: ir.Op) -> int:
    costs = sum(schedule.cost(nest.ctx, v) for v in op.operands)
    return _UNROLL_COSTLY if costs >= schedule.COSTLY else _UNROLL


def _vertical(
    nest: Nest, op: ir.Op, plan: NestPlan, outputs: list[Buffer], start: float | int | None
) -> None:
    """Reduce with the lanes along another dimension, a few neighbouring vectors at a time."""
    ctx, axis, lane_dim, lanes = nest.ctx, op.attrs["axis"], plan.lane_dim, plan.lanes
    group = max(1, min(_unroll(nest, op), plan.shape[lane_dim] // lanes))
    outer = [d for d in range(len(plan.shape)) if d not in (axis, lane_dim)]
    ranges = [(plan.shape[d], 1, f"d{d}") for d in outer]
    ranges.append((plan.shape[lane_dim], lanes * group, "lanes"))
    with ctx.e.loops(*ranges) as indices:
        at = dict(zip([*outer, lane_dim], indices, strict=True))

        def point_of(chunk: int, along: ll.Value) -> Point:
            first = ctx.e.plus(at[lane_dim], chunk * lanes, ())
            return plan.point({**at, axis: along, lane_dim: first})

        sums = [_Accumulators(nest, op, lanes, start) for _ in range(group)]
        skipped = 0 if start is not None else 1
        if skipped:
            for chunk, partial in enumerate(sums):
                partial.start(_read(nest, op, plan, point_of(chunk, i64(0))))
        if plan.shape[axis] > skipped:
            with ctx.e.loop(plan.shape[axis] - skipped, 1, "reduce") as index:
                along = ctx.e.plus(index, skipped, ())
                for chunk, partial in enumerate(sums):
                    partial.add(_read(nest, op, plan, point_of(chunk, along)))
        for chunk, partial in enumerate(sums):
            point = point_of(chunk, i64(0))
            partial.store(outputs, (*point[:axis], *point[axis + 1 :]))


def _in_lanes(nest: Nest, op: ir.Op, plan: NestPlan, output: Buffer, start: float | int) -> None:
    """Reduce with the lanes along the axis and a commutative combine function.

    Every lane reduces its own elements of a row; the lanes of several rows are combined together.
    """
    ctx, axis, lanes = nest.ctx, op.attrs["axis"], plan.lanes
    group = max(1, min(_unroll(nest, op), plan.shape[axis] // lanes))
    outer = [d for d in range(len(plan.shape)) if d != axis]
    rows = min(lanes, plan.shape[outer[-1]]) if outer else 1
    kind = vector_of(scalar_type(op.operands[0].type.elem), lanes)
    partials = ctx.e.slot(kind, rows, align=64)

    def place_of(row: ll.Value) -> ll.Value:
        return ctx.b.gep(partials, [row], inbounds=True, source_etype=kind)

    def reduce_row(at: dict[int, ll.Value]) -> Lanes:
        sums = [_Accumulators(nest, op, lanes, start) for _ in range(group)]
        with ctx.e.loop(plan.shape[axis], group * lanes, "reduce") as index:
            for chunk, partial in enumerate(sums):
                along = ctx.e.plus(index, chunk * lanes, ())
                partial.add(_read(nest, op, plan, plan.point({**at, axis: along})))
        total = sums[0].get()
        for partial in sums[1:]:
            total = combine(nest, op, total, partial.get())
        return total[0]

    def join(x: ll.Value, y: ll.Value) -> ll.Value:
        half = Nest(ctx, lanes_of(x.type), nest.assumptions)
        return combine(half, op, [in_register(x)], [in_register(y)])[0].x

    ranges = [(plan.shape[d], 1, f"d{d}") for d in outer[:-1]]
    if outer:
        ranges.append((plan.shape[outer[-1]], rows, "rows"))
    with ctx.e.loops(*ranges) as indices:
        at = dict(zip(outer, indices, strict=True))
        with ctx.e.loop(rows, 1, "row") as row:
            here = {**at, outer[-1]: ctx.b.add(at[outer[-1]], row)} if outer else at
            total = to_vector(ctx.e, reduce_row(here), lanes)
            ctx.b.store(total, place_of(row))
        totals = [ctx.b.load(place_of(i64(r)), typ=kind) for r in range(rows)]
        reduced = reduce_lanes(ctx.e, totals, join)
        point = tuple(Index(at[d], rows > 1 and d == outer[-1]) for d in outer)
        memory.store_buffer(ctx, output, point or (ZERO,), in_register(reduced), rows)


def _in_order(nest: Nest, op: ir.Op, plan: NestPlan, outputs: list[Buffer]) -> None:
    """Reduce with the lanes along the axis and any combine function, in the elements' order."""
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
        running.store(outputs, tuple(Index(at[d]) for d in outer))


def _across_lanes(nest: Nest, op: ir.Op, values: list[Lanes], lanes: int) -> list[Lanes]:
    """Combine every even lane with the odd lane after it until one is left."""
    ctx = nest.ctx

    def every_second(x: ll.Value, first: int, width: int) -> Lanes:
        if width == 1:
            return Lanes(ctx.e.extract(x, first))
        return vector(ctx.e.shuffle(x, None, list(range(first, 2 * width, 2))))

    while lanes > 1:
        wide = [to_vector(ctx.e, v, lanes) for v in values]
        lanes //= 2
        halves = [[every_second(x, first, lanes) for x in wide] for first in (0, 1)]
        values = combine(Nest(ctx, lanes, nest.assumptions), op, *halves)
    return values


def emit_scan(ctx: Context, op: ir.Op) -> None:
    """Write an inclusive scan in order along the axis, with the lanes along another dimension."""
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
    """Write one scan along the axis, at fixed positions of the other dimensions."""
    ctx, axis = nest.ctx, op.attrs["axis"]
    count = plan.shape[axis]

    def point_of(along: ll.Value) -> Point:
        place = ctx.b.sub(i64(count - 1), along) if op.attrs.get("reverse") else along
        return plan.point({**at, axis: place})

    running = _Accumulators(nest, op, plan.lanes, None)
    first = point_of(i64(0))
    running.start(_read(nest, op, plan, first))
    running.store(outputs, first)
    if count > 1:
        with ctx.e.loop(count - 1, 1, "scan") as index:
            point = point_of(ctx.b.add(index, i64(1)))
            running.add(_read(nest, op, plan, point))
            running.store(outputs, point)
