"""The part of a large output that is compared with the reference.

The whole reference of a large problem would take longer than tuning it. So outputs are compared at
evenly spaced indices, the last one always among them. The step is odd, so that every position
within a tile, whose sides are powers of two, is compared.
"""

from __future__ import annotations

import math

#: Indexes an output; without slices it is the whole.
Part = tuple[slice, ...]


def every_nth(size: int, needed: float, most: int = 10**9) -> slice:
    """Return a slice of every n-th index, with n at least `needed` and at most `most`."""
    step = max(1, min(math.ceil(needed), most, size))
    if step % 2 == 0:
        step += 1 if step < size else -1
    return slice((size - 1) % step, None, step)


def indices_of(part: slice, size: int) -> range:
    """Return the indices that a slice selects of a dimension."""
    return range(*part.indices(size))
