"""Check that a store is sound: look for everything that can be wrong, and tell all of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from sqlalchemy import Connection, Row, Table, and_, select

from tritune.store import rows, schema
from tritune.store.document import device_from_json, read
from tritune.store.errors import FormatError
from tritune.store.records import Build, Run, Samples, Task, Trial
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
    """Return every problem of a store, one line each."""
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
            place = _place(table, row)
            try:
                if not check(row, place):
                    yield f"{place}: the key is not that of the other columns"
            except FormatError as error:
                yield " ".join(str(error).split())
            except rows.UNREADABLE as error:
                yield f"{place}: {' '.join(str(error).split())}"


def _place(table: Table, row: Any) -> str:
    key = " ".join(str(row._mapping[column.name]) for column in table.primary_key)
    return f"{table.name} {key}"


def _check_device(row: Row[Any], place: str) -> bool:
    return device_from_json(rows.fields_of(row), place).fingerprint == row.fingerprint


def _check_run(row: Row[Any], place: str) -> bool:
    return bool(read(Run, rows.fields_of(row), place))


def _check_task(row: Row[Any], place: str) -> bool:
    rows.check_problem(row.problem)
    return rows.task_key(rows.task_of(row)) == row.key


def _check_build(row: Row[Any], place: str) -> bool:
    return read(Build, rows.fields_of(row), place).config.key == row.config_key


def _check_trial(row: Row[Any], place: str) -> bool:
    task = Task("", "", "", "")  # another table has it
    return read(Trial, {**rows.fields_of(row), "task": task}, place).config.key == row.config_key


def _check_samples(row: Row[Any], place: str) -> bool:
    return bool(read(Samples, rows.fields_of(row), place))


def _check_met(row: Row[Any], place: str) -> bool:
    rows.check_problem(row.problem)
    return rows.digest(row.kernel, row.problem, row.device) == row.key


#: For each table: whether the key of a row is that of its other columns.
_CHECKS: dict[Table, Callable[[Row[Any], str], bool]] = {
    schema.devices: _check_device,
    schema.runs: _check_run,
    schema.tasks: _check_task,
    schema.builds: _check_build,
    schema.trials: _check_trial,
    schema.samples: _check_samples,
    schema.met: _check_met,
}
