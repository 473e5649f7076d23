"""The top-p set of a row by bisection: the search of samplers, which need no sorting.

The weights are whole numbers, so that no sum rounds and numpy's result is the only one.
"""

import numpy as np
import pytest
import torch
import triton
import triton.language as tl

from tests.cpu.values import assert_same
from tritune.testing import launch

BLOCK, COLUMNS = 128, 5000


@triton.jit
def top_p_kernel(x_ptr, heavy_ptr, kept_ptr, found_ptr, p, cols, limit, BLOCK: tl.constexpr):
    """Keep the values above a pivot that halving finds: those above it weigh at least `p`, and
    without the smallest of them less. The search ends after `limit` rounds in any case.
    """
    row = tl.program_id(0)
    x_ptr += row * cols
    heavy_ptr += row * cols
    column = tl.arange(0, BLOCK)
    low = 100.0
    high = 0.0
    count = 0
    for start in range(0, cols, BLOCK):
        x = tl.load(x_ptr + start + column, mask=start + column < cols, other=0.0)
        heavy = x > low
        place = count + tl.cumsum(heavy.to(tl.int32), axis=0) - 1
        tl.store(heavy_ptr + place, x, mask=heavy)
        count += tl.sum(heavy.to(tl.int32), axis=0)
        high = tl.maximum(high, tl.max(x, axis=0))

    pivot = 0.0
    rounds = 0
    searching = True
    while searching:
        pivot = (high - low) * 0.5 + low
        mass = 0.0
        smallest = float("inf")
        ties = 0
        for start in range(0, count, BLOCK):
            x = tl.load(heavy_ptr + start + column, mask=start + column < count, other=0.0)
            above = x > pivot
            mass += tl.sum(tl.where(above, x, 0.0), axis=0)
            least = tl.min(tl.where(above, x, float("inf")), axis=0)
            equal = tl.sum((above & (x == least)).to(tl.int32), axis=0)
            ties = tl.where(least < smallest, 0, ties) + tl.where(least <= smallest, equal, 0)
            smallest = tl.minimum(smallest, least)
        rounds += 1
        searching = ((mass < p) | (mass - smallest * ties >= p)) & (rounds < limit)
        if mass >= p:
            low = pivot
        else:
            high = pivot

    tl.store(found_ptr + 2 * row, pivot)
    tl.store(found_ptr + 2 * row + 1, rounds)
    for start in range(0, cols, BLOCK):
        inside = start + column < cols
        x = tl.load(x_ptr + start + column, mask=inside)
        tl.store(kept_ptr + row * cols + start + column, x > pivot, mask=inside)


def bisected(x: np.ndarray, p: float, limit: int) -> tuple[np.float32, int]:
    """Return the pivot and the rounds of the same search by numpy."""
    low, high = np.float32(100), x.max()
    heavy = x[x > low]
    rounds, searching = 0, True
    while searching:
        pivot = (high - low) * np.float32(0.5) + low
        above = heavy[heavy > pivot]
        enough = above.sum() >= p
        rounds += 1
        searching = rounds < limit and not (enough and above[above > above.min()].sum() < p)
        low, high = (pivot, high) if enough else (low, pivot)
    return pivot, rounds


def rows() -> torch.Tensor:
    """Whole numbers, most of them small, each several times; the largest stands alone."""
    numbers = np.random.default_rng(0).gamma(0.7, 120.0, (2, COLUMNS)).astype(np.int32)
    numbers[:, 1234] = 3000
    return torch.from_numpy(numbers.astype(np.float32))


def run(x: torch.Tensor, p: float, limit: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return what is kept of each row, and its pivot and rounds."""
    outputs = torch.zeros_like(x), torch.zeros(x.shape, dtype=torch.bool), torch.zeros(len(x), 2)
    _, _, kept, found = launch(top_p_kernel, (len(x),), x, *outputs, p, COLUMNS, limit, BLOCK=BLOCK)
    return kept, found


@pytest.mark.parametrize("limit", [4, 40])
@pytest.mark.parametrize("share", [0.2, 0.5, 0.7])
def test_the_search_goes_as_in_numpy(share, limit):
    x = rows()
    p = share * float(x[0].sum())
    kept, found = run(x, p, limit)
    expected = [bisected(row, p, limit) for row in x.numpy()]
    assert_same(found, torch.tensor(expected, dtype=torch.float32))
    assert torch.equal(kept, x > found[:, :1])


def test_a_search_with_rounds_enough_finds_what_sorting_finds():
    x = rows()
    p = 0.5 * float(x[0].sum())
    kept, _ = run(x, p, 40)
    ordered = x.sort(1, descending=True).values
    last = (ordered.cumsum(1) < p).sum(1, keepdim=True)
    assert torch.equal(kept, x >= ordered.gather(1, last))
