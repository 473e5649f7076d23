"""What speaks for a config where a problem was not tuned, and what speaks against it."""

from __future__ import annotations

import math
from typing import Any

import pytest

from tritune.policy.learning.evidence import Evidence
from tritune.policy.learning.measured import Measured
from tritune.space import Config

WON, DEFAULT, OTHER_DEFAULT = (Config.of(TILE=n) for n in (1, 2, 3))


def problem(rows: int, columns: int = 1024, dtype: str = "float32") -> dict[str, Any]:
    return {"rows": rows, "columns": columns, "dtype": dtype}


def evidence(*known: tuple[dict[str, Any], float]) -> Evidence:
    """What a config took for some problems, as a share of the default's time."""
    rows = [Measured(p, {WON: share, DEFAULT: 1.0}, default=DEFAULT) for p, share in known]
    return Evidence.of(rows)


AROUND = ((problem(64), 0.5), (problem(256), 0.5))


def test_winning_on_both_sides_is_evidence() -> None:
    assert evidence(*AROUND).supports(problem(128), WON, DEFAULT)


@pytest.mark.parametrize(
    "asked",
    [
        problem(512),  # outside
        problem(32),
        problem(100),  # not a power of two: tiles are
        problem(128, 1000),
        problem(128, 2048),  # between in one size, outside in the other
        problem(128, dtype="bfloat16"),
    ],
)
def test_a_problem_that_is_not_between_is_not_answered(asked: dict[str, Any]) -> None:
    assert not evidence(*AROUND).supports(asked, WON, DEFAULT)


def test_one_side_is_not_enough_nor_are_far_ones() -> None:
    assert not evidence((problem(64), 0.5)).supports(problem(128), WON, DEFAULT)
    far = evidence((problem(32), 0.5), (problem(512), 0.5))
    assert not far.supports(problem(128), WON, DEFAULT)


@pytest.mark.parametrize("share", [0.98, 1.0, 2.0, math.inf])
def test_one_near_problem_where_it_did_not_win_is_enough_against_it(share: float) -> None:
    against = evidence(*AROUND, (problem(128, 512), share), (problem(128, 2048), 0.5))
    assert not against.supports(problem(128), WON, DEFAULT)


def test_winning_with_one_half_of_the_samples_only_is_no_win() -> None:
    rows = [
        Measured(p, {WON: 0.5, DEFAULT: 1.0}, DEFAULT, {WON: (0.5, 1.1), DEFAULT: (1.0, 1.0)})
        for p, _ in AROUND
    ]
    assert not Evidence.of(rows).supports(problem(128), WON, DEFAULT)


def test_it_must_have_beaten_the_default_of_the_problem_itself() -> None:
    rows = [
        Measured(p, {WON: 0.5, DEFAULT: 1.0, OTHER_DEFAULT: 0.5}, default=DEFAULT)
        for p, _ in AROUND
    ]
    far = Measured(problem(1), {OTHER_DEFAULT: 1.0}, default=OTHER_DEFAULT)
    both = Evidence.of([*rows, far])
    assert both.supports(problem(128), WON, DEFAULT)
    assert not both.supports(problem(128), WON, OTHER_DEFAULT)
    # Never measured beside it: nothing is known.
    assert not both.supports(problem(128), WON, Config.of(TILE=9))


def test_a_problem_for_which_nothing_ran_has_no_winner() -> None:
    fields = {"rows": 1}
    failed = [[fields, [[WON.to_json(), None]]], [{"rows": 2}, []]]
    known = Evidence.from_json(failed)
    assert known.winners == []
    assert known.answer(fields, DEFAULT, lambda config, fields: True) is None


def test_evidence_survives_being_saved_and_failures_stay_failures() -> None:
    known = evidence(*AROUND, (problem(128, 512), math.inf))
    again = Evidence.from_json(known.to_json())
    assert again == known
    assert not again.supports(problem(128), WON, DEFAULT)
