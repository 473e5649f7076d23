"""Horizontal reductions: across the lanes of vectors, many vectors at a time.

Reducing the lanes of one vector takes a step for each halving, in which most lanes are idle. Two
vectors fit into one step: the halves of both are put side by side and combined. As many vectors as
there are lanes become one vector of results, in fewer steps than there are vectors.
"""

from __future__ import annotations

from collections.abc import Callable

from llvmlite import ir as ll

from tritune.cpu.lower.llvm import Emitter, lanes_of

#: Combines two vectors lane by lane.
Join = Callable[[ll.Value, ll.Value], ll.Value]


def reduce_lanes(e: Emitter, vectors: list[ll.Value], join: Join) -> ll.Value:
    """Reduce the lanes of each vector, by a commutative operation, to a vector of the results.

    The number of vectors is a power of two.
    """
    lanes, count = lanes_of(vectors[0].type), len(vectors)
    if count > lanes:
        parts = [reduce_lanes(e, vectors[i : i + lanes], join) for i in range(0, count, lanes)]
        while len(parts) > 1:
            parts = [e.concat(x, y) for x, y in zip(parts[::2], parts[1::2], strict=True)]
        return parts[0]
    while lanes > count:
        lanes //= 2
        vectors = [
            join(e.slice_lanes(v, 0, lanes), e.slice_lanes(v, lanes, lanes)) for v in vectors
        ]
    # Every step interleaves the results; from this order they come out in the given one.
    vectors = [vectors[_reversed_bits(i, count)] for i in range(count)]
    width = lanes
    while len(vectors) > 1:
        pairs = zip(vectors[::2], vectors[1::2], strict=True)
        vectors = [_halved(e, x, y, width, join) for x, y in pairs]
        width //= 2
    return vectors[0]


def _halved(e: Emitter, x: ll.Value, y: ll.Value, width: int, join: Join) -> ll.Value:
    """Combine the two halves of every `width` lanes of x and y, those of x before those of y."""
    lanes, half = lanes_of(x.type), width // 2

    def chosen(first: int) -> ll.Value:
        picks: list[int] = []
        for group in range(0, lanes, width):
            for source in (0, lanes):
                start = source + group + first
                picks += range(start, start + half)
        return e.shuffle(x, y, picks)

    return join(chosen(0), chosen(half))


def _reversed_bits(number: int, count: int) -> int:
    result = 0
    while count > 1:
        result, number, count = result * 2 + number % 2, number // 2, count // 2
    return result
