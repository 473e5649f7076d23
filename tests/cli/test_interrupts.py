"""Ctrl-C in a terminal ends a command at once, with a line that says what is kept."""

from __future__ import annotations

from pathlib import Path

from tests.cli.terminal import interrupted
from tests.cli.test_replay import recorded
from tritune.store import Store
from tritune.store.contents import contents

PROBLEM = "rows=16 columns=512 dtype=float32"


def test_tuning_says_how_many_trials_are_stored(tmp_path: Path) -> None:
    location = str(tmp_path / "store.sqlite")
    ask = ["tune", "rms_norm", "--problem", PROBLEM, "--problem", "rows=64 dtype=float32"]
    status, shown = interrupted(
        *ask, "-j", "1", "--store", location, after=r"[1-9]\d*/\d+ configs", times=3
    )
    with Store(location) as store:
        stored = len(store.all_trials())
    assert stored > 0
    last = f"{stored} new trials are stored in {location}: run it again to go on"
    assert f"interrupted after 0 of 2 problems, {last}" in shown.replace("\n", "")
    assert (status, "Traceback" in shown) == (130, False)


def test_compiling_says_how_many_configs_are_stored(tmp_path: Path) -> None:
    location = str(tmp_path / "store.sqlite")
    ask = ["compile", "rms_norm", "--target", "cpu", "--space", "40", "--problem", PROBLEM]
    status, shown = interrupted(*ask, "-j", "1", "--store", location, after=r" [2-9]/40", times=2)
    with Store(location) as store:
        stored = len(contents(store).builds)
    assert 0 < stored < 40
    assert f"{stored} configs were compiled and are stored in" in shown
    assert (status, "Traceback" in shown) == (130, False)


def test_replaying_ends_its_processes(tmp_path: Path) -> None:
    file = recorded("here", 3, tmp_path)
    status, shown = interrupted(
        "replay", str(file), "--seeds", "5000", after=r"\d+ of \d+ replays", times=2
    )
    assert "tritune: interrupted\n" in shown
    assert (status, "Traceback" in shown) == (130, False)
