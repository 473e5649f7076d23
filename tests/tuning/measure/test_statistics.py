from __future__ import annotations

import random

import pytest

from tritune.tuning.measure.statistics import faster, interval, median


def rounds(base: float, count: int, rng: random.Random, machine: list[float]) -> list:
    """Samples around `base`, in a machine that is slowed down alike for all in each round."""
    return [
        tuple(base * machine[n] * (1 + abs(rng.gauss(0.0, 0.01))) for _ in range(3))
        for n in range(count)
    ]


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


@pytest.mark.parametrize(("ours", "theirs", "verdict"), [(1.0, 1.1, True), (1.1, 1.0, False)])
def test_a_real_difference_is_seen_through_a_machine_that_slows_down(ours, theirs, verdict):
    rng = random.Random(1)
    machine = [rng.uniform(1.0, 3.0) for _ in range(10)]
    pair = rounds(ours, 10, rng, machine), rounds(theirs, 10, rng, machine)
    assert faster(*pair) is verdict


def test_noise_decides_nothing():
    rng = random.Random(2)
    machine = [1.0] * 10
    assert faster(rounds(1.0, 10, rng, machine), rounds(1.0, 10, rng, machine)) is None


def test_few_rounds_decide_nothing_however_clear_they_seem():
    assert faster([(1.0,)] * 5, [(2.0,)] * 5) is None
    assert faster([(1.0,)] * 6, [(2.0,)] * 6) is True
