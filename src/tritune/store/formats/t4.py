"""T4 results files, the open exchange format of autotuners: .json, or .json.gz to read.

A file holds a list of results, each with a configuration, its times, and whether it was valid. The
format has no place for the names of kernel and device: they are kept in the metadata of files that
are written here, and taken from the name of others, as in `convolution_A100.t4.json`.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tritune.space import Config, Listed, SpaceError
from tritune.store import jsonfile
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


def read(path: Path) -> Recorded:
    """The recorded space in a file; FormatError in one line where it is none."""
    document = jsonfile.load(path)
    entries = jsonfile.take(document, "results", list, path)
    metadata = jsonfile.optional(document, "metadata", dict, path) or {}
    unit = jsonfile.optional(metadata, "timeunit", str, path)
    results: dict[Config, float | None] = {}
    for number, entry in enumerate(entries):
        config, ms = _result(entry, unit, f"{path}: results[{number}]")
        known = results.get(config)
        # A config that was measured twice counts with its better time.
        results[config] = ms if known is None or (ms is not None and ms < known) else known
    if not results:
        raise FormatError(f"{path} holds no results")
    kernel, device = _kernel_and_device(path, metadata)
    return Recorded(
        name=_stem(path),
        device=device,
        kernel=kernel,
        parameters=Listed(results).parameters,
        results=results,
    )


def write(recorded: Recorded, path: Path) -> None:
    """Write a recorded space as uncompressed T4."""
    if path.suffix != ".json":
        raise FormatError(f"T4 files are written as JSON: {path} should end in .json")
    jsonfile.write(path, text(recorded))


def text(recorded: Recorded) -> str:
    """A recorded space as T4, one result per line, so that it can be compared."""
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


def _result(entry: Any, unit: str | None, where: str) -> tuple[Config, float | None]:
    values = jsonfile.take(entry, "configuration", dict, where)
    if not values:
        raise FormatError(f"{where}: the configuration is empty")
    try:
        config = Config.from_json(values)
    except SpaceError as error:
        raise FormatError(f"{where}: {error}") from None
    if jsonfile.take(entry, "invalidity", str, where) != "correct":
        return config, None
    return config, _measured_ms(entry, unit, where)


def _measured_ms(entry: Mapping[str, Any], unit: str | None, where: str) -> float | None:
    """The measurement that was the objective; without one, the mean of the raw times."""
    objectives = jsonfile.optional(entry, "objectives", list, where) or ["time"]
    for measurement in jsonfile.optional(entry, "measurements", list, where) or []:
        if jsonfile.optional(measurement, "name", str, where) == objectives[0]:
            own_unit = jsonfile.optional(measurement, "unit", str, where)
            return _in_ms(measurement.get("value"), own_unit or unit, where)
    times = jsonfile.take(entry, "times", dict, where)
    raw = [
        _in_ms(value, unit, where)
        for value in jsonfile.optional(times, "runtimes", list, where) or []
    ]
    measured = [ms for ms in raw if ms is not None]
    return statistics.fmean(measured) if measured else None


def _in_ms(value: Any, unit: str | None, where: str) -> float | None:
    """A time in milliseconds; None for what tools write instead of one when a config fails."""
    factor = _UNITS.get((unit or "ms").lower())
    if factor is None:
        raise FormatError(f"{where}: the unit {unit!r} is none of {', '.join(_UNITS)}")
    time = jsonfile.time_ms(value)
    return None if time is None else time * factor


def _kernel_and_device(path: Path, metadata: Mapping[str, Any]) -> tuple[str, str]:
    kernel = jsonfile.optional(metadata, "kernel", str, path)
    device = jsonfile.optional(metadata, "device", str, path)
    first, _, rest = _stem(path).rpartition("_")
    return kernel or first or rest, device or (rest if first else "")


def _stem(path: Path) -> str:
    name = path.name
    for ending in (".gz", ".json", ".t4", "_T4"):
        name = name.removesuffix(ending)
    return name
