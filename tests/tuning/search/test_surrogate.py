"""The default strategy learns: times, failures, and from elsewhere."""

from __future__ import annotations

import math
import statistics

import numpy as np
import pytest

from tests.tuning.search.made import EVERY, OPTIMUM, Huge, Search, easy_ms
from tritune.space import Config, Listed
from tritune.tuning.search import Prior
from tritune.tuning.search.encoding import Encoding
from tritune.tuning.search.gaussian import GaussianProcess


def differences(one: Config, other: Config) -> int:
    return sum(other[name] != value for name, value in one.values)


@pytest.mark.parametrize("seed", range(3))
def test_the_optimum_of_an_easy_space_is_found_in_few_trials(seed: int) -> None:
    search = Search("surrogate", seed=seed)
    search.run(40)
    assert search.best() == OPTIMUM


@pytest.mark.parametrize("seed", range(3))
def test_batches_find_it_too(seed: int) -> None:
    search = Search("surrogate", seed=seed)
    search.run(64, batch=8)
    assert search.best() == OPTIMUM


def test_a_batch_does_not_crowd_around_one_place() -> None:
    search = Search("surrogate")
    search.run(30)
    batch = search.strategy.ask(8)
    nearest = [min(differences(a, b) for b in batch if a != b) for a in batch]
    assert statistics.fmean(nearest) > 1


def test_failures_are_learned_and_avoided() -> None:
    def time_of(config: Config) -> float | None:
        # Half of the space fails, on the side where the times would be best.
        return None if int(config["block"]) * int(config["rows"]) > 256 else easy_ms(config)

    share = statistics.fmean(time_of(config) is None for config in EVERY)
    assert share > 0.5
    best_ms = min(ms for config in EVERY if (ms := time_of(config)) is not None)
    fractions = []
    for seed in range(4):
        search = Search("surrogate", time_of=time_of, seed=seed)
        asked = search.run(80)
        assert sum(time_of(config) is None for config in asked[40:]) < 0.5 * share * 40
        fractions.append(best_ms / (time_of(search.best()) or math.inf))
    assert statistics.fmean(fractions) > 0.95


def test_what_was_measured_elsewhere_saves_trials() -> None:
    def here(config: Config) -> float:
        return easy_ms(config) * (1.3 if config["stages"] == 2 else 1.0)

    elsewhere = Prior({config: easy_ms(config) for config in EVERY[::2]})
    best = min(map(here, EVERY))

    def after(trials: int, prior: tuple[Prior, ...]) -> float:
        searches = [Search("surrogate", time_of=here, seed=s, prior=prior) for s in range(4)]
        for search in searches:
            search.run(trials)
        return statistics.fmean(best / here(search.best()) for search in searches)

    assert after(9, (elsewhere,)) > after(9, ())


def test_a_misleading_prior_is_overcome() -> None:
    upside_down = Prior({config: 1 / easy_ms(config) for config in EVERY})
    search = Search("surrogate", prior=(upside_down,))
    search.run(60)
    assert search.best() == OPTIMUM


def test_a_prior_with_nothing_but_failures_does_no_harm() -> None:
    search = Search("surrogate", prior=(Prior(dict.fromkeys(EVERY)), Prior({})))
    search.run(40)
    assert search.best() == OPTIMUM


def test_more_results_than_it_learns_from_are_no_obstacle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tritune.tuning.search.surrogate.RESULTS", 20)
    asked = Search("surrogate", Listed(EVERY[::3])).run(10**6, 16)
    assert len(set(asked)) == len(EVERY[::3])


def test_in_a_space_too_large_to_list_it_looks_around_the_best() -> None:
    search = Search(
        "surrogate", Huge(), lambda c: 1 + float(sum((int(v) - 9) ** 2 for _, v in c.values))
    )
    search.run(60)
    assert search.time_of(search.best()) == 1


def test_numbers_have_a_size_and_a_number_of_halvings() -> None:
    encode = Encoding({"block": (32, 48, 64, 128)})
    size, halvings = encode([Config.of(block=b) for b in (32, 48, 64, 128)]).T
    assert size.tolist() == pytest.approx([0, np.log2(1.5) / 2, 0.5, 1])
    assert halvings.tolist() == pytest.approx([1 / 3, 0, 2 / 3, 1])


def test_text_has_a_column_for_each_value_and_a_constant_none() -> None:
    encode = Encoding({"kind": ("a", "b"), "fixed": (3,), "flag": (False, True)})
    rows = encode([Config.of(kind="b", fixed=3, flag=True), Config.of(fixed=3)])
    assert rows.tolist() == [[0, 1, 1], [0, 0, 0]]


def test_predictions_grow_as_if_made_at_once() -> None:
    random = np.random.default_rng(0)
    candidates, values = random.random((30, 3)), random.standard_normal(12)
    rows = [3, 7, 1, 20, 11, 5, 28, 0, 16, 9, 13, 2]
    grown, at_once = GaussianProcess(candidates), GaussianProcess(candidates)
    for count in (1, 5, 6):
        grown.predict(rows[:count], values[:count])
    grown.predict([*rows[:4], 29], values[:5])
    for left, right in zip(grown.predict(rows, values), at_once.predict(rows, values), strict=True):
        assert left == pytest.approx(right)


def test_predictions_are_good_and_sure_where_much_was_observed() -> None:
    candidates = np.linspace(0, 1, 30)[:, None]
    values = np.sin(6 * candidates[:, 0])
    model, rows = GaussianProcess(candidates), list(range(0, 15, 2))
    model.fit(rows, values[rows])
    mean, deviation = model.predict(rows, values[rows])
    assert mean[:15] == pytest.approx(values[:15], abs=0.1)
    assert deviation[:15].max() < deviation[20:].min()
