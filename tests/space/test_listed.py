"""Configs that are given one by one."""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tritune.space import Config, Listed, SpaceError

_CONFIGS = st.lists(
    st.dictionaries(
        st.sampled_from("abc"),
        st.sampled_from([0, 1, 2, 5, True, False, "x", "y"]),
        min_size=1,
    ).map(Config.from_json),
    min_size=1,
    max_size=40,
)


def _differences(one: Config, other: Config) -> int:
    absent = object()

    def typed(config: Config, name: str) -> object:
        return (type(config[name]), config[name]) if name in config else absent

    names = {name for config in (one, other) for name, _ in config.values}
    return sum(typed(one, name) != typed(other, name) for name in names)


@given(_CONFIGS)
def test_neighbours_are_the_listed_configs_that_differ_in_one_name(configs: list[Config]) -> None:
    listed = Listed(configs)
    for config in configs:
        found = listed.neighbours(config)
        assert len(set(found)) == len(found)
        assert set(found) == {other for other in configs if _differences(config, other) == 1}


@given(_CONFIGS, st.integers(0, 50), st.randoms(use_true_random=False))
def test_a_sample_has_different_configs_of_the_list(
    configs: list[Config], count: int, rng: random.Random
) -> None:
    listed = Listed(configs)
    sample = listed.sample(count, rng)
    assert len(sample) == len(set(sample)) == min(count, listed.size())
    assert set(sample) <= set(configs)


def test_a_config_that_is_not_listed_has_neighbours_too() -> None:
    configs = [Config.of(a=a, b=b) for a, b in itertools.product((1, 2, 4), (1, 2))]
    listed = Listed(configs)
    assert set(listed.neighbours(Config.of(a=3, b=2))) == {c for c in configs if c["b"] == 2}
    assert listed.neighbours(Config.of(a=3, b=3)) == []
    assert listed.neighbours(Config.of(a=1, b=1, c=1)) == []


def test_adjacent_values_come_first() -> None:
    listed = Listed([Config.of(a=a, b=1) for a in (8, 1, 4, 2)])
    assert [config["a"] for config in listed.neighbours(Config.of(a=2, b=1))] == [1, 4, 8]


def test_parameters_list_their_values_in_order() -> None:
    listed = Listed([Config.of(a=4, m="y"), Config.of(a=1, m="x"), Config.of(a=2)])
    assert listed.parameters == {"a": (1, 2, 4), "m": ("y", "x")}
    assert next(listed.configs()) == Config.of(m="y", a=4)
    assert Config.of(m="x", a=1) in listed
    assert Config.of(m="x", a=4) not in listed


def test_a_config_given_twice_counts_once() -> None:
    assert Listed([Config.of(a=1, b=2), Config.of(b=2, a=1)]).size() == 1


def test_an_empty_list_is_refused() -> None:
    with pytest.raises(SpaceError, match="at least one"):
        Listed([])
