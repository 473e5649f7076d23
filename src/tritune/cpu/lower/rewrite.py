"""Rewrites the IR before lowering, into forms that lower to better code."""

from __future__ import annotations

from tritune.cpu import ir
from tritune.cpu.lower.analysis.shapes import origin
from tritune.cpu.lower.analysis.usage import combined_by, walk
from tritune.cpu.lower.gemm import bf16_pairs as pairs
from tritune.cpu.lower.gemm.microkernel import compute_elem
from tritune.cpu.lower.gemm.skinny_operands import MAX_SKINNY_ROWS


def rewrite(function: ir.Function, fuse: bool, paired: bool) -> None:
    """Rewrite a function; `fuse` allows fused multiply-add, `paired` products of bf16 pairs."""
    for op in list(walk(function.body)):
        if op.name == "tt.dot":
            if paired and _pairing_pays(op):
                pair_dot_operands(function, op)
            else:
                widen_dot_operands(function, op)
        elif op.name == "tt.scan":
            widen_scan(function, op)
    split_inductions(function.body, function)
    if fuse:
        for op in walk(function.body):
            if op.name in ("arith.addf", "arith.subf", "arith.mulf"):
                op.attrs["contract"] = True


def widen_dot_operands(function: ir.Function, dot: ir.Op) -> None:
    """Convert narrow operands of a product where they are defined; if that is before a loop, they
    are converted once.
    """
    for number, value in enumerate(dot.operands[:2]):
        target = compute_elem(value.type.elem)
        if target != value.type.elem:
            name = "arith.extsi" if target == "i32" else "tt.fp_to_fp"
            kind = ir.Type(target, value.type.shape)
            dot.operands[number] = _converted(function, value, name, kind, dot.loc)


def widen_scan(function: ir.Function, scan: ir.Op) -> None:
    """Scan sums and products of bf16 in f32, and round each result.

    A scan on a GPU is a tree, in which a number is rounded a few times. This one goes from element
    to element, and the rounding errors of thousands would add up.
    """
    inner = combined_by(scan)
    if inner is None or inner.name not in ("arith.addf", "arith.mulf"):
        return
    if scan.operands[0].type.elem != "bf16":
        return
    kind = ir.Type("f32", scan.result.type.shape)
    wide = _converted(function, scan.operands[0], "arith.extf", kind, scan.loc)
    for value in [*inner.operands, inner.result]:
        value.type = kind.scalar
    scan.operands = [wide]
    narrow = _make("arith.truncf", [scan.result], scan.result.type, scan.loc)
    block, position = _definition(function, scan.result)
    block.ops.insert(position, narrow)
    for reached in function.body.blocks:
        _substitute(reached.ops, scan.result, narrow.result, skip={narrow})
    scan.result.type = kind


def _pairing_pays(dot: ir.Op) -> bool:
    """Return whether a product should be one of words; skinny ones stream their operand as f32."""
    a, b = dot.operands[:2]
    m, n = dot.result.type.shape[-2:]
    narrow = a.type.elem == b.type.elem == "bf16" and dot.result.type.elem == "f32"
    return narrow and a.type.shape[-1] % 2 == 0 and min(m, n) > MAX_SKINNY_ROWS


def pair_dot_operands(function: ir.Function, dot: ir.Op) -> None:
    """Join the operands of a product into words, where they are defined."""
    for number, value in enumerate(dot.operands[:2]):
        shape = list(value.type.shape)
        axis = len(shape) - (2 if number else 1)
        shape[axis] //= 2
        kind = ir.Type("i32", tuple(shape))
        dot.operands[number] = _converted(function, value, pairs.PAIR, kind, dot.loc, axis=axis)
    dot.attrs["paired"] = True


def _converted(
    function: ir.Function, value: ir.Value, name: str, kind: ir.Type, loc: ir.Loc, **attrs: object
) -> ir.Value:
    """Return an operation's result on a value; it is inserted once, right after the definition."""
    block, position = _definition(function, value)
    for known in block.ops[position:]:
        alike = known.name == name and known.operands == [value] and known.attrs == attrs
        if alike and known.result.type == kind:
            return known.result
    op = _make(name, [value], kind, loc, **attrs)
    block.ops.insert(position, op)
    return op.result


def _definition(function: ir.Function, value: ir.Value) -> tuple[ir.Block, int]:
    """Return the block of a value's definition, and the first position after it."""
    inner = [region for op in walk(function.body) for region in op.regions]
    for block in (block for region in [function.body, *inner] for block in region.blocks):
        if value.owner is None and value in block.args:
            return block, 0
        if value.owner in block.ops:
            return block, block.ops.index(value.owner) + 1
    raise AssertionError(f"{value} is not defined in {function.name}")


def _make(
    name: str, operands: list[ir.Value], result: ir.Type, loc: ir.Loc, **attrs: object
) -> ir.Op:
    op = ir.Op(name, operands, attrs=dict(attrs), loc=loc)
    op.results = [ir.Value(result, f"{operands[0].name if operands else 'c'}.x", op)]
    return op


