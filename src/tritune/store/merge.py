"""The union of two stores. Whichever is merged into the other, the result is the same."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import Connection, Table, select

from tritune.space import Config
from tritune.store import rows, schema
from tritune.store.contents import Contents, contents
from tritune.store.document import compact, to_json
from tritune.store.queries import insert_new, read_trials, upsert
from tritune.store.records import Build, Run, Samples, Task, Trial
from tritune.store.store import Store


@dataclass(frozen=True)
class Added:
    """Counts of the records that were new, or changed what was there."""

    devices: int = 0
    runs: int = 0
    builds: int = 0
    trials: int = 0
    samples: int = 0

    def __str__(self) -> str:
        return (
            f"{self.trials} trials, {self.samples} rounds of samples, {self.builds} builds, "
            f"{self.runs} runs, {self.devices} devices"
        )


def merge(into: Store, source: Store) -> Added:
    """Add everything that another store has."""
    return absorb(into, contents(source), source.location)


def absorb(store: Store, incoming: Contents, where: object) -> Added:
    """Add contents to a store in one transaction. `where` they come from is for errors."""
    incoming.check(where)
    with store.writing() as connection:
        devices = [rows.device_row(device) for device in incoming.devices.values()]
        # In this order: what a row refers to must be there before it.
        new_devices = insert_new(connection, schema.devices, devices)
        runs = _absorb_runs(connection, incoming.runs)
        builds = _absorb_builds(connection, incoming.builds)
        trials, samples = _absorb_trials(connection, incoming.trials)
        _absorb_met(connection, incoming.met)
    return Added(new_devices, runs, builds, trials, samples)


def combine(one: Trial, other: Trial) -> Trial:
    """Return one trial from two of the same config and task: `combine(a, b) == combine(b, a)`.

    All samples are kept. The outcome is that of the run which measured more, then the later one.
    """
    samples: dict[tuple[str, str, int], Samples] = {}
    for each in (*one.samples, *other.samples):
        key = (each.run, each.stage, each.round)
        samples[key] = max(samples.get(key, each), each, key=_fullness)
    united = tuple(samples[key] for key in sorted(samples))
    measured = {
        run: sum(len(each.times_ms) for each in united if each.run == run)
        for run in (one.run, other.run)
    }
    outcome = max(one, other, key=lambda trial: (measured[trial.run], trial.when, _header(trial)))
    return replace(outcome, samples=united, default=one.default or other.default)


def combine_builds(one: Build, other: Build) -> Build:
    """Return the success, if one is: a machine may have been out of memory once."""
    return max(one, other, key=lambda build: (build.failure is None, compact(to_json(build))))


def combine_runs(one: Run, other: Run) -> Run:
    return max(one, other, key=lambda run: compact(to_json(run)))


def _fullness(samples: Samples) -> tuple[int, str]:
    return len(samples.times_ms), compact(samples.times_ms)


def _header(trial: Trial) -> str:
    return compact(to_json(replace(trial, samples=(), default=False)))


def _absorb_runs(connection: Connection, runs: Iterable[Run]) -> int:
    known = {run.id: run for run in map(rows.run_of, connection.execute(select(schema.runs)))}
    changed = []
    for run in runs:
        result = combine_runs(known.get(run.id, run), run)
        if known.get(run.id) != result:
            changed.append(rows.run_row(result))
    return _put(connection, schema.runs, changed)


def _absorb_builds(connection: Connection, builds: tuple[Build, ...]) -> int:
    kernels = {build.kernel for build in builds}
    query = select(schema.builds).where(schema.builds.c.kernel.in_(kernels))
    known = {_build_key(each): each for each in map(rows.build_of, connection.execute(query))}
    changed = []
    for build in builds:
        before = known.get(_build_key(build))
        result = build if before is None else combine_builds(before, build)
        if before != result:
            changed.append(rows.build_row(result))
    unique = ("kernel", "identity", "target", "signature", "config_key")
    return _put(connection, schema.builds, changed, unique)


def _absorb_trials(connection: Connection, trials: tuple[Trial, ...]) -> tuple[int, int]:
    ids = _task_ids(connection, {trial.task for trial in trials})
    kernels = {trial.task.kernel for trial in trials}
    known = {
        (trial.task, trial.config): trial
        for trial in read_trials(connection, schema.tasks.c.kernel.in_(kernels))
    }
    headers: list[dict[str, Any]] = []
    samples: list[dict[str, Any]] = []
    for trial in _once(trials):
        before = known.get((trial.task, trial.config))
        result = trial if before is None else combine(before, trial)
        if result == before:
            continue
        task_id = ids[trial.task]
        headers.append(rows.trial_row(result, task_id))
        new = [each for each in result.samples if before is None or each not in before.samples]
        samples += rows.sample_rows(task_id, result.config, new)
    return (
        _put(connection, schema.trials, headers),
        _put(connection, schema.samples, samples),
    )


def _absorb_met(connection: Connection, met: Iterable[tuple[str, str, str, int]]) -> None:
    """Take the larger count, not the sum: merging twice must change nothing."""
    known = {row.key: row._mapping["count"] for row in connection.execute(select(schema.met))}
    incoming = [rows.met_row(*each) for each in met]
    changed = [row for row in incoming if row["count"] > known.get(row["key"], 0)]
    _put(connection, schema.met, changed)


def _once(trials: Iterable[Trial]) -> Iterable[Trial]:
    """Combine the trials of one config and task, of which a file may have two."""
    found: dict[tuple[Task, Config], Trial] = {}
    for trial in trials:
        key = (trial.task, trial.config)
        found[key] = combine(found[key], trial) if key in found else trial
    return found.values()


def _task_ids(connection: Connection, tasks: set[Task]) -> dict[Task, int]:
    insert_new(
        connection,
        schema.tasks,
        sorted((rows.task_row(task) for task in tasks), key=lambda row: str(row["key"])),
    )
    kernels = {task.kernel for task in tasks}
    query = select(schema.tasks).where(schema.tasks.c.kernel.in_(kernels))
    return {rows.task_of(row): row.id for row in connection.execute(query)}


def _build_key(build: Build) -> tuple[str, str, str, str, Config]:
    return build.kernel, build.identity, build.target, build.signature, build.config


def _put(
    connection: Connection,
    table: Table,
    values: list[dict[str, Any]],
    unique: tuple[str, ...] | None = None,
) -> int:
    """Insert rows, or replace those with the same key."""
    if not values:
        return 0
    keys = unique or tuple(column.name for column in table.primary_key)
    statement = upsert(connection, table)
    others = {name: statement.excluded[name] for name in values[0] if name not in keys}
    connection.execute(statement.on_conflict_do_update(index_elements=keys, set_=others), values)
    return len(values)
