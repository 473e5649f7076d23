"""Evaluates lazy tensors at one point of a loop nest.

`Nest.at(value, point)` walks from a consumer back to what is in memory or in registers, and emits
each operation once per point. Shape operations cost nothing: they only change the point.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from llvmlite import ir as ll

from tritune.cpu import floats, ir
from tritune.cpu.lower.analysis.shapes import SHAPE_OPS, to_operand
from tritune.cpu.lower.analysis.usage import is_index
from tritune.cpu.lower.context import ZERO, Buffer, Context, Index, Point
from tritune.cpu.lower.emit import elementwise, memory, prefetch
from tritune.cpu.lower.emit import lanes as lane_math
from tritune.cpu.lower.emit.lanes import Lanes, to_vector, vector
from tritune.cpu.lower.gemm import bf16_pairs as pairs
from tritune.cpu.lower.gemm.bf16_pairs import PAIR
from tritune.cpu.lower.llvm import (
    I32,
    I64,
    Number,
    constant,
    element_bytes,
    i64,
    pointee,
    scalar_type,
    vector_of,
)
from tritune.errors import CompileError

#: Lazy operations that are not elementwise.
_SPECIAL = SHAPE_OPS | frozenset(
    [*"tt.splat arith.constant tt.make_range tt.load tt.join tt.split ub.poison".split(), PAIR]
)


def can_evaluate(op: ir.Op) -> bool:
    """Return whether the operation can be evaluated at a point."""
    return op.name in _SPECIAL or elementwise.supported(op.name)


def move_point(op: ir.Op, point: Point) -> Point:
    """Return the point of the operand that a shape operation shows at `point`."""
    return to_operand(op, point, ZERO)


@dataclass(eq=False)
class Assumptions:
    """Conditions that were checked for the whole tile before a nest, and hold inside."""

    true_masks: set[ir.Value] = field(default_factory=set)
    #: Remainders that do not wrap within the tile, with what they subtract.
    remainder_offsets: dict[ir.Op, ll.Value] = field(default_factory=dict)
    #: Extensions of integers that do not wrap within the tile.
    exact_extensions: set[ir.Op] = field(default_factory=set)


class Nest:
    """Evaluates tensors inside one loop nest."""

    def __init__(self, ctx: Context, lanes: int, assumptions: Assumptions | None = None) -> None:
        self.ctx = ctx
        self.lanes = lanes
        self.assumptions = assumptions or Assumptions()
        self._memo: dict[tuple[ir.Value, Point], Lanes] = {}
        #: Loads that also prefetch the next tile, and the distance to it.
        self._prefetched: dict[ir.Op, Number] = {}
        #: The same with twice the lanes, for pairs of numbers in words.
        self._twice: Nest | None = None

    def prefetch_loads(self, loads: list[ir.Value]) -> None:
        """Prefetch what the next iteration of the loop will load."""
        for load in loads if self.ctx.loop is not None else ():
            assert load.owner is not None and self.ctx.loop is not None
            distance = prefetch.stride(self.ctx, self.ctx.loop, load.owner.operands[0])
            if distance is not None and distance != 0:
                self._prefetched[load.owner] = distance

    def clear(self) -> None:
        """Forget the values computed so far: they may not dominate the code that follows."""
        self._memo.clear()
        if self._twice is not None:
            self._twice.clear()

    def at(self, value: ir.Value, point: Point) -> Lanes:
        key = (value, point)
        if key not in self._memo:
            self._memo[key] = self._evaluate(value, point)
        return self._memo[key]

    def _held(self, value: ir.Value) -> ll.Value | Buffer | None:
        """Return the register or buffer of a value, if it was computed already."""
        return self.ctx.get(value)

    def _evaluate(self, value: ir.Value, point: Point) -> Lanes:
        ctx = self.ctx
        held = self._held(value)
        if isinstance(held, Buffer):
            return memory.load_buffer(ctx, held, point, self.lanes)
        if held is not None:
            return Lanes(held)
        op = value.owner
        assert op is not None, f"{value} is nowhere"
        name = op.name
        if name in SHAPE_OPS:
            return self.at(op.operands[0], move_point(op, point))
        if name == "tt.splat":
            return self.at(op.operands[0], ())
        if name == "arith.constant":
            return Lanes(constant_value(op))
        if name == "tt.make_range":
            start = ctx.b.add(ctx.b.trunc(point[0].at, I32), ll.Constant(I32, op.attrs["start"]))
            return Lanes(start, 1 if point[0].lane else 0)
        if name == "tt.load":
            return self._load(op, point)
        if name == "tt.join":
            return self._join(op, point)
        if name == "tt.split":
            return self.at(op.operands[0], (*point, Index(i64(op.results.index(value)))))
        if name == PAIR:
            return self._pair(op, point)
        if name == "ub.poison":
            return Lanes(ll.Constant(scalar_type(value.type.elem), ll.Undefined))
        return self.apply(op, [self.at(o, point) for o in op.operands])

    def apply(self, op: ir.Op, args: list[Lanes]) -> Lanes:
        """Emit an elementwise operation, kept uniform or affine where that is possible."""
        affine = self._apply_affine(op, args)
        if affine is not None:
            return affine
        if all(a.uniform for a in args):
            return Lanes(elementwise.emit(self.ctx.e, op, [a.x for a in args]))
        wide = [to_vector(self.ctx.e, a, self.lanes) for a in args]
        return vector(elementwise.emit(self.ctx.e, op, wide))

    def _apply_affine(self, op: ir.Op, args: list[Lanes]) -> Lanes | None:
        if all(a.uniform for a in args) and op not in self.assumptions.remainder_offsets:
            return None
        e, name = self.ctx.e, op.name
        if op.results and op.result.type.elem == "i1":
            return None
        if name in ("arith.addi", "arith.subi"):
            return lane_math.add(e, args[0], args[1], negate=name == "arith.subi")
        if name == "arith.muli":
            return lane_math.multiply(e, args[0], args[1])
        if name in ("arith.extsi", "arith.extui"):
            exact = op in self.assumptions.exact_extensions or is_index(self.ctx.usage, op.result)
            if op.operands[0].type.bits < 32 or not exact:
                return None
            target = scalar_type(op.result.type.elem)
            return lane_math.resize(e, args[0], target, name == "arith.extsi")
        if name == "tt.addptr":
            offset = lane_math.resize(e, args[1], I64, True)
            scaled = offset and lane_math.multiply(e, offset, Lanes(i64(element_bytes(op.result))))
            return scaled and lane_math.add(e, args[0], scaled)
        if name in ("tt.bitcast", "tt.int_to_ptr", "tt.ptr_to_int"):
            same = scalar_type(op.operands[0].type.elem) == scalar_type(op.result.type.elem)
            return args[0] if same and args[0].affine else None
        taken = self.assumptions.remainder_offsets.get(op)
        if taken is None or not args[0].affine:
            return None
        offset = lane_math.resize(e, Lanes(taken), args[0].x.type, True)
        return offset and lane_math.add(e, args[0], offset, negate=True)

    def mask_at(self, mask: ir.Value, point: Point) -> Lanes | None:
        """Return the mask at a point, or None if it is known to be true."""
        if mask in self.assumptions.true_masks:
            return None
        lane = self.at(mask, point)
        if isinstance(lane.x, ll.Constant) and lane.uniform and lane.x.constant in (1, -1, True):
            return None
        return lane

    def _load(self, op: ir.Op, point: Point) -> Lanes:
        address = self.at(op.operands[0], point)
        mask = self.mask_at(op.operands[1], point) if len(op.operands) > 1 else None
        masked = mask is not None and len(op.operands) > 2
        other = self.at(op.operands[2], point) if masked else None
        if op in self._prefetched and isinstance(address.step, int) and address.step:
            prefetch.emit(self.ctx, address.x, self._prefetched[op])
        elem = pointee(op.operands[0]).elem
        return memory.load(self.ctx, address, mask, other, elem, self.lanes)

    def _join(self, op: ir.Op, point: Point) -> Lanes:
        e, b = self.ctx.e, self.ctx.b
        which = point[-1]
        if which.lane:
            pair = tuple(Index(p.at) for p in point[:-1])
            first, second = (self.at(o, pair) for o in op.operands)
            return vector(e.build_vector([first.x, second.x]))
        first, second = (self.at(o, point[:-1]) for o in op.operands)
        condition = b.icmp_unsigned("==", which.at, i64(0))
        if first.uniform and second.uniform:
            return Lanes(b.select(condition, first.x, second.x))
        x, y = (to_vector(e, lane, self.lanes) for lane in (first, second))
        return vector(b.select(condition, x, y))

    def _pair(self, op: ir.Op, point: Point) -> Lanes:
        e, [source], axis = self.ctx.e, op.operands, op.attrs["axis"]
        along = point[axis]
        first = _plus(self.ctx, along.at, along.at)

        def at(k: Index) -> Point:
            return (*point[:axis], k, *point[axis + 1 :])

        if along.lane:
            numbers = self._with_twice_the_lanes().at(source, at(Index(first, True)))
            return vector(pairs.split_words(e, to_vector(e, numbers, 2 * self.lanes)))
        places = [at(Index(first)), at(Index(_plus(self.ctx, first, i64(1))))]
        rounds = self._rounded_to_nearest(source)
        low, high = (self.at(rounds or source, place) for place in places)
        if low.uniform and high.uniform:
            low, high = (self.at(source, place) for place in places)
            return Lanes(pairs.join_words(e, low.x, high.x))
        join = pairs.round_to_words if rounds else pairs.join_words
        return vector(join(e, *(to_vector(e, x, self.lanes) for x in (low, high))))

    def _with_twice_the_lanes(self) -> Nest:
        if self._twice is None:
            self._twice = Nest(self.ctx, 2 * self.lanes, self.assumptions)
            self._twice._prefetched = self._prefetched
        return self._twice

    def _rounded_to_nearest(self, value: ir.Value) -> ir.Value | None:
        """Return the f32 tensor that `value` rounds to bf16, if it does and is in no buffer."""
        op = value.owner
        if op is None or self.ctx.get(value) is not None or self.lanes < 4:
            return None
        rounds = op.name in ("arith.truncf", "tt.fp_to_fp") and op.operands[0].type.elem == "f32"
        nearest = (op.attrs.get("rounding") or "rtne") == "rtne"
        return op.operands[0] if rounds and nearest else None


def _plus(ctx: Context, x: ll.Value, y: ll.Value) -> ll.Value:
    if isinstance(x, ll.Constant) and isinstance(y, ll.Constant):
        return i64(x.constant + y.constant)
    return ctx.b.add(x, y, flags=("nuw", "nsw"))


def constant_value(op: ir.Op) -> ll.Constant:
    """Return the scalar of an `arith.constant` (of a splat, if it is a tensor)."""
    number, elem = op.attrs["value"], op.results[0].type.elem
    if isinstance(number, list):
        raise CompileError(op.name, "a constant tensor with different elements", str(op.loc))
    if elem in floats.FORMATS and elem != "f16":
        number = floats.to_bits(float(number), elem)
    elif op.results[0].type.is_float:
        number = float(number)
    return constant(vector_of(scalar_type(elem), 1), number)
