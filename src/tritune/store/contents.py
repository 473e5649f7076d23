"""The contents of a store, or of a file to be imported, as plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from sqlalchemy import select, true

from tritune.store import rows, schema
from tritune.store.document import compact
from tritune.store.errors import FormatError
from tritune.store.queries import read_trials, task_order
from tritune.store.records import Build, Run, Trial
from tritune.store.store import Store
from tritune.targets.device import Device


@dataclass(frozen=True)
class Contents:
    """All records, sorted: equal contents are equal data."""

    #: By fingerprint.
    devices: Mapping[str, Device] = field(default_factory=dict)
    runs: tuple[Run, ...] = ()
    builds: tuple[Build, ...] = ()
    trials: tuple[Trial, ...] = ()
    #: (kernel, problem, device, count)
    met: tuple[tuple[str, str, str, int], ...] = ()

    def check(self, where: object) -> None:
        """Raise FormatError unless every device and run that is named is there."""
        runs = {run.id for run in self.runs}
        for trial in self.trials:
            for run in (trial.run, *(samples.run for samples in trial.samples)):
                if run not in runs:
                    raise FormatError(f"{where}: a trial names the run {run!r}, which is not there")
            if trial.task.device not in self.devices:
                raise FormatError(
                    f"{where}: a task names the device {trial.task.device!r}, which is not there"
                )


def contents(store: Store, kernel: str | None = None) -> Contents:
    """Return all records of a store at one moment, or those of one kernel."""
    every = kernel is None
    with store.reading() as connection:
        trials = read_trials(connection, true() if every else schema.tasks.c.kernel == kernel)
        devices = [rows.device_of(row) for row in connection.execute(select(schema.devices))]
        runs = [rows.run_of(row) for row in connection.execute(select(schema.runs))]
        builds = [rows.build_of(row) for row in connection.execute(select(schema.builds))]
    met = store.met_problems(kernel)
    used_runs = {s.run for t in trials for s in t.samples} | {t.run for t in trials}
    used_devices = {trial.task.device for trial in trials}
    return ordered(
        Contents(
            {d.fingerprint: d for d in devices if every or d.fingerprint in used_devices},
            tuple(run for run in runs if every or run.id in used_runs),
            tuple(build for build in builds if every or build.kernel == kernel),
            tuple(trials),
            tuple(met),
        )
    )


def ordered(unsorted: Contents) -> Contents:
    """Return the same contents in the order in which they are kept and written."""
    return Contents(
        dict(sorted(unsorted.devices.items())),
        tuple(sorted(unsorted.runs, key=lambda run: (run.started, run.id))),
        tuple(sorted(unsorted.builds, key=build_order)),
        tuple(sorted(unsorted.trials, key=trial_order)),
        tuple(sorted(unsorted.met)),
    )


def build_order(build: Build) -> tuple[str, ...]:
    key = (build.kernel, build.identity, build.target, build.signature)
    return (*key, compact(build.config.to_json()))


def trial_order(trial: Trial) -> tuple[str, ...]:
    return (*task_order(trial.task), compact(trial.config.to_json()))
