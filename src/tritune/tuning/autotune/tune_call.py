"""Answering for a call that a program makes: what the store knows, and tuning, in processes that
cannot harm the program.
"""

from __future__ import annotations

import datetime
import functools
import math
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from tritune.errors import TrituneError
from tritune.kernels.identity import identity
from tritune.kernels.kernel import Kernel, Problem
from tritune.policy.sources import Source, StoreSource, warn_once
from tritune.space import Config, Points, Space
from tritune.store import Store
from tritune.store.records import Samples, Task, Trial, problem_text
from tritune.store.winner import Winner, decide
from tritune.targets.device import detect
from tritune.tuning.autotune.call_case import open_case
from tritune.tuning.autotune.call_folder import CallToTune, WrittenCase, write_case
from tritune.tuning.autotune.portable import PortableError, code_digest
from tritune.tuning.autotune.run_log import tell_tuned
from tritune.tuning.effort import EFFORTS, whole_list

if TYPE_CHECKING:
    from tritune.tuning.autotune.in_process import Times
    from tritune.tuning.tuner import Job, Progress, Settings

#: Lists up to this long are tried from end to end, as Triton does; of a space or a longer list, as
#: many configs as the effort says.
EXHAUSTIVE = 256
_WORKER_BYTES = 4 << 30
_MOST_JOBS = 32


@dataclass(frozen=True)
class Question:
    """Which config to use for a problem on a device."""

    kernel: Kernel
    fields: Mapping[str, Any]
    device: torch.device
    points: Points
    default: Config

    @functools.cached_property
    def task(self) -> Task:
        chip = detect(self.device)
        version = identity(self.kernel, chip.target)
        return Task(self.kernel.name, version, problem_text(self.fields), chip.fingerprint)

    @property
    def exhaustive(self) -> bool:
        return self.points.size() <= EXHAUSTIVE


@dataclass(frozen=True)
class _Code:
    """Stands for a function where only its identity is asked for."""

    cache_key: str


@dataclass(frozen=True)
class Tuned:
    """A winner, and all that was tried among the configs that are on offer now."""

    winner: Winner
    trials: Sequence[Trial]


def kernel_of(name: str, function: Any, space: Space | None) -> Kernel:
    """A function of the user's as the rest of tritune sees kernels."""
    return kernel_with_digest(name, code_digest(function), space)


def kernel_with_digest(name: str, digest: str, space: Space | None = None) -> Kernel:
    """As `kernel_of`, for a function that is not here."""

    def unknown(*_: Any, **__: Any) -> Any:
        raise TrituneError(f"{name} is called by its own program only")

    return Kernel(name, (_Code(digest),), space or Space(()), unknown, unknown, Problem)


def known(question: Question, store: Store) -> Tuned | None:
    """What the store answers, if tuning has come to its end: for a list, every config was tried."""
    trials = [t for t in store.trials(question.task) if t.config in question.points]
    if not any(each.stage == "final" for trial in trials for each in trial.samples):
        return None
    if question.exhaustive and len(trials) < question.points.size():
        return None
    winner = decide(trials, store.started())
    return None if winner is None else Tuned(winner, trials)


def answer_without_tuning(question: Question, source: Source | None = None) -> Config:
    """The winner for this very problem, else the default: what won for another may be far worse."""
    knowledge = (source or StoreSource()).knowledge(question.kernel, detect(question.device))
    exact = knowledge.exact(problem_text(question.fields))
    return exact if exact is not None and exact in question.points else question.default


def tune_call(question: Question, wanted: CallToTune, store: Store) -> Tuned | None:
    """Tune a call in worker processes; None where no config works.

    PortableError where the call cannot be sent to another process.
    """
    with written_call(wanted) as written:
        return tune_written(question, written, store)


@contextmanager
def written_call(wanted: CallToTune) -> Iterator[WrittenCase]:
    """The call in a folder that is there for as long as the block."""
    with tempfile.TemporaryDirectory(prefix="tritune-call-") as folder:
        written = write_case(folder, wanted)
        _check_copy(folder)
        yield written


def tune_written(question: Question, written: WrittenCase, store: Store) -> Tuned | None:
    """Tune a call that is in a folder; None where no config works, or nothing could be decided."""
    # Programs whose winners are known do without what a search needs.
    from tritune.tuning.tuner import begin_run, tune_case
    from tritune.tuning.workers.shared_crew import shared_crew

    settings = settings_for(question, written.nbytes)
    run = begin_run(store, "autotune", _environment(settings))
    job = job_of(question, written, store)
    name = question.kernel.name

    def watch(progress: Progress) -> None:
        if progress.stage == "waiting":
            warn_once(f"{name} waits for process {progress.holder}, which measures on this device")

    with shared_crew(settings) as crew:
        outcome = tune_case(job, store, run, settings, watch, crew)
    if outcome.busy:
        warn_once(
            f"this machine is busy: other processes disturbed what was measured of {name} for "
            f"{question.task.problem}, and nothing was decided"
        )
    trials = [t for t in store.trials(question.task) if t.config in question.points]
    failures = [f"{t.config} ({t.failure}): {t.message}" for t in trials if t.failure]
    tell_tuned(question.kernel.name, len(trials), failures)
    winner = decide(trials, store.started())
    if winner is None and not outcome.busy:
        reasons = sorted({f"{t.failure}: {t.message}".partition("\n")[0] for t in trials})
        warn_once(
            f"no config of {name} works for {question.task.problem}, so the "
            f"first is used ({'; '.join(reasons[:3])})"
        )
    return None if winner is None else Tuned(winner, trials)


