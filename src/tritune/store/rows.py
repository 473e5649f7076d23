"""Records as rows of the tables, and back."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import groupby
from typing import Any, TypeVar

from sqlalchemy import Row

from tritune.errors import TrituneError
from tritune.space import Config
from tritune.store.document import compact, device_from_json, read, values_of
from tritune.store.errors import DamagedStoreError, FormatError, StoreError
from tritune.store.records import Build, Run, Samples, Task, Trial, problem_text
from tritune.targets.device import Device

T = TypeVar("T")

#: The columns whose names are not those of the record's fields, and the ones that hold JSON.
_COLUMNS = {"when": "tried_at", "default": "is_default"}
_FIELDS = {column: field for field, column in _COLUMNS.items()}
_JSON = {"config", "environment", "facts", "times_ms"}


def digest(*parts: str) -> str:
    """Return a short name for parts that are too long for an index."""
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


def fields_of(row: Row[Any]) -> dict[str, Any]:
    """Return a row's columns as the fields of a record, which nobody has checked yet."""
    # The names are of a subclass of str, which msgspec does not take.
    fields = {_FIELDS.get(name, str(name)): value for name, value in row._mapping.items()}
    return {name: json.loads(v) if name in _JSON else v for name, v in fields.items()}


def device_row(device: Device) -> dict[str, Any]:
    return {"fingerprint": device.fingerprint, **values_of(device), "target": str(device.target)}


def device_of(row: Row[Any]) -> Device:
    return device_from_json(fields_of(row), f"devices {row.fingerprint}")


def run_row(run: Run) -> dict[str, Any]:
    return {**values_of(run), "environment": compact(run.environment)}


def run_of(row: Row[Any]) -> Run:
    return read(Run, fields_of(row), f"runs {row.id}")


def task_row(task: Task) -> dict[str, Any]:
    check_problem(task.problem)
    return {"key": task_key(task), **values_of(task)}


def task_of(row: Row[Any]) -> Task:
    return Task(row.kernel, row.identity, row.problem, row.device)


def build_row(build: Build) -> dict[str, Any]:
    check(build)
    facts = compact(build.facts)
    return {**values_of(build), **_config_columns(build.config), "facts": facts}


def build_of(row: Row[Any]) -> Build:
    return read(Build, fields_of(row), f"builds {row.id}")


def trial_row(trial: Trial, task_id: int) -> dict[str, Any]:
    check(trial)
    fields = {name: v for name, v in values_of(trial).items() if name not in ("task", "samples")}
    columns = {_COLUMNS.get(name, name): value for name, value in fields.items()}
    return {"task_id": task_id, **columns, **_config_columns(trial.config)}


def sample_rows(
    task_id: int, config: Config, samples: Iterable[Samples]
) -> Iterator[dict[str, Any]]:
    for each in samples:
        # Numbers of numpy are welcome, and stored as Python's.
        plain = tuple(ms.item() if hasattr(ms, "item") else ms for ms in each.times_ms)
        times = compact(check(replace(each, times_ms=plain)).times_ms)
        yield {"task_id": task_id, "config_key": config.key, **values_of(each), "times_ms": times}


def check(record: T) -> T:
    """Return a record that is about to be stored; a StoreError names the field that is wrong."""
    return read(type(record), values_of(record), f"{type(record).__name__} cannot be stored")


def met_row(kernel: str, problem: str, device: str, count: int) -> dict[str, Any]:
    check_problem(problem)
    key = digest(kernel, problem, device)
    return {"key": key, "kernel": kernel, "problem": problem, "device": device, "count": count}


def trials_of(rows: Iterable[Row[Any]]) -> Iterator[Trial]:
    """Yield trials from rows of tasks, trials and samples joined, sorted by task and config."""
    for _, of_task in groupby(rows, lambda row: row.task_id):
        task: Task | None = None
        for _, of_trial in groupby(of_task, lambda row: row.config_key):
            found = list(of_trial)
            # One Task object for all of its trials: they are compared and hashed by the thousand.
            task = task or task_of(found[0])
            yield _trial(task, found)


def config_text(config: Config) -> str:
    """Return a config as JSON in the order of its space; equal configs may differ in the order."""
    return json.dumps(config.to_json(), separators=(",", ":"), allow_nan=False)


def _config_columns(config: Config) -> dict[str, str]:
    return {"config_key": config.key, "config": config_text(config)}


def config_of(text: str) -> Config:
    return Config.from_json(json.loads(text))


def _trial(task: Task, rows: list[Row[Any]]) -> Trial:
    # Unchecked: records were checked when they were stored, and every look-up comes this way.
    samples = [
        Samples(row.sample_run, row.stage, row.round, tuple(json.loads(row.times_ms)))
        for row in rows
        if row.times_ms is not None
    ]
    row = rows[0]
    return Trial(
        task,
        config_of(row.config),
        row.run,
        row.tried_at,
        bool(row.is_default),
        row.failure,
        row.message,
        row.binary,
        row.duplicate_of,
        tuple(sorted(samples, key=lambda each: (each.run, each.stage, each.round))),
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
