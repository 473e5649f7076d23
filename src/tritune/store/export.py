"""A store as text: sorted JSON with one trial on a line, for review, for shipping, for import."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from tritune.store.contents import Contents, ordered
from tritune.store.document import device_from_json, problem_from_json, read, to_json
from tritune.store.errors import FormatError
from tritune.store.records import Build, Count, Run, Task, Trial

FORMAT = "tritune-store"
VERSION = 1


@dataclass(frozen=True)
class _File:
    devices: list[Any] = field(default_factory=list)
    runs: list[Any] = field(default_factory=list)
    builds: list[dict[str, Any]] = field(default_factory=list)
    tasks: list[Any] = field(default_factory=list)
    met: list[Any] = field(default_factory=list)


@dataclass(frozen=True)
class _Task:
    kernel: str
    identity: str
    device: str
    problem: dict[str, Any]
    trials: list[dict[str, Any]]


@dataclass(frozen=True)
class _Met:
    kernel: str
    problem: dict[str, Any]
    device: str
    count: Count


@dataclass(frozen=True)
class _Version:
    version: int


def to_text(contents: Contents) -> str:
    """Return the contents as JSON; equal contents give equal bytes."""
    sections = {
        "devices": _lines(map(to_json, contents.devices.values())),
        "runs": _lines(map(to_json, contents.runs)),
        "builds": _lines(map(to_json, contents.builds)),
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
    """Return the contents of a parsed file; a FormatError says what is wrong with it."""
    check_version(document, VERSION, where)
    file = read(_File, document, where)

    def entries(name: str) -> Iterator[tuple[Any, str]]:
        for number, entry in enumerate(getattr(file, name)):
            yield entry, f"{where}: {name}[{number}]"

    devices = [device_from_json(*each) for each in entries("devices")]
    met = [read(_Met, *each) for each in entries("met")]
    found = Contents(
        {device.fingerprint: device for device in devices},
        tuple(read(Run, *each) for each in entries("runs")),
        tuple(
            read(Build, {"signature": "", "config": None, **build}, place)
            for build, place in entries("builds")
        ),
        tuple(trial for each in entries("tasks") for trial in _trials(*each)),
        tuple((m.kernel, problem_from_json(m.problem), m.device, m.count) for m in met),
    )
    found.check(where)
    return ordered(found)


def check_version(document: Any, known: int, where: object) -> None:
    """Raise FormatError unless a file has the version that this tritune reads."""
    version = read(_Version, document, where).version
    if version != known:
        raise FormatError(
            f"{where} has version {version} of the format, this tritune reads {known}: "
            "export it again with this version, or install the newer tritune"
        )


def _trials(entry: Any, where: str) -> Iterator[Trial]:
    found = read(_Task, entry, where)
    task = Task(found.kernel, found.identity, problem_from_json(found.problem), found.device)
    for number, trial in enumerate(found.trials):
        yield read(Trial, {"config": None, **trial, "task": task}, f"{where}.trials[{number}]")


def _task_text(task: Task, trials: Iterable[Trial]) -> str:
    fields = {**to_json(task), "problem": json.loads(task.problem)}
    opening = _text(fields).removesuffix("}")
    return f'{opening}, "trials": [\n{_lines(map(to_json, trials))}\n]}}'


def _lines(entries: Iterable[Any]) -> str:
    return ",\n".join(map(_text, entries))


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True, allow_nan=False)
