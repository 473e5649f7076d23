"""Facts about whole tiles, computed once before a loop nest instead of at every point.

A tensor of integers or pointers is often affine over the tile: `base + sum(index[d] * step[d])`.
From that follow, as a few scalar instructions: whether a mask is true everywhere (so that the nest
needs no mask at all), whether `x % n` remainders inside the tile, and which addresses an access can
touch (so that reading and writing in one nest is safe).
"""

from __future__ import annotations

from dataclasses import dataclass

from llvmlite import ir as ll

from tritune.cpu import ir
from tritune.cpu.lower.analysis.usage import is_trivial_reshape
from tritune.cpu.lower.context import Context
from tritune.cpu.lower.llvm import I1, I64, i64, memory_bytes

#: Far beyond any real address or index, and small enough that a few of them can be added up.
_LARGEST_BASE, _LONGEST_STEP = 1 << 61, 1 << 40


@dataclass(frozen=True, eq=False)
class AffineForm:
    """An affine tensor in 64-bit arithmetic; pointers in bytes."""

    base: ll.Value
    steps: tuple[int | ll.Value, ...]


class AffineRanges:
    """Answers for one nest; nothing is kept beyond it, because what it computes is valid only
    there.
    """

    def __init__(self, ctx: Context) -> None:
        self.ctx = ctx
        self._forms: dict[ir.Value, AffineForm | None] = {}
        #: `x % n` that has been found affine: the condition under which it is, and what it then
        #: subtracts from x.
        self.remainders: dict[ir.Op, tuple[ll.Value, ll.Value]] = {}
        #: What must hold for the answers to be right: no 32-bit value that is extended or compared
        #: has wrapped.
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
            return AffineForm(self._wide(ctx.scalar(value)), ())
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
        if op.name in ("tt.expand_dims", "tt.broadcast", "tt.trans", "tt.reshape"):
            return self._moved(op)
        if op.name == "arith.extsi":
            return self._exact(op.operands[0])
        if op.name in ("tt.bitcast", "tt.int_to_ptr", "tt.ptr_to_int"):
            return self.form(op.operands[0]) if op.operands[0].type.bits == 64 else None
        if op.name in (
            "arith.addi",
            "arith.subi",
            "arith.muli",
            "tt.addptr",
            "arith.remsi",
            "arith.remui",
        ):
            return self._arithmetic(op)
        return None

    def _exact(self, value: ir.Value) -> AffineForm | None:
        """The form of a value whose magnitude matters: checked to be what the kernel's own
        arithmetic gives.

        Forms are computed in 64 bits. Sums and products modulo 2^32 agree with that wherever the
        result fits 32 bits. The bounds keep what is computed from forms from overflowing itself.
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

    def _wide(self, x: ll.Value) -> ll.Value:
        return x if x.type.width == 64 else self.ctx.b.sext(x, I64)

    def _moved(self, op: ir.Op) -> AffineForm | None:
        inner = self.form(op.operands[0])
        if inner is None:
            return None
        shape, steps = op.operands[0].type.shape, inner.steps
        if op.name == "tt.expand_dims":
            axis = op.attrs["axis"]
            return AffineForm(inner.base, (*steps[:axis], 0, *steps[axis:]))
        if op.name == "tt.trans":
            return AffineForm(inner.base, tuple(steps[d] for d in op.attrs["order"]))
        if op.name == "tt.reshape":
            if not is_trivial_reshape(op):
                return None
            moving = iter([s for n, s in zip(shape, steps, strict=True) if n > 1])
            return AffineForm(
                inner.base, tuple(next(moving) if n > 1 else 0 for n in op.result.type.shape)
            )
        return AffineForm(
            inner.base, tuple(0 if n == 1 else s for n, s in zip(shape, steps, strict=True))
        )

    def _arithmetic(self, op: ir.Op) -> AffineForm | None:
        get = self._exact if op.name.startswith("arith.rem") else self.form
        x, y = get(op.operands[0]), get(op.operands[1])
        if op.name == "tt.addptr":
            y = self._exact(op.operands[1])
        if x is None or y is None:
            return None
        b = self.ctx.b
        if op.name == "arith.muli":
            if any(_varies(s) for s in x.steps):
                x, y = y, x
            if any(_varies(s) for s in x.steps):
                return None
            return AffineForm(b.mul(x.base, y.base), tuple(self._scale(s, x.base) for s in y.steps))
        if op.name in ("arith.remsi", "arith.remui"):
            return self._remainder(op, x, y)
        if op.name == "tt.addptr":
            pointee = op.result.type.pointee
            assert pointee is not None
            size = i64(memory_bytes(pointee.elem))
            y = AffineForm(b.mul(y.base, size), tuple(self._scale(s, size) for s in y.steps))
        join = b.sub if op.name == "arith.subi" else b.add
        steps = tuple(
            self._join(s, t, op.name == "arith.subi") for s, t in zip(x.steps, y.steps, strict=True)
        )
        return AffineForm(join(x.base, y.base), steps)

    def _remainder(self, op: ir.Op, x: AffineForm, n: AffineForm) -> AffineForm | None:
        """`x % n` where the tile of x lies between two multiples of n."""
        if any(_varies(s) for s in n.steps):
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

    def _scale(self, step: int | ll.Value, factor: ll.Value) -> int | ll.Value:
        if isinstance(step, int):
            if step == 0:
                return 0
            if isinstance(factor, ll.Constant):
                return step * factor.constant
            return self.ctx.b.mul(i64(step), factor)
        return self.ctx.b.mul(step, factor)

    def _join(self, s: int | ll.Value, t: int | ll.Value, negate: bool) -> int | ll.Value:
        if isinstance(s, int) and isinstance(t, int):
            return s - t if negate else s + t
        first, second = (i64(v) if isinstance(v, int) else v for v in (s, t))
        return self.ctx.b.sub(first, second) if negate else self.ctx.b.add(first, second)

    def _range(self, form: AffineForm, shape: tuple[int, ...]) -> tuple[ll.Value, ll.Value]:
        """The smallest and the largest value over the tile."""
        b = self.ctx.b
        low = high = form.base
        for step, n in zip(form.steps, shape, strict=True):
            if isinstance(step, int):
                if step > 0 and n > 1:
                    high = b.add(high, i64(step * (n - 1)))
                elif step < 0 and n > 1:
                    low = b.add(low, i64(step * (n - 1)))
            elif n > 1:
                reach = b.mul(step, i64(n - 1))
                up = b.icmp_signed(">", reach, i64(0))
                high = b.add(high, b.select(up, reach, i64(0)))
                low = b.add(low, b.select(up, i64(0), reach))
        return low, high

    def always_true(self, mask: ir.Value) -> ll.Value | None:
        """A scalar that implies that the mask is true over the whole tile, if there is one worth
        computing.
        """
        ctx, op = self.ctx, mask.owner
        if mask.type.rank == 0:
            return ctx.scalar(mask)
        if op is None or ctx.get(mask) is not None:
            return None
        if op.name in ("tt.broadcast", "tt.expand_dims", "tt.splat", "tt.trans", "tt.reshape"):
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
        b = self.ctx.b
        steps = tuple(self._join(s, t, True) for s, t in zip(x.steps, y.steps, strict=True))
        low, high = self._range(AffineForm(b.sub(x.base, y.base), steps), op.operands[0].type.shape)
        predicate = op.attrs["predicate"]
        relation = {"slt": "<", "sle": "<=", "sgt": ">", "sge": ">="}[predicate]
        return b.icmp_signed(relation, high if predicate[1] == "l" else low, i64(0))

    def no_hazard(self, read: ir.Value, written: ir.Value, same_point: bool) -> ll.Value | None:
        """A scalar that implies that reading element by element while writing element by element is
        harmless.

        True where the two address ranges do not meet, or where every element is written where it
        was read, if it is read at the point where it is written and no two elements share an
        address.
        """
        b = self.ctx.b
        x, y = self.form(read), self.form(written)
        if x is None or y is None:
            return None
        read_type, written_type = read.type.pointee, written.type.pointee
        assert read_type is not None and written_type is not None
        read_low, read_high = self._range(x, read.type.shape)
        write_low, write_high = self._range(y, written.type.shape)
        before = b.icmp_signed(
            "<", b.add(read_high, i64(memory_bytes(read_type.elem) - 1)), write_low
        )
        after = b.icmp_signed(
            "<", b.add(write_high, i64(memory_bytes(written_type.elem) - 1)), read_low
        )
        apart = b.or_(before, after)
        size = memory_bytes(written_type.elem)
        if (
            not same_point
            or read.type.shape != written.type.shape
            or memory_bytes(read_type.elem) != size
        ):
            return apart
        apart_or_same = self._identical(x, y, written.type.shape, size)
        return apart if apart_or_same is None else b.or_(apart, apart_or_same)

    def _identical(
        self, x: AffineForm, y: AffineForm, shape: tuple[int, ...], size: int
    ) -> ll.Value | None:
        """Whether two forms give the same addresses, each of them once."""
        b = self.ctx.b
        same = b.icmp_signed("==", x.base, y.base)
        for s, t, n in zip(x.steps, y.steps, shape, strict=True):
            if n == 1 or (isinstance(s, int) and isinstance(t, int) and s == t):
                continue
            if isinstance(s, int) and isinstance(t, int):
                return None
            first, second = (i64(v) if isinstance(v, int) else v for v in (s, t))
            same = b.and_(same, b.icmp_signed("==", first, second))
        dims = [d for d, n in enumerate(shape) if n > 1]
        rows_first = self._disjoint(y, shape, size, dims[::-1])
        columns_first = self._disjoint(y, shape, size, dims)
        return b.and_(same, b.or_(rows_first, columns_first))

    def _disjoint(
        self, form: AffineForm, shape: tuple[int, ...], size: int, dims: list[int]
    ) -> ll.Value:
        """Whether each of `dims`, from the innermost, steps over everything that those before it
        reach.
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


def _varies(step: int | ll.Value) -> bool:
    return not (isinstance(step, int) and step == 0)
