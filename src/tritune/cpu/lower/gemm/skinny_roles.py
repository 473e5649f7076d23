"""Products with few rows: which operand plays which role."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tritune.cpu import ir
from tritune.cpu.lower.context import Index, Point

#: The most rows that are few.
MOST_ROWS = 16


@dataclass(frozen=True, eq=False)
class Thin:
    """A product whose operands play these roles."""

    op: ir.Op
    #: Whether the few are the rows of the result, as they lie in operand 0; else its columns.
    few_first: bool
    #: Whether the lanes run along k.
    inner: bool
    #: Products whose sums this one goes on with, and nobody else: they are written together.
    before: tuple[Thin, ...] = ()

    @property
    def parts(self) -> tuple[Thin, ...]:
        return *self.before, self

    @property
    def c(self) -> ir.Value:
        """What the sums begin with."""
        return self.parts[0].op.operands[2]

    @property
    def few(self) -> ir.Value:
        return self.op.operands[0 if self.few_first else 1]

    @property
    def many(self) -> ir.Value:
        return self.op.operands[1 if self.few_first else 0]

    @property
    def few_count(self) -> int:
        return self.op.result.type.shape[0 if self.few_first else 1]

    @property
    def many_count(self) -> int:
        return self.op.result.type.shape[1 if self.few_first else 0]

    @property
    def depth(self) -> int:
        return self.op.operands[0].type.shape[1]

    @property
    def many_dim(self) -> int:
        """The dimension of the result along which the many run."""
        return 1 if self.few_first else 0

    @property
    def few_k_dim(self) -> int:
        return 1 if self.few_first else 0

    @property
    def many_lane_dim(self) -> int:
        """The dimension of the large operand that must be contiguous."""
        return (0 if self.few_first else 1) if self.inner else (1 if self.few_first else 0)

    def few_point(self, few: Index, k: Index) -> Point:
        return (few, k) if self.few_first else (k, few)

    def many_point(self, many: Index, k: Index) -> Point:
        return (k, many) if self.few_first else (many, k)

    def result_point(self, few: Index, many: Index) -> Point:
        return (few, many) if self.few_first else (many, few)


def as_thin(op: ir.Op, contiguous: tuple[int | None, int | None]) -> Thin | None:
    """The roles of a product's operands, given along which dimension each is contiguous in memory;
    None if it is not worth it.
    """
    a, b = op.operands[:2]
    if op.result.type.rank != 2 or any(v.type.elem != "f32" for v in (a, b, op.result)):
        return None
    m, n = op.result.type.shape
    few_first = m <= n
    if min(m, n) > MOST_ROWS or max(m, n) < MOST_ROWS:
        return None
    along = contiguous[1 if few_first else 0]
    if along is None:
        return None
    return Thin(op, few_first, inner=along == (0 if few_first else 1))


def joined(first: Thin, second: Thin) -> Thin | None:
    """Both as one, if the second goes on with the sums of the first in the same way."""
    follows = second.op.operands[2] is first.op.result
    alike = first.inner and second.inner and first.depth == second.depth
    return replace(second, before=first.parts) if follows and alike else None
