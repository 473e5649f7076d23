"""The store keeps what it is given, in SQLite and in PostgreSQL alike."""

from __future__ import annotations

import dataclasses
import threading

import pytest

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
from tritune.store import Store, StoreError
from tritune.store.records import Samples, Task, problem_text


def test_devices_and_runs_come_back_as_they_were(store: Store) -> None:
    prepared(prepared(store))
    assert store.devices() == {d.fingerprint: d for d in (DEVICE, OTHER_DEVICE)}
    assert store.runs() == [RUN, LATER_RUN]


def test_a_trial_comes_back_with_all_its_samples(store: Store) -> None:
    prepared(store)
    kept = trial(config(64), rounds(1.5, 1.25), default=True)
    failed = trial(config(128), failure="timeout")
    assert store.add_trial(kept)
    assert store.add_trial(failed)
    assert sorted(store.trials(TASK), key=lambda t: str(t.config)) == [failed, kept]


def test_a_config_is_tried_once_for_a_task(store: Store) -> None:
    prepared(store)
    assert store.add_trial(trial(config(64), rounds(1.0)))
    assert not store.add_trial(trial(config(64), rounds(9.0), run=LATER_RUN))
    (kept,) = store.trials(TASK)
    assert kept.samples == rounds(1.0)


def test_samples_are_added_to_a_trial_once_each(store: Store) -> None:
    prepared(store)
    store.add_trial(trial(config(64), rounds(1.0, 1.1)))
    new = rounds(5.0, 5.0, 5.0, first=1)
    assert store.add_samples(TASK, config(64), *new) == 2
    (kept,) = store.trials(TASK)
    assert kept.samples == rounds(1.0, 1.1) + rounds(5.0, 5.0, first=2)


def test_a_race_is_written_as_a_whole_or_not_at_all(store: Store) -> None:
    prepared(store)
    store.add_trial(trial(config(64), rounds(1.0)))
    race = {config(64): rounds(1.0, stage="final"), config(128): rounds(2.0, stage="final")}
    with pytest.raises(StoreError, match="add_trial first"):
        store.add_race(TASK, race)
    assert store.trials(TASK)[0].samples == rounds(1.0)
    store.add_trial(trial(config(128), rounds(2.0)))
    assert store.add_race(TASK, race) == 2


def test_a_build_is_kept_once(store: Store) -> None:
    assert store.add_build(build(config(64)))
    assert not store.add_build(build(config(64)))
    assert store.add_build(build(config(128), failure="out_of_resources"))
    found = store.builds("matmul", "code-1", "cpu:x86-64-v3")
    assert sorted(b.failure or "" for b in found) == ["", "out_of_resources"]
    assert store.builds("matmul", "code-1", "cpu:x86-64-v3", signature="bf16") == []
    assert build(config(64)) in found


def test_tasks_are_found_by_kernel_identity_and_device(store: Store) -> None:
    prepared(store)
    others = [
        dataclasses.replace(TASK, kernel="norm"),
        dataclasses.replace(TASK, identity="code-2"),
        dataclasses.replace(TASK, device=OTHER_DEVICE.fingerprint),
        dataclasses.replace(TASK, problem=problem_text({"m": 65})),
    ]
    for task in (TASK, *others):
        store.add_trial(trial(config(64), rounds(1.0), task=task))
    assert len(store.tasks()) == 5
    assert store.tasks("norm") == [others[0]]
    assert store.tasks(identity="code-2") == [others[1]]
    assert store.tasks("matmul", "code-1", OTHER_DEVICE.fingerprint) == [others[2]]
    assert [w.task for w in store.winners("matmul", "code-1")] == store.tasks("matmul", "code-1")
    assert len(store.winners()) == 5


def test_the_winner_is_that_of_the_task(store: Store) -> None:
    prepared(store)
    store.add_trial(trial(config(64), rounds(1.0)))
    store.add_trial(trial(config(128), rounds(2.0), default=True))
    winner = store.winner(TASK)
    assert winner is not None
    assert winner.config == config(64)
    assert winner.default_ms == 2.0
    assert winner.speedup == 2.0
    assert store.winner(dataclasses.replace(TASK, kernel="unknown")) is None


def test_counts_of_met_problems_add_up(store: Store) -> None:
    small, large = problem_text({"m": 1}), problem_text({"m": 2})
    store.record_problem("matmul", small, "gpu")
    store.record_problem("matmul", large, "gpu", 5)
    store.record_problems([("matmul", small, "gpu", 2), ("norm", small, "gpu", 1)])
    assert store.met_problems("matmul") == [
        ("matmul", large, "gpu", 5),
        ("matmul", small, "gpu", 3),
    ]
    assert len(store.met_problems(device="gpu")) == 3
    assert store.clear_met_problems() == 3
    assert store.met_problems() == []


@pytest.mark.parametrize("time", [0.0, -1.0, float("nan"), float("inf")])
def test_a_time_that_is_none_is_refused(file_store: Store, time: float) -> None:
    prepared(file_store)
    with pytest.raises(StoreError, match=r"Samples cannot be stored: times_ms\[1\] is "):
        file_store.add_trial(trial(config(64), [Samples(RUN.id, "search", 0, (1.0, time))]))
    assert file_store.tasks() == []


def test_what_makes_no_sense_is_refused(file_store: Store) -> None:
    prepared(file_store)
    with pytest.raises(StoreError, match="failure is 'bad_luck'"):
        file_store.add_trial(trial(config(64), failure="bad_luck"))
    with pytest.raises(StoreError, match="stage is 'warm-up'"):
        file_store.add_trial(trial(config(64), rounds(1.0, stage="warm-up")))
    unsorted = dataclasses.replace(TASK, problem='{"n": 1, "m": 2}')
    with pytest.raises(StoreError, match="problem_text"):
        file_store.add_trial(trial(config(64), task=unsorted))


def test_an_unknown_device_or_run_is_named(store: Store) -> None:
    with pytest.raises(StoreError, match="add_device, begin_run"):
        store.add_trial(trial(config(64)))
    assert store.tasks() == []


def test_the_vendors_times_do_not_compete(store: Store) -> None:
    prepared(store)
    vendor = rounds(0.1, stage="vendor:library")
    store.add_trial(trial(config(64), rounds(1.0), default=True))
    store.add_samples(TASK, config(64), *vendor)
    winner = store.winner(TASK)
    assert winner is not None and winner.ms == 1.0
    assert vendor[0] in store.trials(TASK)[0].samples


def test_a_long_problem_can_be_kept(store: Store) -> None:
    """PostgreSQL does not index texts of that length."""
    prepared(store)
    task = dataclasses.replace(TASK, problem=problem_text({f"field_{i}": i for i in range(2000)}))
    store.add_trial(trial(config(64), rounds(1.0), task=task))
    assert store.tasks() == [task]


def test_threads_share_a_store(store: Store) -> None:
    prepared(store)
    errors: list[BaseException] = []

    def work(number: int) -> None:
        try:
            for block in range(10):
                store.add_trial(trial(config(block, warps=number), rounds(1.0 + block)))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert len(store.trials(TASK)) == 60


def test_without_a_default_there_is_no_speed_up(store: Store) -> None:
    prepared(store)
    task = Task("k", "i", "{}", DEVICE.fingerprint)
    store.add_trial(trial(config(64), rounds(1.0), task=task))
    winner = store.winner(task)
    assert winner is not None
    assert (winner.default_ms, winner.speedup) == (None, None)
