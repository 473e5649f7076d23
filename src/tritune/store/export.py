"""A store as text: sorted JSON with one trial on a line, for review, for shipping, for import."""

from __future__ import annotations

import json
from collections.abc import Iterable
from itertools import groupby
from typing import Any

from tritune.store.contents import Contents, ordered
from tritune.store.document import (
    build_from_json,
    build_to_json,
    device_from_json,
    device_to_json,
    problem_from_json,
    run_from_json,
    run_to_json,
    trial_from_json,
    trial_to_json,
    whole,
)
from tritune.store.errors import FormatError
from tritune.store.jsonfile import optional, take
from tritune.store.records import Task, Trial

FORMAT = "tritune-store"
VERSION = 1


def to_text(contents: Contents) -> str:
    """The contents as JSON; equal contents give equal bytes."""
    sections = {
        "devices": _lines(map(device_to_json, contents.devices.values())),
        "runs": _lines(map(run_to_json, contents.runs)),
        "builds": _lines(map(build_to_json, contents.builds)),
        "tasks": ",\n".join(
            _task_text(task, group) for task, group in groupby(contents.trials, lambda t: t.task)
        ),
        "met": _lines(
            {"kernel": kernel, "device": device, "problem": json.loads(problem), "count": count}
            for kernel, problem, device, count in contents.met
        ),
    }
    body = "".join(f',\n"{name}": [\n{text}\n]' for name, text in sections.items())
    return f'{{\n"format": "{FORMAT}",\n"version": {VERSION}{body}\n}}\n'


def from_document(document: Any, where: object) -> Contents:
    """The contents of a parsed file; a FormatError says what is wrong with it."""
    version = take(document, "version", int, where)
    if version != VERSION:
        raise FormatError(
            f"{where} has version {version} of the format, this tritune reads {VERSION}: "
            "export it again with this version, or install the newer tritune"
        )

    def entries(name: str) -> Iterable[tuple[Any, str]]:
        for number, entry in enumerate(optional(document, name, list, where) or []):
            yield entry, f"{where}: {name}[{number}]"

    devices = [device_from_json(*each) for each in entries("devices")]
    found = Contents(
        {device.fingerprint: device for device in devices},
        tuple(run_from_json(*each) for each in entries("runs")),
        tuple(build_from_json(*each) for each in entries("builds")),
        tuple(trial for each in entries("tasks") for trial in _task_trials(*each)),
        tuple(_met(*each) for each in entries("met")),
    )
    found.check(where)
    return ordered(found)


def _task_trials(entry: Any, where: str) -> list[Trial]:
    task = Task(
        take(entry, "kernel", str, where),
        take(entry, "identity", str, where),
        problem_from_json(take(entry, "problem", dict, where), where),
        take(entry, "device", str, where),
    )
    trials = take(entry, "trials", list, where)
    return [
        trial_from_json(task, trial, f"{where}.trials[{number}]")
        for number, trial in enumerate(trials)
    ]


def _met(entry: Any, where: str) -> tuple[str, str, str, int]:
    return (
        take(entry, "kernel", str, where),
        problem_from_json(take(entry, "problem", dict, where), where),
        take(entry, "device", str, where),
        whole(entry, "count", where),
    )


def _task_text(task: Task, trials: Iterable[Trial]) -> str:
    fields = {
        "kernel": task.kernel,
        "identity": task.identity,
        "device": task.device,
        "problem": json.loads(task.problem),
    }
    opening = _text(fields).removesuffix("}")
    return f'{opening}, "trials": [\n{_lines(map(trial_to_json, trials))}\n]}}'


def _lines(entries: Iterable[Any]) -> str:
    return ",\n".join(map(_text, entries))


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True, allow_nan=False)
