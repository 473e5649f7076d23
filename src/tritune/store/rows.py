"""Records as rows of the tables, and back."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from typing import Any

from sqlalchemy import Row

from tritune.errors import TrituneError
from tritune.space import Config
from tritune.store.document import STAGES, compact, known_stage, times_from_json
from tritune.store.errors import DamagedStoreError, FormatError, StoreError
from tritune.store.records import FAILURES, Build, Run, Samples, Task, Trial, problem_text
from tritune.targets.device import Device
from tritune.targets.target import Target


def digest(*parts: str) -> str:
    """A short name for parts that are too long for an index."""
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]


def task_key(task: Task) -> str:
    return digest(task.kernel, task.identity, task.problem, task.device)


def check_problem(text: str) -> None:
    """Raise StoreError for a text that `problem_text` would spell in another way."""
    try:
        fields = json.loads(text)
        right = isinstance(fields, dict) and problem_text(fields) == text
    except ValueError:
        right = False
    if not right:
        raise StoreError(f"{text!r} is no problem's text: make it with problem_text(fields)")


def check_failure(failure: str | None) -> None:
    if failure is not None and failure not in FAILURES:
        raise StoreError(f"{failure!r} is no reason for a failure: use one of {FAILURES}")


def device_row(device: Device) -> dict[str, Any]:
    return {
        "fingerprint": device.fingerprint,
        "name": device.name,
        "target": str(device.target),
        "cores": device.cores,
        "memory_bytes": device.memory_bytes,
        "driver": device.driver,
    }


def device_of(row: Row[Any]) -> Device:
    return Device(row.name, Target.parse(row.target), row.cores, row.memory_bytes, row.driver)


def run_row(run: Run) -> dict[str, Any]:
    return {
        "id": run.id,
        "command": run.command,
        "environment": compact(dict(run.environment)),
        "started": run.started,
    }


def run_of(row: Row[Any]) -> Run:
    return Run(row.id, row.command, json.loads(row.environment), row.started)


def task_row(task: Task) -> dict[str, Any]:
    check_problem(task.problem)
    return {
        "key": task_key(task),
        "kernel": task.kernel,
        "identity": task.identity,
        "problem": task.problem,
        "device": task.device,
    }


def task_of(row: Row[Any]) -> Task:
    return Task(row.kernel, row.identity, row.problem, row.device)


def build_row(build: Build) -> dict[str, Any]:
    check_failure(build.failure)
    return {
        "kernel": build.kernel,
        "identity": build.identity,
        "target": build.target,
        "signature": build.signature,
        "config_key": build.config.key,
        "config": config_text(build.config),
        "binary": build.binary,
        "facts": compact(dict(build.facts)),
        "seconds": build.seconds,
        "failure": build.failure,
        "message": build.message,
    }


def build_of(row: Row[Any]) -> Build:
    return Build(
        row.kernel,
        row.identity,
        row.target,
        row.signature,
        config_of(row.config),
        row.binary,
        json.loads(row.facts),
        row.seconds,
        row.failure,
        row.message,
    )


def trial_row(trial: Trial, task_id: int) -> dict[str, Any]:
    check_failure(trial.failure)
    return {
        "task_id": task_id,
        "config_key": trial.config.key,
        "config": config_text(trial.config),
        "run": trial.run,
        "tried_at": trial.when,
        "is_default": trial.default,
        "failure": trial.failure,
        "message": trial.message,
        "binary": trial.binary,
        "duplicate_of": trial.duplicate_of,
    }


def sample_rows(
    task_id: int, config: Config, samples: Iterable[Samples]
) -> Iterator[dict[str, Any]]:
    for each in samples:
        if not known_stage(each.stage):
            raise StoreError(f"{each.stage!r} is no stage: use one of {', '.join(STAGES)}")
        times = times_from_json(list(each.times_ms), f"{config}, {each.stage} {each.round}")
        yield {
            "task_id": task_id,
            "config_key": config.key,
            "run": each.run,
            "stage": each.stage,
            "round": each.round,
            "times_ms": compact(times),
        }


def samples_of(row: Row[Any]) -> Samples:
    # Not `times_from_json`: what is in the store was checked on its way in, and this is the path
    # that every look-up of winners takes, once per sample.
    return Samples(row.sample_run, row.stage, row.round, tuple(json.loads(row.times_ms)))


def trials_of(rows: Iterable[Row[Any]]) -> Iterator[Trial]:
    """Trials from rows of tasks, trials and samples joined, sorted by task and config."""
    header: Row[Any] | None = None
    task: Task | None = None
    samples: list[Samples] = []
    for row in rows:
        same_task = header is not None and header.task_id == row.task_id
        if header is None or not same_task or header.config_key != row.config_key:
            if header is not None and task is not None:
                yield _trial(header, task, samples)
            # One Task object for all of its trials: they are compared and hashed by the thousand.
            task = task if same_task else task_of(row)
            header, samples = row, []
        if row.times_ms is not None:
            samples.append(samples_of(row))
    if header is not None and task is not None:
        yield _trial(header, task, samples)


def config_text(config: Config) -> str:
    """In the order of its space, which reads best; equal configs may differ in it."""
    return json.dumps(config.to_json(), separators=(",", ":"), allow_nan=False)


def config_of(text: str) -> Config:
    return Config.from_json(json.loads(text))


def _trial(row: Row[Any], task: Task, samples: list[Samples]) -> Trial:
    samples.sort(key=lambda each: (each.run, each.stage, each.round))
    return Trial(
        task=task,
        config=config_of(row.config),
        run=row.run,
        when=row.tried_at,
        default=bool(row.is_default),
        failure=row.failure,
        message=row.message,
        binary=row.binary,
        duplicate_of=row.duplicate_of,
        samples=tuple(samples),
    )


#: What parsing a row can raise where the database holds something that tritune did not write.
UNREADABLE = (ValueError, TypeError, AttributeError, RecursionError, TrituneError)


def unreadable(where: object, error: BaseException) -> StoreError:
    if isinstance(error, StoreError) and not isinstance(error, FormatError):
        return error
    return DamagedStoreError(
        f"{where} holds something that tritune did not write ({error}): "
        "tritune db verify lists it; restore the store from an export"
    )
