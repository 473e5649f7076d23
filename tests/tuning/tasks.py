"""Jobs for the tuner over the case that can do everything that a config must not."""

from __future__ import annotations

from collections.abc import Callable

from tests.tuning import faulty
from tritune.space import Config, Points
from tritune.store import Store
from tritune.store.records import Task
from tritune.targets.device import Device
from tritune.targets.target import Target
from tritune.tuning.effort import Effort
from tritune.tuning.job import Job, Outcome, Progress, Settings
from tritune.tuning.tuner import begin_run, tune_case

DEVICE = Device("a CPU", Target("cpu", "test"), 2, 1 << 30, "none")
TASK = Task("double", "identity", '{"size":1000}', DEVICE.fingerprint)
EFFORT = Effort("test", 10**6, 1.0, 4, 2, 7, 60.0, 3, 10**6)


def job(points: Points, default: Config) -> Job:
    return Job(TASK, faulty.SPEC, points, default, "cpu:test")


def settings(strategy: str = "exhaustive", **changes: object) -> Settings:
    values: dict[str, object] = {
        "strategy": strategy,
        "jobs": 2,
        "build_timeout_seconds": 6.0,
        "run_timeout_seconds": 10.0,
        "memory_bytes": 1 << 30,
        **changes,
    }
    return Settings(EFFORT, **values)  # type: ignore[arg-type]


def tune(
    store: Store,
    points: Points,
    default: Config,
    watch: Callable[[Progress], None] = lambda progress: None,
    **changes: object,
) -> Outcome:
    """A run of its own over the points."""
    store.add_device(DEVICE)
    run = begin_run(store, "test", {"trials": EFFORT.trials})
    return tune_case(job(points, default), store, run, settings(**changes), watch)  # type: ignore[arg-type]
