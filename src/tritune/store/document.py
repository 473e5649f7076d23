"""Records as JSON objects and back. What is read is checked: it may come from anywhere."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from tritune.errors import TrituneError
from tritune.space import Config
from tritune.store.errors import FormatError
from tritune.store.jsonfile import brief
from tritune.store.records import Build, DeviceFields, Samples, Trial, problem_text
from tritune.targets.device import Device
from tritune.targets.target import Target

T = TypeVar("T")


def compact(value: Any) -> str:
    """Return the JSON of a value: one spelling for one value. NaN and Infinity are refused."""
    try:
        return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError) as error:
        raise FormatError(f"{brief(value)} cannot be kept as JSON: {error}") from None


def read(kind: type[T], fields: Any, where: object) -> T:
    """Return the dataclass of a JSON object; a FormatError names the field that is wrong."""
    has_config = "config" in getattr(kind, "__dataclass_fields__", ())
    if has_config and isinstance(fields, Mapping) and "config" in fields:
        config = fields["config"]
        if not isinstance(config, Config | str):
            fields = {**fields, "config": config_from_json(config, where)}
    try:
        return msgspec.convert(fields, kind)
    except UnicodeEncodeError:
        raise FormatError(f"{where}: a name holds a character that is no Unicode text") from None
    except msgspec.ValidationError as error:
        raise FormatError(f"{where}: {_complaint(str(error), fields)}") from None


def _complaint(message: str, value: Any) -> str:
    """Put the field and its value before msgspec's message, which ends with the path to it."""
    text, _, path = message.partition(" - at `$")
    for name, index in re.findall(r"\.(\w+)|\[(\d+)\]", path):
        value = value[name or int(index)]
    place = path.strip("`.")
    return f"{place or 'it'} is {brief(value)}: {text}" if "missing" not in text else text


def config_from_json(fields: Any, where: object) -> Config:
    if not isinstance(fields, Mapping):
        raise FormatError(f"{where}: config is {brief(fields)}: expected an object")
    try:
        return Config.from_json(fields)
    except TrituneError as error:
        raise FormatError(f"{where}: {error}") from None


def device_from_json(fields: Any, where: object) -> Device:
    known = vars(read(DeviceFields, fields, where))
    try:
        return Device(**{**known, "target": Target.parse(known["target"])})
    except TrituneError as error:
        raise FormatError(f"{where}: {error}") from None


def problem_from_json(fields: Any) -> str:
    compact(fields)
    return problem_text(fields)


def to_json(record: Any) -> dict[str, Any]:
    """Return a record as a JSON object.

    Builds and trials are written without fields that say nothing, and a trial without its task,
    which others share.
    """
    fields = {name: _plain(value) for name, value in values_of(record).items() if name != "task"}
    if isinstance(record, Build | Trial):
        silent = [n for n, v in fields.items() if v is False or v in ("", None, {}, [])]
        return {n: v for n, v in fields.items() if n not in silent or n == "config"}
    return fields


def values_of(record: Any) -> dict[str, Any]:
    """Return the fields of a record by name; `vars` lacks those that msgspec left at a default."""
    return {name: getattr(record, name) for name in record.__dataclass_fields__}


def _plain(value: Any) -> Any:
    if isinstance(value, Config):
        return value.to_json()
    if isinstance(value, Target):
        return str(value)
    if isinstance(value, tuple):
        return [to_json(each) if isinstance(each, Samples) else each for each in value]
    return value
