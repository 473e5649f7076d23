"""One element of every elementwise operation, on scalars and vectors alike.

`emit(e, op, args)` gets the operands in registers (see `llvm.py` for what holds which element type)
and returns the result in one. Everything here is pure; index arithmetic, memory and shapes are
elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable

from llvmlite import ir as ll

from tritune.cpu import ir
from tritune.cpu.lower.emit.convert import float_to_float, float_to_int, int_to_float, narrow, widen
from tritune.cpu.lower.llvm import (
    Emitter,
    constant,
    element_of,
    lanes_of,
    memory_bytes,
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
    """A function of `vecmath`, computed in f32 for the narrow formats."""
    elem = op.operands[0].type.elem
    if not op.operands[0].type.is_float:
        return vecmath.emit(e.b, function, args)
    wide = [widen(e, a, o.type.elem) for a, o in zip(args, op.operands, strict=True)]
    result = vecmath.emit(e.b, function, wide)
    return narrow(e, result, elem) if op.result.type.is_float else result


def _rule(*names: str) -> Callable[[Rule], Rule]:
    def register(rule: Rule) -> Rule:
        for name in names:
            _RULES[name] = rule
        return rule

    return register


def _float_rule(name: str, method: str) -> None:
    """A float operation in f32 (or f64), rounded back to the operands' format."""

    def rule(e: Emitter, op: ir.Op, args: list[ll.Value]) -> ll.Value:
        elem = op.result.type.elem
        wide = [widen(e, a, elem) for a in args]
        flags = ("contract",) if op.attrs.get("contract") else ()
        return narrow(e, getattr(e.b, method)(*wide, flags=flags), elem)

    _RULES[name] = rule


for _name, _method in {
    "addf": "fadd",
    "subf": "fsub",
    "mulf": "fmul",
    "divf": "fdiv",
    "remf": "frem",
}.items():
    _float_rule(f"arith.{_name}", _method)
_RULES["tt.precise_divf"] = _RULES["tt.approx_divf"] = _RULES["arith.divf"]


@_rule("arith.negf")
def _negf(e: Emitter, op: ir.Op, args: list[ll.Value]) -> ll.Value:
    elem = op.result.type.elem
    return narrow(e, e.b.fneg(widen(e, args[0], elem)), elem)


@_rule("arith.minnumf", "arith.maxnumf", "arith.minimumf", "arith.maximumf")
def _min_max(e: Emitter, op: ir.Op, args: list[ll.Value]) -> ll.Value:
    elem = op.result.type.elem
    x, y = (widen(e, a, elem) for a in args)
    return narrow(e, float_extreme(e, op.name.split(".")[1][:-1], x, y), elem)


def float_extreme(e: Emitter, which: str, x: ll.Value, y: ll.Value) -> ll.Value:
    """`minnum`/`maxnum` ignore a NaN beside a number; `minimum`/`maximum` return it."""
    b = e.b
    if which.endswith("num"):
        # A select that is no plain minimum becomes a branch where there is one lane.
        return e.intrinsic(which, x.type, [x, y])
    relation = "<" if which.startswith("min") else ">"
    # `x < y ? x : y` is the machine's own min: it gives y when either is NaN, and y's sign for two
    # zeros.
    machine = b.select(b.fcmp_ordered(relation, x, y), x, y)
    return b.select(b.fcmp_unordered("uno", x, x), x, machine)


@_rule("tt.clampf")
def _clampf(e: Emitter, op: ir.Op, args: list[ll.Value]) -> ll.Value:
    elem = op.result.type.elem
    x, low, high = (widen(e, a, elem) for a in args)
    bounded = float_extreme(e, "minnum", float_extreme(e, "maxnum", x, low), high)
    if str(op.attrs.get("propagateNan", "none")).lower() in ("all", "true"):
        bounded = e.b.select(e.b.fcmp_unordered("uno", x, x), x, bounded)
    return narrow(e, bounded, elem)


def _int_rule(name: str, method: str) -> None:
    _RULES[name] = lambda e, op, args: getattr(e.b, method)(*args)


for _name, _method in {
    "arith.addi": "add", "arith.subi": "sub", "arith.muli": "mul",
    "arith.andi": "and_", "arith.ori": "or_", "arith.xori": "xor",
}.items():  # fmt: skip
    _int_rule(_name, _method)


