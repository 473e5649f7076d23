"""What every strategy promises: new configs only, all of them in the end, the same each time."""

from __future__ import annotations

import pytest

from tests.tuning.search.made import EVERY, OPTIMUM, Huge, Search, easy_ms
from tritune.space import Config, Listed
from tritune.tuning.search import DEFAULT_STRATEGY, STRATEGIES, Prior

every_strategy = pytest.mark.parametrize("name", STRATEGIES)
SMALL = EVERY[::13]


def half_fail(config: Config) -> float | None:
    return None if config["stages"] in (1, 4) else easy_ms(config)


@every_strategy
@pytest.mark.parametrize("batch", [1, 7])
def test_a_small_space_is_exhausted_without_repetition(name: str, batch: int) -> None:
    asked = Search(name, Listed(SMALL)).run(10**6, batch)
    assert len(asked) == len(SMALL)
    assert set(asked) == set(SMALL)


@every_strategy
def test_nothing_is_left_to_ask_for_in_the_end(name: str) -> None:
    search = Search(name, Listed(SMALL))
    search.run(10**6)
    assert search.strategy.ask(3) == []


@every_strategy
def test_a_space_of_one_config_has_one_trial(name: str) -> None:
    assert Search(name, Listed([OPTIMUM])).run(5) == [OPTIMUM]


@every_strategy
def test_failures_alone_do_not_end_the_search(name: str) -> None:
    asked = Search(name, Listed(SMALL), time_of=lambda config: None).run(10**6, 5)
    assert set(asked) == set(SMALL)


@every_strategy
def test_equal_times_do_not_end_the_search(name: str) -> None:
    asked = Search(name, Listed(SMALL), time_of=lambda config: 1.0).run(10**6, 3)
    assert set(asked) == set(SMALL)


@every_strategy
def test_one_seed_gives_one_search(name: str) -> None:
    first, second = (Search(name, time_of=half_fail, seed=3).run(40, 4) for _ in range(2))
    assert first == second


@every_strategy
def test_configs_that_were_told_are_not_asked_for(name: str) -> None:
    search = Search(name, Listed(SMALL))
    for config in SMALL[::2]:
        search.strategy.tell(config, easy_ms(config))
    assert set(search.run(10**6, 4)) == set(SMALL[1::2])


@every_strategy
def test_a_batch_can_be_asked_for_before_the_last_was_told(name: str) -> None:
    search = Search(name, Listed(SMALL))
    asked = []
    while batch := search.strategy.ask(6):
        asked += batch
        if len(asked) >= 18:
            # Results come two batches later, as they do when the next batch compiles meanwhile.
            for config in asked[len(asked) - 18 : len(asked) - 12]:
                search.strategy.tell(config, easy_ms(config))
    assert len(asked) == len(set(asked)) == len(SMALL)


@every_strategy
def test_a_config_from_outside_the_space_may_be_told(name: str) -> None:
    search = Search(name, Listed(SMALL))
    search.strategy.tell(Config.of(block=7, rows=3, stages=2, preload=True), 0.5)
    search.strategy.tell(Config.of(other="text"), None)
    assert set(search.run(10**6, 4)) == set(SMALL)


@every_strategy
def test_a_space_too_large_to_list_is_searched(name: str) -> None:
    asked = Search(name, Huge(), lambda c: float(sum(map(int, c.as_kwargs().values())))).run(30, 10)
    assert len(set(asked)) == 30
    assert all(config in Huge() for config in asked)


@every_strategy
def test_winners_from_elsewhere_come_first(name: str) -> None:
    ranked = sorted(EVERY, key=easy_ms)
    priors = (
        Prior({config: 7.0 - place for place, config in enumerate(EVERY[:5])}, similarity=0.5),
        Prior({config: easy_ms(config) for config in ranked[:50]}),
    )
    first, second = Search(name, prior=priors).run(2, 2)
    assert first == OPTIMUM
    assert second == EVERY[4]


def test_winners_that_are_no_points_or_failed_are_not_proposed() -> None:
    stranger = Config.of(block=1, rows=1, stages=1, preload=True)
    prior = Prior({stranger: 0.1, EVERY[3]: None, EVERY[9]: 5.0})
    assert Search("random", prior=(prior,)).run(1) == [EVERY[9]]


def test_the_default_is_one_of_the_strategies() -> None:
    assert DEFAULT_STRATEGY in STRATEGIES
    assert all(name == strategy.name for name, strategy in STRATEGIES.items())


def test_exhaustive_keeps_the_order_of_the_space() -> None:
    assert Search("exhaustive", Listed(SMALL)).run(10**6, 4) == SMALL


def test_random_depends_on_the_seed() -> None:
    assert Search("random", seed=1).run(9) != Search("random", seed=2).run(9)


def test_random_learns_nothing() -> None:
    upside_down = Search("random", time_of=lambda config: 1 / easy_ms(config), seed=1).run(50)
    assert upside_down == Search("random", seed=1).run(50)
