"""LLVM types, and the building blocks that every lowering uses: loops, stack slots, shuffles.

Element types and the types of their registers:

| element | LLVM | | element | LLVM |
|---|---|---|---|---|
| i1..i64 | i1..i64 | | bf16 | i16 (bits; LLVM's bfloat becomes libcalls on most CPUs) |
| ptr | i64 | | fp8 | i8 (bits) |
| f16 | half | | f32, f64 | float, double |

In memory an i1 takes a byte; everything else is as in the register.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, TypeAlias

from llvmlite import ir as ll

from tritune.cpu import ir

I1, I8, I16, I32, I64, I128 = (ll.IntType(n) for n in (1, 8, 16, 32, 64, 128))
HALF, FLOAT, DOUBLE = ll.HalfType(), ll.FloatType(), ll.DoubleType()
PTR = ll.PointerType()

_ELEMENTS: dict[str, ll.Type] = {
    "i1": I1, "i8": I8, "i16": I16, "i32": I32, "i64": I64, "ptr": I64,
    "f16": HALF, "bf16": I16, "f32": FLOAT, "f64": DOUBLE, "f8E4M3FN": I8, "f8E5M2": I8,
}  # fmt: skip


def scalar_type(elem: str) -> ll.Type:
    return _ELEMENTS[elem]


def memory_type(elem: str) -> ll.Type:
    """Return the type of an element in memory."""
    return I8 if elem == "i1" else _ELEMENTS[elem]


def memory_bytes(elem: str) -> int:
    return max(1, ir.BITS[elem] // 8)


def vector_of(scalar: ll.Type, lanes: int) -> ll.Type:
    """Return a vector type of `lanes` scalars; the scalar type for one lane."""
    return scalar if lanes == 1 else ll.VectorType(scalar, lanes)


def lanes_of(value_type: ll.Type) -> int:
    return value_type.count if isinstance(value_type, ll.VectorType) else 1


def element_of(value_type: ll.Type) -> ll.Type:
    return value_type.element if isinstance(value_type, ll.VectorType) else value_type


def constant(value_type: ll.Type, number: Any) -> ll.Constant:
    """Return a constant with the number in every lane."""
    if isinstance(value_type, ll.VectorType):
        return ll.Constant(value_type, [number] * value_type.count)
    return ll.Constant(value_type, number)


#: An integer that is known now, or computed by the program in 64 bits.
Number: TypeAlias = "int | ll.Value"


def pointee(pointer: ir.Value) -> ir.Type:
    """Return the element type behind a pointer or a tensor of pointers."""
    kind = pointer.type.pointee
    assert kind is not None
    return kind


def element_bytes(pointer: ir.Value) -> int:
    """Return the size of the element behind a pointer."""
    return memory_bytes(pointee(pointer).elem)


def as_i64(number: Number) -> ll.Value:
    return i64(number) if isinstance(number, int) else number


def i64(number: int) -> ll.Constant:
    return ll.Constant(I64, number)


class Emitter:
    """An IRBuilder in a function, and another one for stack slots in its entry block."""

    def __init__(self, function: ll.Function) -> None:
        self.function = function
        self.module: ll.Module = function.module
        self.entry = function.append_basic_block("entry")
        self.slots = ll.IRBuilder(self.entry)
        body = function.append_basic_block("body")
        self.entry_branch = ll.IRBuilder(self.entry).branch(body)
        self.b = ll.IRBuilder(body)

    def slot(self, value_type: ll.Type, count: int = 1, align: int = 0, name: str = "") -> ll.Value:
        """Return stack memory that lives as long as the function's call."""
        self.slots.position_before(self.entry_branch)
        memory = self.slots.alloca(value_type, i64(count) if count != 1 else None, name=name)
        memory.type = PTR  # llvmlite still gives it a typed pointer
        if align:
            memory.align = align
        return memory

    @contextmanager
    def loop(
        self, count: int, step: int = 1, name: str = "i", start: int = 0
    ) -> Iterator[ll.Value]:
        """Write `for i in range(start, count, step)`; no loop at all for a single iteration."""
        if count - start <= step:
            yield i64(start)
            return
        before = self.b.block
        head = self.b.append_basic_block(f"{name}.head")
        self.b.branch(head)
        self.b.position_at_end(head)
        index = self.b.phi(I64, name)
        index.add_incoming(i64(start), before)
        yield index
        following = self.plus(index, step)
        index.add_incoming(following, self.b.block)
        end = self.b.append_basic_block(f"{name}.end")
        self.b.cbranch(self.b.icmp_unsigned("<", following, i64(count)), head, end)
        self.b.position_at_end(end)

    def fold(
        self,
        span: range,
        values: list[ll.Value],
        body: Callable[[ll.Value, list[ll.Value]], list[ll.Value]],
        unroll_up_to: int = 1,
    ) -> list[ll.Value]:
        """Write `for k in span: values = body(k, values)`, the values in registers; no loop at all
        for up to `unroll_up_to` iterations.
        """
        if len(span) <= unroll_up_to:
            for k in span:
                values = body(i64(k), values)
            return values
        before = self.b.block
        with self.loop(span.stop, span.step, "k", span.start) as index:
            phis = [self.b.phi(value.type) for value in values]
            for phi, value in zip(phis, values, strict=True):
                phi.add_incoming(value, before)
            values = body(index, list(phis))
            for phi, value in zip(phis, values, strict=True):
                phi.add_incoming(value, self.b.block)
        return values

    @contextmanager
    def loops(self, *ranges: tuple[int, int, str]) -> Iterator[list[ll.Value]]:
        """Write nested loops, given as (count, step, name), the outermost first."""
        with ExitStack() as stack:
            yield [stack.enter_context(self.loop(*one)) for one in ranges]

    def splat(self, scalar: ll.Value, lanes: int) -> ll.Value:
        if lanes == 1:
            return scalar
        vector = vector_of(scalar.type, lanes)
        if isinstance(scalar, ll.Constant) and scalar.constant is not ll.Undefined:
            return constant(vector, scalar.constant)
        undef = ll.Constant(vector, ll.Undefined)
        first = self.b.insert_element(undef, scalar, ll.Constant(I32, 0))
        return self.shuffle(first, undef, [0] * lanes)

    def plus(self, index: ll.Value, by: int, flags: tuple[str, ...] = ("nuw", "nsw")) -> ll.Value:
        """Return an index plus a constant."""
        return self.b.add(index, i64(by), flags=flags) if by else index

    def sum(self, x: Number, y: Number, negate: bool = False) -> Number:
        """Return x + y or x - y, computed now if both are known."""
        if isinstance(x, int) and isinstance(y, int):
            return x - y if negate else x + y
        first, second = as_i64(x), as_i64(y)
        return self.b.sub(first, second) if negate else self.b.add(first, second)

    def product(self, x: Number, y: Number) -> Number:
        """Return x * y, computed now if both are known."""
        if isinstance(x, int) and isinstance(y, int):
            return x * y
        return self.b.mul(as_i64(x), as_i64(y))

    def shuffle(self, x: ll.Value, y: ll.Value | None, lanes: list[int]) -> ll.Value:
        """Return a vector of some lanes of x and y, which are numbered together."""
        mask = ll.Constant(ll.VectorType(I32, len(lanes)), lanes)
        return self.b.shuffle_vector(x, ll.Constant(x.type, ll.Undefined) if y is None else y, mask)

    def extract(self, vector: ll.Value, lane: int) -> ll.Value:
        if not isinstance(vector.type, ll.VectorType):
            return vector
        return self.b.extract_element(vector, ll.Constant(I32, lane))

    def build_vector(self, scalars: list[ll.Value]) -> ll.Value:
        if len(scalars) == 1:
            return scalars[0]
        vector: ll.Value = ll.Constant(ll.VectorType(scalars[0].type, len(scalars)), ll.Undefined)
        for lane, scalar in enumerate(scalars):
            vector = self.b.insert_element(vector, scalar, ll.Constant(I32, lane))
        return vector

    def slice_lanes(self, vector: ll.Value, first: int, count: int) -> ll.Value:
        """Return neighbouring lanes; a scalar for one of them."""
        if lanes_of(vector.type) == count:
            return vector
        if count == 1:
            return self.extract(vector, first)
        return self.shuffle(vector, None, list(range(first, first + count)))

    def concat(self, x: ll.Value, y: ll.Value) -> ll.Value:
        """Return the lanes of x, then those of y."""
        lanes = 2 * lanes_of(x.type)
        return self.build_vector([x, y]) if lanes == 2 else self.shuffle(x, y, list(range(lanes)))

    def deinterleave(self, vectors: list[ll.Value]) -> list[ll.Value]:
        """Distribute the lanes of all vectors in turn to as many vectors; a power of two."""
        count, lanes = len(vectors), lanes_of(vectors[0].type)
        if count == 1:
            return vectors
        halves: list[list[ll.Value]] = []
        for first in (0, 1):
            pairs = zip(vectors[::2], vectors[1::2], strict=True)
            halves.append([self.shuffle(x, y, [*range(first, 2 * lanes, 2)]) for x, y in pairs])
        even, odd = (self.deinterleave(half) for half in halves)
        return [x for pair in zip(even, odd, strict=True) for x in pair]

    def interleave(self, vectors: list[ll.Value]) -> list[ll.Value]:
        """Undo `deinterleave`: take a lane of each vector in turn."""
        count, lanes = len(vectors), lanes_of(vectors[0].type)
        if count == 1:
            return vectors
        order = [lane + source for lane in range(lanes) for source in (0, lanes)]
        found = []
        even, odd = self.interleave(vectors[::2]), self.interleave(vectors[1::2])
        for x, y in zip(even, odd, strict=True):
            found += [self.shuffle(x, y, half) for half in (order[:lanes], order[lanes:])]
        return found

    def intrinsic(
        self,
        name: str,
        result: ll.Type,
        args: list[ll.Value],
        overload: list[ll.Type] | None = None,
    ) -> ll.Value:
        """Call `llvm.<name>`, overloaded for the given types (the result's, by default)."""
        suffixes = ".".join(_mangle(t) for t in (overload or [result]))
        kind = ll.FunctionType(result, [a.type for a in args])
        return self.b.call(declare(self.module, f"llvm.{name}.{suffixes}", kind), args)

    def address(self, integer: ll.Value) -> ll.Value:
        return self.b.inttoptr(integer, PTR)


def declare(module: ll.Module, name: str, kind: ll.FunctionType) -> ll.Function:
    found = module.globals.get(name)
    return found if found is not None else ll.Function(module, kind, name)


def global_constant(module: ll.Module, name: str, kind: ll.Type, values: Any) -> ll.Value:
    """Return the address of an array in the object's constants."""
    array = ll.ArrayType(kind, len(values))
    place = ll.GlobalVariable(module, array, module.get_unique_name(name))
    place.linkage, place.global_constant = "internal", True
    place.initializer = ll.Constant(array, values)
    return place.bitcast(PTR)


def _mangle(t: ll.Type) -> str:
    if isinstance(t, ll.VectorType):
        return f"v{t.count}{_mangle(t.element)}"
    if isinstance(t, ll.PointerType):
        return "p0"
    return {HALF: "f16", FLOAT: "f32", DOUBLE: "f64"}.get(t) or f"i{t.width}"
