"""The store: queries and transactions. docs/store.md has the schema and the promises."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path

from sqlalchemy import ColumnElement, Connection, delete, select
from sqlalchemy.exc import IntegrityError

from tritune.space import Config
from tritune.store import rows, schema
from tritune.store.database import Database
from tritune.store.decide_winner import Winner, decide
from tritune.store.errors import StoreError
from tritune.store.location import locate
from tritune.store.queries import (
    ensure_task,
    equal,
    insert_new,
    read_trials,
    task_order,
    tasks_like,
    upsert,
)
from tritune.store.records import Build, Run, Samples, Task, Trial
from tritune.targets.device import Device


class Store:
    """The database of builds and trials. Threads may share it, and children after a fork.

    `location` is a file's path (SQLite) or a PostgreSQL URL; None: TRITUNE_STORE, or else a file in
    the user's cache folder. A store that does not exist is made, unless it is `read_only`.
    """

    def __init__(self, location: str | Path | None = None, *, read_only: bool = False) -> None:
        self.database = Database(locate(location), read_only=read_only)

    @property
    def location(self) -> str:
        """Return where the store is, without a password."""
        return str(self.database.location)

    def close(self) -> None:
        self.database.close()

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Store({self.location!r})"

    def add_device(self, device: Device) -> None:
        """Store a device, unless it is there."""
        with self.writing() as connection:
            insert_new(connection, schema.devices, [rows.device_row(device)])

    def devices(self) -> dict[str, Device]:
        """Return every device, by its fingerprint."""
        with self.reading() as connection:
            found = connection.execute(select(schema.devices)).all()
            devices = {row.fingerprint: rows.device_of(row) for row in found}
        return dict(sorted(devices.items()))

    def begin_run(self, run: Run) -> None:
        """Store a run, which its trials and samples name."""
        with self.writing() as connection:
            insert_new(connection, schema.runs, [rows.run_row(run)])

    def runs(self) -> list[Run]:
        """Return every run, the oldest first."""
        with self.reading() as connection:
            found = [rows.run_of(row) for row in connection.execute(select(schema.runs))]
        return sorted(found, key=lambda run: (run.started, run.id))

    def add_build(self, build: Build) -> bool:
        """Store a build; return False if it is there already."""
        with self.writing() as connection:
            return insert_new(connection, schema.builds, [rows.build_row(build)]) == 1

    def builds(
        self, kernel: str, identity: str, target: str, signature: str | None = None
    ) -> list[Build]:
        """Return the builds of a kernel for a target, failed ones included."""
        query = select(schema.builds).where(
            equal(
                schema.builds,
                {
                    "kernel": kernel,
                    "identity": identity,
                    "target": target,
                    "signature": signature,
                },
            )
        )
        with self.reading() as connection:
            found = [rows.build_of(row) for row in connection.execute(query)]
        return sorted(found, key=lambda build: (build.signature, build.config.key))

    def add_trial(self, trial: Trial) -> bool:
        """Store a trial with its samples, all or nothing; return False if the config was tried."""
        with self.writing() as connection:
            try:
                task_id = ensure_task(connection, trial.task)
                new = insert_new(connection, schema.trials, [rows.trial_row(trial, task_id)]) == 1
                if new:
                    self._insert_samples(connection, task_id, trial.config, trial.samples)
                return new
            except IntegrityError as error:
                raise _unknown_reference(trial.task, trial.config, error) from None

    def add_samples(self, task: Task, config: Config, *samples: Samples) -> int:
        """Add times to a trial; those of a run, stage and round that are there already are not
        added again. Returns how many were new.
        """
        return self.add_race(task, {config: samples})

    def add_race(self, task: Task, times: Mapping[Config, Sequence[Samples]]) -> int:
        """Add the times of several configs at once, all or nothing: a race that was interrupted
        half-way through its writing would have a false winner.
        """
        with self.writing() as connection:
            try:
                task_id = ensure_task(connection, task)
                return sum(
                    self._insert_samples(connection, task_id, config, samples)
                    for config, samples in times.items()
                )
            except IntegrityError as error:
                names = ", ".join(str(config) for config in times)
                raise _unknown_reference(task, names, error) from None

    def trials(self, task: Task) -> list[Trial]:
        """Return all trials of a task, failures included, the earliest first."""
        found = self._trials(schema.tasks.c.key == rows.task_key(task))
        return sorted(found, key=lambda trial: (trial.when, trial.config.key))

    def all_trials(
        self, kernel: str | None = None, identity: str | None = None, device: str | None = None
    ) -> list[Trial]:
        """Return the trials of many tasks with one query, those of one task beside each other."""
        return self._trials(tasks_like(kernel, identity, device))

    def tasks(
        self, kernel: str | None = None, identity: str | None = None, device: str | None = None
    ) -> list[Task]:
        """Return the tasks that have trials, sorted."""
        query = select(schema.tasks).where(tasks_like(kernel, identity, device))
        with self.reading() as connection:
            found = [rows.task_of(row) for row in connection.execute(query)]
        return sorted(found, key=task_order)

    def winner(self, task: Task) -> Winner | None:
        """Return the winner of a task; None where nothing worked, or nothing was tried."""
        return decide(self.trials(task), self.started())

    def winners(
        self, kernel: str | None = None, identity: str | None = None, device: str | None = None
    ) -> list[Winner]:
        """Return the winners of all tasks of a kernel, sorted by task."""
        started = self.started()
        trials = self.all_trials(kernel, identity, device)
        found = [decide(group, started) for _, group in groupby(trials, lambda each: each.task)]
        return sorted((w for w in found if w is not None), key=lambda w: task_order(w.task))

    def record_problem(self, kernel: str, problem: str, device: str, count: int = 1) -> None:
        """Note that a program met a problem; counts add up."""
        self.record_problems([(kernel, problem, device, count)])

    def record_problems(self, problems: Iterable[tuple[str, str, str, int]]) -> None:
        """Note many problems at once: (kernel, problem, device, how often)."""
        with self.writing() as connection:
            for each in sorted(problems):
                statement = upsert(connection, schema.met).values(rows.met_row(*each))
                connection.execute(
                    statement.on_conflict_do_update(
                        index_elements=["key"],
                        set_={"count": schema.met.c.count + statement.excluded["count"]},
                    )
                )

    def met_problems(
        self, kernel: str | None = None, device: str | None = None
    ) -> list[tuple[str, str, str, int]]:
        """Return the problems that programs met, as (kernel, problem, device, count), most
        frequent first.
        """
        query = select(schema.met).where(equal(schema.met, {"kernel": kernel, "device": device}))
        with self.reading() as connection:
            found = [
                (row.kernel, row.problem, row.device, int(row._mapping["count"]))
                for row in connection.execute(query)
            ]
        return sorted(found, key=lambda each: (-each[3], each[:3]))

    def clear_met_problems(self) -> int:
        """Forget the problems that programs met; return how many there were."""
        with self.writing() as connection:
            return connection.execute(delete(schema.met)).rowcount

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        with self.database.read() as connection:
            try:
                yield connection
            except rows.UNREADABLE as error:
                raise rows.unreadable(self.location, error) from error

    @contextmanager
    def writing(self) -> Iterator[Connection]:
        with self.database.write() as connection:
            yield connection

    def _trials(self, condition: ColumnElement[bool]) -> list[Trial]:
        with self.reading() as connection:
            return read_trials(connection, condition)

    def started(self) -> dict[str, str]:
        """Return when each run began."""
        with self.reading() as connection:
            found = connection.execute(select(schema.runs.c.id, schema.runs.c.started)).all()
        return {row.id: row.started for row in found}

    def _insert_samples(
        self, connection: Connection, task_id: int, config: Config, samples: Iterable[Samples]
    ) -> int:
        values = list(rows.sample_rows(task_id, config, samples))
        return insert_new(connection, schema.samples, values)


def _unknown_reference(task: Task, config: object, error: IntegrityError) -> StoreError:
    return StoreError(
        f"{task.kernel} {config}: its device {task.device}, its run or its trial is not in the "
        f"store: call add_device, begin_run and add_trial first ({error.orig})"
    )
