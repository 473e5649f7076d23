"""Writes the loop nests that store tensors, in buffers or in the kernel's memory."""

from __future__ import annotations

from collections.abc import Callable, Collection

from llvmlite import ir as ll

from tritune.cpu import ir
from tritune.cpu.lower.analysis.affine import AffineRanges
from tritune.cpu.lower.analysis.shapes import SHAPE_OPS, origin
from tritune.cpu.lower.context import Buffer, Context, Index, Point
from tritune.cpu.lower.emit import memory
from tritune.cpu.lower.emit.lanes import Lanes, to_vector, vector
from tritune.cpu.lower.emit.lazy_tensors import Assumptions, Nest
from tritune.cpu.lower.llvm import i64, pointee
from tritune.cpu.lower.schedule import nest as schedule
from tritune.cpu.lower.schedule.nest import NestPlan


def prepare(ctx: Context, root: ir.Op, values: list[ir.Value]) -> None:
    """Compute costly tensors that are broadcast in a nest into buffers first."""
    for value in reversed(schedule.lazy_nodes(ctx, values)):
        assert value.owner is not None
        if value.owner.name != "tt.broadcast" or ctx.get(value) is not None:
            continue
        source = origin(value.owner.operands[0], SHAPE_OPS, stop=ctx.get)
        lazy = ctx.get(source) is None and source.type.rank > 0
        if lazy and schedule.cost(ctx, source) >= schedule.COSTLY:
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
    """Plan a nest over `shape` that evaluates `values` for `root` and stores `side_outputs`."""
    prepare(ctx, root, values)
    if lane_dim is None:
        found = schedule.accesses(ctx, values, len(shape)) + (extra or [])
        lane_dim = schedule.best_lane_dim(ctx, shape, found)
    lanes = min(most_lanes or ctx.lanes(elem_bits), shape[lane_dim])
    plan = NestPlan(shape, lane_dim, lanes, schedule.lazy_nodes(ctx, values))
    if side_outputs is None:
        side_outputs = schedule.choose_side_outputs(ctx, root, values, shape, stored)
    for value in (v for v in side_outputs if ctx.get(v) is None):
        plan.side_outputs[value] = ctx.buffer_of(value, ctx.layout.get(value, lane_dim))
    return plan


def bind_side_outputs(ctx: Context, plan: NestPlan) -> None:
    """Read the side outputs from their buffers from now on."""
    for value, buffer in plan.side_outputs.items():
        ctx.set(value, buffer)


def store_side_outputs(nest: Nest, plan: NestPlan, point: Point) -> None:
    for value, buffer in plan.side_outputs.items():
        memory.store_buffer(nest.ctx, buffer, point, nest.at(value, point), nest.lanes)


def over_points(ctx: Context, plan: NestPlan, nest: Nest, body: Callable[[Point], None]) -> None:
    """Write the loops of an elementwise nest, the lanes innermost."""
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
    """Compute a lazy tensor into a buffer, from which it is read from now on.

    `most_lanes` is how many elements readers load at once: a load of several smaller stores would
    wait for them.
    """
    held = ctx.get(value)
    if isinstance(held, Buffer) and into is None and _is_contiguous(held, fastest):
        return held
    wanted = fastest if fastest is not None else ctx.layout.get(value)
    bits, lane_dim = ctx.lane_bits(value.type), None
    if into is None and wanted is not None:
        prepare(ctx, root, [value])
        lane_dim = schedule.read_along(ctx, value, wanted, ctx.lanes(bits))
    if wanted is not None and lane_dim != wanted:
        most_lanes = None
    extra = [schedule.Access(list(into.strides), 2.0)] if into is not None else []
    plan = plan_nest(
        ctx, root, [value], value.type.shape, lane_dim, extra, bits, value, most_lanes=most_lanes
    )
    along = plan.lane_dim if into is not None or wanted is None else wanted
    buffer = into or ctx.buffer_of(value, along)

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


def _is_contiguous(buffer: Buffer, dim: int | None) -> bool:
    return dim is None or buffer.strides[dim] == 1 or buffer.shape[dim] == 1


