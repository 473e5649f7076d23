"""Tune ops: the public `tune()`, and the jobs that it gives the tuner.

Trials of near problems and of other devices are the prior of a search.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch

from tritune.kernels.identity import identity
from tritune.kernels.kernel import Kernel, Problem
from tritune.pack.contents import Section
from tritune.policy import refresh
from tritune.policy.learning.from_store import learn_and_save
from tritune.policy.learning.measured import times_of
from tritune.policy.nearest import distance as problem_distance
from tritune.policy.nearest import nearest_configs
from tritune.space import Config, Listed
from tritune.store import Store
from tritune.store.records import Task, problem_text
from tritune.targets.device import Device, detect
from tritune.targets.roofline import measure_peaks
from tritune.tuning.autotune.recorded_calls import RecordedCall
from tritune.tuning.case import CaseSpec
from tritune.tuning.effort import EFFORTS, effort_named, whole_list
from tritune.tuning.job import Job, Outcome, Progress, Settings
from tritune.tuning.measure.environment import environment
from tritune.tuning.search import Prior
from tritune.tuning.tuner import begin_run, tune_case
from tritune.tuning.workers.kept_workers import Workers
from tritune.workloads.catalog import WORKLOADS, workload_named, workload_of
from tritune.workloads.problems.parse import types_of
from tritune.workloads.tuning_from_pack import packed_job
from tritune.workloads.workload import Workload

#: The number of other tasks in a search's prior.
PRIORS = 4
#: The share of a budget for races with near winners, and the most seconds of one.
RACES_SHARE, RACE_SECONDS = 0.25, 20.0


class Tuned(NamedTuple):
    """One problem of an op or of a program's own kernel, and the outcome of tuning it."""

    workload: Workload | RecordedCall
    problem: Problem
    outcome: Outcome


def tune_problem(
    workload: Workload,
    problem: Problem,
    device: torch.device,
    store: Store,
    run: str,
    settings: Settings,
    watch: Callable[[Progress], None] = lambda progress: None,
    workers: Workers | None = None,
    section: Section | None = None,
) -> Outcome:
    """Find the best config of an op for a problem on a device, and remember it.

    With a section of a pack, only its configs are tried.
    """
    silicon = detect(device)
    store.add_device(silicon)
    job = job_for(workload, problem, device, silicon, store)
    if section is not None:
        job = packed_job(job, section)
    return tune_case(job, store, run, settings, watch, workers)


def job_for(
    workload: Workload, problem: Problem, device: torch.device, silicon: Device, store: Store
) -> Job:
    """Return the tuner's job for an op and a problem."""
    kernel, target, fields = workload.kernel, silicon.target, problem.fields()
    task = Task(kernel.name, identity(kernel, target), problem_text(fields), silicon.fingerprint)
    arguments = {"workload": workload.name, "problem": fields, "device": str(device)}
    limit = workload.work(problem).bound(fields["dtype"], measure_peaks(device)).seconds
    return Job(
        task,
        CaseSpec("tritune.workloads.case:open_case", arguments),
        kernel.space.on(target.family, target.arch, fields),
        kernel.default(problem, target.family, target.arch),
        str(target),
        prior=priors(store, task),
        limit_ms=1000 * limit,
        device=str(device),
    )


def tune_all(
    work: Sequence[tuple[Workload, Problem]],
    device: torch.device,
    store: Store,
    settings: Settings,
    command: str,
    begin: Callable[[Workload, Problem], None] = lambda workload, problem: None,
    watch: Callable[[Progress], None] = lambda progress: None,
    sections: Mapping[tuple[str, Problem], Section] | None = None,
) -> Iterator[Tuned]:
    """Tune one problem after the other, each with its share of the time that is left; then learn.

    For problems with a section of a pack in `sections`, only its configs are tried. Results are
    stored one by one: a run that is stopped keeps them.
    """
    if not work:
        return
    end = time.monotonic() + settings.budget_seconds
    run = begin_run(store, command, environment(settings))
    with Workers(settings) as workers:
        for done, (workload, problem) in enumerate(work):
            begin(workload, problem)
            share = max(end - time.monotonic(), 0.0) / (len(work) - done)
            here = replace(settings, budget_seconds=share)
            section = (sections or {}).get((workload.name, problem))
            outcome = tune_problem(
                workload, problem, device, store, run, here, watch, workers, section
            )
            yield Tuned(workload, problem, outcome)
    for kernel in {workload.kernel.name: workload.kernel for workload, _ in work}.values():
        learn_and_save(store, kernel, detect(device))


