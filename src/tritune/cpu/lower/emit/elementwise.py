"""Writes elementwise operations, on scalars and vectors alike.

`emit(e, op, args)` takes the operands in registers (`llvm.py` has the types) and returns the result
in one. Nothing here has a side effect. `lazy_tensors.py` lowers what moves elements (expand_dims,
broadcast, loads), `control.py` lists the rules of operations with effects.
"""

from __future__ import annotations

from collections.abc import Callable

from llvmlite import ir as ll

from tritune.cpu import ir
from tritune.cpu.lower.emit.convert import float_to_float, float_to_int, int_to_float, narrow, widen
from tritune.cpu.lower.llvm import (
    Emitter,
    constant,
    element_bytes,
    element_of,
    lanes_of,
    scalar_type,
    vector_of,
)
from tritune.cpu.lower.math import vecmath
from tritune.errors import CompileError

Rule = Callable[[Emitter, ir.Op, list[ll.Value]], ll.Value]

_RULES: dict[str, Rule] = {}


def supported(name: str) -> bool:
    return name in _RULES or vecmath.from_mlir(name) is not None


def emit(e: Emitter, op: ir.Op, args: list[ll.Value]) -> ll.Value:
    rule = _RULES.get(op.name)
    if rule is not None:
        return rule(e, op, args)
    function = vecmath.from_mlir(op.name)
    if function is None:
        raise CompileError(op.name, "the CPU backend has no lowering for it", str(op.loc))
    return call_math(e, op, function, args)


def call_math(e: Emitter, op: ir.Op, function: str, args: list[ll.Value]) -> ll.Value:
    """Call a function of `vecmath`, in f32 for the narrow formats."""
    elem = op.operands[0].type.elem
    if not op.operands[0].type.is_float:
        return vecmath.emit(e.b, function, args)
    wide = [widen(e, a, o.type.elem) for a, o in zip(args, op.operands, strict=True)]
    result = vecmath.emit(e.b, function, wide)
    return narrow(e, result, elem) if op.result.type.is_float else result


def _rule(*names: str) -> Callable[[Rule], Rule]:
    def register(rule: Rule) -> Rule:
        _RULES.update(dict.fromkeys(names, rule))
        return rule

    return register


def _float_rule(*names: str) -> Callable[[Rule], Rule]:
    """Register a float operation, computed in f32 (or f64) and rounded to the operands' format."""

    def register(rule: Rule) -> Rule:
        def rounded(e: Emitter, op: ir.Op, args: list[ll.Value]) -> ll.Value:
            elem = op.result.type.elem
            return narrow(e, rule(e, op, [widen(e, a, elem) for a in args]), elem)

        return _rule(*names)(rounded)

    return register


_FLOAT_METHODS = {
    "arith.addf": "fadd", "arith.subf": "fsub", "arith.mulf": "fmul", "arith.remf": "frem",
    "arith.divf": "fdiv", "tt.precise_divf": "fdiv", "tt.approx_divf": "fdiv",
}  # fmt: skip


@_float_rule(*_FLOAT_METHODS)
def _float_arithmetic(e: Emitter, op: ir.Op, args: list[ll.Value]) -> ll.Value:
    flags = ("contract",) if op.attrs.get("contract") else ()
    return getattr(e.b, _FLOAT_METHODS[op.name])(*args, flags=flags)


@_float_rule("arith.negf")
def _negf(e: Emitter, op: ir.Op, args: list[ll.Value]) -> ll.Value:
    return e.b.fneg(args[0])


@_float_rule("math.fma", "math.absf")
def _float_intrinsic(e: Emitter, op: ir.Op, args: list[ll.Value]) -> ll.Value:
    return e.intrinsic("fma" if op.name == "math.fma" else "fabs", args[0].type, args)


@_float_rule("arith.minnumf", "arith.maxnumf", "arith.minimumf", "arith.maximumf")
def _min_max(e: Emitter, op: ir.Op, args: list[ll.Value]) -> ll.Value:
    return float_extreme(e, op.name.split(".")[1][:-1], *args)


