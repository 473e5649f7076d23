"""Many processes, killed processes, forked processes: nothing that was committed is lost."""

from __future__ import annotations

import multiprocessing
import os
import random
import subprocess
import sys
from pathlib import Path

from tests.store.made import TASK, config, prepared, rounds, trial
from tritune.store import Store
from tritune.store.verify import verify

ROOT = Path(__file__).resolve().parents[2]


def writer(location: str, number: int, count: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "tests.store.writer", location, str(number), str(count)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_eight_processes_write_at_once_and_nothing_is_lost(location: str) -> None:
    """The store does not exist when they start, so they make it at once, too."""
    processes = [writer(location, number, 25) for number in range(8)]
    outputs = [process.communicate(timeout=240) for process in processes]
    assert [error for _, error in outputs] == [""] * 8
    committed = {key for output, _ in outputs for key in output.split()}
    with Store(location, read_only=True) as store:
        trials = store.trials(TASK)
        assert {t.config.key for t in trials} == committed
        assert len(trials) == 200
        assert all(len(t.samples) == 2 for t in trials)
        assert store.met_problems() == [("matmul", "{}", "gpu", 200)]
        assert verify(store) == []


def test_a_killed_writer_loses_nothing_that_it_reported(tmp_path: Path) -> None:
    location = str(tmp_path / "store.sqlite")
    moments = random.Random(7)
    reported: set[str] = set()
    for number in range(6):
        process = writer(location, number, 10_000)
        assert process.stdout is not None
        # Killed right after a report or in the midst of the next trial, as it happens.
        for _ in range(moments.randrange(1, 40)):
            reported.add(process.stdout.readline().strip())
        process.kill()
        rest, _ = process.communicate()
        reported.update(line for line in rest.splitlines(keepends=False) if len(line) == 16)
        with Store(location, read_only=True) as store:
            assert verify(store) == []
            trials = store.trials(TASK)
            assert reported <= {t.config.key for t in trials}
            assert all(len(t.samples) == 2 for t in trials)
    assert len(reported) >= 6


def test_a_store_works_in_a_child_after_a_fork(location: str) -> None:
    with Store(location) as store:
        prepared(store)
        store.add_trial(trial(config(1), rounds(1.0)))

        def child() -> None:
            store.add_trial(trial(config(2), rounds(2.0)))
            os._exit(0 if len(store.trials(TASK)) == 2 else 3)

        process = multiprocessing.get_context("fork").Process(target=child)
        process.start()
        process.join()
        assert process.exitcode == 0
        store.add_trial(trial(config(3), rounds(3.0)))
        assert len(store.trials(TASK)) == 3
        assert verify(store) == []
