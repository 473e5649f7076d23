"""Readers of operations that are not printed as MLIR prints most."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tritune.cpu.ir import Op, Type, Value
from tritune.cpu.ttir.attributes import check
from tritune.cpu.ttir.literals import (
    Malformed,
    read_dense,
    read_number,
    read_string,
    read_symbol,
    read_type,
)

if TYPE_CHECKING:
    from tritune.cpu.ttir.parser import Parser


def _format(
    results: Callable[[list[Type]], list[Type]] | None = None,
    words: tuple[str, ...] = (),
    operands: Callable[[list[Type]], list[Type]] | None = None,
    least: int | None = None,
) -> Callable[[Parser, Op], list[Type]]:
    """Return a reader for `op words, operands attributes : types`.

    `results` gives the result types where they are not printed after an arrow, from the types that
    are printed; `operands` gives the operand types where not all of them are printed. There are at
    least `least` operands; the last ones may be missing.
    """

    def read(parser: Parser, op: Op) -> list[Type]:
        parser.items(op, words)
        if missing := [w for w in words if w not in op.attrs]:
            raise Malformed(f"its {missing[0]} is missing")
        ins, outs = parser.types()
        if operands is not None:
            expected = operands(ins)
        else:
            expected = ins * len(op.operands) if len(ins) == 1 else ins
        if least is not None:
            expected = expected[: max(least, len(op.operands))]
        check(op.operands, expected)
        if results is not None:
            return results(ins)
        if outs is None:
            return ins if len(ins) == 1 else []
        return outs

    return read


#: `op operands attributes : T`, `: T -> U`, `: T to U` or `: (T, U) -> V`. With one type and no
#: arrow, the operands and the result all have it.
regular = _format()


def _constant(parser: Parser, op: Op) -> list[Type]:
    parser.more_attributes(op)
    token = parser.next()
    type = read_type("i1")
    if parser.accept(":"):
        type = parser.type()
    elif token not in ("true", "false"):
        raise Malformed("it has no type")
    if token.startswith("dense<"):
        op.attrs["value"] = read_dense(token[6:-1], type)
    else:
        op.attrs["value"] = read_number(token, type)
    return [type]


def _print(parser: Parser, op: Op) -> list[Type]:
    op.attrs["prefix"] = read_string(parser.next())
    parser.more_attributes(op)
    if parser.accept(":"):
        op.operands = parser.until(":", parser.value)
        check(op.operands, parser.type_list())
    return []


def _call(parser: Parser, op: Op) -> list[Type]:
    op.attrs["callee"] = read_symbol(parser.next())
    parser.expect("(")
    op.operands = parser.until(")", parser.value)
    parser.more_attributes(op)
    ins, outs = parser.types()
    check(op.operands, ins)
    return outs or []


def _gather(parser: Parser, op: Op) -> list[Type]:
    op.operands.append(parser.value())
    parser.expect("[")
    op.operands += parser.until("]", parser.value)
    return regular(parser, op)


def _make_descriptor(parser: Parser, op: Op) -> list[Type]:
    """Read `%base, [%shape...], [%strides...] : <ptr>, <descriptor>`."""
    base = parser.value()
    op.operands.append(base)
    while parser.accept(","):
        parser.expect("[")
        op.operands += parser.until("]", parser.value)
    parser.items(op)
    parser.expect(":")
    # These two are printed without the names of their types.
    check([base], [read_type(f"!tt.ptr{parser.next()}")])
    parser.expect(",")
    return [read_type(f"!tt.tensordesc{parser.next()}")]


def _descriptor(parser: Parser, op: Op) -> list[Type]:
    """Read `%desc[%index...], %source : D, T` or `%desc[%index...] : D -> T`."""
    if not parser.peek().startswith("%"):
        op.attrs["kind"] = parser.next()
        parser.expect(",")
    op.operands.append(parser.value())
    parser.expect("[")
    op.operands += parser.until("]", parser.value)
    parser.items(op)
    if op.name in ("tt.descriptor_store", "tt.descriptor_reduce"):
        op.operands.insert(1, op.operands.pop())  # MLIR's own order: the source before the indices
    return parser.types()[1] or []


def _dot(parser: Parser, op: Op) -> list[Type]:
    parser.items(op)
    ins, outs = parser.types()
    check(op.operands, [*ins, *(outs or [])])
    return outs or []


def _dot_scaled(parser: Parser, op: Op) -> list[Type]:
    """Read `%a scale %s, %b scale %t, %c lhs = e4m3 rhs = e4m3 : A, S * B, T -> D`.

    Both scales are optional; `lhs_scale` and `rhs_scale` say which are there. They come last
    among the operands, as in MLIR.
    """
    scales: list[Value] = []
    scale_types: list[Type] = []
    for side in ("lhs", "rhs"):
        op.operands.append(parser.value())
        op.attrs[f"{side}_scale"] = parser.accept("scale")
        if op.attrs[f"{side}_scale"]:
            scales.append(parser.value())
        parser.expect(",")
    parser.items(op)
    parser.expect(":")
    types: list[Type] = []
    for side, after in (("lhs", "*"), ("rhs", "->")):
        types.append(parser.type())
        if op.attrs[f"{side}_scale"]:
            parser.expect(",")
            scale_types.append(parser.type())
        parser.expect(after)
    result = parser.type()
    op.operands += scales
    check(op.operands, [*types, result, *scale_types])
    return [result]


def _branch(parser: Parser, op: Op) -> list[Type]:
    if op.name == "cf.cond_br":
        op.operands.append(parser.value())
        parser.expect(",")
        parser.successor(op)
        parser.expect(",")
    parser.successor(op)
    parser.more_attributes(op)
    return []


def _for(parser: Parser, op: Op) -> list[Type]:
    if parser.accept("unsigned"):
        op.attrs["unsigned"] = True
    induction = parser.next()
    for word in ("=", "to", "step"):
        parser.expect(word)
        op.operands.append(parser.value())
    names: list[str] = []
    types: list[Type] = []
    if parser.accept("iter_args"):
        names, inits = _assignments(parser)
        op.operands += inits
        parser.expect("->")
        types = parser.type_list()
    type = parser.type() if parser.accept(":") else read_type("index")
    if parser.accept("unsigned"):
        op.attrs["unsigned"] = True
    check(op.operands, [type] * 3 + types)
    parser.body(op, [(induction, type), *zip(names, types, strict=True)])
    parser.more_attributes(op)
    return types


def _assignments(parser: Parser) -> tuple[list[str], list[Value]]:
    """Read `(%a = %x, %b = %y)`."""

    def assignment() -> tuple[str, Value]:
        name = parser.next()
        parser.expect("=")
        return name, parser.value()

    parser.expect("(")
    found = parser.until(")", assignment)
    return [name for name, _ in found], [value for _, value in found]


def _while(parser: Parser, op: Op) -> list[Type]:
    names: list[str] = []
    if parser.peek() == "(":
        names, op.operands = _assignments(parser)
    ins, outs = parser.types()
    check(op.operands, ins)
    parser.body(op, list(zip(names, ins, strict=True)))
    parser.expect("do")
    parser.body(op)
    if parser.accept("attributes"):
        op.attrs.update(parser.attributes())
    return outs or []


def _if(parser: Parser, op: Op) -> list[Type]:
    op.operands.append(parser.value())
    types = parser.type_list() if parser.accept("->") else []
    parser.body(op)
    if parser.accept("else"):
        parser.body(op)
    parser.more_attributes(op)
    return types


def _execute_region(parser: Parser, op: Op) -> list[Type]:
    if parser.accept("no_inline"):
        op.attrs["no_inline"] = True
    types = parser.type_list() if parser.accept("->") else []
    parser.body(op)
    parser.more_attributes(op)
    return types


def _condition(parser: Parser, op: Op) -> list[Type]:
    parser.expect("(")
    op.operands.append(parser.value())
    parser.expect(")")
    passed = Op(op.name)
    parser.items(passed)
    check(passed.operands, parser.types()[0])
    op.operands += passed.operands
    op.attrs.update(passed.attrs)
    return []


def _accessed(ins: list[Type]) -> tuple[Type, Type, Type]:
    """Return the types of pointer, value and mask: only the pointer's is printed."""
    (pointer,) = ins
    if pointer.pointee is None:
        raise Malformed(f"{pointer} is not a pointer")
    return pointer, _tensor(pointer.pointee, pointer.shape), _mask(pointer)


