"""Changes to the IR before lowering, each of which gives the lazy evaluation something better to work on."""

from __future__ import annotations

from .. import ir
from .dot import compute_elem
from .usage import walk


def rewrite(function: ir.Function, fuse: bool) -> None:
    widen_dot_operands(function)
    split_inductions(function.body, function)
    if fuse:
        for op in walk(function.body):
            if op.name in ("arith.addf", "arith.subf", "arith.mulf"):
                op.attrs["contract"] = True


def widen_dot_operands(function: ir.Function) -> None:
    """Convert narrow operands of products where they are defined, so that what a loop does not change is converted
    once before the loop."""
    for region in _regions(function.body):
        for block in region.blocks:
            for op in list(block.ops):
                if op.name == "tt.dot":
                    op.operands[:2] = [_widened(function, o, op.loc) for o in op.operands[:2]]


def _widened(function: ir.Function, value: ir.Value, loc: ir.Loc) -> ir.Value:
    target = compute_elem(value.type.elem)
    if target == value.type.elem:
        return value
    block, position = _definition(function, value)
    name = "arith.extsi" if target == "i32" else "tt.fp_to_fp"
    for known in block.ops[position:]:
        if known.name == name and known.operands == [value] and known.result.type.elem == target:
            return known.result
    op = _make(name, [value], ir.Type(target, value.type.shape), loc)
    block.ops.insert(position, op)
    return op.result


def _definition(function: ir.Function, value: ir.Value) -> tuple[ir.Block, int]:
    """The block a value is defined in, and the first position after its definition."""
    for region in _regions(function.body):
        for block in region.blocks:
            if value.owner is None and value in block.args:
                return block, 0
            if value.owner in block.ops:
                return block, block.ops.index(value.owner) + 1
    raise AssertionError(f"{value} is not defined in {function.name}")


def _regions(region: ir.Region) -> list[ir.Region]:
    found = [region]
    for block in region.blocks:
        for op in block.ops:
            for inner in op.regions:
                found.extend(_regions(inner))
    return found


def _make(
    name: str, operands: list[ir.Value], result: ir.Type, loc: ir.Loc, **attrs: object
) -> ir.Op:
    op = ir.Op(name, operands, attrs=dict(attrs), loc=loc)
    op.results = [ir.Value(result, f"{operands[0].name if operands else 'c'}.x", op)]
    return op


def split_inductions(region: ir.Region, function: ir.Function) -> None:
    """Turn tensors that a loop advances by a fixed amount into their start plus a scalar that the loop advances.

    `ptrs += BLOCK * stride` would otherwise carry a whole tensor of addresses through the loop, and nothing would be
    known about where they point.
    """
    for block in region.blocks:
        for op in list(block.ops):
            for inner in op.regions:
                split_inductions(inner, function)
            if op.name == "scf.for":
                for index in reversed(range(len(op.results))):
                    _split(function, block, op, index)


def _split(function: ir.Function, block: ir.Block, loop: ir.Op, index: int) -> None:
    body = loop.regions[0].blocks[0]
    arg, init, result = body.args[1 + index], loop.operands[3 + index], loop.results[index]
    if arg.type.rank == 0 or not (arg.type.is_int or arg.type.is_ptr) or arg.type.elem == "i1":
        return
    terminator = body.ops[-1]
    inside = {v for op in walk(loop.regions[0]) for v in op.results} | set(body.args)
    offsets: list[ir.Value] = []
    value = terminator.operands[index]
    while value is not arg:
        op = value.owner
        if op is None or op not in body.ops or op.name not in ("tt.addptr", "arith.addi"):
            return
        base, offset = op.operands
        if op.name == "arith.addi" and not _leads_to(base, arg, body):
            base, offset = offset, base
        if offset in inside and _uniform(offset) is None:
            return
        offsets.append(offset)
        value = base
    if not offsets:
        return
    _replace(function, block, loop, index, body, arg, init, result, offsets, inside)


