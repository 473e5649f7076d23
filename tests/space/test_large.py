"""A space of more than 10^7 points with constraints is handled without visiting it."""

from __future__ import annotations

import itertools
import random

from tritune.space import Parameter, Space

#: Limits of a matrix product on a GPU, over a product of 86 million points.
GEMM = Space(
    (
        Parameter.powers_of_two("BLOCK_M", 16, 256),
        Parameter.powers_of_two("BLOCK_N", 16, 256),
        Parameter.powers_of_two("BLOCK_K", 16, 256),
        Parameter.integers("GROUP_M", 1, 8),
        Parameter.powers_of_two("SPLIT_K", 1, 32),
        Parameter.powers_of_two("num_warps", 1, 16),
        Parameter.integers("num_stages", 1, 6),
        Parameter.powers_of_two("VECTOR", 1, 8),
        Parameter.integers("UNROLL", 1, 5),
        Parameter.choice("ORDER", ("rows", "columns", "snake")),
        *(Parameter.boolean(name) for name in ("PRE_LOAD", "PEEL", "PERSISTENT")),
    ),
    (
        "BLOCK_M * BLOCK_N <= num_warps * 32 * 256",
        "(BLOCK_M + BLOCK_N) * BLOCK_K * 2 * num_stages <= 101376",
        "SPLIT_K * BLOCK_K <= k",
        "VECTOR * 32 * num_warps <= BLOCK_K * min(BLOCK_M, BLOCK_N)",
        "GROUP_M == 1 or BLOCK_M * GROUP_M <= 1024",
        "not PRE_LOAD or BLOCK_K % (16 * UNROLL) == 0",
        "ORDER != 'snake' or PEEL and PERSISTENT",
    ),
)


def _valid_by_loops(k: int) -> int:
    """The same count with the independent parts taken apart by hand."""
    powers = [2**n for n in range(4, 9)]
    total = 0
    for m, n, bk, group, warps, stages, vector, unroll in itertools.product(
        powers,
        powers,
        powers,
        range(1, 9),
        (1, 2, 4, 8, 16),
        range(1, 7),
        (1, 2, 4, 8),
        range(1, 6),
    ):
        if (
            m * n <= warps * 8192
            and (m + n) * bk * 2 * stages <= 101376
            and vector * 32 * warps <= bk * min(m, n)
            and (group == 1 or m * group <= 1024)
        ):
            splits = sum(split * bk <= k for split in (1, 2, 4, 8, 16, 32))
            pre_load = 1 + (bk % (16 * unroll) == 0)
            total += splits * pre_load
    # Two orders with anything, the third with both flags set.
    return total * (2 * 4 + 1)


def test_the_valid_size_is_exact() -> None:
    points = GEMM.on("cuda", 90, {"k": 2048})
    product = 1
    for values in points.parameters.values():
        product *= len(values)
    assert product > 10**7
    assert points.size() == _valid_by_loops(2048)
    assert points.size() > 10**7


def test_the_first_configs_come_before_the_last_is_known() -> None:
    points = GEMM.on("cuda", 90, {"k": 2048})
    first = list(itertools.islice(points.configs(), 2_000))
    assert len(set(first)) == 2_000
    assert all(config in points for config in first[::100])


def test_a_sample_is_valid_and_spread_over_the_space() -> None:
    points = GEMM.on("cuda", 90, {"k": 2048})
    sample = points.sample(300, random.Random(0))
    assert len(set(sample)) == 300
    assert all(config in points for config in sample)
    for name, values in points.parameters.items():
        assert {config[name] for config in sample} == set(values)


def _product_is_small(names: str) -> tuple[Space, int]:
    """A constraint over all of the parameters, and how many points it leaves."""
    space = Space(
        tuple(Parameter.integers(name, 1, 10) for name in names), (f"{'*'.join(names)} <= 5000",)
    )
    ways = {1: 1}
    for _ in names:
        after: dict[int, int] = {}
        for product, count in ways.items():
            for value in range(1, 11):
                after[product * value] = after.get(product * value, 0) + count
        ways = after
    return space, sum(count for product, count in ways.items() if product <= 5000)


def test_one_constraint_over_all_parameters_is_counted_point_by_point() -> None:
    space, expected = _product_is_small("abcdef")
    assert space.size("cpu") == expected > 10**5


def test_more_partial_points_than_can_be_visited_are_estimated_and_drawn() -> None:
    space, expected = _product_is_small("abcdefgh")
    points = space.on("cpu")
    assert 0.8 * expected < points.size() < 1.2 * expected
    sample = points.sample(50, random.Random(2))
    assert len(set(sample)) == 50
    assert all(config in points for config in sample)


def test_more_points_than_an_index_can_number_are_sampled() -> None:
    space = Space(
        tuple(Parameter.integers(f"p{n}", 0, 9) for n in range(25)),
        tuple(f"p{n} <= p{n + 1} + 3" for n in range(0, 24, 2)),
    )
    points = space.on("cpu")
    assert points.size() == (10 * 10 - sum(range(1, 7))) ** 12 * 10
    sample = points.sample(20, random.Random(1))
    assert len(set(sample)) == 20
    assert all(config in points for config in sample)
