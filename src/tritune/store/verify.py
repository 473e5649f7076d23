"""Whether a store is sound: everything that can be wrong is looked for, and all of it is told."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

from sqlalchemy import Connection, Row, Table, and_, select

from tritune.store import rows, schema
from tritune.store.document import known_stage, times_from_json
from tritune.store.records import FAILURES
from tritune.store.store import Store

# (table, its columns, the table they refer to, its columns)
_REFERENCES = (
    (schema.tasks, ("device",), schema.devices, ("fingerprint",)),
    (schema.trials, ("task_id",), schema.tasks, ("id",)),
    (schema.trials, ("run",), schema.runs, ("id",)),
    (schema.trials, ("task_id", "duplicate_of"), schema.trials, ("task_id", "config_key")),
    (schema.samples, ("task_id", "config_key"), schema.trials, ("task_id", "config_key")),
    (schema.samples, ("run",), schema.runs, ("id",)),
)


def verify(store: Store) -> list[str]:
    """Every problem of a store, one line each; none: it is sound."""
    with store.database.read() as connection:
        problems = list(_file_problems(connection))
        # A file whose pages are broken would only repeat itself in everything that is read from it.
        if not problems:
            problems += _orphans(connection)
            problems += _unreadable_rows(connection)
    return problems


def _file_problems(connection: Connection) -> Iterator[str]:
    if connection.dialect.name != "sqlite":
        return  # a server looks after its own files
    for (line,) in connection.exec_driver_sql("PRAGMA integrity_check"):
        if line != "ok":
            yield f"the file is damaged: {' '.join(str(line).split())}"


def _orphans(connection: Connection) -> Iterator[str]:
    for table, columns, referred, keys in _REFERENCES:
        other = referred.alias("referred")
        matching = and_(
            *(other.c[key] == table.c[column] for key, column in zip(keys, columns, strict=True))
        )
        named = table.c[columns[-1]]
        query = (
            select(*table.primary_key, named.label("named"))
            .select_from(table.outerjoin(other, matching))
            .where(other.c[keys[0]].is_(None), named.is_not(None))
        )
        for row in connection.execute(query):
            yield f"{_place(table, row)} names {row.named!r}, which is not in {referred.name}"


def _unreadable_rows(connection: Connection) -> Iterator[str]:
    for table, check in _CHECKS.items():
        for row in connection.execute(select(table)):
            try:
                for complaint in check(row):
                    yield f"{_place(table, row)}: {complaint}"
            except rows.UNREADABLE as error:
                yield f"{_place(table, row)}: {' '.join(str(error).split())}"


def _place(table: Table, row: Any) -> str:
    key = " ".join(str(row._mapping[column.name]) for column in table.primary_key)
    return f"{table.name} {key}"


def _check_device(row: Row[Any]) -> Iterator[str]:
    if rows.device_of(row).fingerprint != row.fingerprint:
        yield "the fingerprint is not that of the device"


def _check_run(row: Row[Any]) -> Iterator[str]:
    if not isinstance(json.loads(row.environment), dict):
        yield "the environment is no JSON object"


def _check_task(row: Row[Any]) -> Iterator[str]:
    rows.check_problem(row.problem)
    if rows.task_key(rows.task_of(row)) != row.key:
        yield "the key is not that of the task"


def _check_config(row: Row[Any]) -> Iterator[str]:
    if rows.config_of(row.config).key != row.config_key:
        yield "the key is not that of the config"
    if row.failure is not None and row.failure not in FAILURES:
        yield f"{row.failure!r} is no reason for a failure"


def _check_build(row: Row[Any]) -> Iterator[str]:
    yield from _check_config(row)
    if not isinstance(json.loads(row.facts), dict):
        yield "the facts are no JSON object"


def _check_samples(row: Row[Any]) -> Iterator[str]:
    if not known_stage(row.stage):
        yield f"{row.stage!r} is no stage"
    times_from_json(json.loads(row.times_ms), "times")


def _check_met(row: Row[Any]) -> Iterator[str]:
    rows.check_problem(row.problem)
    if rows.digest(row.kernel, row.problem, row.device) != row.key:
        yield "the key is not that of the problem"


_CHECKS: dict[Table, Callable[[Row[Any]], Iterator[str]]] = {
    schema.devices: _check_device,
    schema.runs: _check_run,
    schema.tasks: _check_task,
    schema.builds: _check_build,
    schema.trials: _check_config,
    schema.samples: _check_samples,
    schema.met: _check_met,
}
