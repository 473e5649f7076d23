"""The screening benchmark runs in pieces, and its comparisons count what they say."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import recorded_winners, screening
from tritune.screening.screen import screen
from tritune.store import Store
from tritune.targets.target import Target


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict:
    screening.main([*arguments, "-j", "1", "--json"])
    return json.loads(capsys.readouterr().out)


def test_a_target_is_screened_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("--targets", "cuda:80", "--space", "3", "--store", str(tmp_path / "store.sqlite"))
    first, second = (run(capsys, *arguments)["cuda:80"] for _ in range(2))
    assert first["candidates"] == 3 and first["space"] > 1000
    assert first["left"] + sum(first["rejected"].values()) == 3
    assert first["core_seconds"] == second["core_seconds"] > 0


def test_compiling_one_by_one_takes_its_time(capsys: pytest.CaptureFixture[str]) -> None:
    result = run(capsys, "--targets", "cuda:80", "--compare", "2")
    assert result["candidates"] == 2
    assert all(seconds > 0 for seconds in result["seconds"].values())


def test_a_winner_that_cannot_work_is_lost_and_one_that_can_is_not(tmp_path: Path) -> None:
    task = screening.task_for(Target.parse("cuda:80"), "float16", 128, True)

    def winner(**values: int) -> recorded_winners.RecordedWinner:
        tile = {"BLOCK_M": 64, "BLOCK_N": 32, "num_warps": 4, "num_stages": 1, **values}
        return recorded_winners.RecordedWinner(
            *(Target.parse("cuda:80"), "float16", 128, True, 1024, 1024, 1, 32, 4),
            tuple(tile.items()),
        )

    good, strange = winner(), winner(num_stages=9)
    with Store(tmp_path / "store.sqlite") as store:
        found = screening.fates(task, [good, strange], store, jobs=1)
        [lost] = found["lost"]
        assert "not in the space" in lost and "'num_stages': 9" in lost
        assert not found["changed"]
        [config] = map(screening.task_config(task), [good])
        assert screen(task, store, only=[config], jobs=1).new_builds == 0


@pytest.mark.parametrize("option", ["--compare", "--space", "--jobs"])
def test_none_of_something_is_refused(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        screening.main([option, "0"])
    assert "'0' is not a number of at least 1" in capsys.readouterr().err
