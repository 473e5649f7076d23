"""Which configs are screened, and in which company."""

from __future__ import annotations

import itertools

import pytest

from tritune.screening.candidates import GROUP_SIZE, candidates, groups
from tritune.screening.rejection import register_budget
from tritune.space import Config, Points
from tritune.targets.limits import limits_of
from tritune.targets.target import Target
from tritune.workloads.catalog import WORKLOADS

ATTENTION = WORKLOADS["attention"]
PROBLEM = ATTENTION.parse("queries=1024 head_size=128 dtype=float16 causal=true")
LIMITS = limits_of(Target.parse("cuda:80"))
DEFAULT = ATTENTION.kernel.default(PROBLEM, "cuda", 80)


@pytest.fixture(scope="module")
def points() -> Points:
    return ATTENTION.kernel.space.on("cuda", 80, PROBLEM.fields())


def without(config: Config, *names: str) -> frozenset[tuple[str, object]]:
    return frozenset(item for item in config.values if item[0] not in names)


def test_a_part_of_the_space_has_the_default_and_the_size_that_was_asked_for(
    points: Points,
) -> None:
    found = candidates(points, 50, DEFAULT)
    assert len(found) == len(set(found)) == 50
    assert found[0] == DEFAULT
    assert all(config in points for config in found)


def test_register_budgets_are_drawn_together(points: Points) -> None:
    found = candidates(points, 60, DEFAULT)
    for config in found[1:-3]:  # the last ones may have been cut off
        relatives = (Config.of(**{**config.as_kwargs(), "maxnreg": n}) for n in (128, 168, 255))
        assert all(relative in found for relative in relatives if relative in points)


def test_all_of_a_space_is_all_of_it(points: Points) -> None:
    small = ATTENTION.kernel.space.restricted(BLOCK_M=64, BLOCK_N=64, num_warps=4, num_stages=2)
    few = small.on("cuda", 80, PROBLEM.fields())
    assert set(candidates(few, None, DEFAULT)) == {DEFAULT, *few.configs()}


def test_groups_share_the_kernels_constants_and_begin_with_the_most_registers(
    points: Points,
) -> None:
    configs = candidates(points, 300, DEFAULT)
    found = groups(configs, ATTENTION.kernel, LIMITS)
    assert sorted(c.key for group in found for c in group) == sorted(c.key for c in configs)
    for group in found:
        assert len({(config["BLOCK_M"], config["BLOCK_N"]) for config in group}) == 1
        assert len(group) <= 2 * GROUP_SIZE + 2
        for one, other in itertools.pairwise(group):
            if without(one, "maxnreg") == without(other, "maxnreg"):
                assert register_budget(one, LIMITS) > register_budget(other, LIMITS)


def test_configs_that_differ_in_flags_are_compiled_by_one_worker(points: Points) -> None:
    configs = list({without(c, "PRE_LOAD_V"): c for c in candidates(points, 300, DEFAULT)}.values())
    twins = [Config.of(**{**c.as_kwargs(), "PRE_LOAD_V": not c["PRE_LOAD_V"]}) for c in configs]
    found = groups([*configs, *twins], ATTENTION.kernel, LIMITS)
    place = {config: number for number, group in enumerate(found) for config in group}
    assert all(place[config] == place[twin] for config, twin in zip(configs, twins, strict=True))


def test_of_equal_budgets_the_compilers_own_comes_first() -> None:
    default = ATTENTION.kernel.default(PROBLEM, "hip", "gfx942")
    budgets = [Config.of(**{**default.as_kwargs(), "waves_per_eu": n}) for n in (3, 1, 0, 2)]
    limits = limits_of(Target.parse("hip:gfx942"))
    [group] = groups(budgets, ATTENTION.kernel, limits)
    assert [config["waves_per_eu"] for config in group] == [0, 1, 2, 3]
