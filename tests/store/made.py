"""Records to fill stores with."""

from __future__ import annotations

from collections.abc import Sequence

from tritune.space import Config
from tritune.store import Store
from tritune.store.records import Build, Run, Samples, Task, Trial, problem_text
from tritune.targets.device import Device
from tritune.targets.target import Target

DEVICE = Device("Test CPU", Target("cpu", "x86-64-v3"), 8, 1 << 34, "1.0")
OTHER_DEVICE = Device("NVIDIA H100 80GB HBM3", Target("cuda", 90), 132, 80 << 30, "CUDA 12.8")
RUN = Run("run-1", "tritune tune", {"versions": {"triton": "3.7.1"}}, "2026-01-01T00:00:00+00:00")
LATER_RUN = Run("run-2", "tritune tune", {}, "2026-02-01T00:00:00+00:00")
TASK = Task("matmul", "code-1", problem_text({"m": 64, "causal": True}), DEVICE.fingerprint)


def prepared(store: Store) -> Store:
    """A store that knows the devices and runs which the records here name."""
    for device in (DEVICE, OTHER_DEVICE):
        store.add_device(device)
    for run in (RUN, LATER_RUN):
        store.begin_run(run)
    return store


def config(block: int, warps: int = 4) -> Config:
    return Config.of(BLOCK=block, FAST=True, num_warps=warps)


def rounds(
    *medians: float, stage: str = "search", run: Run = RUN, first: int = 0
) -> tuple[Samples, ...]:
    """A round with three close times for each median."""
    return tuple(
        Samples(run.id, stage, first + number, (ms, ms * 0.999, ms * 1.001))
        for number, ms in enumerate(medians)
    )


def trial(
    one: Config,
    samples: Sequence[Samples] = (),
    *,
    task: Task = TASK,
    run: Run = RUN,
    default: bool = False,
    failure: str | None = None,
    duplicate_of: str | None = None,
    when: str = "2026-01-01T00:00:01+00:00",
) -> Trial:
    message = "it went wrong" if failure else ""
    return Trial(
        task, one, run.id, when, default, failure, message, "abc", duplicate_of, tuple(samples)
    )


def build(one: Config, failure: str | None = None) -> Build:
    return Build(
        "matmul", "code-1", "cpu:x86-64-v3", "f32", one, "" if failure else "abc", {"spills": 0},
        0.5, failure,
    )  # fmt: skip