def float_extreme(e: Emitter, which: str, x: ll.Value, y: ll.Value) -> ll.Value:
    """Return the extreme of two; `minnum` and `maxnum` ignore a NaN beside a number."""
    b = e.b
    if which.endswith("num"):
        # A select that is no plain minimum becomes a branch where there is one lane.
        return e.intrinsic(which, x.type, [x, y])
    relation = "<" if which.startswith("min") else ">"
    # `x < y ? x : y` is the instruction's min: it gives y when either is NaN, and y's sign for two
    # zeros.
    machine = b.select(b.fcmp_ordered(relation, x, y), x, y)
    return b.select(b.fcmp_unordered("uno", x, x), x, machine)


@_float_rule("tt.clampf")
def _clampf(e: Emitter, op: ir.Op, args: list[ll.Value]) -> ll.Value:
    x, low, high = args
    bounded = float_extreme(e, "minnum", float_extreme(e, "maxnum", x, low), high)
    if str(op.attrs.get("propagateNan", "none")).lower() in ("all", "true"):
        bounded = e.b.select(e.b.fcmp_unordered("uno", x, x), x, bounded)
    return bounded


_INT_METHODS = {
    "arith.addi": "add", "arith.subi": "sub", "arith.muli": "mul",
    "arith.andi": "and_", "arith.ori": "or_", "arith.xori": "xor",
    "arith.select": "select",
}  # fmt: skip


@_rule(*_INT_METHODS)
def _int_arithmetic(e: Emitter, op: ir.Op, args: list[ll.Value]) -> ll.Value:
    return getattr(e.b, _INT_METHODS[op.name])(*args)


@_rule("arith.divsi", "arith.remsi", "arith.ceildivsi", "arith.floordivsi")
@_rule("arith.divui", "arith.remui", "arith.ceildivui")
def _divide(e: Emitter, op: ir.Op, args: list[ll.Value]) -> ll.Value:
    """Divide without traps: x / 0 gives x, the smallest integer by -1 wraps."""
    b = e.b
    x, y = args
    kind = op.name.split(".")[1]
    one, zero = constant(y.type, 1), constant(y.type, 0)
    y = b.select(b.icmp_unsigned("==", y, zero), one, y)
    if kind in ("divui", "remui"):
        return b.udiv(x, y) if kind == "divui" else b.urem(x, y)
    if kind == "ceildivui":
        up = b.icmp_unsigned("!=", b.urem(x, y), zero)
        return b.add(b.udiv(x, y), b.zext(up, x.type))
    negated = b.icmp_unsigned("==", y, constant(y.type, -1))
    divisor = b.select(negated, one, y)
    quotient = b.select(negated, b.sub(zero, x), b.sdiv(x, divisor))
    if kind == "divsi":
        return quotient
    remainder = b.select(negated, zero, b.srem(x, divisor))
    if kind == "remsi":
        return remainder
    inexact = b.icmp_unsigned("!=", remainder, zero)
    signs_differ = b.icmp_signed("<", b.xor(x, y), zero)
    if kind == "floordivsi":
        return b.sub(quotient, b.zext(b.and_(inexact, signs_differ), x.type))
    return b.add(quotient, b.zext(b.and_(inexact, b.not_(signs_differ)), x.type))


@_rule("arith.shli", "arith.shrsi", "arith.shrui")
def _shift(e: Emitter, op: ir.Op, args: list[ll.Value]) -> ll.Value:
    """Shift; by the width or more shifts every bit out, as on a GPU."""
    b = e.b
    x, amount = args
    width = element_of(x.type).width
    inside = b.icmp_unsigned("<", amount, constant(amount.type, width))
    if op.name == "arith.shrsi":
        return b.ashr(x, b.select(inside, amount, constant(amount.type, width - 1)))
    safe = b.select(inside, amount, constant(amount.type, 0))
    shifted = b.shl(x, safe) if op.name == "arith.shli" else b.lshr(x, safe)
    return b.select(inside, shifted, constant(x.type, 0))


@_rule("arith.minsi", "arith.maxsi", "arith.minui", "arith.maxui")
def _int_min_max(e: Emitter, op: ir.Op, args: list[ll.Value]) -> ll.Value:
    name = op.name.split(".")[1]
    return e.intrinsic(("s" if name[3] == "s" else "u") + name[:3], args[0].type, args)


@_rule("tt.mulhiui")
def _mulhi(e: Emitter, op: ir.Op, args: list[ll.Value]) -> ll.Value:
    b = e.b
    n, width = lanes_of(args[0].type), element_of(args[0].type).width
    wide = vector_of(ll.IntType(2 * width), n)
    product = b.mul(b.zext(args[0], wide), b.zext(args[1], wide))
    return b.trunc(b.lshr(product, constant(wide, width)), args[0].type)