def tune(
    op: str,
    problem: str,
    *,
    device: torch.device | str = "cpu",
    effort: str = "quick",
    budget_seconds: float = math.inf,
    store: str | Path | None = None,
) -> Outcome:
    """Tune an op for a problem such as "queries=1024 keys=1024 causal=true", and remember it.

    Calls of the op in this process use the winner from now on.
    """
    workload = workload_named(op)
    work = [(workload, workload.parse(problem))]
    settings = Settings(effort_named(effort), budget_seconds=budget_seconds)
    with Store(store) as opened:
        (tuned,) = tune_all(work, torch.device(device), opened, settings, f"tune {op}")
    refresh()
    return tuned.outcome


def tune_recorded(
    store_location: str | None, device: str, budget_seconds: float = math.inf
) -> list[Outcome]:
    """Tune the problems that programs have met, the most frequent first, and learn from them.

    First, each races its default with the winners of the nearest problems. Raises
    DeviceTakenError where another process measures on the device.
    """
    settings = Settings(EFFORTS["quick"], budget_seconds=budget_seconds, vendors=False, wait=False)
    where = torch.device(device)
    with Store(store_location) as store:
        work = problems_met(store, where)
        race_near_winners(work, where, store, settings)
        found = tune_all(work, where, store, settings, "recorded problems")
        return [each.outcome for each in found]


def race_near_winners(
    work: Sequence[tuple[Workload, Problem]], device: torch.device, store: Store, settings: Settings
) -> None:
    """Race the default of each new problem with the winners of the nearest problems.

    A search takes a minute, this takes a few seconds.
    """
    silicon = detect(device)
    store.add_device(silicon)
    end = time.monotonic() + RACES_SHARE * settings.budget_seconds
    run = begin_run(store, "races with near winners", environment(settings))
    with Workers(settings) as workers:
        for workload, problem in work:
            job = job_for(workload, problem, device, silicon, store)
            left = min(end - time.monotonic(), RACE_SECONDS)
            listed = near_winners(store, job)
            if left > 0 and listed and not store.trials(job.task):
                configs = [job.default, *listed]
                quick = replace(settings, effort=whole_list(len(configs)), budget_seconds=left)
                race = replace(job, points=Listed(configs), prior=())
                tune_case(race, store, run, quick, workers=workers)


def near_winners(store: Store, job: Job) -> list[Config]:
    """Return the winners of the nearest problems of the same kind that are valid for this one."""
    task = job.task
    winners = store.winners(task.kernel, task.identity, task.device)
    known = [(json.loads(winner.task.problem), winner.config) for winner in winners]
    offered = nearest_configs(known, json.loads(task.problem))
    return [config for config in offered if config in job.points and config != job.default]


def tune_unseen(kernel: Kernel, problem: Problem, device: torch.device) -> None:
    """Tune a problem that a call has just met, in the `tune` mode: the call waits."""
    workload = workload_of(kernel.name, problem)
    with Store() as store:
        settings = Settings(EFFORTS["quick"], vendors=False)
        for _ in tune_all([(workload, problem)], device, store, settings, "met while tuning"):
            pass


def problems_met(
    store: Store, device: torch.device, ops: Sequence[str] = ()
) -> list[tuple[Workload, Problem]]:
    """Return the problems that programs have met on a device, the most frequent first."""
    found = []
    for kernel, text, _, _ in store.met_problems(device=detect(device).fingerprint):
        named = named_problem(kernel, json.loads(text))
        if named is not None and (not ops or named[0].name in ops):
            found.append(named)
    return found


def named_problem(kernel: str, fields: Mapping[str, Any]) -> tuple[Workload, Problem] | None:
    """Return the op and problem of a stored record; None if this version has no such problem."""
    for workload in WORKLOADS.values():
        if workload.kernel.name != kernel:
            continue
        names = types_of(workload.kernel.problem)
        if not set(names) <= set(fields):
            return None
        problem = workload.kernel.problem(**{name: fields[name] for name in names})
        # What the fields hold beside those is derived from them.
        if problem.fields() == fields and workload.owns(problem):
            return workload, problem
    return None


def priors(store: Store, task: Task) -> list[Prior]:
    """Return the times for the nearest problems and other devices: proposed, never trusted."""
    others = [other for other in store.tasks(kernel=task.kernel) if other != task]
    ranked = sorted((distance(task, other), other.problem, other) for other in others)
    found = []
    for away, _, other in ranked[:PRIORS]:
        times = times_of(store.trials(other))
        if times:
            results = {config: ms if ms < math.inf else None for config, ms in times.items()}
            found.append(Prior(results, 1 / (1 + away)))
    return found


def distance(one: Task, other: Task) -> float:
    """Return the distance of two tasks of a kernel: another device counts more than other code."""
    away = problem_distance(json.loads(one.problem), json.loads(other.problem))
    return away + 4.0 * (one.device != other.device) + 1.0 * (one.identity != other.identity)
