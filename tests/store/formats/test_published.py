"""Whole files that others have published: TRITUNE_TEST_DATA names the folder, if there is one.

It holds `dejavu`, `spaces` and `aotriton`, each with files as their projects publish them.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tritune.space import Config
from tritune.store import Store
from tritune.store.contents import Contents, contents
from tritune.store.formats.recognise import WRITERS, read
from tritune.store.merge import absorb
from tritune.store.records import Task
from tritune.store.verify import verify

DATA = Path(os.environ.get("TRITUNE_TEST_DATA", ""))

pytestmark = pytest.mark.skipif(
    not (DATA / "dejavu").is_dir(), reason="TRITUNE_TEST_DATA names no folder with published data"
)


def imported(store: Store, path: Path) -> str:
    name, found = read(path)
    absorb(store, found, path)
    return name


def _results(found: Contents) -> dict[tuple[Task, Config], tuple[float, ...]]:
    return {(t.task, t.config): t.samples[0].times_ms for t in found.trials}


def test_dejavu_caches_come_back_as_they_were(file_store: Store, tmp_path: Path) -> None:
    files = sorted((DATA / "dejavu").rglob("cache.json"))
    assert {imported(file_store, path) for path in files} == {"triton-dejavu"}
    written = WRITERS["dejavu"](contents(file_store), tmp_path / "out")
    assert len(written) == len(files)
    for path in written:
        # The published folders lie at different depths.
        place = path.relative_to(tmp_path / "out").parts
        (original,) = (file for file in files if file.parts[-len(place) :] == place)
        _, expected = read(original)
        _, found = read(path)
        assert _results(found) == _results(expected)
    assert verify(file_store) == []


def test_a_recorded_space_of_thousands_is_imported(file_store: Store) -> None:
    path = DATA / "spaces" / "convolution_A100.t4.json.gz"
    assert imported(file_store, path) == "t4"
    (winner,) = file_store.winners("convolution")
    trials = file_store.trials(winner.task)
    assert len(trials) == 4362
    assert sum(trial.failure is not None for trial in trials) == 161
    assert winner.ms == min(t.samples[0].times_ms[0] for t in trials if t.samples)


def test_an_aotriton_database_has_its_winners(tmp_path: Path) -> None:
    name, found = read(DATA / "aotriton" / "gfx942_attn_fwd.sqlite3.tar.xz")
    assert name == "aotriton"
    assert len({trial.task for trial in found.trials}) == 21_600
