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

from collections.abc import Callable
from dataclasses import dataclass, replace

from llvmlite import ir as ll

from tritune.cpu import ir
from tritune.cpu.lower.analysis.affine import AffineRanges
from tritune.cpu.lower.analysis.usage import Usage, walk
from tritune.cpu.lower.context import Buffer, Context
from tritune.cpu.lower.emit import nests, prefetch
from tritune.cpu.lower.emit.evaluate import Assumptions
from tritune.cpu.lower.gemm.bf16_pairs import PAIR
from tritune.cpu.lower.gemm.microkernel import BufferScalars, MicroKernel, PointerScalars, Scalars
from tritune.cpu.lower.gemm.skinny import emit_skinny
from tritune.cpu.lower.gemm.skinny_operands import SkinnyGemm, fused, match_skinny
from tritune.cpu.lower.llvm import memory_bytes
from tritune.cpu.lower.schedule import nest as schedule

#: Cost of bringing one element of an operand into place.
_COPY, _TRANSPOSE, _HOISTED = 1.0, 8.0, 0.05


@dataclass(frozen=True, eq=False)
class DotStrategy:
    """How a product is written: as a gemm one, or with the lanes along m or n."""

    transposed: bool
    gemm: SkinnyGemm | None = None
    #: The gemm product that comes next in the same block.
    next_skinny: SkinnyGemm | None = None
    #: Whether it is written with the product that goes on with its sums.
    fused_into_next: bool = False


def plan_dots(
    usage: Usage, function: ir.Function, layout: dict[ir.Value, int]
) -> dict[ir.Op, DotStrategy]:
    """How every product is written, and the layouts its operands should have in buffers."""
    planned: dict[ir.Op, DotStrategy] = {}
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
        lie = (_contiguous_dim(usage, a, layout), _contiguous_dim(usage, b, layout))
        gemm = match_skinny(op, lie)
        planned[op] = DotStrategy(along_m, gemm)
        if gemm is not None:
            layout[op.result] = gemm.n_dim
            if gemm.inner:
                layout.setdefault(gemm.stationary, gemm.n_dim)
            if op.operands[2].owner is None:
                layout.setdefault(op.operands[2], gemm.n_dim)
            continue
        lane_dim = rank - 2 if along_m else rank - 1
        layout[op.result] = lane_dim
        chosen = a if along_m else b
        layout.setdefault(chosen, lane_dim)
        if op.operands[2].owner is None:
            layout.setdefault(op.operands[2], lane_dim)
    _link_skinny(usage, function.body, planned)
    return planned


def _link_skinny(usage: Usage, region: ir.Region, planned: dict[ir.Op, DotStrategy]) -> None:
    """Join gemm products that go on with the sums of another, and tell each which one follows it in
    its block.
    """
    for block in region.blocks:
        last: SkinnyGemm | None = None
        for op in block.ops:
            for inner in op.regions:
                _link_skinny(usage, inner, planned)
            if op.regions or usage.writes(op):
                last = None
            elif op in planned:
                gemm = planned[op].gemm
                if gemm is not None and last is not None and len(usage.users[last.op.result]) == 1:
                    together = fused(last, gemm)
                    if together is not None:
                        planned[last.op] = replace(planned[last.op], fused_into_next=True)
                        planned[op] = replace(planned[op], gemm=together)
                last = planned[op].gemm
        next_skinny = None
        for op in reversed(block.ops):
            if op in planned and not planned[op].fused_into_next:
                planned[op] = replace(planned[op], next_skinny=next_skinny)
                next_skinny = planned[op].gemm


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
        steps = usage.strides(op.operands[0])
        return steps.index(1) if 1 in steps else None
    if op.name == PAIR:
        return _contiguous_dim(usage, op.operands[0], layout)
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


def emit_dot(ctx: Context, op: ir.Op, product: DotStrategy) -> None:
    if product.fused_into_next:
        return
    gemm = product.gemm
    if gemm is not None:
        if emit_skinny(ctx, gemm, product.next_skinny):
            return
        for part in gemm.before:
            _emit_packed(ctx, part.op, product.transposed)
    _emit_packed(ctx, op, product.transposed)


def _emit_packed(ctx: Context, op: ir.Op, transposed: bool) -> None:
    a, b = op.operands[:2]
    lane_dim = a.type.rank - (2 if transposed else 1)
    vector_side, scalar_side = (a, b) if transposed else (b, a)
    packed = nests.materialise(ctx, vector_side, op, fastest=lane_dim, prefetched=True)
    if ctx.get(op.operands[2]) is None:
        nests.prepare(ctx, op, [op.operands[2]])
    target: list[Buffer] = []

    def emit(scalars: Scalars, memories: list[ll.Value]) -> None:
        if not target:
            read = [packed.memory, *memories]
            target.append(nests.product_target(ctx, op, op.operands[2], lane_dim, read))
        MicroKernel(ctx, op, packed, scalars, target[0], transposed).run()

    if not _emit_unpacked(ctx, op, scalar_side, transposed, emit):
        held = nests.materialise(ctx, scalar_side, op, prefetched=True)
        emit(BufferScalars(ctx, held, transposed), [held.memory])
    ctx.set(op.result, target[0])


def _emit_unpacked(
    ctx: Context,
    op: ir.Op,
    scalar_side: ir.Value,
    transposed: bool,
    emit: Callable[[Scalars, list[ll.Value]], None],
) -> bool:
    """Read the scalar operand where it lies in memory, if its rows are contiguous there.

    Each of its cache lines is then used up by one row of blocks, so a copy would only cost time.
    The vector operand has no such luck: its lines are visited over and over, and rows that lie a
    power of two apart would push each other out of the cache.
    """
    source = scalar_side
    if source.owner is not None and source.owner.name == PAIR and ctx.get(source) is None:
        # Words that lie in memory as they are wanted.
        source = source.owner.operands[0]
    load = source.owner
    rank = source.type.rank
    k_dim = rank - 2 if transposed else rank - 1
    if ctx.get(source) is not None or load is None or load.name != "tt.load":
        return False
    pointer = load.operands[0]
    if ctx.conservative or ctx.usage.strides(pointer)[k_dim] != 1:
        return False
    mask = load.operands[1] if len(load.operands) > 1 else None
    ranges = AffineRanges(ctx)
    form = ranges.form(pointer)
    if form is None or (mask is not None and ranges.always_true(mask) is None):
        return False
    ahead = prefetch.stride(ctx, ctx.loop, pointer) if ctx.loop is not None else None

    def write(assumptions: Assumptions, conservative: bool) -> None:
        if conservative:
            held = nests.materialise(ctx, scalar_side, op)
            emit(BufferScalars(ctx, held, transposed), [held.memory])
        else:
            align = memory_bytes(source.type.elem)
            emit(PointerScalars(ctx, scalar_side.type, form, transposed, ahead, align), [])

    nodes = schedule.lazy_nodes(ctx, [scalar_side])
    schedule.versioned(ctx, nodes, [], write, ranges)
    return True
