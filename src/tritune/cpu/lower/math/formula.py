"""Arithmetic on LLVM scalars and vectors, written with Python's operators.

`Lanes` wraps a value and the builder that extends it, so that a formula over float or integer
lanes reads as a formula. A Python number beside a `Lanes` is a constant of the same type. No
fast-math flag is ever set, and a multiplication and an addition are fused only where `fma` says
so: the result is the same on every target.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from llvmlite import ir

from tritune.cpu.lower.llvm import constant as splat
from tritune.cpu.lower.llvm import element_of

I1, I8, I32, I64 = (ir.IntType(bits) for bits in (1, 8, 32, 64))
F32, F64 = ir.FloatType(), ir.DoubleType()

_INT_OF = {F32: I32, F64: I64}
_FLOAT_OF = {32: F32, 64: F64}


def shaped_like(type_: ir.Type, elem: ir.Type) -> ir.Type:
    """`elem` with as many lanes as `type_` has."""
    return ir.VectorType(elem, type_.count) if isinstance(type_, ir.VectorType) else elem


def suffix(type_: ir.Type) -> str:
    """LLVM's mangling of a type in the name of an intrinsic: `f32`, `v8f32`, `v4i64`."""
    elem = element_of(type_)
    name = {F32: "f32", F64: "f64"}.get(elem) or f"i{elem.width}"
    return f"v{type_.count}{name}" if isinstance(type_, ir.VectorType) else name


def constant(type_: ir.Type, number: float) -> ir.Constant:
    """A constant with `number` in every lane; bit patterns may be given as unsigned integers."""
    elem = element_of(type_)
    if isinstance(elem, ir.IntType):
        number = int(number) & ((1 << elem.width) - 1)
        number -= (number >> (elem.width - 1)) << elem.width
    return splat(type_, number)


def declare(
    module: ir.Module, name: str, result: ir.Type, args: Sequence[ir.Type], *, pure: bool = True
) -> ir.Function:
    """The function `name` of `module`, declared on first use."""
    function = module.globals.get(name)
    if function is None:
        function = ir.Function(module, ir.FunctionType(result, args), name)
        if not name.startswith("llvm."):
            function.attributes.add("nounwind")
            if pure:
                function.attributes.add("readnone")
    return function


