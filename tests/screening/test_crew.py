"""A compiler that dies or hangs costs its own config and no other."""

from __future__ import annotations

import pytest

from tritune.screening.crew import Result, ScreeningCrew
from tritune.space import Config


def screened(*groups: str, jobs: int = 1, timeout_seconds: float = 60.0) -> dict[int, Result]:
    """Groups of moods, a letter each: fine, abort, hang. Results by the config's number."""
    names = {"f": "fine", "a": "abort", "h": "hang"}
    configs, number = [], 0
    for moods in groups:
        configs.append([])
        for mood in moods:
            configs[-1].append(Config.of(number=number, mood=names[mood]))
            number += 1
    service = "tests.screening.services:Moody"
    with ScreeningCrew({}, jobs, timeout_seconds, None, service) as crew:
        found = list(crew.screen(configs))
    assert len(found) == number, "each config once"
    return {int(result.config["number"]): result for result in found}


def test_every_config_of_every_group_has_a_result() -> None:
    found = screened("fff", "f", "ff", jobs=2)
    assert sorted(found) == [0, 1, 2, 3, 4, 5]
    assert not any(result.failure for result in found.values())


@pytest.mark.parametrize("mood", ["a", "h"])
def test_the_rest_of_a_group_goes_on_in_another_process(mood: str) -> None:
    found = screened(f"f{mood}ff", timeout_seconds=1.0 if mood == "h" else 60.0)
    assert found[1].failure == {"a": "crash", "h": "timeout"}[mood]
    assert [found[n].failure for n in (0, 2, 3)] == [None] * 3
    assert found[0].binary != found[2].binary == found[3].binary


def test_a_group_may_lose_its_last_config() -> None:
    found = screened("fa", "f")
    assert [found[n].failure for n in range(3)] == [None, "crash", None]
