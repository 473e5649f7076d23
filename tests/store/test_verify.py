"""Verify finds what is wrong, all of it, and nothing where all is well."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from tests.store.made import OTHER_DEVICE, build, config, prepared, rounds, trial
from tritune.store import Store
from tritune.store.verify import verify


def fill(store: Store) -> Store:
    prepared(store)
    store.add_trial(trial(config(64), rounds(1.0)))
    store.add_trial(trial(config(128), failure="crash"))
    store.add_trial(trial(config(32), duplicate_of=config(64).key))
    store.add_build(build(config(64)))
    store.record_problem("matmul", "{}", "gpu")
    return store


def tampered(path: Path, *statements: str) -> list[str]:
    with Store(path) as store:
        fill(store)
    with sqlite3.connect(path) as connection:
        for statement in statements:
            connection.execute(statement)
    with Store(path, read_only=True) as store:
        return verify(store)


def test_a_store_as_tritune_writes_it_is_sound(store: Store) -> None:
    assert verify(fill(store)) == []


@pytest.mark.parametrize(
    ("statement", "words"),
    [
        ("UPDATE trials SET failure = 'bad_luck'", "failure is 'bad_luck'"),
        ("UPDATE trials SET config = '{' WHERE failure = 'crash'", "trials 1"),
        ("UPDATE trials SET config = '{\"BLOCK\":7}'", "not that of the other"),
        ("UPDATE trials SET duplicate_of = 'x' WHERE duplicate_of IS NOT NULL", "not in trials"),
        ("UPDATE samples SET times_ms = '[1.0, -2.0]'", "times_ms[1] is -2.0"),
        ("UPDATE samples SET times_ms = '[NaN]'", "times_ms[0] is nan"),
        ("UPDATE samples SET times_ms = '7'", "times_ms is 7: Expected `array`"),
        ("UPDATE samples SET stage = 'warm-up'", "stage is 'warm-up'"),
        ("UPDATE samples SET config_key = 'x'", "not in trials"),
        ("UPDATE tasks SET problem = '{\"m\": 1}'", "problem_text"),
        ("UPDATE tasks SET kernel = 'other'", "not that of the other"),
        ("UPDATE tasks SET device = 'x'", "'x', which is not in devices"),
        ("UPDATE devices SET cores = 3", "not that of the other"),
        ("UPDATE runs SET environment = '[]'", "environment is []: Expected `object`"),
        ("UPDATE builds SET facts = '3'", "facts is 3: Expected `object`"),
        ("UPDATE met SET device = 'x'", "not that of the other"),
        ("DELETE FROM runs WHERE id = 'run-1'", "names 'run-1', which is not in runs"),
        ("DELETE FROM tasks", "which is not in tasks"),
    ],
)
def test_what_was_tampered_with_is_found(tmp_path: Path, statement: str, words: str) -> None:
    problems = tampered(tmp_path / "store.sqlite", statement)
    assert any(words in problem for problem in problems), problems
    assert all("\n" not in problem for problem in problems)


def test_all_problems_are_told_at_once(tmp_path: Path) -> None:
    problems = tampered(
        tmp_path / "store.sqlite",
        "UPDATE samples SET times_ms = '[0]'",
        f"UPDATE devices SET name = 'x' WHERE fingerprint = '{OTHER_DEVICE.fingerprint}'",
        "UPDATE builds SET failure = 'bad_luck'",
    )
    assert len(problems) == 3


def test_a_damaged_index_is_found(tmp_path: Path) -> None:
    problems = tampered(
        tmp_path / "store.sqlite",
        "PRAGMA writable_schema = ON",
        "UPDATE sqlite_master SET rootpage = (SELECT rootpage FROM sqlite_master "
        "WHERE name = 'ix_trials_run') WHERE name = 'tasks_by_kernel'",
    )
    assert any("the file is damaged" in problem for problem in problems)
