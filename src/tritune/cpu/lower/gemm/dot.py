"""Plans and writes matrix products: packed ones by a register-blocked micro-kernel, or skinny GEMM.

`C[m, n] += A[m, k] * B[k, n]` keeps `rows x vectors` of C in registers while k runs: each step
loads `vectors` vectors of one operand and broadcasts `rows` scalars of the other. The *vector
operand* must be contiguous along the lanes; the *scalar operand* may have any layout. Either can be
the vector operand: if it is A, the lanes run along m, and the product is *transposed*. `plan_dots`
chooses the one that needs no transposition inside a loop: for attention's first product that is the
query, which is packed once before the loop, while the keys are read as they lie.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tritune.cpu import ir
from tritune.cpu.lower.analysis.affine import AffineRanges
from tritune.cpu.lower.analysis.usage import Usage, walk
from tritune.cpu.lower.context import Buffer, Context
from tritune.cpu.lower.emit import nests, prefetch
from tritune.cpu.lower.emit.lazy_tensors import Assumptions
from tritune.cpu.lower.gemm.bf16_pairs import PAIR
from tritune.cpu.lower.gemm.microkernel import BufferScalars, MicroKernel, PointerScalars, Scalars
from tritune.cpu.lower.gemm.skinny import emit_skinny
from tritune.cpu.lower.gemm.skinny_operands import SkinnyGemm, fused, match_skinny
from tritune.cpu.lower.llvm import memory_bytes
from tritune.cpu.lower.schedule import nest as schedule

#: Cost of packing one element of an operand.
_COPY, _TRANSPOSE, _HOISTED = 1.0, 8.0, 0.05


@dataclass(frozen=True, eq=False)
class DotStrategy:
    """The way to write a product: as skinny GEMM, or with the lanes along m or n."""

    transposed: bool
    gemm: SkinnyGemm | None = None
    #: The skinny GEMM that comes next in the same block.
    next_skinny: SkinnyGemm | None = None
    #: Whether it is written together with the product that continues its sums.
    fused_into_next: bool = False


def plan_dots(
    usage: Usage, function: ir.Function, layout: dict[ir.Value, int]
) -> dict[ir.Op, DotStrategy]:
    """Return how every product is written, and set the layouts of its operands in buffers."""
    planned: dict[ir.Op, DotStrategy] = {}
    depth: dict[ir.Value, int] = {}
    _record_depths(function.body, 0, depth)
    for op in walk(function.body):
        if op.name != "tt.dot":
            continue
        a, b = op.operands[:2]
        m_dim, n_dim = a.type.rank - 2, a.type.rank - 1
        contiguous = {v: _contiguous_dim(usage, v, layout) for v in (a, b)}

        def place(
            value: ir.Value,
            lane_dim: int | None,
            level: int = depth[op.result],
            contiguous: dict[ir.Value, int | None] = contiguous,
        ) -> float:
            hoisted = _HOISTED if depth.get(value, 0) < level else 1.0
            good = lane_dim is None or contiguous[value] in (None, lane_dim)
            return hoisted * (_COPY if good else _TRANSPOSE) * value.type.numel

        lanes_n, lanes_m = place(b, n_dim) + place(a, None), place(a, m_dim) + place(b, None)
        m, n = op.result.type.shape[-2:]
        along_m = lanes_m < lanes_n if min(m, n) >= 4 else m > n
        gemm = match_skinny(op, (contiguous[a], contiguous[b]))
        planned[op] = DotStrategy(along_m, gemm)
        if gemm is not None:
            lane_dim = gemm.n_dim
            if gemm.inner:
                layout.setdefault(gemm.stationary, lane_dim)
        else:
            lane_dim = m_dim if along_m else n_dim
            layout.setdefault(a if along_m else b, lane_dim)
        layout[op.result] = lane_dim
        if op.operands[2].owner is None:
            layout.setdefault(op.operands[2], lane_dim)
    _link_skinny(usage, function.body, planned)
    return planned


def _link_skinny(usage: Usage, region: ir.Region, planned: dict[ir.Op, DotStrategy]) -> None:
    """Fuse skinny products that continue the sums of another, and link each to the next one."""
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


def _contiguous_dim(usage: Usage, value: ir.Value, layout: dict[ir.Value, int]) -> int | None:
    """Return the dimension along which a tensor is contiguous, if it is known."""
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
    if not op.name.startswith(("arith", "math", "tt.fp")):
        return None
    alike = [operand for operand in op.operands if operand.type.shape == value.type.shape]
    dims = (_contiguous_dim(usage, operand, layout) for operand in alike)
    return next((dim for dim in dims if dim is not None), None)


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
    a, b, c = op.operands[:3]
    lane_dim = a.type.rank - (2 if transposed else 1)
    vector_side, scalar_side = (a, b) if transposed else (b, a)
    packed = nests.materialise(ctx, vector_side, op, fastest=lane_dim, prefetched=True)
    if ctx.get(c) is None:
        nests.prepare(ctx, op, [c])
    target: Buffer | None = None

    def emit(scalars: Scalars) -> None:
        nonlocal target
        if target is None:
            read = [packed.memory, *scalars.memory]
            target = nests.product_target(ctx, op, c, lane_dim, read)
        MicroKernel(ctx, op, packed, scalars, target, transposed).run()

    def emit_buffered(prefetched: bool) -> None:
        held = nests.materialise(ctx, scalar_side, op, prefetched=prefetched)
        emit(BufferScalars(ctx, held, transposed))

    ranges = AffineRanges(ctx)
    scalars = _scalars_in_memory(ctx, scalar_side, transposed, ranges)
    if scalars is None:
        emit_buffered(prefetched=True)
    else:
        nodes = schedule.lazy_nodes(ctx, [scalar_side])

        def write(assumptions: Assumptions, conservative: bool) -> None:
            emit_buffered(prefetched=False) if conservative else emit(scalars)

        schedule.versioned(ctx, nodes, [], write, ranges)
    assert target is not None
    ctx.set(op.result, target)


def _scalars_in_memory(
    ctx: Context, scalar_side: ir.Value, transposed: bool, ranges: AffineRanges
) -> PointerScalars | None:
    """Return the scalar operand where it lies in memory, if its rows are contiguous there.

    Each of its cache lines is then used by one row of blocks only, so a copy would not pay. The
    vector operand is read by every row of blocks, and rows that lie a power of two apart would
    evict each other from the cache.
    """
    source = scalar_side
    if source.owner is not None and source.owner.name == PAIR and ctx.get(source) is None:
        # Pairs that are contiguous in memory are words already.
        source = source.owner.operands[0]
    load = source.owner
    if ctx.get(source) is not None or load is None or load.name != "tt.load":
        return None
    pointer, k_dim = load.operands[0], source.type.rank - (2 if transposed else 1)
    if ctx.conservative or ctx.usage.strides(pointer)[k_dim] != 1:
        return None
    form = ranges.form(pointer)
    if form is None or any(ranges.always_true(mask) is None for mask in load.operands[1:2]):
        return None
    stride = prefetch.stride(ctx, ctx.loop, pointer) if ctx.loop is not None else None
    align = memory_bytes(source.type.elem)
    return PointerScalars(ctx, scalar_side.type, form, transposed, stride, align)
