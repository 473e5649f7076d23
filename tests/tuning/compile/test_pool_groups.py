"""A compiler that dies or hangs costs its own config and no other of its group."""

from __future__ import annotations

import pytest

from tritune.errors import TrituneError
from tritune.space import Config
from tritune.tuning.compile.builder import BuildResult
from tritune.tuning.compile.pool import CompilePool

MOODS = {"f": "fine", "a": "abort", "h": "hang", "t": "taint", "d": "die after the report"}


def built(*groups: str, jobs: int = 1, timeout_seconds: float = 60.0) -> dict[int, BuildResult]:
    """Groups of moods, a letter each. Results by the config's number."""
    configs, number = [], 0
    for moods in groups:
        configs.append([])
        for mood in moods:
            configs[-1].append(Config.of(number=number, mood=MOODS[mood]))
            number += 1
    service = "tests.tuning.compile.services:Moody"
    with CompilePool({}, jobs, timeout_seconds, None, service) as pool:
        pool.submit_groups(configs)
        assert pool.outstanding == number
        found = list(pool.as_completed())
    assert len(found) == number, "each config once"
    return {int(result.config["number"]): result for result in found}


def test_every_config_of_every_group_has_a_result() -> None:
    found = built("fff", "f", "", "ff", jobs=2)
    assert sorted(found) == [0, 1, 2, 3, 4, 5]
    assert not any(result.failure for result in found.values())


def test_a_group_is_compiled_by_one_process() -> None:
    found = built("fff", "ff", jobs=2)
    assert len({found[n].binary for n in (0, 1, 2)}) == len({found[n].binary for n in (3, 4)}) == 1


@pytest.mark.parametrize(
    ("mood", "reason"), [("a", "crash"), ("h", "timeout"), ("t", "out_of_resources")]
)
def test_the_rest_of_a_group_goes_on_in_another_process(mood: str, reason: str) -> None:
    found = built(f"f{mood}ff", timeout_seconds=1.0 if mood == "h" else 60.0)
    assert found[1].failure is not None and found[1].failure.reason == reason
    assert [found[n].failure for n in (0, 2, 3)] == [None] * 3
    assert found[0].binary != found[2].binary == found[3].binary


def test_a_group_may_lose_its_last_config() -> None:
    found = built("fa", "f")
    reasons = [result.failure and result.failure.reason for _, result in sorted(found.items())]
    assert reasons == [None, "crash", None]


def test_a_process_that_dies_when_its_group_is_done_costs_no_config() -> None:
    found = built("fd", "f")
    assert [found[n].failure for n in (0, 1, 2)] == [None] * 3
    assert found[1].binary != found[2].binary


def test_a_service_that_cannot_be_made_fails_every_config_of_a_group() -> None:
    with CompilePool(
        {"nobody": "knows this"}, service="tests.tuning.compile.services:Moody"
    ) as pool:
        pool.submit_groups([[Config.of(number=0, mood="fine"), Config.of(number=1, mood="fine")]])
        for _ in range(2):
            with pytest.raises(TrituneError, match="nobody"):
                pool.result(60.0)
