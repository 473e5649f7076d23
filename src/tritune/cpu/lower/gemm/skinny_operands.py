"""The operands of a skinny GEMM: a product with few rows on one side."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tritune.cpu import ir
from tritune.cpu.lower.context import Index, Point

#: The most rows of the stationary operand.
MAX_SKINNY_ROWS = 16


@dataclass(frozen=True, eq=False)
class SkinnyGemm:
    """A product whose small operand is stationary and whose large one is streamed from memory.

    The stationary operand is m x k, the streamed one k x n, whichever of them is the left operand
    of `tt.dot`.
    """

    op: ir.Op
    #: Whether the stationary operand is the left one; if not, everything is transposed.
    stationary_is_lhs: bool
    #: Whether the vector lanes run along k; if not, along n.
    inner: bool
    #: Products whose sums this one continues; they are written in one loop nest with it.
    before: tuple[SkinnyGemm, ...] = ()

    @property
    def parts(self) -> tuple[SkinnyGemm, ...]:
        return *self.before, self

    @property
    def c(self) -> ir.Value:
        """Return the initial value of the sums."""
        return self.parts[0].op.operands[2]

    @property
    def stationary(self) -> ir.Value:
        return self.op.operands[1 - self.n_dim]

    @property
    def streamed(self) -> ir.Value:
        return self.op.operands[self.n_dim]

    @property
    def m(self) -> int:
        return self.op.result.type.shape[1 - self.n_dim]

    @property
    def n(self) -> int:
        return self.op.result.type.shape[self.n_dim]

    @property
    def k(self) -> int:
        return self.op.operands[0].type.shape[1]

    @property
    def n_dim(self) -> int:
        """Return dimension n of the result and the streamed operand; k of the stationary one."""
        return 1 if self.stationary_is_lhs else 0

    @property
    def streamed_lane_dim(self) -> int:
        """Return the dimension of the streamed operand that must be contiguous."""
        return 1 - self.n_dim if self.inner else self.n_dim

    def point(self, m: Index, other: Index) -> Point:
        """Return a point of the result (m, n), or of the stationary operand (m, k)."""
        return (m, other) if self.stationary_is_lhs else (other, m)


def match_skinny(op: ir.Op, contiguous: tuple[int | None, int | None]) -> SkinnyGemm | None:
    """Return a product as a skinny GEMM, or None if its shape or layout does not suit one.

    `contiguous` is the dimension along which each operand is contiguous in memory.
    """
    a, b = op.operands[:2]
    if op.result.type.rank != 2 or any(v.type.elem != "f32" for v in (a, b, op.result)):
        return None
    m, n = op.result.type.shape
    if min(m, n) > MAX_SKINNY_ROWS or max(m, n) < MAX_SKINNY_ROWS:
        return None
    lhs = m <= n
    along = contiguous[1 if lhs else 0]
    return None if along is None else SkinnyGemm(op, lhs, inner=along == (0 if lhs else 1))


def fused(first: SkinnyGemm, second: SkinnyGemm) -> SkinnyGemm | None:
    """Return both products as one, if the second continues the sums of the first."""
    follows = second.op.operands[2] is first.op.result
    alike = first.inner and second.inner and first.k == second.k
    return replace(second, before=first.parts) if follows and alike else None
