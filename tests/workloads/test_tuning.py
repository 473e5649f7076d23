"""Ops are tuned by name, as programs meet them, and while they run; calls then use the winners."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import tritune
from tests.policy.stored import config, default_of, put, task_of
from tritune import policy
from tritune.kernels.rms_norm import KERNEL
from tritune.store import Store
from tritune.store.records import Task, problem_text
from tritune.targets.device import detect
from tritune.tuning.effort import EFFORTS
from tritune.tuning.job import Settings
from tritune.workloads.catalog import WORKLOADS
from tritune.workloads.tuning import (
    distance,
    named_problem,
    priors,
    race_near_winners,
    tune_recorded,
)

CPU = torch.device("cpu")
RMS_NORM = WORKLOADS["rms_norm"]
SMALL = RMS_NORM.problem(rows=4, columns=64, dtype="float32")


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A store of one's own, which calls in this process use."""
    path = tmp_path / "store.sqlite"
    monkeypatch.setenv("TRITUNE_STORE", str(path))
    policy.forget()
    yield path
    policy.forget()


def source_of_answer() -> str:
    return policy.answer_for(KERNEL, SMALL, CPU).source


def test_a_call_uses_what_was_tuned(store: Path) -> None:
    assert source_of_answer() == "default"
    outcome = tritune.tune("rms_norm", "rows=4 columns=64 dtype=float32")
    assert outcome.winner is not None
    assert source_of_answer() == "exact"
    answer = policy.answer_for(KERNEL, SMALL, CPU)
    assert answer.config == outcome.winner.config


def test_problems_that_programs_met_are_tuned_later(store: Path) -> None:
    device = detect(CPU)
    with Store(store) as opened:
        opened.add_device(device)
        opened.record_problem("rms_norm", problem_text(SMALL.fields()), device.fingerprint)
        opened.record_problem("a kernel of another time", "{}", device.fingerprint)
    (outcome,) = tune_recorded(str(store), "cpu")
    assert outcome.task.problem == problem_text(SMALL.fields())
    assert outcome.winner is not None


def test_a_problem_that_was_met_first_races_its_default_with_near_winners(store: Path) -> None:
    near, winner = RMS_NORM.problem(rows=8, columns=64, dtype="float32"), config(2, 32)
    put(store, {near: {winner: 1.0, default_of(near): 2.0}})
    settings = Settings(EFFORTS["quick"], budget_seconds=60.0, vendors=False)
    with Store(store) as opened:
        race_near_winners([(RMS_NORM, SMALL), (RMS_NORM, near)], CPU, opened, settings)
        trials = opened.trials(task_of(SMALL))
        assert {trial.config for trial in trials} == {default_of(SMALL), winner}
        assert opened.winner(task_of(SMALL)) is not None
        # What was tuned is left alone.
        assert len(opened.trials(task_of(near))) == 2


def test_in_tune_mode_the_first_call_tunes(store: Path) -> None:
    program = """
import torch, tritune
from tritune import policy
from tritune.kernels.rms_norm import KERNEL, RmsNormProblem

with tritune.mode("tune"):
    tritune.rms_norm(torch.randn(4, 64), torch.ones(64))
problem = RmsNormProblem(rows=4, columns=64, dtype="float32", adds=False)
print(policy.answer_for(KERNEL, problem, torch.device("cpu")).source)
"""
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert run.stdout.strip() == "exact", run.stderr
    with Store(store) as opened:
        assert len(opened.winners("rms_norm")) == 1


@pytest.mark.parametrize("name", sorted(WORKLOADS))
def test_a_stored_problem_is_found_again(name: str) -> None:
    problem = WORKLOADS[name].problem()
    found = named_problem(WORKLOADS[name].kernel.name, problem.fields())
    assert found == (WORKLOADS[name], problem)


def test_near_tasks_and_the_same_device_come_first() -> None:
    def task(rows: int, device: str = "here", identity: str = "now") -> Task:
        fields = RMS_NORM.problem(rows=rows, columns=64, dtype="float32").fields()
        return Task("rms_norm", identity, problem_text(fields), device)

    here = task(4)
    others = [task(8), task(4, identity="before"), task(64), task(4, device="there")]
    assert sorted(others, key=lambda other: distance(here, other)) == [
        others[0], others[1], others[2], others[3],
    ]  # fmt: skip


def test_without_other_tasks_there_is_no_prior(tmp_path: Path) -> None:
    with Store(tmp_path / "store.sqlite") as opened:
        assert priors(opened, Task("rms_norm", "now", "{}", "here")) == []
