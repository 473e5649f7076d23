"""Writes what runs one element at a time: atomics, prints, assertions, histograms, gathers."""

from __future__ import annotations

from contextlib import nullcontext

from llvmlite import ir as ll

from tritune.cpu import ir
from tritune.cpu.lower.context import ZERO, Context, Index, Point
from tritune.cpu.lower.emit import memory, nests
from tritune.cpu.lower.emit.convert import narrow, widen
from tritune.cpu.lower.emit.elementwise import float_extreme
from tritune.cpu.lower.emit.lanes import Lanes
from tritune.cpu.lower.emit.lazy_tensors import Nest
from tritune.cpu.lower.llvm import (
    DOUBLE,
    I1,
    I8,
    I32,
    I64,
    PTR,
    constant,
    declare,
    global_constant,
    i64,
    pointee,
    scalar_type,
)
from tritune.cpu.lower.schedule import nest as schedule
from tritune.errors import CompileError


def emit_atomic(ctx: Context, op: ir.Op) -> None:
    """Write `tt.atomic_rmw(pointer, value, mask)` or `tt.atomic_cas(pointer, compare, value)`."""
    result = op.result
    elem = pointee(op.operands[0]).elem
    old = ctx.buffer_of(result)
    mask = op.operands[2] if op.name == "tt.atomic_rmw" and len(op.operands) > 2 else None

    # Every element is read before the first one is changed.
    for read in schedule.loads_in(schedule.lazy_nodes(ctx, list(op.operands))):
        nests.materialise(ctx, read, op)

    def body(nest: Nest, point: Point) -> None:
        address = ctx.e.address(nest.at(op.operands[0], point).x)
        args = [nest.at(o, point).x for o in op.operands[1:]]
        active = nest.mask_at(mask, point) if mask is not None else None
        with nullcontext() if active is None else ctx.b.if_then(active.x):
            before = _atomic(ctx, op, address, args, elem)
            memory.store_buffer(ctx, old, point or (ZERO,), Lanes(before), 1)

    nests.each_element(ctx, op, list(op.operands), body)
    ctx.set(result, old if result.type.rank else memory.load_first(ctx, old))


def _atomic(
    ctx: Context, op: ir.Op, address: ll.Value, args: list[ll.Value], elem: str
) -> ll.Value:
    b = ctx.b
    ordering = str(op.attrs.get("sem", "acq_rel"))
    if ordering not in ("acquire", "release"):
        ordering = "monotonic" if ordering == "relaxed" else "acq_rel"
    if op.name == "tt.atomic_cas":
        return _compare_and_swap(ctx, address, args, elem)
    kind = op.attrs["op"]
    if kind == "fadd" and elem in ("f16", "bf16"):
        return _update_loop(ctx, address, args[0], elem, kind)
    if kind == "exch" and elem in ("f16", "f32", "f64"):
        raw = ll.IntType(ir.BITS[elem])
        swapped = b.atomic_rmw("xchg", address, b.bitcast(args[0], raw), ordering)
        return b.bitcast(swapped, scalar_type(elem))
    if kind in ("max", "min") and elem in ("f16", "bf16", "f32", "f64"):
        return _update_loop(ctx, address, args[0], elem, kind)
    return b.atomic_rmw({"exch": "xchg"}.get(kind, kind), address, args[0], ordering)


def _compare_and_swap(ctx: Context, address: ll.Value, args: list[ll.Value], elem: str) -> ll.Value:
    """Compare and swap; floats are compared by their bits, as on a GPU."""
    b = ctx.b
    kind = scalar_type(elem)
    raw = ll.IntType(ir.BITS[elem]) if not isinstance(kind, ll.IntType) else kind
    expected, value = (a if a.type == raw else b.bitcast(a, raw) for a in args)
    pair = b.cmpxchg(address, expected, value, "seq_cst", "seq_cst")
    found = b.extract_value(pair, 0)
    return found if kind == raw else b.bitcast(found, kind)


