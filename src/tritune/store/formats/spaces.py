"""Recorded spaces, which T4 files hold, as trials and back.

A recorded space has a time for every config, but neither a problem nor rounds. The problem is kept
in the kernel's name: `attention {"batch":1}`.
"""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Iterable, Sequence
from itertools import groupby
from pathlib import Path

from tritune.space import Config, Listed
from tritune.store.contents import Contents
from tritune.store.errors import StoreError
from tritune.store.formats import t4
from tritune.store.formats.foreign import contents_of, imported_run, named_device
from tritune.store.formats.recorded import Recorded
from tritune.store.records import Samples, Task, Trial, problem_text

IDENTITY = "t4"


def from_recorded(recorded: Recorded, where: object) -> Contents:
    """Return a trial for every config: with one sample, or failed."""
    kernel, problem = _kernel_and_problem(recorded.kernel)
    device = named_device(recorded.device, where)
    listed = [[config.key, ms] for config, ms in recorded.results.items()]
    run = imported_run("t4", {"file": recorded.name}, listed)
    task = Task(kernel, IDENTITY, problem, device.fingerprint)

    def trial(config: Config, ms: float | None) -> Trial:
        if ms is None:
            message = "the file does not say how it failed"
            return Trial(task, config, run.id, run.started, failure="crash", message=message)
        samples = (Samples(run.id, "search", 0, (ms,)),)
        return Trial(task, config, run.id, run.started, samples=samples)

    return contents_of(device, run, [trial(*result) for result in recorded.results.items()])


def to_recorded(contents: Contents) -> list[Recorded]:
    """Return a recorded space for every task in which something was measured."""
    found = []
    for task, group in groupby(contents.trials, lambda trial: trial.task):
        results = times_of(list(group))
        if any(ms is not None for ms in results.values()):
            kernel = task.kernel if task.problem == "{}" else f"{task.kernel} {task.problem}"
            device = contents.devices[task.device].name
            found.append(
                Recorded(
                    f"{kernel} on {device}", device, kernel, Listed(results).parameters, results
                )
            )
    return found


def times_of(trials: Sequence[Trial]) -> dict[Config, float | None]:
    """Return each config's median time, None where it failed; unmeasured ones are left out."""
    own = {trial.config.key: _median(trial.samples) for trial in trials if trial.failure is None}
    times: dict[Config, float | None] = {}
    for trial in sorted(trials, key=lambda trial: trial.config.key):
        ms = own.get(trial.config.key) or own.get(trial.duplicate_of or "")
        if ms is not None or trial.failure is not None:
            times[trial.config] = ms
    return times


def write_all(contents: Contents, folder: Path) -> list[Path]:
    """Write a T4 file for every task in which something was measured."""
    spaces = to_recorded(contents)
    if not spaces:
        raise StoreError("there is nothing to write as t4: no config was measured")
    paths = []
    for number, recorded in enumerate(spaces):
        kernel = re.sub(r"[^A-Za-z0-9.-]+", "-", recorded.kernel.partition(" ")[0])
        device = re.sub(r"[^A-Za-z0-9.-]+", "-", recorded.device)
        path = folder / f"{kernel}-{number:04d}_{device}.t4.json"
        t4.write(recorded, path)
        paths.append(path)
    return paths


def _median(samples: Iterable[Samples]) -> float | None:
    """Return the median of the search's samples, which are comparable with all others, if any."""
    for stage in ("search", "final"):
        times = [ms for each in samples if each.stage == stage for ms in each.times_ms]
        if times:
            return statistics.median(times)
    return None


def _kernel_and_problem(text: str) -> tuple[str, str]:
    kernel, _, rest = text.partition(" ")
    try:
        fields = json.loads(rest)
    except ValueError:
        fields = None
    return (kernel, problem_text(fields)) if isinstance(fields, dict) else (text, "{}")
