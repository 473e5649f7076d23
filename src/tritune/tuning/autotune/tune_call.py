"""The config for a call that a program makes: from the store, or by tuning in worker processes,
which cannot harm the program.
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
from tritune.policy.sources import PolicySource, StoreSource, warn_once
from tritune.space import Config, Space
from tritune.store import Store
from tritune.store.decide_winner import Winner, decide
from tritune.store.records import Samples, Task, Trial, problem_text
from tritune.targets.device import detect
from tritune.tuning.autotune.call_case import open_case
from tritune.tuning.autotune.call_folder import TunableCall, WrittenCase, write_case
from tritune.tuning.autotune.pickling import TransferError
from tritune.tuning.autotune.run_log import log_tuned
from tritune.tuning.autotune.triton_configs import Candidates
from tritune.tuning.effort import EFFORTS, whole_list

if TYPE_CHECKING:
    from tritune.tuning.autotune.in_process import Times
    from tritune.tuning.job import Job, Progress, Settings
    from tritune.tuning.measure.statistics import Round

#: Lists up to this long are tried from end to end, as Triton does; of a space or a longer list, as
#: many configs as the effort says.
EXHAUSTIVE = 256
_WORKER_BYTES = 4 << 30
_MOST_JOBS = 32


@dataclass(frozen=True)
class CallTask:
    """A user's kernel, a problem and a device, with the configs to choose from."""

    kernel: Kernel
    fields: Mapping[str, Any]
    device: torch.device
    candidates: Candidates

    @functools.cached_property
    def task(self) -> Task:
        """Return the key of its results in the store."""
        chip = detect(self.device)
        version = identity(self.kernel, chip.target)
        return Task(self.kernel.name, version, problem_text(self.fields), chip.fingerprint)

    @property
    def exhaustive(self) -> bool:
        return self.candidates.points.size() <= EXHAUSTIVE

    def trials(self, store: Store) -> list[Trial]:
        """Return the stored trials of the configs that are to choose from."""
        return [t for t in store.trials(self.task) if t.config in self.candidates.points]


@dataclass(frozen=True)
class TuningResult:
    """A winner, and all trials of the configs that are to choose from."""

    winner: Winner
    trials: Sequence[Trial]


@dataclass(frozen=True)
class _Code:
    """Stands for a function where only its identity is needed."""

    cache_key: str


def kernel_of(name: str, digest: str, space: Space | None = None) -> Kernel:
    """Return the record of a user's function with this digest, which need not be here."""

    def unknown(*_: Any, **__: Any) -> Any:
        raise TrituneError(f"{name} is called by its own program only")

    return Kernel(name, (_Code(digest),), space or Space(()), unknown, unknown, Problem)


def stored_result(task: CallTask, store: Store) -> TuningResult | None:
    """Return what the store has, if tuning was finished: for a list, if every config was tried."""
    trials = task.trials(store)
    if not any(each.stage == "final" for trial in trials for each in trial.samples):
        return None
    if task.exhaustive and len(trials) < task.candidates.points.size():
        return None
    winner = decide(trials, store.started())
    return None if winner is None else TuningResult(winner, trials)


def config_without_tuning(task: CallTask, source: PolicySource | None = None) -> Config:
    """Return the winner for this very problem, else the default: what won for another may be far
    worse.
    """
    policy = (source or StoreSource()).kernel_policy(task.kernel, detect(task.device))
    exact = policy.exact(problem_text(task.fields))
    return (
        exact if exact is not None and exact in task.candidates.points else task.candidates.default
    )


def tune_call(task: CallTask, call: TunableCall, store: Store) -> TuningResult | None:
    """Tune a call in worker processes; None where no config works.

    TransferError where the call cannot be sent to another process.
    """
    with written_call(call) as written:
        return tune_written(task, written, store)


@contextmanager
def written_call(call: TunableCall) -> Iterator[WrittenCase]:
    """Write the call to a folder that is there for as long as the block."""
    with tempfile.TemporaryDirectory(prefix="tritune-call-") as folder:
        written = write_case(folder, call)
        _check_copy(folder)
        yield written


