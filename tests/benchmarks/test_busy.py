"""What counts as confirmed in the benchmark that tunes on a busy machine."""

from __future__ import annotations

from benchmarks.busy import is_confirmed


def test_a_gain_that_is_measured_again_is_confirmed() -> None:
    assert is_confirmed(claimed=1.30, measured=1.28)
    assert is_confirmed(claimed=1.0, measured=0.97)


def test_a_stall_that_was_taken_for_a_gain_is_not() -> None:
    assert not is_confirmed(claimed=451.0, measured=1.3)
    assert not is_confirmed(claimed=1.2, measured=1.1)


def test_a_winner_that_is_slower_than_the_default_is_not_whatever_is_claimed() -> None:
    assert not is_confirmed(claimed=0.94, measured=0.94)
