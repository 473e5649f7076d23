"""The tuner: bad configs cost themselves only, nothing that was committed is repeated."""

from __future__ import annotations

import dataclasses
import itertools
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tuning import faulty, killable
from tests.tuning.tasks import DEVICE, EFFORT, TASK, job, settings, tune
from tritune.space import Config, Listed
from tritune.store import Store
from tritune.store.decide_winner import PAIRED_ROUNDS
from tritune.store.verify import verify
from tritune.tuning.job import Outcome, Progress
from tritune.tuning.search import Prior
from tritune.tuning.tuner import begin_run, tune_case

ROOT = Path(__file__).parents[2]

SLOW = faulty.config(repeat=4096)
MIDDLE = faulty.config(repeat=512)
FAST = faulty.config(repeat=1)

FAULTS = {
    "segfaults": "crash",
    "loops for ever": "timeout",
    "allocates without end": "out_of_resources",
    "wrong": "wrong_result",
    "writes outside": "wrong_result",
    "does not compile": "compile_error",
    "aborts the compiler": "crash",
    "hangs the compiler": "timeout",
    "segfaults when timed": "crash",
    "compiles too large": "out_of_resources",
}


@pytest.fixture(autouse=True)
def _one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads that wait for each other on a busy machine take longer than the kernels do."""
    monkeypatch.setenv("TRITUNE_NUM_THREADS", "1")


def tuned(store: Store, *configs: Config, default: Config = SLOW) -> Outcome:
    return tune(store, Listed(configs), default)


def test_the_right_config_wins_whatever_the_others_do(tmp_path: Path) -> None:
    bad = [faulty.config(fault) for fault in FAULTS]
    with Store(tmp_path / "store.sqlite") as store:
        outcome = tuned(store, SLOW, *bad, FAST)
        assert outcome.winner is not None
        assert outcome.winner.config == FAST
        assert outcome.winner.default_ms is not None and outcome.winner.ms is not None
        assert outcome.winner.ms < outcome.winner.default_ms
        reasons = {t.config["FAULT"]: t.failure for t in store.trials(TASK)}
        messages = {t.config["FAULT"]: t.message for t in store.trials(TASK)}
    assert reasons == {**FAULTS, "none": None}
    assert all(messages[fault] for fault in FAULTS), "every failure says more than its reason"
    assert sum(outcome.failures.values()) == len(FAULTS)


def test_a_task_that_was_answered_is_not_measured_again(tmp_path: Path) -> None:
    with Store(tmp_path / "store.sqlite") as store:
        first = tuned(store, SLOW, FAST)
        second = tuned(store, SLOW, FAST)
        assert first.new_trials == 2
        assert second.known and second.trials == 2
        assert second.winner == first.winner
        assert second.vendor == "torch" and second.vendor_ms == first.vendor_ms


def test_a_config_that_joins_the_space_is_the_only_one_tried(tmp_path: Path) -> None:
    with Store(tmp_path / "store.sqlite") as store:
        tuned(store, SLOW, MIDDLE)
        outcome = tuned(store, SLOW, MIDDLE, FAST)
        assert outcome.new_trials == 1
        assert outcome.winner is not None and outcome.winner.config == FAST


def test_configs_that_compile_to_the_same_launches_are_timed_once(tmp_path: Path) -> None:
    twin = Config.of(REPEAT=512, FAULT="none of the faults")
    with Store(tmp_path / "store.sqlite") as store:
        tuned(store, SLOW, MIDDLE, twin)
        trials = {trial.config: trial for trial in store.trials(TASK)}
    kinds = {trials[MIDDLE].duplicate_of, trials[twin].duplicate_of}
    assert kinds == {None, MIDDLE.key} or kinds == {None, twin.key}


def test_the_default_stays_where_nothing_is_faster(tmp_path: Path) -> None:
    with Store(tmp_path / "store.sqlite") as store:
        outcome = tuned(store, FAST, MIDDLE, SLOW, default=FAST)
        assert outcome.winner is not None and outcome.winner.config == FAST


def test_without_time_for_all_the_best_and_the_default_meet_often_enough_to_be_told_apart(
    tmp_path: Path,
) -> None:
    hurried = dataclasses.replace(settings(), effort=dataclasses.replace(EFFORT, final_seconds=0.0))
    with Store(tmp_path / "store.sqlite") as store:
        store.add_device(DEVICE)
        run = begin_run(store, "test", {})
        tune_case(job(Listed([SLOW, MIDDLE, FAST]), SLOW), store, run, hurried)
        rounds = {
            trial.config: {s.round for s in trial.samples if s.stage == "final"}
            for trial in store.trials(TASK)
        }
    met = [config for config, numbers in rounds.items() if numbers]
    assert set(met) == {SLOW, FAST}
    assert all(len(rounds[config]) == PAIRED_ROUNDS for config in met)


def test_nothing_wins_where_nothing_works(tmp_path: Path) -> None:
    broken = faulty.config("does not compile")
    with Store(tmp_path / "store.sqlite") as store:
        outcome = tuned(store, broken, default=broken)
    assert outcome.winner is None
    assert outcome.failures == {"compile_error": 1}


def test_winners_of_near_tasks_are_tried_first(tmp_path: Path) -> None:
    points = Listed([FAST, MIDDLE, SLOW, *(faulty.config(repeat=n) for n in range(1000, 1040))])
    prior = Prior({FAST: 1.0, SLOW: 2.0, MIDDLE: 1.5})
    with Store(tmp_path / "store.sqlite") as store:
        store.add_device(DEVICE)
        run = begin_run(store, "test", {})
        work = job(points, SLOW)
        work = type(work)(**{**vars(work), "prior": [prior]})
        seen: list[Progress] = []

        def stop(progress: Progress) -> None:
            seen.append(progress)
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            tune_case(work, store, run, settings("surrogate"), stop)
        tried = {trial.config for trial in store.trials(TASK)}
    assert FAST in tried


def test_no_committed_trial_is_lost_or_repeated_when_runs_are_killed(tmp_path: Path) -> None:
    """Killed at random moments and begun again until it is done; then from the start."""
    rng, left = random.Random(0), int(os.environ.get("TRITUNE_TEST_KILLS", "5"))
    stores = itertools.count()
    while left > 0:
        location = tmp_path / f"{next(stores)}.sqlite"
        left -= _run_to_the_end(location, rng, left)


def _run_to_the_end(location: Path, rng: random.Random, most_kills: int) -> int:
    """Kill a run and resume it until it is done; how often it was killed."""
    announced: list[str] = []
    kills = 0
    while True:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.tuning.killable", str(location)],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        lines = _read_until_killed(process, rng.uniform(1.0, 9.0) if kills < most_kills else None)
        assert not any(line.startswith("again") for line in lines)
        announced += [line.split()[1] for line in lines if line.startswith("new")]
        if location.exists():
            with Store(location) as store:
                assert verify(store) == []
        if "done" in lines:
            break
        kills += 1
    with Store(location) as store:
        trials = store.trials(TASK)
        assert store.winner(TASK) is not None
    kept = [trial.config.key for trial in trials]
    assert set(announced) <= set(kept)
    assert len(announced) == len(set(announced)), "a trial was repeated"
    assert sorted(kept) == sorted(config.key for config in killable.CONFIGS)
    return kills


def _read_until_killed(process: subprocess.Popen[str], seconds: float | None) -> list[str]:
    try:
        out, _ = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        os.kill(process.pid, signal.SIGKILL)
        out, _ = process.communicate()
    return out.splitlines()
