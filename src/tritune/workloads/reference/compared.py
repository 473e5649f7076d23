"""Which part of a large output is compared with the reference.

To compute all of a large problem's reference takes minutes, and longer than tuning it. So outputs
are compared at evenly spaced indices, the last one always among them. The steps between are odd:
every place within a tile, whose sides are powers of two, has its turn.
"""

from __future__ import annotations

import math

#: Indexes an output; without slices it is the whole.
Part = tuple[slice, ...]


def thinned(size: int, needed: float, most: int = 10**9) -> slice:
    """Every n-th index of a dimension, n being as large as needed but not larger than `most`."""
    step = max(1, min(math.ceil(needed), most, size))
    if step % 2 == 0:
        step += 1 if step < size else -1
    return slice((size - 1) % step, None, step)


def taken(part: slice, size: int) -> range:
    """The indices that a slice takes of a dimension."""
    return range(*part.indices(size))
