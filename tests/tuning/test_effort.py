"""How much an effort spends on a space."""

from __future__ import annotations

import pytest

from tritune.errors import TrituneError
from tritune.tuning.effort import EFFORTS, FEWEST, effort_named


@pytest.mark.parametrize("size", [120, 148, 296, 600])
def test_a_quick_search_tries_at_most_a_tenth_of_a_space(size: int) -> None:
    assert FEWEST <= EFFORTS["quick"].trials_in(size) <= size / 10


def test_a_small_space_is_not_starved_and_a_large_one_has_a_limit() -> None:
    quick = EFFORTS["quick"]
    assert (quick.trials_in(5), quick.trials_in(40), quick.trials_in(10**7)) == (5, FEWEST, 60)


def test_a_full_search_tries_everything() -> None:
    assert EFFORTS["full"].trials_in(4321) == 4321


@pytest.mark.parametrize(
    ("limit_ms", "best_ms", "patience"),
    [(0.96, 1.0, 10), (0.94, 1.0, 30), (1.0, 1.0, 10), (1.01, 1.0, 30), (None, 1.0, 30)],
)
def test_near_the_limit_a_search_ends_sooner_unless_the_limit_was_beaten(
    limit_ms: float | None, best_ms: float, patience: int
) -> None:
    assert EFFORTS["quick"].patience_near(limit_ms, best_ms) == patience


def test_before_anything_worked_no_limit_is_near() -> None:
    assert EFFORTS["quick"].patience_near(1.0, None) == 30


def test_an_effort_that_is_not_there_is_refused_with_those_that_are() -> None:
    with pytest.raises(TrituneError, match="allowed: quick, normal, full"):
        effort_named("lazy")