_RELATIONS = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}


@_rule("arith.cmpi")
def _cmpi(e: Emitter, op: ir.Op, args: list[ll.Value]) -> ll.Value:
    predicate = op.attrs["predicate"]
    compare = e.b.icmp_unsigned if predicate.startswith("u") else e.b.icmp_signed
    return compare(_RELATIONS[predicate.lstrip("su")], *args)


@_rule("arith.cmpf")
def _cmpf(e: Emitter, op: ir.Op, args: list[ll.Value]) -> ll.Value:
    predicate = op.attrs["predicate"]
    x, y = (widen(e, a, op.operands[0].type.elem) for a in args)
    if predicate in ("true", "false", "alwaystrue", "alwaysfalse"):
        return constant(vector_of(ll.IntType(1), lanes_of(x.type)), int("true" in predicate))
    compare = e.b.fcmp_ordered if predicate[0] == "o" else e.b.fcmp_unordered
    return compare(_RELATIONS.get(predicate[1:], predicate), x, y)


_RESIZE = {
    "arith.extsi": "sext", "arith.extui": "zext", "arith.trunci": "trunc",
    "arith.index_cast": "sext", "arith.index_castui": "zext",
}  # fmt: skip


@_rule(*_RESIZE)
def _resize(e: Emitter, op: ir.Op, args: list[ll.Value]) -> ll.Value:
    target = vector_of(scalar_type(op.result.type.elem), lanes_of(args[0].type))
    method = _RESIZE[op.name]
    if element_of(args[0].type).width > element_of(target).width:
        method = "trunc"
    return getattr(e.b, method)(args[0], target)


@_rule("arith.extf", "arith.truncf", "tt.fp_to_fp")
def _float_cast(e: Emitter, op: ir.Op, args: list[ll.Value]) -> ll.Value:
    rounding = op.attrs.get("rounding") or "rtne"
    return float_to_float(e, args[0], op.operands[0].type.elem, op.result.type.elem, rounding)


@_rule("arith.fptosi", "arith.fptoui")
def _float_to_int(e: Emitter, op: ir.Op, args: list[ll.Value]) -> ll.Value:
    signed = op.name.endswith("si")
    return float_to_int(e, args[0], op.operands[0].type.elem, op.result.type.elem, signed)


@_rule("arith.sitofp", "arith.uitofp")
def _int_to_float(e: Emitter, op: ir.Op, args: list[ll.Value]) -> ll.Value:
    return int_to_float(e, args[0], op.result.type.elem, op.name == "arith.sitofp")


@_rule("arith.bitcast", "tt.bitcast", "tt.int_to_ptr", "tt.ptr_to_int")
def _bitcast(e: Emitter, op: ir.Op, args: list[ll.Value]) -> ll.Value:
    target = vector_of(scalar_type(op.result.type.elem), lanes_of(args[0].type))
    return args[0] if target == args[0].type else e.b.bitcast(args[0], target)


@_rule("tt.addptr")
def _addptr(e: Emitter, op: ir.Op, args: list[ll.Value]) -> ll.Value:
    pointer, offset = args
    offset = offset if element_of(offset.type).width == 64 else e.b.sext(offset, pointer.type)
    size = constant(offset.type, element_bytes(op.result))
    return e.b.add(pointer, e.b.mul(offset, size))


@_rule("tt.extern_elementwise")
def _extern(e: Emitter, op: ir.Op, args: list[ll.Value]) -> ll.Value:
    function = vecmath.from_symbol(op.attrs["symbol"])
    if function is None:
        raise CompileError(
            op.name, f"no CPU version of the library function {op.attrs['symbol']!r}", str(op.loc)
        )
    return vecmath.emit(e.b, function[0] if isinstance(function, tuple) else function, args)


_RULES["tt.precise_sqrt"] = lambda e, op, args: call_math(e, op, "sqrt", args)


@_rule("math.absi")
def _absi(e: Emitter, op: ir.Op, args: list[ll.Value]) -> ll.Value:
    zero = constant(args[0].type, 0)
    return e.b.select(e.b.icmp_signed("<", args[0], zero), e.b.sub(zero, args[0]), args[0])
