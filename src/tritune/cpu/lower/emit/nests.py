"""Writes loop nests: tensors into buffers, tensors into memory, reductions, and per-element
effects.
"""

from __future__ import annotations

from collections.abc import Callable

from llvmlite import ir as ll

from tritune.cpu import ir
from tritune.cpu.lower.analysis.affine import AffineRanges
from tritune.cpu.lower.context import Buffer, Context, Index, Point
from tritune.cpu.lower.emit import memory
from tritune.cpu.lower.emit.evaluate import Assumptions, Nest
from tritune.cpu.lower.emit.lanes import Lanes, to_vector, vector
from tritune.cpu.lower.llvm import i64
from tritune.cpu.lower.schedule import nest as schedule
from tritune.cpu.lower.schedule.nest import NestPlan


def prepare(ctx: Context, root: ir.Op, values: list[ir.Value]) -> None:
    """Put what the nest would otherwise compute over and over into buffers first."""
    for value in reversed(schedule.lazy_nodes(ctx, values)):
        assert value.owner is not None
        if value.owner.name != "tt.broadcast" or ctx.get(value) is not None:
            continue
        source = schedule.below_shape_ops(ctx, value.owner.operands[0])
        fresh = ctx.get(source) is None and source.type.rank > 0
        if fresh and schedule.cost(ctx, source) >= schedule.COSTLY:
            materialise(ctx, source, root)


def plan_nest(
    ctx: Context,
    root: ir.Op,
    values: list[ir.Value],
    shape: tuple[int, ...],
    lane_dim: int | None = None,
    extra: list[schedule.Access] | None = None,
    elem_bits: int = 32,
    stored: ir.Value | None = None,
    side_outputs: list[ir.Value] | None = None,
    most_lanes: int | None = None,
) -> NestPlan:
    """Prepare a nest over `shape` that evaluates `values` for `root`, and keeps `side_outputs`."""
    prepare(ctx, root, values)
    if lane_dim is None:
        found = schedule.accesses(ctx, values, len(shape)) + (extra or [])
        lane_dim = schedule.best_lane_dim(ctx, shape, found)
    lanes = min(most_lanes or ctx.lanes(elem_bits), shape[lane_dim])
    plan = NestPlan(shape, lane_dim, lanes, schedule.lazy_nodes(ctx, values))
    if side_outputs is None:
        side_outputs = schedule.choose_side_outputs(ctx, root, values, shape, stored)
    for side_output in (t for t in side_outputs if ctx.get(t) is None):
        fastest = ctx.layout.get(side_output, lane_dim)
        plan.side_outputs[side_output] = ctx.new_buffer(side_output.type.elem, shape, fastest)
    return plan


def bind_side_outputs(ctx: Context, plan: NestPlan) -> None:
    """From here on the stored tensors are read from their buffers."""
    for value, buffer in plan.side_outputs.items():
        ctx.set(value, buffer)


def store_side_outputs(nest: Nest, plan: NestPlan, point: Point) -> None:
    for value, buffer in plan.side_outputs.items():
        memory.store_buffer(nest.ctx, buffer, point, nest.at(value, point), nest.lanes)


def over_points(ctx: Context, plan: NestPlan, nest: Nest, body: Callable[[Point], None]) -> None:
    """The loops of an elementwise nest: lanes innermost."""
    order = [d for d in range(len(plan.shape)) if d != plan.lane_dim] + [plan.lane_dim]
    steps = [plan.lanes if d == plan.lane_dim else 1 for d in order]
    ranges = [(plan.shape[d], step, f"d{d}") for d, step in zip(order, steps, strict=True)]
    with ctx.e.loops(*ranges) as indices:
        nest.clear()
        body(plan.point(dict(zip(order, indices, strict=True))))


