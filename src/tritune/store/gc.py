"""Garbage collection: drop results of old code."""

from __future__ import annotations

import datetime
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Connection, Table, delete, func, select, true

from tritune.store import schema
from tritune.store.queries import equal, tasks_like
from tritune.store.store import Store

#: A younger run without trials may be about to get its first.
_RUN_GRACE = datetime.timedelta(days=1)


#: Results of one version of a kernel's code on one device: (kernel, identity, device).
Version = tuple[str, str, str]


@dataclass(frozen=True)
class Rule:
    """The versions of code to drop: those that meet every condition given, if any is."""

    #: Spare this many versions of each kernel on each device, those that were tried last.
    keep: int | None = None
    #: Spare versions that were tried within so many days.
    older_than_days: float | None = None
    #: Forget the problems that programs met.
    met: bool = False


@dataclass(frozen=True)
class Dropped:
    versions: tuple[Version, ...]
    tasks: int
    trials: int
    builds: int
    runs: int
    met: int


def collect(store: Store, rule: Rule, *, dry_run: bool = False, now: str | None = None) -> Dropped:
    """Drop what the rule says, and give the space back. With `dry_run`, only count it."""
    moment = _parsed(now) if now else datetime.datetime.now(datetime.timezone.utc)
    with store.reading() if dry_run else store.writing() as connection:
        old = _old_versions(connection, rule, moment)
        tasks = _task_ids(connection, old)
        condemned = [
            *_rows_of_tasks(tasks),
            *_builds_without_tasks(connection, set(old)),
            *((schema.runs, each) for each in _unused_runs(connection, moment, set(tasks))),
            *([(schema.met, true())] if rule.met else []),
        ]
        counts: Counter[str] = Counter()
        for table, condition in condemned:
            counts[table.name] += _size(connection, table, condition)
            if not dry_run:
                connection.execute(delete(table).where(condition))
    if not dry_run:
        with store.database.unguarded() as connection:
            connection.exec_driver_sql("VACUUM")
    numbers = {name: counts[name] for name in ("tasks", "trials", "builds", "runs", "met")}
    return Dropped(old, **numbers)


def _old_versions(
    connection: Connection, rule: Rule, moment: datetime.datetime
) -> tuple[Version, ...]:
    if rule.keep is None and rule.older_than_days is None:
        return ()
    tasks, trials = schema.tasks, schema.trials
    latest = func.max(trials.c.tried_at).label("latest")
    query = (
        select(tasks.c.kernel, tasks.c.identity, tasks.c.device, latest)
        .outerjoin_from(tasks, trials, tasks.c.id == trials.c.task_id)
        .group_by(tasks.c.kernel, tasks.c.identity, tasks.c.device)
    )
    # The compiler is part of the identity: it differs between devices without being older.
    versions: dict[tuple[str, str], list[tuple[str, str]]] = defaultdict(list)
    for row in connection.execute(query):
        versions[row.kernel, row.device].append((row.latest or "", row.identity))
    old = []
    for (kernel, device), found in sorted(versions.items()):
        for tried, identity in sorted(found, reverse=True)[rule.keep or 0 :]:
            days = rule.older_than_days
            if days is None or _age(tried, moment) > datetime.timedelta(days=days):
                old.append((kernel, identity, device))
    return tuple(old)


def _task_ids(connection: Connection, old: Iterable[Version]) -> list[int]:
    tasks = schema.tasks
    found: list[int] = []
    for kernel, identity, device in old:
        condition = tasks_like(kernel, identity, device)
        found += connection.execute(select(tasks.c.id).where(condition)).scalars()
    return found


def _rows_of_tasks(tasks: list[int]) -> Iterator[tuple[Table, ColumnElement[bool]]]:
    """Yield what to delete for tasks, in this order: a row goes before what it refers to."""
    for part in _parts(tasks):
        yield schema.samples, schema.samples.c.task_id.in_(part)
        yield schema.trials, schema.trials.c.task_id.in_(part)
        yield schema.tasks, schema.tasks.c.id.in_(part)


def _builds_without_tasks(
    connection: Connection, old: set[Version]
) -> Iterator[tuple[Table, ColumnElement[bool]]]:
    """Yield the builds of versions that no device of a target has any more."""
    tasks = schema.tasks
    query = select(tasks.c.kernel, tasks.c.identity, tasks.c.device).distinct()
    left = {version[:2] for version in map(tuple, connection.execute(query)) if version not in old}
    for kernel, identity in sorted({version[:2] for version in old} - left):
        yield schema.builds, equal(schema.builds, {"kernel": kernel, "identity": identity})


def _unused_runs(
    connection: Connection, moment: datetime.datetime, without: set[int]
) -> Iterator[ColumnElement[bool]]:
    """Yield the runs that nothing refers to but tasks that are about to go."""
    used: set[str] = set()
    for table in (schema.trials, schema.samples):
        pairs = connection.execute(select(table.c.run, table.c.task_id).distinct())
        used.update(row.run for row in pairs if row.task_id not in without)
    runs = connection.execute(select(schema.runs.c.id, schema.runs.c.started)).all()
    unused = [
        row.id for row in runs if row.id not in used and _age(row.started, moment) > _RUN_GRACE
    ]
    for part in _parts(unused):
        yield schema.runs.c.id.in_(part)


def _size(connection: Connection, table: Table, condition: ColumnElement[bool]) -> int:
    query = select(func.count()).select_from(table).where(condition)
    return int(connection.execute(query).scalar_one())


def _parts(values: list[Any], size: int = 500) -> Iterable[list[Any]]:
    """Split values into parts: databases limit how many a statement may have."""
    return (values[start : start + size] for start in range(0, len(values), size))


def _age(when: str, moment: datetime.datetime) -> datetime.timedelta:
    return moment - _parsed(when)


def _parsed(when: str) -> datetime.datetime:
    """Return a moment from its text; one that cannot be read counts as long ago."""
    try:
        # Python 3.10 does not know the Z that others write for UTC.
        moment = datetime.datetime.fromisoformat(when.replace("Z", "+00:00"))
    except ValueError:
        return datetime.datetime.min.replace(tzinfo=datetime.timezone.utc)
    return moment if moment.tzinfo else moment.replace(tzinfo=datetime.timezone.utc)
