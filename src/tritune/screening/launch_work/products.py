"""How a block's warps share the products of tiles."""

from __future__ import annotations

from tritune.targets.limits import Limits

#: Rows of the smallest matrix instruction, and of the sums that it adds to along K.
SMALLEST = 16
#: Instructions per iteration and warp for addresses, the loop itself and waiting.
LOOP_OPS = 80.0
#: Operations per 16 bytes that a lane loads: where they are, and whether they exist.
LOAD_OPS = 4.0

#: Architectures for which Triton's code reads transposed operands element by element.
ELEMENTWISE = ("gfx90a", "gfx1100", "gfx1201")
GATHER_COST = 4.0


def loop_ops(loaded_bytes: float, warps: int, limits: Limits) -> float:
    """Return the operations on lanes of an iteration beside its arithmetic."""
    return LOOP_OPS * warps * limits.warp_size + LOAD_OPS * loaded_bytes / 16


def rows_computed(rows: int, warps_along: int, smallest: int = SMALLEST) -> int:
    """Return the rows that warps along this axis compute; of few, several compute the same."""
    return max(rows, smallest * warps_along)


def reads(rows: int, warps_along: int, warps: int, limits: Limits) -> float:
    """Return how often a product of so many rows reads the other operand from shared memory.

    Usually each of the warps along the rows reads it. Hopper's and Blackwell's own instructions
    read it once for the 64 or 128 rows that they work on.
    """
    arch = limits.target.arch
    if limits.target.family == "cuda" and rows >= 64 and warps >= 4:
        if arch in (100, 103, 110):
            return rows / 128
        if arch == 90:
            return rows / 64
    return float(warps_along)


def square(rows: int, columns: int, warps: int) -> tuple[int, int]:
    """Return the warps along rows and columns that give each a tile as square as possible."""
    along, across = 1, 1
    while along * across < warps:
        if rows // along >= columns // across:
            along *= 2
        else:
            across *= 2
    return along, across


def gathered(operand_bytes: float, times_read: float, limits: Limits) -> tuple[float, float]:
    """Return the bytes and operations that an operand costs more if not contiguous along K.

    Where no instruction transposes what it reads, lanes read single elements, two bytes of the
    eight that they could have, and put them together.
    """
    if limits.target.arch not in ELEMENTWISE:
        return 0.0, 0.0
    read = operand_bytes * times_read
    return (GATHER_COST - 1) * read, read / 4
