"""Folding dimensions visits the same elements, in no more dimensions."""

from __future__ import annotations

import itertools

import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.ops.layouts import LAYOUTS, normal, rearranged
from tritune.ops.call.folding import fold, split


def visited(sizes: tuple[int, ...], strides: tuple[tuple[int, ...], ...]) -> list[tuple[int, ...]]:
    """The offsets in all tensors at once, for every index."""
    return sorted(
        tuple(sum(i * s for i, s in zip(index, steps, strict=True)) for steps in strides)
        for index in itertools.product(*map(range, sizes))
    )


@given(
    shape=st.lists(st.sampled_from((1, 2, 3)), min_size=1, max_size=4),
    layouts=st.lists(st.sampled_from(LAYOUTS), min_size=1, max_size=3),
)
def test_the_same_elements_of_all_tensors_are_visited(shape: list[int], layouts: list[str]) -> None:
    tensors = [rearranged(normal(*shape), layout) for layout in layouts]
    strides = tuple(tensor.stride() for tensor in tensors)
    folded = fold(shape, strides)
    assert visited(folded.sizes, folded.strides) == visited(tuple(shape), strides)
    assert len(folded.sizes) <= len(shape)


def test_contiguous_tensors_and_equally_permuted_ones_become_one_dimension() -> None:
    x = normal(2, 3, 4)
    assert fold(x.shape, [x.stride(), None, x.stride()]) == ((24,), ((1,), (0,), (1,)))
    y = x.permute(2, 0, 1)
    assert fold(y.shape, [y.stride(), y.stride()]).sizes == (24,)
    assert fold((1, 1), [(5, 7)]) == ((), ((),))
    assert fold((3, 0, 2), [(1, 1, 1)]).sizes == (0,)


def test_splitting_goes_along_the_shortest_dimension() -> None:
    x, y = normal(4, 2, 1, 5), normal(4, 2, 1, 9)
    parts = list(split((x, None, y), leading=3))
    assert len(parts) == 2
    for i, (x_part, nothing, y_part) in enumerate(parts):
        assert torch.equal(x_part, x[:, i]) and torch.equal(y_part, y[:, i])
        assert nothing is None
