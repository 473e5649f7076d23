"""The ranking benchmark takes the tiles that it says."""

from __future__ import annotations

import pytest

from benchmarks import ranking
from tritune.screening.rejection import register_budget
from tritune.targets.limits import limits_of
from tritune.targets.target import Target


@pytest.mark.parametrize("target", ["cuda:80", "hip:gfx942"])
def test_each_tile_has_its_largest_register_budget(target: str) -> None:
    task = ranking.task_for((Target.parse(target), "float16", 128, True), [32, 64])
    every = ranking.configs_of(task, "all")
    chosen = ranking.configs_of(task, "largest")
    limits = limits_of(task.target)
    tiles = {ranking._tile(config) for config in every}
    assert len(chosen) == len(tiles) < len(every)
    for config in every:
        [best] = (each for each in chosen if ranking._tile(each) == ranking._tile(config))
        assert register_budget(best, limits) >= register_budget(config, limits)


def test_a_small_sample_of_tiles_is_part_of_a_larger_one() -> None:
    task = ranking.task_for((Target.parse("cuda:80"), "float16", 128, True))
    configs = ranking.configs_of(task, "all")
    few, more = (ranking.some_of(configs, count) for count in (10, 30))
    assert set(few) < set(more) < set(configs)
    assert len({ranking._tile(config) for config in few}) == 10
    assert ranking.some_of(configs, None) == configs