class Lanes:
    """A scalar or a vector of floats, integers or truth values."""

    __slots__ = ("b", "value")

    def __init__(self, b: ir.IRBuilder, value: ir.Value) -> None:
        self.b = b
        self.value = value

    @property
    def type(self) -> ir.Type:
        return self.value.type

    @property
    def elem(self) -> ir.Type:
        return element_of(self.value.type)

    @property
    def is_float(self) -> bool:
        return not isinstance(self.elem, ir.IntType)

    def const(self, number: float) -> Lanes:
        """`number` in every lane, in this value's type."""
        return Lanes(self.b, constant(self.type, number))

    def _other(self, other: Lanes | float) -> ir.Value:
        return other.value if isinstance(other, Lanes) else constant(self.type, other)

    def _binary(
        self, other: Lanes | float, of_float: str, of_int: str, swap: bool = False
    ) -> Lanes:
        left, right = self.value, self._other(other)
        if swap:
            left, right = right, left
        operation = getattr(self.b, of_float if self.is_float else of_int)
        return Lanes(self.b, operation(left, right))

    def __add__(self, other: Lanes | float) -> Lanes:
        return self._binary(other, "fadd", "add")

    def __sub__(self, other: Lanes | float) -> Lanes:
        return self._binary(other, "fsub", "sub")

    def __rsub__(self, other: float) -> Lanes:
        return self._binary(other, "fsub", "sub", swap=True)

    def __mul__(self, other: Lanes | float) -> Lanes:
        return self._binary(other, "fmul", "mul")

    __radd__ = __add__
    __rmul__ = __mul__

    def __truediv__(self, other: Lanes | float) -> Lanes:
        return Lanes(self.b, self.b.fdiv(self.value, self._other(other)))

    def __rtruediv__(self, other: float) -> Lanes:
        return Lanes(self.b, self.b.fdiv(self._other(other), self.value))

    def __neg__(self) -> Lanes:
        return Lanes(self.b, self.b.fneg(self.value) if self.is_float else self.b.neg(self.value))

    def __and__(self, other: Lanes | int) -> Lanes:
        return Lanes(self.b, self.b.and_(self.value, self._other(other)))

    def __or__(self, other: Lanes | int) -> Lanes:
        return Lanes(self.b, self.b.or_(self.value, self._other(other)))

    def __xor__(self, other: Lanes | int) -> Lanes:
        return Lanes(self.b, self.b.xor(self.value, self._other(other)))

    def __invert__(self) -> Lanes:
        return Lanes(self.b, self.b.not_(self.value))

    def __lshift__(self, other: Lanes | int) -> Lanes:
        return Lanes(self.b, self.b.shl(self.value, self._other(other)))

    def __rshift__(self, other: Lanes | int) -> Lanes:
        """Arithmetic shift: the sign is kept."""
        return Lanes(self.b, self.b.ashr(self.value, self._other(other)))

    def lshr(self, other: Lanes | int) -> Lanes:
        return Lanes(self.b, self.b.lshr(self.value, self._other(other)))

    def _compare(self, op: str, other: Lanes | float) -> Lanes:
        compare = self.b.fcmp_ordered if self.is_float else self.b.icmp_signed
        return Lanes(self.b, compare(op, self.value, self._other(other)))

    def __lt__(self, other: Lanes | float) -> Lanes:
        return self._compare("<", other)

    def __le__(self, other: Lanes | float) -> Lanes:
        return self._compare("<=", other)

    def __gt__(self, other: Lanes | float) -> Lanes:
        return self._compare(">", other)

    def __ge__(self, other: Lanes | float) -> Lanes:
        return self._compare(">=", other)

    def equals(self, other: Lanes | float) -> Lanes:
        return self._compare("==", other)

    def differs(self, other: Lanes | float) -> Lanes:
        return ~self.equals(other)

    def below(self, other: Lanes | int) -> Lanes:
        """Unsigned comparison of integers."""
        return Lanes(self.b, self.b.icmp_unsigned("<", self.value, self._other(other)))

    def is_nan(self) -> Lanes:
        return Lanes(self.b, self.b.fcmp_unordered("uno", self.value, self.value))

    def at_most(self, limit: float) -> Lanes:
        """The smaller of the two; NaN stays NaN."""
        return select(self.const(limit) < self, limit, self)

    def at_least(self, limit: float) -> Lanes:
        """The larger of the two; NaN stays NaN."""
        return select(self.const(limit) > self, limit, self)

    def bits(self) -> Lanes:
        """The same bits as an integer."""
        return Lanes(self.b, self.b.bitcast(self.value, shaped_like(self.type, _INT_OF[self.elem])))

    def as_float(self) -> Lanes:
        """The same bits as a float."""
        type_ = shaped_like(self.type, _FLOAT_OF[self.elem.width])
        return Lanes(self.b, self.b.bitcast(self.value, type_))

    def cast(self, operation: str, elem: ir.Type) -> Lanes:
        """One of LLVM's conversions: `fpext`, `fptrunc`, `sitofp`, `zext`, `trunc` ..."""
        type_ = shaped_like(self.type, elem)
        if type_ == self.type:
            return self
        return Lanes(self.b, getattr(self.b, operation)(self.value, type_))

    def intrinsic(self, name: str, *others: Lanes, result: ir.Type | None = None) -> Lanes:
        """Call `llvm.<name>`, overloaded on this type (and on the result's, if that differs)."""
        types = [self.type, *(o.type for o in others)]
        mangled = f"llvm.{name}.{suffix(self.type)}"
        if result is not None:
            mangled = f"llvm.{name}.{suffix(result)}.{suffix(self.type)}"
        function = declare(self.b.module, mangled, result or self.type, types)
        return Lanes(self.b, self.b.call(function, [self.value, *(o.value for o in others)]))

    def __abs__(self) -> Lanes:
        return self.intrinsic("fabs")

    def sqrt(self) -> Lanes:
        return self.intrinsic("sqrt")

    def with_sign_of(self, other: Lanes) -> Lanes:
        return self.intrinsic("copysign", other)

    def is_negative(self) -> Lanes:
        """Whether the sign bit is set: true for -0.0 as well."""
        return self.bits() < 0

    def any(self) -> Lanes:
        """Of a mask: whether any lane is true, as a scalar."""
        if not isinstance(self.type, ir.VectorType):
            return self
        name = f"llvm.vector.reduce.or.{suffix(self.type)}"
        return Lanes(
            self.b, self.b.call(declare(self.b.module, name, I1, [self.type]), [self.value])
        )


def select(mask: Lanes, yes: Lanes | float, no: Lanes | float) -> Lanes:
    """`yes` in the lanes where `mask` holds, `no` in the others; one of the two may be a number."""
    like = yes if isinstance(yes, Lanes) else no
    assert isinstance(like, Lanes)
    b = mask.b
    return Lanes(b, b.select(mask.value, like._other(yes), like._other(no)))


def fma(x: Lanes, y: Lanes | float, z: Lanes | float) -> Lanes:
    """x * y + z, rounded once."""
    return x.intrinsic("fma", Lanes(x.b, x._other(y)), Lanes(x.b, x._other(z)))


def polynomial(x: Lanes, coefficients: Sequence[float]) -> Lanes:
    """Horner's rule; coefficients from the constant term up."""
    *lower, top = coefficients
    result: Lanes = x.const(top)
    for coefficient in reversed(lower):
        result = fma(result, x, coefficient)
    return result


def per_lane(b: ir.IRBuilder, call: Callable[..., ir.Value], args: Sequence[ir.Value]) -> ir.Value:
    """Apply a scalar function to each lane in turn."""
    if not isinstance(args[0].type, ir.VectorType):
        return call(*args)
    count = args[0].type.count
    result: ir.Value | None = None
    for lane in range(count):
        index = ir.Constant(I32, lane)
        value = call(*(b.extract_element(arg, index) for arg in args))
        if result is None:
            result = ir.Constant(ir.VectorType(value.type, count), ir.Undefined)
        result = b.insert_element(result, value, index)
    assert result is not None
    return result
