"""The file of winners: written by `tritune db export --winners`, read by the `pinned` mode.

One winner on a line, sorted, so that a change of config is one changed line in a review.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tritune.space import Config
from tritune.store.decide_winner import Winner
from tritune.store.document import device_from_json, problem_from_json, read, to_json
from tritune.store.errors import FormatError
from tritune.store.export import check_version
from tritune.store.jsonfile import brief, load, write
from tritune.store.records import Milliseconds, Task
from tritune.targets.device import Device

FORMAT = "tritune-winners"
VERSION = 1


@dataclass(frozen=True)
class WinnersFile:
    """The winners of each kernel on each device, for one version of its code."""

    winners: tuple[Winner, ...]
    #: By fingerprint.
    devices: Mapping[str, Device]

    @staticmethod
    def of(winners: Iterable[Winner], devices: Mapping[str, Device]) -> WinnersFile:
        """Keep the code that was tuned last, per kernel and device: what is pinned is today's."""
        everything = list(winners)
        newest: dict[tuple[str, str], tuple[str, str]] = {}
        for winner in everything:
            place = (winner.task.kernel, winner.task.device)
            age = (winner.when, winner.task.identity)
            newest[place] = max(newest.get(place, age), age)
        kept = [w for w in everything if newest[w.task.kernel, w.task.device][1] == w.task.identity]
        kept.sort(key=lambda w: (w.task.kernel, w.task.device, w.task.problem))
        used = {winner.task.device for winner in kept}
        return WinnersFile(
            tuple(kept), {name: devices[name] for name in sorted(used) if name in devices}
        )

    @staticmethod
    def read(path: str | Path) -> WinnersFile:
        """Read and check a file of winners; a FormatError says what is wrong with it."""
        return from_document(load(Path(path)), path)

    def write(self, path: str | Path) -> None:
        write(Path(path), self.text())

    def text(self) -> str:
        """The file's text: the same winners always give the same bytes."""
        by_kernel: dict[str, dict[str, list[Winner]]] = defaultdict(lambda: defaultdict(list))
        for winner in self.winners:
            by_kernel[winner.task.kernel][winner.task.device].append(winner)
        kernels = [
            f'  {_text(kernel)}: {{"devices": {{\n{self._kernel_text(by_device)}\n  }}}}'
            for kernel, by_device in sorted(by_kernel.items())
        ]
        body = ",\n".join(kernels)
        return (
            f'{{\n"format": {_text(FORMAT)},\n"version": {VERSION},\n'
            f'"kernels": {{\n{body}\n}}\n}}\n'
        )

    def _kernel_text(self, by_device: Mapping[str, list[Winner]]) -> str:
        return ",\n".join(
            f"    {_text(fingerprint)}: {{\n"
            f'      "device": {_text(to_json(self.devices[fingerprint]))},\n'
            f'      "identity": {_text(winners[0].task.identity)},\n'
            f'      "winners": [\n{_winner_lines(winners)}\n      ]\n    }}'
            for fingerprint, winners in sorted(by_device.items())
        )


@dataclass(frozen=True)
class _Kernel:
    devices: dict[str, Any]


@dataclass(frozen=True)
class _Group:
    """The winners of a kernel on a device."""

    device: dict[str, Any]
    identity: str
    winners: list[dict[str, Any]]


@dataclass(frozen=True)
class _Entry:
    problem: dict[str, Any]
    config: Config
    ms: Milliseconds | None = None
    default_ms: Milliseconds | None = None


@dataclass(frozen=True)
class _File:
    kernels: dict[str, Any]


def from_document(document: Any, where: object) -> WinnersFile:
    """Return the winners in a parsed file."""
    found = document.get("format") if isinstance(document, Mapping) else None
    if found != FORMAT:
        raise FormatError(
            f"{where} is no file of winners: its format is {brief(found)}, "
            f"expected {FORMAT!r}; tritune db export --winners writes one"
        )
    check_version(document, VERSION, where)
    winners: list[Winner] = []
    devices: dict[str, Device] = {}
    for kernel, entry in read(_File, document, where).kernels.items():
        for fingerprint, fields in read(_Kernel, entry, f"{where}: {kernel}").devices.items():
            place = f"{where}: {kernel} on {fingerprint}"
            group = read(_Group, fields, place)
            devices[fingerprint] = device_from_json(group.device, place)
            if devices[fingerprint].fingerprint != fingerprint:
                raise FormatError(
                    f"{place}: the fingerprint is not that of the device beside it: export again"
                )
            winners += _winners(group, kernel, fingerprint, place)
    return WinnersFile(tuple(winners), devices)


def _winners(group: _Group, kernel: str, fingerprint: str, place: str) -> Iterator[Winner]:
    seen: set[str] = set()
    for number, fields in enumerate(group.winners):
        entry = read(_Entry, {"config": None, **fields}, f"{place}: winners[{number}]")
        problem = problem_from_json(entry.problem)
        if problem in seen:
            raise FormatError(f"{place}: two winners for the problem {problem}")
        seen.add(problem)
        yield Winner(
            task=Task(kernel, group.identity, problem, fingerprint),
            config=entry.config,
            ms=entry.ms,
            default_ms=entry.default_ms,
            samples=0,
            when="",
            tied=False,
        )


def _winner_lines(winners: Iterable[Winner]) -> str:
    lines = []
    for winner in sorted(winners, key=lambda winner: winner.task.problem):
        fields = {
            "problem": json.loads(winner.task.problem),
            "config": dict(sorted(winner.config.to_json().items())),
            "ms": winner.ms,
            "default_ms": winner.default_ms,
        }
        lines.append(f"        {_text(fields)}")
    return ",\n".join(lines)


def _text(value: Any) -> str:
    return json.dumps(value, allow_nan=False)