def _loaded(ins: list[Type]) -> list[Type]:
    pointer, value, mask = _accessed(ins)
    return [pointer, mask, value]


def _nothing(ins: list[Type]) -> list[Type]:
    return []


def _tensor(scalar: Type, shape: tuple[int, ...]) -> Type:
    return scalar.with_shape(shape) if shape else scalar


def _mask(like: Type) -> Type:
    return _tensor(read_type("i1"), like.shape)


def _split(parser: Parser, op: Op) -> list[Type]:
    """Read a split, whose halves both have the type after the arrow."""
    return regular(parser, op) * 2


def _atomic_poll(parser: Parser, op: Op) -> list[Type]:
    """Read `acquire, gpu, %ptr, %expected timeout %ns : P, T -> i1`; the timeout is optional."""
    parser.items(op, ("sem", "scope"))
    if parser.accept("timeout"):
        op.operands.append(parser.value())
        parser.items(op)
    ins, outs = parser.types()
    check(op.operands, [*ins, read_type("i64")][: len(op.operands)])
    return outs or []


_NO_RESULTS = _format(_nothing)
_TERMINATOR = _format(_nothing, operands=lambda ins: ins)
_COMPARE = _format(lambda ins: [_mask(ins[0])], ("predicate",))
_AXIS = _format(words=("axis",))
_BARRIER = _format(_nothing, ("scope",))
READERS: dict[str, Callable[[Parser, Op], list[Type]]] = {
    "arith.constant": _constant,
    "arith.cmpi": _COMPARE,
    "arith.cmpf": _COMPARE,
    # The condition's type is printed when it is not `i1`.
    "arith.select": _format(
        lambda ins: ins[-1:],
        operands=lambda ins: [ins[0] if len(ins) > 1 else read_type("i1"), ins[-1], ins[-1]],
    ),
    "arith.addui_extended": _format(lambda ins: list(ins), operands=lambda ins: [ins[0]] * 2),
    "arith.mulsi_extended": _format(lambda ins: [ins[0]] * 2),
    "arith.mului_extended": _format(lambda ins: [ins[0]] * 2),
    "math.fpowi": _format(lambda ins: [ins[0]]),
    "cf.br": _branch,
    "cf.cond_br": _branch,
    "scf.for": _for,
    "scf.while": _while,
    "scf.if": _if,
    "scf.execute_region": _execute_region,
    "scf.condition": _condition,
    "scf.yield": _TERMINATOR,
    "tt.return": _TERMINATOR,
    "tt.reduce.return": _TERMINATOR,
    "tt.scan.return": _TERMINATOR,
    "tt.map_elementwise.return": _TERMINATOR,
    "tt.call": _call,
    "tt.load": _format(lambda ins: [_accessed(ins)[1]], operands=_loaded, least=1),
    "tt.store": _format(_nothing, operands=lambda ins: [*_accessed(ins)], least=2),
    "tt.addptr": _format(lambda ins: [ins[0]]),
    "tt.get_program_id": _AXIS,
    "tt.get_num_programs": _AXIS,
    "tt.atomic_rmw": _format(words=("op", "sem", "scope")),
    "tt.atomic_cas": _format(words=("sem", "scope")),
    "tt.atomic_load": _format(words=("sem", "scope")),
    "tt.atomic_store": _format(_nothing, ("sem", "scope"), lambda ins: [*_accessed(ins)], least=2),
    "tt.atomic_poll": _atomic_poll,
    "tt.dot": _dot,
    "tt.dot_scaled": _dot_scaled,
    "tt.unsplat": _format(lambda ins: [ins[0].scalar]),
    "tt.split": _split,
    "tt.histogram": _format(operands=lambda ins: [ins[0], _mask(ins[0])], least=1),
    "tt.join": regular,
    "tt.cat": regular,
    "tt.gather": _gather,
    "tt.print": _print,
    "tt.assert": _format(_nothing, ("message",)),
    "tt.elementwise_inline_asm": _format(words=("asm_string",)),
    "tt.make_tensor_descriptor": _make_descriptor,
    "tt.descriptor_load": _descriptor,
    "tt.descriptor_store": _descriptor,
    "tt.descriptor_reduce": _descriptor,
    "tt.descriptor_gather": _descriptor,
    "tt.descriptor_scatter": _descriptor,
    "llvm.intr.assume": _NO_RESULTS,
    "gpu.barrier": _NO_RESULTS,
    "ttg.barrier": _BARRIER,
}