def tune_written(task: CallTask, written: WrittenCase, store: Store) -> TuningResult | None:
    """Tune a call that is in a folder; None where no config works, or nothing could be decided."""
    # Programs whose winners are stored do without what a search needs.
    from tritune.tuning.tuner import tune_case
    from tritune.tuning.workers.kept_workers import shared_workers

    settings = settings_for(task, written.nbytes)
    run = _begin_run(store, settings)
    name = task.kernel.name

    def watch(progress: Progress) -> None:
        if progress.stage == "waiting":
            warn_once(f"{name} waits for process {progress.holder}, which measures on this device")

    with shared_workers(settings) as workers:
        outcome = tune_case(job_of(task, written, store), store, run, settings, watch, workers)
    if outcome.busy:
        warn_once(
            f"this machine is busy: other processes disturbed what was measured of {name} for "
            f"{task.task.problem}, and nothing was decided"
        )
    trials = task.trials(store)
    failures = [f"{t.config} ({t.failure}): {t.message}" for t in trials if t.failure]
    log_tuned(name, len(trials), failures)
    winner = decide(trials, store.started())
    if winner is None and not outcome.busy:
        reasons = sorted({f"{t.failure}: {t.message}".partition("\n")[0] for t in trials})
        warn_once(
            f"no config of {name} works for {task.task.problem}, so the "
            f"first is used ({'; '.join(reasons[:3])})"
        )
    return None if winner is None else TuningResult(winner, trials)


def job_of(task: CallTask, written: WrittenCase, store: Store) -> Job:
    """Return the tuner's job for a call that is in a folder."""
    from tritune.tuning.job import Job

    device = detect(task.device)
    store.add_device(device)
    points, default = task.candidates.points, task.candidates.default
    target = str(device.target)
    return Job(task.task, written.spec, points, default, target, device=str(task.device))


def store_times(task: CallTask, times: Times, store: Store) -> TuningResult | None:
    """Store what was measured within the process, as if workers had done it."""
    store.add_device(detect(task.device))
    run = _begin_run(store, settings_for(task, 0))
    now = datetime.datetime.now(datetime.timezone.utc).isoformat()

    def samples(stage: str, rounds: Sequence[Round]) -> tuple[Samples, ...]:
        return tuple(Samples(run, stage, number, ms) for number, ms in enumerate(rounds))

    for point, config in task.candidates.listed.items():
        outcome: dict[str, Any] = {"failure": "crash", "message": "failed within the program"}
        if config in times.first:
            outcome = {"samples": samples("search", times.first[config])}
        default = point == task.candidates.default
        store.add_trial(Trial(task.task, point, run, now, default=default, **outcome))
    finals = {
        point: list(samples("final", times.final.get(config, ())))
        for point, config in task.candidates.listed.items()
    }
    store.add_race(task.task, finals)
    return stored_result(task, store)


def timings_ms(result: TuningResult) -> dict[Config, list[float]]:
    """Return what Triton calls timings, for each config."""
    own = {trial.config.key: trial for trial in result.trials}
    found = {}
    for trial in result.trials:
        measured = own.get(trial.duplicate_of or "", trial)
        found[trial.config] = quantiles_ms([ms for s in measured.samples for ms in s.times_ms])
    return found


def quantiles_ms(samples: Sequence[float]) -> list[float]:
    """Return the median and the 20 and 80 % quantiles; infinite where nothing was measured."""
    times, last = sorted(samples), len(samples) - 1
    return [times[round(last * share)] for share in (0.5, 0.2, 0.8)] if times else [math.inf] * 3


def settings_for(task: CallTask, nbytes: int) -> Settings:
    """Return how a call is tuned: a list from end to end, of more configs a few."""
    from tritune.tuning.job import Settings
    from tritune.tuning.search import DEFAULT_STRATEGY
    from tritune.tuning.search.exhaustive import Exhaustive

    effort, strategy = EFFORTS["quick"], DEFAULT_STRATEGY
    if task.exhaustive:
        effort, strategy = whole_list(task.candidates.points.size()), Exhaustive.name
    return Settings(
        effort,
        strategy,
        # At most: they are started when there is something for them to compile.
        jobs=min(_MOST_JOBS, os.cpu_count() or 1),
        # In steps: workers are kept from one call to the next, if their memory suffices.
        memory_bytes=_WORKER_BYTES + max(1 << 30, 1 << (3 * nbytes).bit_length()),
        vendors=False,
    )


def _begin_run(store: Store, settings: Settings) -> str:
    from tritune.tuning.measure.environment import environment
    from tritune.tuning.tuner import begin_run

    return begin_run(store, "autotune", environment(settings))


def _check_copy(folder: str) -> None:
    """Raise TransferError unless the call can be read, before processes are started."""
    from triton.runtime import jit

    # Making the kernel again registers it under its name, which is the original's.
    registered = dict(jit._triton_jit_function_registry)
    try:
        open_case(folder)
    except TrituneError:
        raise
    except Exception as error:
        raise TransferError(f"{type(error).__name__}: {error}") from error
    finally:
        jit._triton_jit_function_registry.clear()
        jit._triton_jit_function_registry.update(registered)


@functools.cache
def process_store() -> Store:
    """Return the store that winners of this process are kept in; one for this process alone, with
    a warning, where the usual one cannot be used.
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
