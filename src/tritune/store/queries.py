"""Queries and statements that more than one part of the store needs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import ColumnElement, Connection, Select, Table, and_, select
from sqlalchemy.dialects import postgresql, sqlite

from tritune.store import rows, schema
from tritune.store.records import Task, Trial


def task_order(task: Task) -> tuple[str, str, str, str]:
    return task.kernel, task.identity, task.device, task.problem


def upsert(connection: Connection, table: Table) -> Any:
    """Return an INSERT with ON CONFLICT, in the dialect of the database."""
    postgres = connection.dialect.name == "postgresql"
    return postgresql.insert(table) if postgres else sqlite.insert(table)


def insert_new(connection: Connection, table: Table, values: Sequence[Mapping[str, Any]]) -> int:
    """Insert the rows whose unique key is not there yet; return how many were new."""
    if not values:
        return 0
    statement = upsert(connection, table).on_conflict_do_nothing()
    parameters = [dict(each) for each in values]
    if connection.dialect.name == "postgresql":
        # Its driver does not count the rows of a statement that is executed many times.
        key = next(iter(table.primary_key))
        return len(connection.execute(statement.returning(key), parameters).all())
    return connection.execute(statement, parameters).rowcount


def ensure_task(connection: Connection, task: Task) -> int:
    """Return the id of the task's row, which is made if need be."""
    query = select(schema.tasks.c.id).where(schema.tasks.c.key == rows.task_key(task))
    found = connection.execute(query).scalar()
    if found is None:
        insert_new(connection, schema.tasks, [rows.task_row(task)])
        found = connection.execute(query).scalar_one()
    return int(found)


def trial_query(condition: ColumnElement[bool]) -> Select[Any]:
    tasks, trials, samples = schema.tasks, schema.trials, schema.samples
    same_trial = and_(
        samples.c.task_id == trials.c.task_id, samples.c.config_key == trials.c.config_key
    )
    return (
        select(
            tasks.c.kernel,
            tasks.c.identity,
            tasks.c.problem,
            tasks.c.device,
            trials,
            samples.c.run.label("sample_run"),
            samples.c.stage,
            samples.c.round,
            samples.c.times_ms,
        )
        .join_from(tasks, trials, tasks.c.id == trials.c.task_id)
        .outerjoin(samples, same_trial)
        .where(condition)
        .order_by(trials.c.task_id, trials.c.config_key)
    )


def equal(table: Table, wanted: Mapping[str, str | None]) -> ColumnElement[bool]:
    conditions = [table.c[name] == value for name, value in wanted.items() if value is not None]
    return and_(True, *conditions)


def tasks_like(kernel: str | None, identity: str | None, device: str | None) -> ColumnElement[bool]:
    wanted = {"kernel": kernel, "identity": identity, "device": device}
    return equal(schema.tasks, wanted)


def read_trials(connection: Connection, condition: ColumnElement[bool]) -> list[Trial]:
    """Return the trials of the tasks that fit, those of one task beside each other."""
    return list(rows.trials_of(connection.execute(trial_query(condition))))
