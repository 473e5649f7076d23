"""T4 results files, the open exchange format of autotuners: .json, or .json.gz to read.

A file holds a list of results, each with a configuration, its times, and whether it was valid. The
format has no place for the names of kernel and device: they are kept in the metadata of files that
are written here, and taken from the name of others, as in `convolution_A100.t4.json`.
"""

from __future__ import annotations

import json
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tritune.space import Config, Listed
from tritune.store import document, jsonfile
from tritune.store.errors import FormatError
from tritune.store.formats.recorded import Recorded

_SCHEMA = "1.0.0"

#: What a unit of time is in milliseconds. Some writers spell it with one l.
_UNITS = {
    "nanoseconds": 1e-6,
    "ns": 1e-6,
    "microseconds": 1e-3,
    "us": 1e-3,
    "milliseconds": 1.0,
    "miliseconds": 1.0,
    "ms": 1.0,
    "seconds": 1e3,
    "s": 1e3,
}


@dataclass(frozen=True)
class _Measurement:
    name: str | None = None
    value: Any = None
    unit: str | None = None


@dataclass(frozen=True)
class _Times:
    runtimes: list[Any] | None = None


@dataclass(frozen=True)
class _Result:
    configuration: dict[str, Any]
    invalidity: str


@dataclass(frozen=True)
class _Measured:
    """The fields of a correct result; in other results they may hold anything."""

    times: Any = None
    measurements: list[_Measurement] | None = None
    objectives: list[Any] | None = None


@dataclass(frozen=True)
class _Metadata:
    timeunit: str | None = None
    kernel: str | None = None
    device: str | None = None


@dataclass(frozen=True)
class _File:
    results: list[dict[str, Any]]
    metadata: _Metadata | None = None


def read(path: Path) -> Recorded:
    """Return the recorded space in a file; raise FormatError in one line where it is none."""
    file = document.read(_File, jsonfile.load(path), path)
    metadata = file.metadata or _Metadata()
    results: dict[Config, float | None] = {}
    for number, entry in enumerate(file.results):
        where = f"{path}: results[{number}]"
        result = document.read(_Result, entry, where)
        if not result.configuration:
            raise FormatError(f"{where}: the configuration is empty")
        config = document.config_from_json(result.configuration, where)
        ms = None
        if result.invalidity == "correct":
            measured = document.read(_Measured, entry, where)
            ms = _measured_ms(measured, metadata.timeunit, where)
        known = results.get(config)
        # A config that was measured twice counts with its better time.
        results[config] = ms if known is None or (ms is not None and ms < known) else known
    if not results:
        raise FormatError(f"{path} holds no results")
    first, _, rest = _stem(path).rpartition("_")
    return Recorded(
        name=_stem(path),
        device=metadata.device or (rest if first else ""),
        kernel=metadata.kernel or first or rest,
        parameters=Listed(results).parameters,
        results=results,
    )


def write(recorded: Recorded, path: Path) -> None:
    """Write a recorded space as uncompressed T4."""
    if path.suffix != ".json":
        raise FormatError(f"T4 files are written as JSON: {path} should end in .json")
    jsonfile.write(path, text(recorded))


def text(recorded: Recorded) -> str:
    """Return a recorded space as T4, one result per line, so that it can be compared."""
    head = {
        "schema_version": _SCHEMA,
        "metadata": {
            "timeunit": "milliseconds",
            "kernel": recorded.kernel,
            "device": recorded.device,
        },
    }
    lines = ",\n".join(json.dumps(_entry(config, ms)) for config, ms in recorded.results.items())
    return json.dumps(head)[:-1] + f', "results": [\n{lines}\n]}}\n'


def _entry(config: Config, ms: float | None) -> dict[str, Any]:
    worked = ms is not None
    measurements = [{"name": "time", "value": ms, "unit": "ms"}] if worked else []
    return {
        "configuration": config.to_json(),
        "times": {"runtimes": [ms] if worked else []},
        "invalidity": "correct" if worked else "runtime",
        "correctness": 1 if worked else 0,
        "measurements": measurements,
        "objectives": ["time"],
    }


def _measured_ms(result: _Measured, unit: str | None, where: str) -> float | None:
    """Return the measurement that was the objective; without one, the mean of the raw times."""
    objective = (result.objectives or ["time"])[0]
    for measurement in result.measurements or []:
        if measurement.name == objective:
            return _in_ms(measurement.value, measurement.unit or unit, where)
    if result.times is None:
        raise FormatError(f"{where}: times is missing")
    runtimes = document.read(_Times, result.times, where).runtimes or []
    measured = [ms for value in runtimes if (ms := _in_ms(value, unit, where)) is not None]
    return statistics.fmean(measured) if measured else None


def _in_ms(value: Any, unit: str | None, where: str) -> float | None:
    """Return a time in milliseconds; None for what tools write where a config failed."""
    factor = _UNITS.get((unit or "ms").lower())
    if factor is None:
        raise FormatError(f"{where}: the unit {unit!r} is none of {', '.join(_UNITS)}")
    time = jsonfile.time_ms(value)
    return None if time is None else time * factor


def _stem(path: Path) -> str:
    name = path.name
    for ending in (".gz", ".json", ".t4", "_T4"):
        name = name.removesuffix(ending)
    return name
