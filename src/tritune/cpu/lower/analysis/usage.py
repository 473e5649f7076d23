"""Facts about a function, collected before any code is written: order, users, strides.

Tensor operations are *lazy* (evaluated where they are consumed) or *eager* (they run where they
stand: memory writes, products, reductions, control flow). Schedules follow from three facts: the
number of every operation in program order, the users of every value, and the strides of each tensor
of integers or pointers.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

from tritune.cpu import ir
from tritune.cpu.lower.analysis.shapes import SHAPE_OPS, is_trivial_reshape, origin, to_result

#: Tensor operations that run where they stand.
EAGER = frozenset(
    "tt.reduce tt.scan tt.dot tt.dot_scaled tt.store tt.atomic_rmw tt.atomic_cas tt.print "
    "tt.assert tt.call tt.return "
    "tt.unsplat tt.histogram tt.cat tt.reshape tt.gather tt.map_elementwise "
    "scf.for scf.while scf.if scf.yield scf.condition cf.br cf.cond_br".split()
)
#: Operations that may write memory another operation reads.
WRITES = frozenset(["tt.store", "tt.atomic_rmw", "tt.atomic_cas", "tt.call"])

#: Along one dimension a value is constant (0), grows by a known integer or by one that is known at
#: run time, or is arbitrary.
Stride = int | str
RUNTIME, ARBITRARY = "runtime", "arbitrary"

_SAME_STRIDES = frozenset(
    "arith.extsi arith.extui arith.trunci arith.index_cast tt.bitcast tt.int_to_ptr".split()
)
_SAME_CONSTANT = frozenset("tt.splat tt.broadcast tt.expand_dims arith.extsi tt.reshape".split())
_INDEX_ARITHMETIC = SHAPE_OPS | frozenset(
    "arith.addi arith.subi arith.muli arith.extsi arith.extui tt.splat".split()
)


def is_eager(op: ir.Op) -> bool:
    if op.name == "tt.reshape":
        return not is_trivial_reshape(op)
    return op.name in EAGER or all(r.type.rank == 0 for r in op.results)


def walk(region: ir.Region) -> Iterator[ir.Op]:
    """Yield every operation in program order, a parent before its regions."""
    for block in region.blocks:
        for op in block.ops:
            yield op
            for inner in op.regions:
                yield from walk(inner)


def combined_by(op: ir.Op) -> ir.Op | None:
    """Return the operation that a combine function consists of, if it is one of both arguments."""
    block = op.regions[0].blocks[0]
    if len(op.operands) != 1 or len(block.ops) != 2:
        return None
    inner, end = block.ops
    alone = set(inner.operands) == set(block.args) and end.operands == inner.results
    return inner if alone else None


class Usage:
    """The order, users and strides of a function's values."""

    def __init__(self, function: ir.Function) -> None:
        self.number: dict[ir.Op, int] = {}
        self.users: dict[ir.Value, list[ir.Op]] = {}
        for number, op in enumerate(walk(function.body)):
            self.number[op] = number
            for value in op.operands:
                self.users.setdefault(value, []).append(op)
            for _, values in op.successors:
                for value in values:
                    self.users.setdefault(value, []).append(op)
        self._strides: dict[ir.Value, tuple[Stride, ...]] = {}

    @cached_property
    def writing_regions(self) -> set[ir.Op]:
        """Return the operations with regions that write memory somewhere inside."""
        inner = {op: [i.name for r in op.regions for i in walk(r)] for op in self.number}
        return {op for op, names in inner.items() if not WRITES.isdisjoint(names)}

    def writes(self, op: ir.Op) -> bool:
        return op.name in WRITES or op in self.writing_regions

    def strides(self, value: ir.Value) -> tuple[Stride, ...]:
        """Return the strides of a tensor of integers or pointers (in elements)."""
        if value not in self._strides:
            self._strides[value] = self._compute_strides(value)
        return self._strides[value]

    def _compute_strides(self, value: ir.Value) -> tuple[Stride, ...]:
        op, rank = value.owner, value.type.rank
        if rank == 0 or value.type.numel == 1:
            return (0,) * rank
        if op is None:
            return (ARBITRARY,) * rank
        if op.name == "tt.make_range":
            return (1,)
        if op.name == "tt.splat" or (
            op.name == "arith.constant" and not isinstance(op.attrs["value"], list)
        ):
            return (0,) * rank
        if op.name == "tt.reshape" and not is_trivial_reshape(op):
            return (ARBITRARY,) * rank
        if op.name in SHAPE_OPS:
            return to_result(op, self.strides(op.operands[0]), 0)
        if is_eager(op) or not op.operands or any(o.type.rank != rank for o in op.operands):
            return (ARBITRARY,) * rank
        operands = [self.strides(o) for o in op.operands]
        if op.name in _SAME_STRIDES:
            return operands[0]
        return tuple(self._combined(op, column) for column in zip(*operands, strict=True))

    def _combined(self, op: ir.Op, column: tuple[Stride, ...]) -> Stride:
        """Return the stride of an elementwise operation, given those of its operands."""
        if all(s == 0 for s in column):
            return 0
        if op.name in ("arith.addi", "tt.addptr", "arith.subi"):
            x, y = column
            if isinstance(x, int) and isinstance(y, int):
                return x - y if op.name == "arith.subi" else x + y
            return ARBITRARY if ARBITRARY in column else RUNTIME
        if op.name == "arith.muli":
            x, y = column
            stride, factor = (x, op.operands[1]) if y == 0 else (y, op.operands[0])
            if (x != 0 and y != 0) or any(s != 0 for s in self.strides(factor)):
                return ARBITRARY
            known = constant_of(factor)
            return stride * known if isinstance(stride, int) and known is not None else RUNTIME
        if op.name in ("arith.remsi", "arith.remui"):
            # `x % n` follows x wherever the tile does not wrap, which is checked at run time.
            return column[0] if column[1] == 0 else ARBITRARY
        return ARBITRARY


def constant_of(value: ir.Value) -> int | None:
    """Return the integer that every element of the value has, if it is known at compile time."""
    op = origin(value, _SAME_CONSTANT).owner
    if op is not None and op.name == "arith.constant" and isinstance(op.attrs["value"], int):
        return op.attrs["value"]
    return None


def is_index(usage: Usage, value: ir.Value, depth: int = 0) -> bool:
    """Return whether an integer is used for addresses only.

    Only then may a 32-bit value be assumed not to wrap within a tile when it is extended: an
    address that wraps is invalid anyway, a hash or a random number that wraps is right.
    """
    if depth > 32:
        return False
    for user in usage.users.get(value, []):
        if user.name == "tt.addptr":
            continue
        if user.name not in _INDEX_ARITHMETIC or not is_index(usage, user.result, depth + 1):
            return False
    return True
