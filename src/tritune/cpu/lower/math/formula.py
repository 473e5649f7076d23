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
    """Return a type of `elem` with as many lanes as `type_` has."""
    return ir.VectorType(elem, type_.count) if isinstance(type_, ir.VectorType) else elem


def suffix(type_: ir.Type) -> str:
    """Return LLVM's mangling of a type in the name of an intrinsic: `f32`, `v8f32`, `v4i64`."""
    elem = element_of(type_)
    name = {F32: "f32", F64: "f64"}.get(elem) or f"i{elem.width}"
    return f"v{type_.count}{name}" if isinstance(type_, ir.VectorType) else name


def constant(type_: ir.Type, number: float) -> ir.Constant:
    """Return a constant with `number` in every lane; bits may be given as an unsigned integer."""
    elem = element_of(type_)
    if isinstance(elem, ir.IntType):
        number = int(number) & ((1 << elem.width) - 1)
        number -= (number >> (elem.width - 1)) << elem.width
    return splat(type_, number)


def declare(
    module: ir.Module, name: str, result: ir.Type, args: Sequence[ir.Type], *, pure: bool = True
) -> ir.Function:
    """Return the function `name` of `module`, declared on first use."""
    function = module.globals.get(name)
    if function is None:
        function = ir.Function(module, ir.FunctionType(result, args), name)
        if not name.startswith("llvm."):
            function.attributes.add("nounwind")
            if pure:
                function.attributes.add("readnone")
    return function


def _operator(
    of_float: str, of_int: str, swap: bool = False
) -> Callable[[Lanes, Lanes | float], Lanes]:
    """Make a method that applies one of LLVM's instructions."""

    def apply(self: Lanes, other: Lanes | float) -> Lanes:
        operation = getattr(self.b, of_float if self.is_float else of_int)
        operands = self.value, self._other(other)
        return Lanes(self.b, operation(*(reversed(operands) if swap else operands)))

    return apply


def _comparison(op: str) -> Callable[[Lanes, Lanes | float], Lanes]:
    """Make a method that compares; NaN is unequal to all, integers are signed."""

    def compare(self: Lanes, other: Lanes | float) -> Lanes:
        instruction = self.b.fcmp_ordered if self.is_float else self.b.icmp_signed
        return Lanes(self.b, instruction(op, self.value, self._other(other)))

    return compare


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
        """Return a constant of this value's type."""
        return Lanes(self.b, constant(self.type, number))

    def _other(self, other: Lanes | float) -> ir.Value:
        return other.value if isinstance(other, Lanes) else constant(self.type, other)

    __add__ = __radd__ = _operator("fadd", "add")
    __sub__ = _operator("fsub", "sub")
    __rsub__ = _operator("fsub", "sub", swap=True)
    __mul__ = __rmul__ = _operator("fmul", "mul")
    __truediv__ = _operator("fdiv", "fdiv")
    __rtruediv__ = _operator("fdiv", "fdiv", swap=True)
    __and__ = _operator("and_", "and_")
    __or__ = _operator("or_", "or_")
    __xor__ = _operator("xor", "xor")
    __lshift__ = _operator("shl", "shl")
    #: Keeps the sign.
    __rshift__ = _operator("ashr", "ashr")
    lshr = _operator("lshr", "lshr")
    __lt__, __le__, __gt__, __ge__ = map(_comparison, ("<", "<=", ">", ">="))
    equals = _comparison("==")

    def __neg__(self) -> Lanes:
        return Lanes(self.b, self.b.fneg(self.value) if self.is_float else self.b.neg(self.value))

    def __invert__(self) -> Lanes:
        return Lanes(self.b, self.b.not_(self.value))

    def differs(self, other: Lanes | float) -> Lanes:
        return ~self.equals(other)

    def below(self, other: Lanes | int) -> Lanes:
        """Compare integers as unsigned ones."""
        return Lanes(self.b, self.b.icmp_unsigned("<", self.value, self._other(other)))

    def is_nan(self) -> Lanes:
        return Lanes(self.b, self.b.fcmp_unordered("uno", self.value, self.value))

    def at_most(self, limit: float) -> Lanes:
        """Return the smaller of the two; NaN stays NaN."""
        return select(self.const(limit) < self, limit, self)

    def at_least(self, limit: float) -> Lanes:
        """Return the larger of the two; NaN stays NaN."""
        return select(self.const(limit) > self, limit, self)

    def bits(self) -> Lanes:
        """Return the same bits as an integer."""
        return Lanes(self.b, self.b.bitcast(self.value, shaped_like(self.type, _INT_OF[self.elem])))

    def as_float(self) -> Lanes:
        """Return the same bits as a float."""
        type_ = shaped_like(self.type, _FLOAT_OF[self.elem.width])
        return Lanes(self.b, self.b.bitcast(self.value, type_))

    def cast(self, operation: str, elem: ir.Type) -> Lanes:
        """Convert by one of LLVM's instructions: `fpext`, `fptrunc`, `sitofp`, `zext`, `trunc`."""
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
        """Return whether the sign bit is set, as it is for -0.0."""
        return self.bits() < 0

    def any(self) -> Lanes:
        """Return whether any lane of a mask is true, as a scalar."""
        if not isinstance(self.type, ir.VectorType):
            return self
        name = f"llvm.vector.reduce.or.{suffix(self.type)}"
        return Lanes(
            self.b, self.b.call(declare(self.b.module, name, I1, [self.type]), [self.value])
        )


def select(mask: Lanes, yes: Lanes | float, no: Lanes | float) -> Lanes:
    """Return `yes` in the lanes where `mask` holds, else `no`; one of the two may be a number."""
    like = yes if isinstance(yes, Lanes) else no
    assert isinstance(like, Lanes)
    b = mask.b
    return Lanes(b, b.select(mask.value, like._other(yes), like._other(no)))


def fma(x: Lanes, y: Lanes | float, z: Lanes | float) -> Lanes:
    """Return x * y + z, rounded once."""
    return x.intrinsic("fma", Lanes(x.b, x._other(y)), Lanes(x.b, x._other(z)))


def polynomial(x: Lanes, coefficients: Sequence[float]) -> Lanes:
    """Evaluate a polynomial by Horner's rule; coefficients from the constant term up."""
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
