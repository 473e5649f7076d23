"""Affine range analysis: facts about whole tiles, computed once before a loop nest.

A tensor of integers or pointers is often affine over the tile: `base + sum(index[d] * step[d])`.
A few scalar instructions then tell whether a mask is true everywhere (so that the nest needs no
mask), whether `x % n` wraps inside the tile, and which addresses an access can touch (so that
reading and writing in one nest is safe).
"""

from __future__ import annotations

from dataclasses import dataclass

from llvmlite import ir as ll

from tritune.cpu import ir
from tritune.cpu.lower.analysis.shapes import SHAPE_OPS, is_trivial_reshape, to_result
from tritune.cpu.lower.context import Context
from tritune.cpu.lower.llvm import I1, I64, Number, as_i64, element_bytes, i64

#: Far beyond any real address or index, and small enough that a few of them can be added up.
_LARGEST_BASE, _LONGEST_STEP = 1 << 61, 1 << 40
_ARITHMETIC = frozenset(
    "arith.addi arith.subi arith.muli tt.addptr arith.remsi arith.remui".split()
)


@dataclass(frozen=True, eq=False)
class AffineForm:
    """An affine tensor in 64-bit arithmetic; pointers in bytes."""

    base: ll.Value
    steps: tuple[Number, ...]


class AffineRanges:
    """The affine forms of one loop nest, which are valid only where they were computed."""

    def __init__(self, ctx: Context) -> None:
        self.ctx = ctx
        self._forms: dict[ir.Value, AffineForm | None] = {}
        #: For each affine `x % n`: the condition under which it is, and what it subtracts from x.
        self.remainders: dict[ir.Op, tuple[ll.Value, ll.Value]] = {}
        #: Conditions of all answers: no 32-bit value that is extended or compared has wrapped.
        self.checks: list[ll.Value] = []

    def form(self, value: ir.Value) -> AffineForm | None:
        if value not in self._forms:
            self._forms[value] = self._compute(value)
        return self._forms[value]

    def _compute(self, value: ir.Value) -> AffineForm | None:
        ctx, op, rank = self.ctx, value.owner, value.type.rank
        if value.type.is_float or value.type.elem == "i1":
            return None
        if rank == 0:
            scalar = ctx.scalar(value)
            wide = scalar if scalar.type.width == 64 else ctx.b.sext(scalar, I64)
            return AffineForm(wide, ())
        if op is None or ctx.get(value) is not None:
            return None
        if op.name == "tt.splat":
            inner = self.form(op.operands[0])
            return inner and AffineForm(inner.base, (0,) * rank)
        if op.name == "arith.constant":
            number = op.attrs["value"]
            return None if isinstance(number, list) else AffineForm(i64(number), (0,) * rank)
        if op.name == "tt.make_range":
            return AffineForm(i64(op.attrs["start"]), (1,))
        if op.name in SHAPE_OPS:
            inner = self.form(op.operands[0])
            if inner is None or (op.name == "tt.reshape" and not is_trivial_reshape(op)):
                return None
            return AffineForm(inner.base, to_result(op, inner.steps, 0))
        if op.name == "arith.extsi":
            return self._exact(op.operands[0])
        if op.name in ("tt.bitcast", "tt.int_to_ptr", "tt.ptr_to_int"):
            return self.form(op.operands[0]) if op.operands[0].type.bits == 64 else None
        return self._arithmetic(op) if op.name in _ARITHMETIC else None

    def _exact(self, value: ir.Value) -> AffineForm | None:
        """Return the form of a value whose magnitude matters, checked against wrap-around.

        Forms are computed in 64 bits. Sums and products modulo 2^32 agree with that wherever the
        result fits 32 bits. The bounds keep computations with forms from overflowing themselves.
        """
        form = self.form(value)
        if form is None or value.type.bits < 32:
            return None
        if value.type.rank == 0 and value.type.bits == 32:
            return form
        if value.owner is not None and value.owner.name in ("tt.make_range", "arith.constant"):
            return form
        if any(isinstance(s, int) and abs(s) >= _LONGEST_STEP for s in form.steps):
            return None
        for step in form.steps:
            if not isinstance(step, int):
                self.checks.append(self._within(step, step, _LONGEST_STEP))
        if value.type.bits == 64:
            self.checks.append(self._within(form.base, form.base, _LARGEST_BASE))
        else:
            low, high = self._range(form, value.type.shape)
            self.checks.append(self._within(low, high, 1 << 31))
        return form

    def _within(self, low: ll.Value, high: ll.Value, limit: int) -> ll.Value:
        b = self.ctx.b
        above = b.icmp_signed(">=", low, i64(-limit))
        return b.and_(above, b.icmp_signed("<", high, i64(limit)))

    def _arithmetic(self, op: ir.Op) -> AffineForm | None:
        get = self._exact if op.name.startswith("arith.rem") else self.form
        x, y = get(op.operands[0]), get(op.operands[1])
        if op.name == "tt.addptr":
            y = self._exact(op.operands[1])
        if x is None or y is None:
            return None
        b = self.ctx.b
        if op.name == "arith.muli":
            if any(s != 0 for s in x.steps):
                x, y = y, x
            if any(s != 0 for s in x.steps):
                return None
            return self._scaled(b.mul(x.base, y.base), y.steps, x.base)
        if op.name in ("arith.remsi", "arith.remui"):
            return self._remainder(op, x, y)
        if op.name == "tt.addptr":
            size = i64(element_bytes(op.result))
            y = self._scaled(b.mul(y.base, size), y.steps, size)
        return self._sum(x, y, negate=op.name == "arith.subi")

    def _scaled(self, base: ll.Value, steps: tuple[Number, ...], factor: ll.Value) -> AffineForm:
        known = factor.constant if isinstance(factor, ll.Constant) else factor
        product = self.ctx.e.product
        return AffineForm(base, tuple(s if s == 0 else product(s, known) for s in steps))

    def _sum(self, x: AffineForm, y: AffineForm, negate: bool) -> AffineForm:
        """Return x + y, or x - y."""
        steps = [self.ctx.e.sum(s, t, negate) for s, t in zip(x.steps, y.steps, strict=True)]
        base = self.ctx.b.sub if negate else self.ctx.b.add
        return AffineForm(base(x.base, y.base), tuple(steps))

    def _remainder(self, op: ir.Op, x: AffineForm, n: AffineForm) -> AffineForm | None:
        """Return `x % n` where the tile of x lies between two multiples of n."""
        if any(s != 0 for s in n.steps):
            return None
        b, shape = self.ctx.b, op.result.type.shape
        low, high = self._range(x, shape)
        safe = b.select(b.icmp_signed(">", n.base, i64(0)), n.base, i64(1))
        start = b.srem(low, safe)
        fits = b.icmp_signed("<=", b.add(start, b.sub(high, low)), b.sub(safe, i64(1)))
        condition = b.and_(fits, b.icmp_signed(">=", low, i64(0)))
        condition = b.and_(condition, b.icmp_signed(">", n.base, i64(0)))
        taken = b.sub(low, start)
        self.remainders[op] = (condition, taken)
        return AffineForm(b.sub(x.base, taken), x.steps)

    def _range(self, form: AffineForm, shape: tuple[int, ...]) -> tuple[ll.Value, ll.Value]:
        """Return the smallest and the largest value over the tile."""
        b = self.ctx.b
        low = high = form.base
        for step, n in zip(form.steps, shape, strict=True):
            if n == 1 or step == 0:
                continue
            if not isinstance(step, int):
                reach = b.mul(step, i64(n - 1))
                up = b.icmp_signed(">", reach, i64(0))
                high = b.add(high, b.select(up, reach, i64(0)))
                low = b.add(low, b.select(up, i64(0), reach))
            elif step > 0:
                high = b.add(high, i64(step * (n - 1)))
            else:
                low = b.add(low, i64(step * (n - 1)))
        return low, high

    def always_true(self, mask: ir.Value) -> ll.Value | None:
        """Return a scalar that implies that the mask is true over the whole tile, if there is one
        worth computing.
        """
        ctx, op = self.ctx, mask.owner
        if mask.type.rank == 0:
            return ctx.scalar(mask)
        if op is None or ctx.get(mask) is not None:
            return None
        if op.name in SHAPE_OPS or op.name == "tt.splat":
            return self.always_true(op.operands[0])
        if op.name == "arith.constant" and op.attrs["value"] in (1, -1, True):
            return ll.Constant(I1, 1)
        if op.name in ("arith.andi", "arith.ori"):
            x, y = (self.always_true(o) for o in op.operands)
            if x is None or y is None:
                return None if op.name == "arith.andi" else x or y
            return ctx.b.and_(x, y) if op.name == "arith.andi" else ctx.b.or_(x, y)
        if op.name == "arith.cmpi" and op.attrs["predicate"] in ("slt", "sle", "sgt", "sge"):
            return self._compared(op)
        return None

    def _compared(self, op: ir.Op) -> ll.Value | None:
        x, y = self._exact(op.operands[0]), self._exact(op.operands[1])
        if x is None or y is None:
            return None
        low, high = self._range(self._sum(x, y, negate=True), op.operands[0].type.shape)
        predicate = op.attrs["predicate"]
        relation = {"slt": "<", "sle": "<=", "sgt": ">", "sge": ">="}[predicate]
        extreme = high if predicate[1] == "l" else low
        return self.ctx.b.icmp_signed(relation, extreme, i64(0))

    def no_hazard(self, read: ir.Value, written: ir.Value, same_point: bool) -> ll.Value | None:
        """Return a scalar that implies that one nest may read and write element by element.

        True where the two address ranges are disjoint. Also where every element is written where it
        was read, if it is read at the point where it is written and no two elements share an
        address.
        """
        b = self.ctx.b
        x, y = self.form(read), self.form(written)
        if x is None or y is None:
            return None
        shape, read_size, size = written.type.shape, element_bytes(read), element_bytes(written)
        read_low, read_high = self._range(x, read.type.shape)
        write_low, write_high = self._range(y, shape)
        before = b.icmp_signed("<", b.add(read_high, i64(read_size - 1)), write_low)
        after = b.icmp_signed("<", b.add(write_high, i64(size - 1)), read_low)
        disjoint = b.or_(before, after)
        if not same_point or read.type.shape != shape or read_size != size:
            return disjoint
        identical = self._identical(x, y, shape, size)
        return disjoint if identical is None else b.or_(disjoint, identical)

    def _identical(
        self, x: AffineForm, y: AffineForm, shape: tuple[int, ...], size: int
    ) -> ll.Value | None:
        """Return whether two forms give the same addresses, each of them once."""
        b = self.ctx.b
        same = b.icmp_signed("==", x.base, y.base)
        for s, t, n in zip(x.steps, y.steps, shape, strict=True):
            if n > 1 and not (isinstance(s, int) and s == t):
                if isinstance(s, int) and isinstance(t, int):
                    return None
                same = b.and_(same, b.icmp_signed("==", as_i64(s), as_i64(t)))
        dims = [d for d, n in enumerate(shape) if n > 1]
        rows_first = self._injective(y, shape, size, dims[::-1])
        columns_first = self._injective(y, shape, size, dims)
        return b.and_(same, b.or_(rows_first, columns_first))

    def _injective(
        self, form: AffineForm, shape: tuple[int, ...], size: int, dims: list[int]
    ) -> ll.Value:
        """Return whether each of `dims`, from the innermost, steps over the range of those before
        it.
        """
        b = self.ctx.b
        reach, distinct = i64(size), ll.Constant(I1, 1)
        for d in dims:
            step = form.steps[d]
            if isinstance(step, int):
                length = i64(abs(step))
            else:
                length = b.select(b.icmp_signed("<", step, i64(0)), b.neg(step), step)
            distinct = b.and_(distinct, b.icmp_signed(">=", length, reach))
            reach = b.add(reach, b.mul(length, i64(shape[d] - 1)))
        return distinct
