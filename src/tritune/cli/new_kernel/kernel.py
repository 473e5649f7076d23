"""The device code and its space."""

import triton
import triton.language as tl

from tritune import Parameter, Space, autotune

from .reference import reference

SPACE = Space(
    (
        # Rows per program.
        Parameter("LINES", (1, 2, 4, 8, 16)),
        Parameter("num_warps", (2, 4, 8)),
    ),
    # The elements of a program's tile.
    ("LINES * BLOCK <= 16384 or LINES == 1",),
)


# Tuned at the first call of each problem; the winner is stored.
@autotune(
    space=SPACE,
    problem=["rows", "columns", "BLOCK"],
    reference=lambda x: {"out": reference(x)},
)
@triton.jit
def kernel(x, out, rows, columns, BLOCK: tl.constexpr, LINES: tl.constexpr):
    """Compute the softmax of contiguous rows."""
    row = tl.program_id(0) * LINES + tl.arange(0, LINES)
    column = tl.arange(0, BLOCK)
    offsets = row[:, None] * columns + column[None, :]
    mask = (row < rows)[:, None] & (column < columns)[None, :]
    values = tl.load(x + offsets, mask, other=float("-inf")).to(tl.float32)
    # Without the maximum, exp would overflow.
    numerator = tl.exp(values - tl.max(values, 1)[:, None])
    tl.store(out + offsets, numerator / tl.sum(numerator, 1)[:, None], mask)
