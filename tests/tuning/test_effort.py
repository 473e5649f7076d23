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


def test_an_effort_that_is_not_there_is_refused_with_those_that_are() -> None:
    with pytest.raises(TrituneError, match="allowed: quick, normal, full"):
        effort_named("lazy")
