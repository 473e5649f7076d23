"""Summaries of the tasks of a store, for `tritune db ls` and `tritune db show`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import groupby

from tritune.store.decide_winner import Winner, decide
from tritune.store.queries import task_order
from tritune.store.records import Task
from tritune.store.store import Store


@dataclass(frozen=True)
class Summary:
    task: Task
    trials: int
    #: How many trials failed, by reason.
    failures: Mapping[str, int]
    winner: Winner | None


def summaries(store: Store, kernel: str | None = None) -> list[Summary]:
    """Summarise every task of a store, or of one kernel, sorted."""
    started = {run.id: run.started for run in store.runs()}
    found = []
    for task, group in groupby(store.all_trials(kernel), lambda trial: trial.task):
        trials = list(group)
        failures = Counter(trial.failure for trial in trials if trial.failure is not None)
        reasons = dict(sorted(failures.items()))
        found.append(Summary(task, len(trials), reasons, decide(trials, started)))
    return sorted(found, key=lambda summary: task_order(summary.task))