def _transpose(
    ctx: Context, plan: NestPlan, nest: Nest, value: ir.Value, buffer: Buffer, along: int
) -> None:
    """Fill a buffer that is contiguous along another dimension than the lanes: squares of vectors
    are read one way, transposed in registers and written the other way.
    """
    lanes = plan.lanes
    others = [d for d in range(len(plan.shape)) if d not in (along, plan.lane_dim)]
    order = [*others, along, plan.lane_dim]
    ranges = [(plan.shape[d], 1 if d in others else lanes, f"d{d}") for d in order]
    with ctx.e.loops(*ranges) as indices:
        nest.clear()
        corner = dict(zip(order, indices, strict=True))

        def moved(dim: int, by: int) -> dict[int, ll.Value]:
            return {**corner, dim: ctx.b.add(corner[dim], i64(by), flags=("nuw", "nsw"))}

        rows = []
        for number in range(lanes):
            point = plan.point(moved(along, number))
            rows.append(to_vector(ctx.e, nest.at(value, point), lanes))
            store_side_outputs(nest, plan, point)
        for number, column in enumerate(ctx.e.interleave(rows)):
            at = moved(plan.lane_dim, number)
            point = tuple(Index(at[d], d == along) for d in range(len(plan.shape)))
            memory.store_buffer(ctx, buffer, point, vector(column), lanes)


def materialise_pending_loads(ctx: Context, op: ir.Op, kept: Collection[ir.Value] = ()) -> None:
    """Before memory changes, evaluate the lazy loads that something still needs afterwards, other
    than through what is kept.
    """
    for value in ctx.pending_loads():
        if value not in kept and schedule.needed_after(ctx, value, op, set(kept)):
            materialise(ctx, value, op)


def emit_store(ctx: Context, op: ir.Op) -> None:
    pointer, value = op.operands[:2]
    mask = op.operands[2] if len(op.operands) > 2 else None
    element = pointee(pointer)
    if pointer.type.rank == 0:
        materialise_pending_loads(ctx, op)
        address, written, *masks = (Lanes(ctx.scalar(o)) for o in op.operands)
        memory.store(ctx, address, written, masks[0] if masks else None, element.elem, 1)
        return
    shape, roots = pointer.type.shape, list(op.operands)
    # Loads behind side outputs need no evaluation beforehand: this nest reads them, and as safely
    # as what it stores.
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
        safe = ranges.no_hazard(read.owner.operands[0], pointer, read not in moved)
        if safe is None:
            materialise(ctx, read, op)
        else:
            conditions.append(safe)
    extra = [schedule.Access(list(ctx.usage.strides(pointer)), 2.0)]
    bits = ctx.lane_bits(element)
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
            memory.store(ctx, address, written, active, element.elem, plan.lanes, nontemporal)
            store_side_outputs(nest, plan, point)

        over_points(ctx, plan, nest, body)

    schedule.versioned(ctx, plan.nodes, list(op.operands[2:]), emit, ranges, conditions)
    bind_side_outputs(ctx, plan)


def load_scalar(ctx: Context, op: ir.Op) -> ll.Value:
    address, *rest = (Lanes(ctx.scalar(o)) for o in op.operands)
    mask, other = [*rest, None, None][:2]
    return memory.load(ctx, address, mask, other, pointee(op.operands[0]).elem, 1).x


def each_element(
    ctx: Context, root: ir.Op, values: list[ir.Value], body: Callable[[Nest, Point], None]
) -> None:
    """Run `body` for every element, one at a time and in order, for effects."""
    shape = values[0].type.shape
    prepare(ctx, root, values)
    nest = Nest(ctx, 1)
    if not shape:
        body(nest, ())
        return
    plan = NestPlan(shape, len(shape) - 1, 1, [])
    over_points(ctx, plan, nest, lambda point: body(nest, point))


def product_target(
    ctx: Context, op: ir.Op, c: ir.Value, lane_dim: int, read: list[ll.Value]
) -> Buffer:
    """Return the buffer of a product's result: that of the loop variable it becomes, unless that is
    in `read` or something else needs it.
    """
    wanted = ctx.destination.get(op.result)
    fits = wanted is not None and wanted.strides[lane_dim] == 1 and wanted.memory not in read
    if wanted is not None and fits and schedule.reads_in_place(ctx, c, wanted):
        return wanted
    return ctx.buffer_of(op.result, lane_dim)


def is_zero(value: ir.Value) -> bool:
    op = origin(value, ("tt.splat",)).owner
    return op is not None and op.name == "arith.constant" and op.attrs["value"] == 0