def materialise(
    ctx: Context,
    value: ir.Value,
    root: ir.Op,
    into: Buffer | None = None,
    fastest: int | None = None,
    prefetched: bool = False,
    most_lanes: int | None = None,
) -> Buffer:
    """Compute a lazy tensor into a buffer, and read it from there from now on. `most_lanes` is how
    it will be read: what was written in smaller pieces would be waited for.
    """
    held = ctx.get(value)
    if (
        isinstance(held, Buffer)
        and into is None
        and (fastest is None or _contiguous_along(held, fastest))
    ):
        return held
    shape = value.type.shape
    wanted = fastest if fastest is not None else ctx.layout.get(value)
    extra = []
    if into is not None:
        extra = [schedule.Access(list(into.strides), 2.0)]
    lane_dim = wanted if into is None else None
    bits = value.type.bits if value.type.is_float else 32
    if lane_dim is not None:
        prepare(ctx, root, [value])
        lane_dim = schedule.read_along(ctx, value, lane_dim, ctx.lanes(bits))
    turned = wanted is not None and lane_dim != wanted
    plan = plan_nest(
        ctx,
        root,
        [value],
        shape,
        lane_dim,
        extra,
        bits,
        stored=value,
        most_lanes=None if turned else most_lanes,
    )
    along = plan.lane_dim if into is not None or wanted is None else wanted
    buffer = into or ctx.new_buffer(value.type.elem, shape, along)

    def emit(assumptions: Assumptions, conservative: bool) -> None:
        nest = Nest(ctx, plan.lanes, assumptions)
        if prefetched and not conservative:
            nest.prefetch_loads(schedule.loads_in(plan.nodes))

        def body(point: Point) -> None:
            memory.store_buffer(ctx, buffer, point, nest.at(value, point), plan.lanes)
            store_side_outputs(nest, plan, point)

        if along == plan.lane_dim:
            over_points(ctx, plan, nest, body)
        else:
            _transpose(ctx, plan, nest, value, buffer, along)

    schedule.versioned(ctx, plan.nodes, [], emit)
    bind_side_outputs(ctx, plan)
    ctx.set(value, buffer)
    return buffer


def _transpose(
    ctx: Context, plan: NestPlan, nest: Nest, value: ir.Value, buffer: Buffer, along: int
) -> None:
    """Fill a buffer that is contiguous along another dimension than what it is made of: a square
    of vectors at a time is read one way, turned around in registers and written the other way.
    """
    lanes, others = (
        plan.lanes,
        [d for d in range(len(plan.shape)) if d not in (along, plan.lane_dim)],
    )
    order = [*others, along, plan.lane_dim]
    ranges = [(plan.shape[d], 1 if d in others else lanes, f"d{d}") for d in order]
    with ctx.e.loops(*ranges) as indices:
        nest.clear()
        corner = dict(zip(order, indices, strict=True))

        def moved(dim: int, by: int) -> dict[int, ll.Value]:
            return {**corner, dim: ctx.b.add(corner[dim], i64(by), flags=("nuw", "nsw"))}

        read = []
        for number in range(lanes):
            point = plan.point(moved(along, number))
            read.append(to_vector(ctx.e, nest.at(value, point), lanes))
            store_side_outputs(nest, plan, point)
        for number, turned in enumerate(ctx.e.interleave(read)):
            at = moved(plan.lane_dim, number)
            place = tuple(Index(at[d], d == along) for d in range(len(plan.shape)))
            memory.store_buffer(ctx, buffer, place, vector(turned), lanes)


def _contiguous_along(buffer: Buffer, dim: int) -> bool:
    return buffer.strides[dim] == 1 or buffer.shape[dim] == 1


def materialise_pending_loads(ctx: Context, op: ir.Op, kept: list[ir.Value] | None = None) -> None:
    """Before memory changes: read what was to be read before, if anything still needs it
    afterwards, other than through what is kept.
    """
    held = set(kept or [])
    for value in ctx.pending_loads():
        if value not in held and schedule.needed_after(ctx, value, op, held):
            materialise(ctx, value, op)


