"""The device code, and its space: what may be tuned."""

import triton
import triton.language as tl

from tritune import Parameter, Space, autotune

from .reference import reference

SPACE = Space(
    (
        # Rows that one program computes.
        Parameter("LINES", (1, 2, 4, 8, 16)),
        Parameter("num_warps", (2, 4, 8)),
    ),
    # A program's tile: more than this is better split.
    ("LINES * BLOCK <= 16384 or LINES == 1",),
)


# Tuned when a problem is first met, then never again: the winner is in the store.
@autotune(
    space=SPACE,
    problem=["rows", "columns", "BLOCK"],
    reference=lambda x: {"out": reference(x)},
)
@triton.jit
def kernel(x, out, rows, columns, BLOCK: tl.constexpr, LINES: tl.constexpr):
    """The softmax of rows that lie one behind the other."""
    line = tl.program_id(0) * LINES + tl.arange(0, LINES)
    column = tl.arange(0, BLOCK)
    at = line[:, None] * columns + column[None, :]
    inside = (line < rows)[:, None] & (column < columns)[None, :]
    values = tl.load(x + at, inside, other=float("-inf")).to(tl.float32)
    # Numbers above the largest would overflow.
    power = tl.exp(values - tl.max(values, 1)[:, None])
    tl.store(out + at, power / tl.sum(power, 1)[:, None], inside)
