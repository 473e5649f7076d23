"""Records of other tools' results: devices known by name only, runs without a date, claims."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any

from tritune.space import Config
from tritune.store.contents import Contents
from tritune.store.decide_winner import Winner, decide
from tritune.store.document import compact
from tritune.store.errors import FormatError
from tritune.store.jsonfile import brief, time_ms
from tritune.store.records import Run, Samples, Task, Trial
from tritune.targets.device import Device
from tritune.targets.target import Target

#: For results that do not say when they were measured: older than anything measured here.
UNDATED = "1970-01-01T00:00:00+00:00"

# How GPUs call themselves, and what they are; the first that fits counts.
_ARCHITECTURES: tuple[tuple[str, str], ...] = (
    (r"\bCPU\b|Xeon|Core\(TM\)|EPYC|Ryzen|Neoverse|Graviton", "cpu:unknown"),
    (r"\bMI100\b", "hip:gfx908"),
    (r"\bMI2\d\d", "hip:gfx90a"),
    (r"\bMI3[05]5|\bMI350", "hip:gfx950"),
    (r"\bMI3\d\d", "hip:gfx942"),
    (r"\bW7[89]00|RX 79|R9700", "hip:gfx1100"),
    (r"\bW6[0-9]00|RX 6", "hip:gfx1030"),
    (r"\bV100", "cuda:70"),
    (r"\bT4\b|RTX 20", "cuda:75"),
    (r"\bA100|\bA800|\bA30\b", "cuda:80"),
    (r"\bA10\b|\bA10G|\bA40\b|\bA4000|\bA5000|\bA6000|RTX 30", "cuda:86"),
    (r"\bL4\b|\bL20\b|\bL40|RTX 40|RTX 6000 Ada", "cuda:89"),
    (r"\bG?H[128]00|\bH20\b", "cuda:90"),
    (r"\bGB300|\bB300", "cuda:103"),
    (r"\bG?B[12]00", "cuda:100"),
    (r"RTX 50|RTX PRO 6000", "cuda:120"),
)


def named_device(name: str, where: object, driver: str = "", target: str = "") -> Device:
    """Return a device of which only the name is known: it equals no device that was detected."""
    if not target:
        fits = (known for pattern, known in _ARCHITECTURES if re.search(pattern, name))
        target = next(fits, "")
    if not target:
        vendors = {"NVIDIA": "cuda:0", "AMD": "hip:unknown"}
        target = next((known for vendor, known in vendors.items() if vendor in name.upper()), "")
    if not target:
        raise FormatError(
            f"{where}: the device {name!r} is none that tritune knows: name an NVIDIA or AMD GPU"
        )
    return Device(name, Target.parse(target), cores=0, memory_bytes=0, driver=driver)


def imported_run(tool: str, environment: Mapping[str, Any], content: object) -> Run:
    """Return a run that stands for a file: the same content gives the same run."""
    facts = {"tool": tool, **environment}
    text = compact([facts, content])
    identifier = f"{tool}-{hashlib.sha256(text.encode()).hexdigest()[:24]}"
    return Run(identifier, f"imported from {tool}", facts, UNDATED)


def claim(task: Task, config: Config, run: Run, times: Sequence[Any] = ()) -> Trial:
    """Return the trial of a config that another tool says has won, with its time if it gives one.

    A time that is no positive number means that it did not run: the trial failed, and cannot win.
    """
    checked = tuple(time_ms(time) for time in times)
    if None in checked:
        wrong = brief(times[checked.index(None)])
        message = f"{run.environment['tool']} recorded the time {wrong}"
        return Trial(task, config, run.id, run.started, failure="crash", message=message)
    valid = tuple(time for time in checked if time is not None)
    final = Samples(run.id, "final", 0, valid)
    return Trial(task, config, run.id, run.started, samples=(final,))


def contents_of(device: Device, run: Run, trials: Iterable[Trial]) -> Contents:
    return Contents({device.fingerprint: device}, (run,), trials=tuple(trials))


def winners_of(contents: Contents) -> list[tuple[Winner, Run]]:
    """Return the winner of each task, with the run of its trial."""
    runs = {run.id: run for run in contents.runs}
    started = {run.id: run.started for run in contents.runs}
    found = []
    for _, group in groupby(contents.trials, lambda trial: trial.task):
        trials = list(group)
        winner = decide(trials, started)
        if winner is not None:
            run = next(trial.run for trial in trials if trial.config == winner.config)
            found.append((winner, runs[run]))
    return found


def literal(text: str) -> int | float | bool | str:
    """Return the value of a text, if exactly that text comes back from the value."""
    if text in ("True", "False"):
        return text == "True"
    for kind in (int, float):
        try:
            value = kind(text)
        except ValueError:
            continue
        if str(value) == text and value == value and abs(value) != float("inf"):
            return value
    return text