def emit_store(ctx: Context, op: ir.Op) -> None:
    pointer, value = op.operands[:2]
    mask = op.operands[2] if len(op.operands) > 2 else None
    pointee = pointer.type.pointee
    assert pointee is not None
    if pointer.type.rank == 0:
        materialise_pending_loads(ctx, op)
        store_scalar(ctx, pointer, value, mask)
        return
    shape = pointer.type.shape
    roots = [pointer, value] + ([mask] if mask is not None else [])
    # What is kept on the way needs no reading beforehand: this nest reads it, and as safely as what
    # it stores.
    side_outputs = schedule.choose_side_outputs(ctx, op, roots, shape, None)
    materialise_pending_loads(ctx, op, side_outputs)
    ranges = AffineRanges(ctx)
    prepare(ctx, op, roots)
    # A tensor is read completely before anything of it is written: prove that the order does not
    # matter, or read first.
    reads = schedule.loads_in(schedule.lazy_nodes(ctx, roots))
    moved = schedule.moved_nodes(ctx, roots)
    conditions = []
    for read in reads:
        assert read.owner is not None
        apart = ranges.no_hazard(read.owner.operands[0], pointer, read not in moved)
        if apart is None:
            materialise(ctx, read, op)
        else:
            conditions.append(apart)
    extra = [schedule.Access(list(ctx.usage.strides(pointer)), 2.0)]
    bits = pointee.bits if pointee.is_float else 32
    plan = plan_nest(ctx, op, roots, shape, None, extra, bits, side_outputs=side_outputs)
    nontemporal = op.attrs.get("cache") == "cs"

    def emit(assumptions: Assumptions, conservative: bool) -> None:
        if conservative:
            for read in schedule.loads_in(schedule.lazy_nodes(ctx, roots)):
                materialise(ctx, read, op)
        nest = Nest(ctx, plan.lanes, assumptions)

        def body(point: Point) -> None:
            address = nest.at(pointer, point)
            active = nest.mask_at(mask, point) if mask is not None else None
            written = nest.at(value, point)
            memory.store(ctx, address, written, active, pointee.elem, plan.lanes, nontemporal)
            store_side_outputs(nest, plan, point)

        over_points(ctx, plan, nest, body)

    schedule.versioned(
        ctx, plan.nodes, [mask] if mask is not None else [], emit, ranges, conditions
    )
    bind_side_outputs(ctx, plan)


def store_scalar(ctx: Context, pointer: ir.Value, value: ir.Value, mask: ir.Value | None) -> None:
    pointee = pointer.type.pointee
    assert pointee is not None
    active = Lanes(ctx.scalar(mask)) if mask is not None else None
    memory.store(ctx, Lanes(ctx.scalar(pointer)), Lanes(ctx.scalar(value)), active, pointee.elem, 1)


def load_scalar(ctx: Context, op: ir.Op) -> ll.Value:
    pointee = op.operands[0].type.pointee
    assert pointee is not None
    args = [Lanes(ctx.scalar(o)) for o in op.operands]
    mask = args[1] if len(args) > 1 else None
    other = args[2] if len(args) > 2 else None
    return memory.load(ctx, args[0], mask, other, pointee.elem, 1).x


def each_element(
    ctx: Context, root: ir.Op, values: list[ir.Value], body: Callable[[Nest, Point], None]
) -> None:
    """Run `body` for every element in order, one at a time: for effects that have an order or a
    lock.
    """
    shape = values[0].type.shape
    prepare(ctx, root, values)
    nest = Nest(ctx, 1)
    plan = NestPlan(shape, max(len(shape) - 1, 0), 1, [])
    if not shape:
        nest.clear()
        body(nest, ())
        return
    over_points(ctx, plan, nest, lambda point: body(nest, point))


def element_zero(value: ir.Value) -> Point:
    return tuple(Index(i64(0)) for _ in value.type.shape)


def product_target(
    ctx: Context, op: ir.Op, c: ir.Value, lane_dim: int, read: list[ll.Value]
) -> Buffer:
    """Where a product that begins with C goes: the buffer of the loop variable that it becomes, if
    nothing needs what is in it, and it is none of those that are `read`.
    """
    wanted = ctx.destination.get(op.result)
    if wanted is not None and wanted.strides[lane_dim] == 1:
        in_place = schedule.reads_in_place(ctx, c, wanted)
        if in_place and wanted.memory not in read:
            return wanted
    return ctx.new_buffer(op.result.type.elem, op.result.type.shape, lane_dim)


def is_zero(value: ir.Value) -> bool:
    op = value.owner
    if op is not None and op.name == "tt.splat":
        op = op.operands[0].owner
    return op is not None and op.name == "arith.constant" and op.attrs["value"] == 0