def _leads_to(value: ir.Value, arg: ir.Value, body: ir.Block) -> bool:
    while value is not arg:
        op = value.owner
        if op is None or op not in body.ops or op.name not in ("tt.addptr", "arith.addi"):
            return False
        value = op.operands[0]
    return True


def _uniform(value: ir.Value) -> ir.Value | None:
    """The scalar that a tensor repeats, if it is a splat."""
    op = value.owner
    while op is not None and op.name in ("tt.broadcast", "tt.expand_dims", "tt.reshape"):
        op = op.operands[0].owner
    if op is not None and op.name == "tt.splat":
        return op.operands[0]
    return None


def _replace(
    function: ir.Function,
    block: ir.Block, loop: ir.Op, index: int, body: ir.Block, arg: ir.Value, init: ir.Value, result: ir.Value,
    offsets: list[ir.Value], inside: set[ir.Value],
) -> None:  # fmt: skip
    """Carry, for every offset, how much of it has been added so far (a scalar), instead of the tensor."""
    loc = loop.loc
    elem = "i64" if arg.type.is_ptr else arg.type.elem
    position = block.ops.index(loop)
    before: list[ir.Op] = []
    prologue: list[ir.Op] = []
    epilogue: list[ir.Op] = []
    after: list[ir.Op] = []
    advanced, final = init, init
    new_inits, new_args, new_yields, new_results = [], [], [], []
    join = "tt.addptr" if arg.type.is_ptr else "arith.addi"
    for offset in offsets:
        scalar = _uniform(offset)
        shared = scalar if scalar is not None else None
        number = (
            offset.owner.attrs["value"]
            if offset.owner is not None and offset.owner.name == "arith.constant"
            else None
        )
        zero = _make("arith.constant", [], ir.Type(elem), loc, value=0)
        before.append(zero)
        total = ir.Value(ir.Type(elem), f"{arg.name}.sum")
        if shared is not None:
            step = shared
            if step.type.elem != elem:
                wide = _make("arith.extsi", [step], ir.Type(elem), loc)
                epilogue.append(wide)
                step = wide.result
        else:
            one = _make(
                "arith.constant",
                [],
                ir.Type(elem),
                loc,
                value=number if isinstance(number, int) else 1,
            )
            epilogue.append(one)
            step = one.result
        summed = _make("arith.addi", [total, step], ir.Type(elem), loc)
        epilogue.append(summed)
        outcome = ir.Value(ir.Type(elem), f"{result.name}.sum")
        per_tensor = shared is None and not isinstance(number, int)
        for ops, start, count in ((prologue, advanced, total), (after, final, outcome)):
            spread = _make("tt.splat", [count], ir.Type(elem, arg.type.shape), loc)
            ops.append(spread)
            moved = spread.result
            if per_tensor:
                wide_offset = offset
                if offset.type.elem != elem:
                    wide = _make("arith.extsi", [offset], ir.Type(elem, arg.type.shape), loc)
                    ops.append(wide)
                    wide_offset = wide.result
                scaled = _make(
                    "arith.muli", [wide_offset, spread.result], ir.Type(elem, arg.type.shape), loc
                )
                ops.append(scaled)
                moved = scaled.result
            joined = _make(join, [start, moved], arg.type, loc)
            ops.append(joined)
            if ops is prologue:
                advanced = joined.result
            else:
                final = joined.result
        new_inits.append(zero.result)
        new_args.append(total)
        new_yields.append(summed.result)
        new_results.append(outcome)
    for value in new_results:
        value.owner = loop
    body.ops[-1:-1] = epilogue
    body.ops[:0] = prologue
    loop.operands[3 + index : 4 + index] = new_inits
    body.args[1 + index : 2 + index] = new_args
    body.ops[-1].operands[index : index + 1] = new_yields
    loop.results[index : index + 1] = new_results
    block.ops[position + 1 : position + 1] = after
    block.ops[position:position] = before
    _substitute(body.ops, arg, advanced, skip=set(prologue))
    for reached in function.body.blocks:
        _substitute(reached.ops, result, final, skip=set(after))


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
