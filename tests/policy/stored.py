"""Stores with results in them, and the problems they are about."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Mapping
from pathlib import Path

import torch

from tritune.kernels.identity import identity
from tritune.kernels.kernel import Kernel, Problem
from tritune.kernels.rms_norm import KERNEL as RMS_NORM
from tritune.kernels.rms_norm import RmsNormProblem
from tritune.space import Config
from tritune.store import Store
from tritune.store.records import Run, Samples, Task, Trial, problem_text
from tritune.targets.device import detect

CPU = torch.device("cpu")


def problem(rows: int = 64, columns: int = 1024, dtype: str = "float32") -> RmsNormProblem:
    return RmsNormProblem(rows=rows, columns=columns, dtype=dtype, adds=False)


def config(rows: int = 1, block: int = 256) -> Config:
    return Config.of(ROWS=rows, BLOCK=block, STREAM=False)


def default_of(one: Problem, kernel: Kernel = RMS_NORM) -> Config:
    target = detect(CPU).target
    return kernel.default(one, target.family, target.arch)


def task_of(one: Problem, kernel: Kernel = RMS_NORM, **other: str) -> Task:
    device = detect(CPU)
    fields = {
        "identity": identity(kernel, device.target),
        "device": device.fingerprint,
        **other,
    }
    return Task(kernel.name, fields["identity"], problem_text(one.fields()), fields["device"])


def put(
    path: Path,
    results: Mapping[Problem, Mapping[Config, float | None]],
    kernel: Kernel = RMS_NORM,
    **other: str,
) -> None:
    """Store the times of configs in ms, None for one that failed, as a tuning run would."""
    with Store(path) as store:
        store.add_device(detect(CPU))
        run = Run(uuid.uuid4().hex, "test", {}, "2025-01-01T00:00:00+00:00")
        store.begin_run(run)
        for one, times in results.items():
            for name, ms in times.items():
                samples = () if ms is None else (Samples(run.id, "final", 0, (ms, ms, ms)),)
                store.add_trial(
                    Trial(
                        task_of(one, kernel, **other),
                        name,
                        run.id,
                        run.started,
                        default=name == default_of(one, kernel),
                        failure="crash" if ms is None else None,
                        samples=samples,
                    )
                )


def many_problems(count: int) -> list[RmsNormProblem]:
    """Different problems, in an order that does not change."""
    grid = itertools.product(range(25), range(20), ("float32", "bfloat16"))
    found = [problem(2**i, 96 + 160 * j, dtype) for i, j, dtype in grid]
    assert count <= len(found)
    return found[:count]