@_rule(
    "arith.divsi",
    "arith.remsi",
    "arith.divui",
    "arith.remui",
    "arith.ceildivsi",
    "arith.ceildivui",
    "arith.floordivsi",
)
def _divide(e: Emitter, op: ir.Op, args: list[ll.Value]) -> ll.Value:
    """Integer division that cannot trap: x / 0 gives x, the smallest integer by -1 wraps."""
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
    minus_one = constant(y.type, -1)
    negated = b.icmp_unsigned("==", y, minus_one)
    divisor = b.select(negated, one, y)
    quotient = b.select(negated, b.sub(zero, x), b.sdiv(x, divisor))
    if kind == "divsi":
        return quotient
    remainder = b.srem(x, divisor)
    remainder = b.select(negated, zero, remainder)
    if kind == "remsi":
        return remainder
    inexact = b.icmp_unsigned("!=", remainder, zero)
    signs_differ = b.icmp_signed("<", b.xor(x, y), zero)
    if kind == "floordivsi":
        return b.sub(quotient, b.zext(b.and_(inexact, signs_differ), x.type))
    return b.add(quotient, b.zext(b.and_(inexact, b.not_(signs_differ)), x.type))


@_rule("arith.shli", "arith.shrsi", "arith.shrui")
def _shift(e: Emitter, op: ir.Op, args: list[ll.Value]) -> ll.Value:
    """Shifting by the width or more shifts every bit out, as on a GPU."""
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


@_rule("arith.cmpi")
def _cmpi(e: Emitter, op: ir.Op, args: list[ll.Value]) -> ll.Value:
    predicate = op.attrs["predicate"]
    relation = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}[
        predicate.lstrip("su")
    ]
    compare = e.b.icmp_unsigned if predicate.startswith("u") else e.b.icmp_signed
    return compare(relation, *args)


@_rule("arith.cmpf")
def _cmpf(e: Emitter, op: ir.Op, args: list[ll.Value]) -> ll.Value:
    predicate = op.attrs["predicate"]
    x, y = (widen(e, a, op.operands[0].type.elem) for a in args)
    if predicate in ("ord", "uno"):
        return (
            e.b.fcmp_ordered(predicate, x, y)
            if predicate == "ord"
            else e.b.fcmp_unordered(predicate, x, y)
        )
    if predicate in ("true", "false", "alwaystrue", "alwaysfalse"):
        return constant(vector_of(ll.IntType(1), lanes_of(x.type)), int("true" in predicate))
    relation = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}[predicate[1:]]
    compare = e.b.fcmp_ordered if predicate[0] == "o" else e.b.fcmp_unordered
    return compare(relation, x, y)


@_rule("arith.select")
def _select(e: Emitter, op: ir.Op, args: list[ll.Value]) -> ll.Value:
    return e.b.select(*args)


@_rule("arith.extsi", "arith.extui", "arith.trunci")
def _resize(e: Emitter, op: ir.Op, args: list[ll.Value]) -> ll.Value:
    target = vector_of(scalar_type(op.result.type.elem), lanes_of(args[0].type))
    method = {"arith.extsi": e.b.sext, "arith.extui": e.b.zext, "arith.trunci": e.b.trunc}[op.name]
    return method(args[0], target)


@_rule("arith.index_cast", "arith.index_castui")
def _index_cast(e: Emitter, op: ir.Op, args: list[ll.Value]) -> ll.Value:
    target = scalar_type(op.result.type.elem)
    width = element_of(args[0].type).width
    if width == target.width:
        return args[0]
    if width > target.width:
        return e.b.trunc(args[0], vector_of(target, lanes_of(args[0].type)))
    method = e.b.zext if op.name.endswith("ui") else e.b.sext
    return method(args[0], vector_of(target, lanes_of(args[0].type)))


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
    pointee = op.result.type.pointee
    assert pointee is not None
    return e.b.add(pointer, e.b.mul(offset, constant(offset.type, memory_bytes(pointee.elem))))


@_rule("tt.extern_elementwise")
def _extern(e: Emitter, op: ir.Op, args: list[ll.Value]) -> ll.Value:
    function = vecmath.from_symbol(op.attrs["symbol"])
    if function is None:
        raise CompileError(
            op.name, f"no CPU version of the library function {op.attrs['symbol']!r}", str(op.loc)
        )
    return vecmath.emit(e.b, function[0] if isinstance(function, tuple) else function, args)


@_rule("math.fma")
def _fma(e: Emitter, op: ir.Op, args: list[ll.Value]) -> ll.Value:
    elem = op.result.type.elem
    wide = [widen(e, a, elem) for a in args]
    return narrow(e, e.intrinsic("fma", wide[0].type, wide), elem)


@_rule("math.absf")
def _absf(e: Emitter, op: ir.Op, args: list[ll.Value]) -> ll.Value:
    elem = op.result.type.elem
    wide = widen(e, args[0], elem)
    return narrow(e, e.intrinsic("fabs", wide.type, [wide]), elem)


@_rule("tt.precise_sqrt")
def _sqrt(e: Emitter, op: ir.Op, args: list[ll.Value]) -> ll.Value:
    return call_math(e, op, "sqrt", args)


@_rule("math.absi")
def _absi(e: Emitter, op: ir.Op, args: list[ll.Value]) -> ll.Value:
    zero = constant(args[0].type, 0)
    return e.b.select(e.b.icmp_signed("<", args[0], zero), e.b.sub(zero, args[0]), args[0])