def split_inductions(region: ir.Region, function: ir.Function) -> None:
    """Replace tensors that a loop increments by their initial value plus a scalar induction
    variable.

    `ptrs += BLOCK * stride` would otherwise carry a whole tensor of addresses through the loop, and
    its strides would be unknown.
    """
    for block in region.blocks:
        for op in list(block.ops):
            for inner in op.regions:
                split_inductions(inner, function)
            for index in reversed(range(len(op.results) if op.name == "scf.for" else 0)):
                body = op.regions[0].blocks[0]
                kind = body.args[1 + index].type
                if kind.rank and (kind.is_int or kind.is_ptr) and kind.elem != "i1":
                    offsets = _offsets(op, body, index)
                    if offsets:
                        _carry_scalars(function, block, op, index, offsets)


def _offsets(loop: ir.Op, body: ir.Block, index: int) -> list[ir.Value] | None:
    """Return what an iteration adds to a loop variable, or None if it does anything else."""
    arg, value = body.args[1 + index], body.ops[-1].operands[index]
    inside = {v for op in walk(loop.regions[0]) for v in op.results} | set(body.args)
    found = []
    while value is not arg:
        op = value.owner
        if op is None or op not in body.ops or op.name not in ("tt.addptr", "arith.addi"):
            return None
        base, offset = op.operands
        if op.name == "arith.addi" and offset is arg:
            base, offset = offset, base
        if offset in inside and _uniform(offset) is None:
            return None
        found.append(offset)
        value = base
    return found


def _uniform(value: ir.Value) -> ir.Value | None:
    """Return the scalar of a splat; None for other tensors."""
    op = origin(value, ("tt.broadcast", "tt.expand_dims", "tt.reshape")).owner
    return op.operands[0] if op is not None and op.name == "tt.splat" else None


def _carry_scalars(
    function: ir.Function, block: ir.Block, loop: ir.Op, index: int, offsets: list[ir.Value]
) -> None:
    """Carry the sum of each offset so far through the loop, instead of the tensor."""
    body = loop.regions[0].blocks[0]
    arg, init, result = body.args[1 + index], loop.operands[3 + index], loop.results[index]
    scalar = ir.Type("i64" if arg.type.is_ptr else arg.type.elem)
    before: list[ir.Op] = []
    prologue: list[ir.Op] = []
    epilogue: list[ir.Op] = []
    after: list[ir.Op] = []
    inside = outside = init
    totals, following, outcomes = [], [], []
    for offset in offsets:
        before.append(_make("arith.constant", [], scalar, loop.loc, value=0))
        totals.append(ir.Value(scalar, f"{arg.name}.sum"))
        outcomes.append(ir.Value(scalar, f"{result.name}.sum", loop))
        step, factor = _step(offset, scalar, epilogue)
        epilogue.append(_make("arith.addi", [totals[-1], step], scalar, loop.loc))
        following.append(epilogue[-1].result)
        inside = _advanced(prologue, inside, totals[-1], factor, loop.loc)
        outside = _advanced(after, outside, outcomes[-1], factor, loop.loc)
    body.ops[:] = [*prologue, *body.ops[:-1], *epilogue, body.ops[-1]]
    loop.operands[3 + index : 4 + index] = [op.result for op in before]
    body.args[1 + index : 2 + index] = totals
    body.ops[-1].operands[index : index + 1] = following
    loop.results[index : index + 1] = outcomes
    position = block.ops.index(loop)
    block.ops[position : position + 1] = [*before, loop, *after]
    _substitute(body.ops, arg, inside, skip=set(prologue))
    for reached in function.body.blocks:
        _substitute(reached.ops, result, outside, skip=set(after))


def _step(offset: ir.Value, scalar: ir.Type, ops: list[ir.Op]) -> tuple[ir.Value, ir.Value | None]:
    """Return the scalar added in an iteration, and its factor if the offset is not uniform."""
    loc = offset.owner.loc if offset.owner is not None else ir.Loc()
    shared, factor = _uniform(offset), None
    if shared is None:
        known = offset.owner.attrs.get("value") if offset.owner is not None else None
        if not isinstance(known, int) or isinstance(known, list):
            known, factor = 1, offset
        ops.append(_make("arith.constant", [], scalar, loc, value=known))
        return ops[-1].result, factor
    if shared.type.elem != scalar.elem:
        ops.append(_make("arith.extsi", [shared], scalar, loc))
        shared = ops[-1].result
    return shared, None


def _advanced(
    ops: list[ir.Op], start: ir.Value, count: ir.Value, factor: ir.Value | None, loc: ir.Loc
) -> ir.Value:
    """Return `start` plus the scalar `count` (times `factor`) in every element."""
    kind = count.type.with_shape(start.type.shape)
    ops.append(_make("tt.splat", [count], kind, loc))
    if factor is not None:
        spread = ops[-1].result
        if factor.type.elem != kind.elem:
            ops.append(_make("arith.extsi", [factor], kind, loc))
            factor = ops[-1].result
        ops.append(_make("arith.muli", [factor, spread], kind, loc))
    join = "tt.addptr" if start.type.is_ptr else "arith.addi"
    ops.append(_make(join, [start, ops[-1].result], start.type, loc))
    return ops[-1].result


def _substitute(ops: list[ir.Op], old: ir.Value, new: ir.Value, skip: set[ir.Op]) -> None:
    for op in ops:
        if op in skip:
            continue
        op.operands = [new if v is old else v for v in op.operands]
        op.successors = [
            (b, [new if v is old else v for v in values]) for b, values in op.successors
        ]
        for region in op.regions:
            for block in region.blocks:
                _substitute(block.ops, old, new, skip)
