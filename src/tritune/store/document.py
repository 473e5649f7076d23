"""Records as JSON and back. What is read is checked, field by field: it may come from anywhere."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from tritune.errors import TrituneError
from tritune.space import Config
from tritune.store.errors import FormatError
from tritune.store.jsonfile import brief, optional, take, time_ms
from tritune.store.records import FAILURES, Build, Run, Samples, Task, Trial, problem_text
from tritune.store.winner import UNDECIDED
from tritune.targets.device import Device
from tritune.targets.target import Target

#: What a time was taken for. "vendor:NAME" is kept with the default config: the vendor's library,
#: timed beside it.
STAGES = ("search", "final", UNDECIDED, "vendor:NAME")
_LARGEST = 2**63 - 1


def compact(value: Any) -> str:
    """One spelling for one value. NaN and Infinity are no JSON, and are refused."""
    try:
        return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError) as error:
        raise FormatError(f"{brief(value)} cannot be kept as JSON: {error}") from None


def whole(fields: Any, name: str, where: object) -> int:
    value = take(fields, name, int, where)
    if not -1 <= value <= _LARGEST:
        raise FormatError(f"{where}: {name} is {brief(value)}, which is out of range")
    return value


def config_from_json(fields: Any, where: object) -> Config:
    if not isinstance(fields, Mapping):
        raise FormatError(f"{where}: a config is {brief(fields)}, expected an object")
    try:
        return Config.from_json(fields)
    except TrituneError as error:
        raise FormatError(f"{where}: {error}") from None


def problem_from_json(fields: Any, where: object) -> str:
    if not isinstance(fields, Mapping):
        raise FormatError(f"{where}: a problem is {brief(fields)}, expected an object")
    compact(fields)
    return problem_text(fields)


def device_to_json(device: Device) -> dict[str, Any]:
    return {
        "name": device.name,
        "target": str(device.target),
        "cores": device.cores,
        "memory_bytes": device.memory_bytes,
        "driver": device.driver,
    }


def device_from_json(fields: Any, where: object) -> Device:
    try:
        target = Target.parse(take(fields, "target", str, where))
    except FormatError:
        raise
    except TrituneError as error:
        raise FormatError(f"{where}: {error}") from None
    return Device(
        name=take(fields, "name", str, where),
        target=target,
        cores=whole(fields, "cores", where),
        memory_bytes=whole(fields, "memory_bytes", where),
        driver=take(fields, "driver", str, where),
    )


def run_to_json(run: Run) -> dict[str, Any]:
    return {
        "id": run.id,
        "command": run.command,
        "environment": run.environment,
        "started": run.started,
    }


def run_from_json(fields: Any, where: object) -> Run:
    return Run(
        id=take(fields, "id", str, where),
        command=take(fields, "command", str, where),
        environment=take(fields, "environment", dict, where),
        started=take(fields, "started", str, where),
    )


def build_to_json(build: Build) -> dict[str, Any]:
    fields = {
        "kernel": build.kernel,
        "identity": build.identity,
        "target": build.target,
        "signature": build.signature,
        "config": build.config.to_json(),
        "binary": build.binary,
        "facts": build.facts,
        "seconds": build.seconds,
        "failure": build.failure,
        "message": build.message,
    }
    return {name: value for name, value in fields.items() if value not in ("", None, {})}


def build_from_json(fields: Any, where: object) -> Build:
    seconds = fields.get("seconds", 0) if isinstance(fields, Mapping) else 0
    return Build(
        kernel=take(fields, "kernel", str, where),
        identity=take(fields, "identity", str, where),
        target=take(fields, "target", str, where),
        signature=optional(fields, "signature", str, where) or "",
        config=config_from_json(fields.get("config"), where),
        binary=optional(fields, "binary", str, where) or "",
        facts=optional(fields, "facts", dict, where) or {},
        seconds=time_ms(seconds) or 0.0,
        failure=_failure(fields, where),
        message=optional(fields, "message", str, where) or "",
    )


def trial_to_json(trial: Trial) -> dict[str, Any]:
    """All of a trial but its task, without the fields that say nothing."""
    fields = {
        "config": trial.config.to_json(),
        "run": trial.run,
        "when": trial.when,
        "default": trial.default or None,
        "failure": trial.failure,
        "message": trial.message,
        "binary": trial.binary,
        "duplicate_of": trial.duplicate_of,
        "samples": [samples_to_json(samples) for samples in trial.samples],
    }
    return {name: value for name, value in fields.items() if value not in ("", None, [])}


def trial_from_json(task: Task, fields: Any, where: object) -> Trial:
    samples = optional(fields, "samples", list, where) or []
    return Trial(
        task=task,
        config=config_from_json(fields.get("config"), where),
        run=take(fields, "run", str, where),
        when=take(fields, "when", str, where),
        default=optional(fields, "default", bool, where) or False,
        failure=_failure(fields, where),
        message=optional(fields, "message", str, where) or "",
        binary=optional(fields, "binary", str, where) or "",
        duplicate_of=optional(fields, "duplicate_of", str, where),
        samples=tuple(samples_from_json(each, where) for each in samples),
    )


def samples_to_json(samples: Samples) -> dict[str, Any]:
    return {
        "run": samples.run,
        "stage": samples.stage,
        "round": samples.round,
        "times_ms": list(samples.times_ms),
    }


def samples_from_json(fields: Any, where: object) -> Samples:
    stage = take(fields, "stage", str, where)
    if not known_stage(stage):
        raise FormatError(f"{where}: stage is {brief(stage)}, which is none of {STAGES}")
    return Samples(
        run=take(fields, "run", str, where),
        stage=stage,
        round=whole(fields, "round", where),
        times_ms=times_from_json(fields.get("times_ms"), where),
    )


def known_stage(stage: str) -> bool:
    return stage in STAGES[:-1] or stage.startswith("vendor:")


def times_from_json(values: Any, where: object) -> tuple[float, ...]:
    if not isinstance(values, list | tuple):
        raise FormatError(f"{where}: times_ms is {brief(values)}, expected a list")
    times = tuple(time_ms(value) for value in values)
    if None in times:
        wrong = values[times.index(None)]
        raise FormatError(f"{where}: {brief(wrong)} is no time: expected a positive number")
    return tuple(time for time in times if time is not None)


def _failure(fields: Any, where: object) -> str | None:
    failure = optional(fields, "failure", str, where)
    if failure is not None and failure not in FAILURES:
        raise FormatError(f"{where}: failure is {brief(failure)}, which is none of {FAILURES}")
    return failure