def job_of(question: Question, written: WrittenCase, store: Store) -> Job:
    """What the tuner has to know to answer a question about a call that is in a folder."""
    from tritune.tuning.tuner import Job

    device = detect(question.device)
    store.add_device(device)
    return Job(
        question.task,
        written.spec,
        question.points,
        question.default,
        str(device.target),
        device=str(question.device),
    )


def keep_times(
    question: Question, listed: Mapping[Config, Any], times: Times, store: Store
) -> Tuned | None:
    """Keep what was measured within the process, as if workers had done it."""
    from tritune.tuning.tuner import begin_run

    store.add_device(detect(question.device))
    run = begin_run(store, "autotune", _environment(settings_for(question, 0)))
    now = datetime.datetime.now(datetime.timezone.utc).isoformat()
    for point, config in listed.items():
        ms = times.once.get(config)
        samples = () if ms is None else (Samples(run, "search", 0, (ms,)),)
        store.add_trial(
            Trial(
                question.task,
                point,
                run,
                now,
                default=point == question.default,
                samples=samples,
                failure="crash" if ms is None else None,
                message="failed within the program" if ms is None else "",
            )
        )
    finals = {
        point: [
            Samples(run, "final", number, (ms,))
            for number, ms in enumerate(times.final.get(config, ()))
        ]
        for point, config in listed.items()
    }
    store.add_race(question.task, finals)
    return known(question, store)


def timings_ms(tuned: Tuned) -> dict[Config, list[float]]:
    """What Triton calls timings, for each config."""
    own = {trial.config.key: trial for trial in tuned.trials}
    found = {}
    for trial in tuned.trials:
        measured = own.get(trial.duplicate_of or "", trial)
        found[trial.config] = quantiles_ms([ms for s in measured.samples for ms in s.times_ms])
    return found


def quantiles_ms(samples: Sequence[float]) -> list[float]:
    """The median, and what 20 and 80 % stay below; infinite where nothing was measured."""
    times, last = sorted(samples), len(samples) - 1
    return [times[round(last * share)] for share in (0.5, 0.2, 0.8)] if times else [math.inf] * 3


def settings_for(question: Question, nbytes: int) -> Settings:
    """How a call is tuned: a list from end to end, of more configs a few."""
    from tritune.tuning.search import DEFAULT_STRATEGY
    from tritune.tuning.search.exhaustive import Exhaustive
    from tritune.tuning.tuner import Settings

    effort, strategy, size = EFFORTS["quick"], DEFAULT_STRATEGY, question.points.size()
    if question.exhaustive:
        effort = whole_list(size)
        strategy = Exhaustive.name
    return Settings(
        effort,
        strategy,
        jobs=_jobs(),
        memory_bytes=_WORKER_BYTES + _in_steps(3 * nbytes),
        vendors=False,
    )


def _in_steps(nbytes: int) -> int:
    """At least so many: workers are kept from one call to the next, if their memory suffices."""
    return max(1 << 30, 1 << nbytes.bit_length())


def _jobs() -> int:
    """How many processes compile, at most: they are started when there is something for them."""
    return min(_MOST_JOBS, os.cpu_count() or 1)


def _environment(settings: Settings) -> Mapping[str, Any]:
    from tritune.tuning.measure.environment import environment

    return environment(settings)


def _check_copy(folder: str) -> None:
    """See that the kernel can be made again from the folder, before processes are started."""
    from triton.runtime import jit

    # Making it again registers it under its name, which is the original's.
    registered = dict(jit._triton_jit_function_registry)
    try:
        open_case(folder)
    except TrituneError:
        raise
    except Exception as error:
        raise PortableError(f"{type(error).__name__}: {error}") from error
    finally:
        jit._triton_jit_function_registry.clear()
        jit._triton_jit_function_registry.update(registered)


@functools.cache
def process_store() -> Store:
    """The store that winners of this process are kept in; one for this process alone, with a
    warning, where the usual one cannot be used.
    """
    try:
        return Store()
    except TrituneError as error:
        warn_once(f"winners are kept for this process only: {error}")
        folder = tempfile.TemporaryDirectory(prefix="tritune-store-")
        _kept.append(folder)
        return Store(os.path.join(folder.name, "store.sqlite"))


#: Folders that live as long as this process.
_kept: list[tempfile.TemporaryDirectory[str]] = []
