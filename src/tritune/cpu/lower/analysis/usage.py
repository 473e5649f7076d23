"""What is known about a function before any code is written: who uses what, in which order, along
which strides.

Tensor operations are *lazy* (evaluated where they are consumed) or *eager* (they run where they
stand: memory writes, products, reductions, control flow). Everything a schedule needs follows from
three facts collected here: the number of every operation in program order, the users of every
value, and how each tensor of integers or pointers moves along each of its dimensions.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

from tritune.cpu import ir

#: Tensor operations that run where they stand.
EAGER = frozenset(
    "tt.reduce tt.scan tt.dot tt.dot_scaled tt.store tt.atomic_rmw tt.atomic_cas tt.print "
    "tt.assert tt.call tt.return "
    "tt.unsplat tt.histogram tt.cat tt.reshape tt.gather tt.map_elementwise "
    "scf.for scf.while scf.if scf.yield scf.condition cf.br cf.cond_br".split()
)
#: Operations that may write memory another operation reads.
WRITES = frozenset(["tt.store", "tt.atomic_rmw", "tt.atomic_cas", "tt.call"])

#: Along one dimension a value is constant (0), grows by a known integer, by a run-time one, or does
#: anything else.
Stride = int | str
RUNTIME, ARBITRARY = "runtime", "arbitrary"

_SAME_STRIDES = frozenset(
    "arith.extsi arith.extui arith.trunci arith.index_cast tt.bitcast tt.int_to_ptr".split()
)


def is_trivial_reshape(op: ir.Op) -> bool:
    """A reshape that only adds or drops dimensions of extent 1."""
    source, target = op.operands[0].type.shape, op.result.type.shape
    return [n for n in source if n > 1] == [n for n in target if n > 1]


def is_eager(op: ir.Op) -> bool:
    if op.name == "tt.reshape":
        return not is_trivial_reshape(op)
    return op.name in EAGER or all(r.type.rank == 0 for r in op.results)


def walk(region: ir.Region) -> Iterator[ir.Op]:
    """Every operation in program order, a parent before its regions."""
    for block in region.blocks:
        for op in block.ops:
            yield op
            for inner in op.regions:
                yield from walk(inner)


def combined_by(op: ir.Op) -> ir.Op | None:
    """The operation that a combine function consists of, if that is one, of both its arguments."""
    block = op.regions[0].blocks[0]
    if len(op.operands) != 1 or len(block.ops) != 2:
        return None
    inner, end = block.ops
    alone = set(inner.operands) == set(block.args) and end.operands == inner.results
    return inner if alone else None


class Usage:
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
        """Operations with regions that write memory somewhere inside."""
        found = set()
        for op in self.number:
            if op.regions and any(inner.name in WRITES for r in op.regions for inner in walk(r)):
                found.add(op)
        return found

    def writes(self, op: ir.Op) -> bool:
        return op.name in WRITES or op in self.writing_regions

    def strides(self, value: ir.Value) -> tuple[Stride, ...]:
        """How the value moves along each dimension (pointers in elements of their pointee)."""
        found = self._strides.get(value)
        if found is None:
            found = self._strides[value] = self._compute_strides(value)
        return found

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
        if op.name in ("tt.expand_dims", "tt.broadcast", "tt.trans", "tt.reshape"):
            return self._moved_strides(op)
        if is_eager(op) or not op.operands or any(o.type.rank != rank for o in op.operands):
            return (ARBITRARY,) * rank
        operands = [self.strides(o) for o in op.operands]
        if op.name in _SAME_STRIDES:
            return operands[0]
        combine = {
            "arith.addi": self._sum, "tt.addptr": self._sum, "arith.subi": self._difference,
            "arith.muli": self._product, "arith.remsi": self._wrapped, "arith.remui": self._wrapped,
        }.get(op.name, self._any)  # fmt: skip
        return tuple(combine(op, column) for column in zip(*operands, strict=True))

    def _moved_strides(self, op: ir.Op) -> tuple[Stride, ...]:
        source = self.strides(op.operands[0])
        shape = op.operands[0].type.shape
        if op.name == "tt.expand_dims":
            axis = op.attrs["axis"]
            return (*source[:axis], 0, *source[axis:])
        if op.name == "tt.broadcast":
            return tuple(0 if n == 1 else s for n, s in zip(shape, source, strict=True))
        if op.name == "tt.trans":
            return tuple(source[d] for d in op.attrs["order"])
        if is_trivial_reshape(op):
            moving = iter([s for n, s in zip(shape, source, strict=True) if n > 1])
            return tuple(next(moving) if n > 1 else 0 for n in op.result.type.shape)
        return (ARBITRARY,) * op.result.type.rank

    def _sum(self, op: ir.Op, column: tuple[Stride, ...]) -> Stride:
        x, y = column
        if isinstance(x, int) and isinstance(y, int):
            return x + y
        return ARBITRARY if ARBITRARY in column else RUNTIME

    def _difference(self, op: ir.Op, column: tuple[Stride, ...]) -> Stride:
        x, y = column
        return self._sum(op, (x, -y if isinstance(y, int) else y))

    def _product(self, op: ir.Op, column: tuple[Stride, ...]) -> Stride:
        x, y = column
        if x == 0 and y == 0:
            return 0
        moving, factor = (x, op.operands[1]) if y == 0 else (y, op.operands[0])
        if (x != 0 and y != 0) or any(s != 0 for s in self.strides(factor)):
            return ARBITRARY
        known = constant_of(factor)
        return moving * known if isinstance(moving, int) and known is not None else RUNTIME

    def _wrapped(self, op: ir.Op, column: tuple[Stride, ...]) -> Stride:
        # `x % n` follows x wherever the tile does not wrap around, which is checked at run time.
        return column[0] if column[1] == 0 else ARBITRARY

    def _any(self, op: ir.Op, column: tuple[Stride, ...]) -> Stride:
        return 0 if all(s == 0 for s in column) else ARBITRARY


def constant_of(value: ir.Value) -> int | None:
    """The integer that every element of the value has, where that is known at compile time."""
    op = value.owner
    while op is not None and op.name in (
        "tt.splat",
        "tt.broadcast",
        "tt.expand_dims",
        "arith.extsi",
        "tt.reshape",
    ):
        op = op.operands[0].owner
    if op is not None and op.name == "arith.constant" and isinstance(op.attrs["value"], int):
        return op.attrs["value"]
    return None


_INDEX_ARITHMETIC = frozenset(
    "arith.addi arith.subi arith.muli arith.extsi arith.extui "
    "tt.splat tt.broadcast tt.expand_dims tt.trans tt.reshape".split()
)


def is_index(usage: Usage, value: ir.Value, depth: int = 0) -> bool:
    """Whether the integer serves only to make addresses.

    Only then may a 32-bit value be taken not to wrap within a tile when it is extended: an address
    that wraps points nowhere, but a hash or a random number that wraps is just right.
    """
    if depth > 32:
        return False
    for user in usage.users.get(value, []):
        if user.name == "tt.addptr":
            continue
        if user.name not in _INDEX_ARITHMETIC or not is_index(usage, user.result, depth + 1):
            return False
    return True
