"""Collecting garbage drops what the rule says, and nothing else."""

from __future__ import annotations

import dataclasses

from tests.store.made import (
    DEVICE,
    LATER_RUN,
    OTHER_DEVICE,
    RUN,
    TASK,
    build,
    config,
    prepared,
    rounds,
    trial,
)
from tritune.store import Store
from tritune.store.gc import Rule, collect
from tritune.store.verify import verify

NOW = "2026-03-01T00:00:00+00:00"
NEW = dataclasses.replace(TASK, identity="code-2")
ELSEWHERE = dataclasses.replace(TASK, device=OTHER_DEVICE.fingerprint)


def fill(store: Store) -> Store:
    """Old code on both devices, new code on one of them."""
    prepared(store)
    for task in (TASK, ELSEWHERE):
        store.add_trial(trial(config(64), rounds(1.0), task=task))
    store.add_trial(
        trial(
            config(64),
            rounds(1.0, run=LATER_RUN),
            task=NEW,
            run=LATER_RUN,
            when="2026-02-20T00:00:00+00:00",
        )
    )
    store.add_build(build(config(64)))
    store.record_problem("matmul", "{}", "gpu")
    return store


def test_without_a_rule_nothing_that_was_measured_goes(store: Store) -> None:
    dropped = collect(fill(store), Rule(), now=NOW)
    assert (dropped.trials, dropped.builds, dropped.met) == (0, 0, 0)
    assert len(store.tasks()) == 3


def test_the_newest_code_of_each_device_is_kept(store: Store) -> None:
    dropped = collect(fill(store), Rule(keep=1), now=NOW)
    assert dropped.versions == (("matmul", "code-1", DEVICE.fingerprint),)
    assert (dropped.tasks, dropped.trials) == (1, 1)
    assert store.tasks() == sorted([NEW, ELSEWHERE], key=lambda t: t.identity)
    # The other device still uses this code, and its run.
    assert len(store.builds("matmul", "code-1", "cpu:x86-64-v3")) == 1
    assert store.runs() == [RUN, LATER_RUN]
    assert verify(store) == []


def test_what_is_old_goes_with_its_builds_and_runs(store: Store) -> None:
    dropped = collect(fill(store), Rule(older_than_days=30), now=NOW)
    assert (dropped.trials, dropped.builds, dropped.runs) == (2, 1, 1)
    assert store.tasks() == [NEW]
    assert store.runs() == [LATER_RUN]
    assert store.builds("matmul", "code-1", "cpu:x86-64-v3") == []
    assert set(store.devices()) == {DEVICE.fingerprint, OTHER_DEVICE.fingerprint}
    assert verify(store) == []


def test_two_conditions_must_both_hold(store: Store) -> None:
    assert collect(fill(store), Rule(keep=1, older_than_days=30), now=NOW).tasks == 1
    assert collect(store, Rule(keep=1, older_than_days=1000), now=NOW).tasks == 0


def test_a_dry_run_counts_the_same_and_drops_nothing(store: Store) -> None:
    fill(store)
    rule = Rule(older_than_days=30, met=True)
    foretold = collect(store, rule, dry_run=True, now=NOW)
    assert len(store.tasks()) == 3
    assert store.met_problems()
    assert collect(store, rule, now=NOW) == foretold
    assert store.met_problems() == []


def test_a_run_that_has_just_begun_stays(store: Store) -> None:
    prepared(store)
    dropped = collect(store, Rule(), now="2026-02-01T12:00:00+00:00")
    assert dropped.runs == 1
    assert store.runs() == [LATER_RUN]