def _update_loop(
    ctx: Context, address: ll.Value, value: ll.Value, elem: str, kind: str
) -> ll.Value:
    """Update atomically without an instruction for it: compute, then compare and swap."""
    e, b = ctx.e, ctx.b
    raw = ll.IntType(ir.BITS[elem])
    first = b.load(address, typ=raw, align=raw.width // 8)
    before = b.block
    head = b.append_basic_block("retry")
    b.branch(head)
    b.position_at_end(head)
    seen = b.phi(raw)
    seen.add_incoming(first, before)
    held = seen if scalar_type(elem) == raw else b.bitcast(seen, scalar_type(elem))
    x, y = widen(e, held, elem), widen(e, value, elem)
    updated = b.fadd(x, y) if kind == "fadd" else float_extreme(e, f"{kind}num", x, y)
    written = narrow(e, updated, elem)
    written = written if written.type == raw else b.bitcast(written, raw)
    pair = b.cmpxchg(address, seen, written, "seq_cst", "seq_cst")
    seen.add_incoming(b.extract_value(pair, 0), b.block)
    done = b.append_basic_block("done")
    b.cbranch(b.extract_value(pair, 1), done, head)
    b.position_at_end(done)
    return held


def string_constant(module: ll.Module, words: str) -> ll.Value:
    """Return a zero-terminated string in the object's constants."""
    return global_constant(module, "text", I8, bytearray(words.encode() + b"\0"))


def emit_print(ctx: Context, op: ir.Op) -> None:
    """Print one line per element, in the form Triton prints on a GPU."""
    prefix, hexadecimal = op.attrs.get("prefix", ""), op.attrs.get("hex", False)
    signed = op.attrs.get("isSigned") or [1] * len(op.operands)
    module = ctx.kernel.module
    printf = declare(module, "printf", ll.FunctionType(I32, [PTR], var_arg=True))
    if not op.operands:
        words = string_constant(module, f"pid (%d, %d, %d){prefix}\n")
        ctx.b.call(printf, [words, *ctx.program.ids])
    for number, operand in enumerate(op.operands):
        label = prefix if len(op.operands) == 1 else f"{prefix}(operand {number}) "

        def body(
            nest: Nest,
            point: Point,
            operand: ir.Value = operand,
            label: str = label,
            number: int = number,
        ) -> None:
            value, kind = nest.at(operand, point).x, operand.type.elem
            form, shown = _printable(ctx, value, kind, hexadecimal, bool(signed[number]))
            # As wide as the last index of each dimension, as Triton has it.
            where = ", ".join(f"%{len(str(n - 1))}lld" for n in operand.type.shape)
            words = string_constant(module, f"pid (%d, %d, %d) idx ({where}){label}{form}\n")
            ctx.b.call(printf, [words, *ctx.program.ids, *[p.at for p in point], shown])

        nests.each_element(ctx, op, [operand], body)


def _printable(
    ctx: Context, x: ll.Value, elem: str, hexadecimal: bool, signed: bool
) -> tuple[str, ll.Value]:
    b = ctx.b
    if elem == "ptr":
        return "0x%016llx", x
    if elem[0] in "fb":
        if hexadecimal:
            raw = x if isinstance(x.type, ll.IntType) else b.bitcast(x, ll.IntType(ir.BITS[elem]))
            return f"0x%0{ir.BITS[elem] // 4}llx", b.zext(raw, I64) if raw.type.width < 64 else raw
        wide = widen(ctx.e, x, elem)
        return "%f", wide if wide.type == DOUBLE else b.fpext(wide, DOUBLE)
    if hexadecimal:
        return f"0x%0{max(1, ir.BITS[elem] // 4)}llx", b.zext(x, I64) if x.type.width < 64 else x
    extend = b.sext if signed and elem != "i1" else b.zext
    return "%lld" if signed else "%llu", extend(x, I64) if x.type.width < 64 else x


class Assertion:
    """A `tt.assert` whose elements are checked in a loop nest. After it, a false one ends this
    program, and the launcher raises once the launch has ended.
    """

    def __init__(self, ctx: Context, op: ir.Op) -> None:
        self._ctx = ctx
        sites = ctx.kernel.metadata.setdefault("asserts", [])
        self._site = len(sites)
        sites.append([op.attrs.get("message", ""), str(op.loc)])
        self._failed = ctx.e.slot(I8, name="failed")
        ctx.b.store(ll.Constant(I8, 0), self._failed)

    def check(self, holds: ll.Value) -> None:
        """Check one element, or those of a vector."""
        b = self._ctx.b
        if isinstance(holds.type, ll.VectorType):
            holds = self._ctx.e.intrinsic("vector.reduce.and", I1, [holds], [holds.type])
        seen = b.load(self._failed, typ=I8)
        b.store(b.or_(seen, b.zext(b.not_(holds), I8)), self._failed)

    def exit_if_failed(self) -> None:
        """Leave the program if an element was false; the first one in a launch is reported."""
        ctx, b, status = self._ctx, self._ctx.b, self._ctx.program.status
        broken = b.icmp_unsigned("!=", b.load(self._failed, typ=I8), ll.Constant(I8, 0))
        with b.if_then(broken, likely=False):
            pair = b.cmpxchg(status, ll.Constant(I32, 0), ll.Constant(I32, 1), "seq_cst", "seq_cst")
            with b.if_then(b.extract_value(pair, 1)):
                for place, value in enumerate([ll.Constant(I32, self._site), *ctx.program.ids], 1):
                    b.store(value, b.gep(status, [i64(place)], source_etype=I32))
            return_early(ctx)


def emit_assert(ctx: Context, op: ir.Op) -> None:
    """Check all elements of a condition."""
    condition = op.operands[0]
    assertion = Assertion(ctx, op)
    nests.each_element(
        ctx, op, [condition], lambda nest, point: assertion.check(nest.at(condition, point).x)
    )
    assertion.exit_if_failed()


def return_early(ctx: Context) -> None:
    """Return from the function, with undefined results, and go on in an unreachable block."""
    kind = ctx.e.function.function_type.return_type
    ctx.emit_return(None if isinstance(kind, ll.VoidType) else ll.Constant(kind, ll.Undefined))
    ctx.b.position_at_end(ctx.b.append_basic_block("unreachable"))


def emit_histogram(ctx: Context, op: ir.Op) -> None:
    source = op.operands[0]
    mask = op.operands[1] if len(op.operands) > 1 else None
    bins = op.result.type.shape[0]
    if source.type.rank != 1:
        raise CompileError(op.name, "only one-dimensional tensors have a histogram", str(op.loc))
    counts = ctx.buffer_of(op.result)
    kind = scalar_type(op.result.type.elem)
    with ctx.e.loop(bins, 1, "bin") as index:
        memory.store_buffer(ctx, counts, (Index(index),), Lanes(constant(kind, 0)), 1)

    def body(nest: Nest, point: Point) -> None:
        value = nest.at(source, point).x
        wide = ctx.b.zext(value, I64) if value.type.width < 64 else value
        inside = ctx.b.icmp_unsigned("<", wide, i64(bins))
        if mask is not None:
            inside = ctx.b.and_(inside, nest.at(mask, point).x)
        with ctx.b.if_then(inside):
            place = (Index(wide),)
            count = memory.load_buffer(ctx, counts, place, 1).x
            memory.store_buffer(ctx, counts, place, Lanes(ctx.b.add(count, constant(kind, 1))), 1)

    nests.each_element(ctx, op, [source], body)
    ctx.set(op.result, counts)


def emit_gather(ctx: Context, op: ir.Op) -> None:
    """Pick elements of a tensor along one axis by an index tensor."""
    source, indices = op.operands
    axis = op.attrs["axis"]
    held = nests.materialise(ctx, source, op)
    result = ctx.buffer_of(op.result)

    def body(nest: Nest, point: Point) -> None:
        index = nest.at(indices, point).x
        wide = ctx.b.sext(index, I64) if index.type.width < 64 else index
        inside = ctx.b.and_(wide, i64(source.type.shape[axis] - 1))
        place = (*point[:axis], Index(inside), *point[axis + 1 :])
        memory.store_buffer(ctx, result, point, memory.load_buffer(ctx, held, place, 1), 1)

    nests.each_element(ctx, op, [indices], body)
    ctx.set(op.result, result)
