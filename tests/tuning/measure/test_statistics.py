from __future__ import annotations

import random

from tritune.tuning.measure.statistics import interval, median


def test_five_samples_are_too_few_for_an_interval_and_six_are_enough():
    assert interval([1.0, 2.0, 3.0, 4.0, 5.0]) is None
    assert interval([6.0, 2.0, 3.0, 4.0, 5.0, 1.0]) == (1.0, 6.0)


def test_the_interval_narrows_with_the_number_of_samples():
    # Ranks 40 and 61 of 100, as in any table of the binomial distribution.
    assert interval([float(n) for n in range(1, 101)]) == (40.0, 61.0)


def test_the_interval_holds_the_median_as_often_as_it_says():
    rng = random.Random(0)
    held = 0
    for _ in range(2000):
        limits = interval([rng.expovariate(1.0) for _ in range(15)])
        assert limits is not None
        held += limits[0] <= 0.6931 <= limits[1]
    assert 0.95 <= held / 2000 < 0.99


def test_the_median_is_of_all_samples_of_all_rounds():
    assert median([(1.0, 9.0), (3.0,)]) == 3.0
