"""Parse and check the fields of problems.

A misspelt name gets an error with the nearest field.
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Iterable, Mapping
from typing import Any

from tritune.errors import TrituneError, nearest
from tritune.kernels.kernel import Problem

_KINDS = {int: "a whole number", bool: "true or false", str: "text", type(None): "null"}
_BOOLEANS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
_SHORT_DTYPES = {"fp32": "float32", "fp16": "float16", "half": "float16", "bf16": "bfloat16"}


class ProblemError(TrituneError):
    """A problem that a workload does not have."""


def types_of(problem: type[Problem]) -> dict[str, type]:
    """Return the names and types of a problem's fields."""
    hints = typing.get_type_hints(problem)
    return {field.name: hints[field.name] for field in dataclasses.fields(problem)}


def parsed(text: str, types: Mapping[str, type], what: str) -> dict[str, Any]:
    """Parse a text such as "batch=1 dtype=float16 causal=true"."""
    values: dict[str, Any] = {}
    reasons = []
    for word in text.replace(",", " ").split():
        name, equals, value = word.partition("=")
        if not equals:
            reasons.append(f"{word!r} is not of the form name=value")
        elif name in values:
            reasons.append(f"{name} is given twice")
        elif name not in types:
            reasons.append(f"there is no {name}{nearest(name, types)}")
        else:
            try:
                values[name] = _value(value, types[name])
            except ValueError:
                reasons.append(f"{name} is {value!r}, allowed: {_KINDS[types[name]]}")
    if reasons:
        raise ProblemError(f"{what}: {'; '.join(reasons)}. Fields: {', '.join(types)}")
    return values


def _value(text: str, kind: type) -> Any:
    if kind is bool:
        if text.lower() not in _BOOLEANS:
            raise ValueError(text)
        return _BOOLEANS[text.lower()]
    return int(text) if kind is int else _SHORT_DTYPES.get(text, text)


def wrong_values(
    values: Mapping[str, Any],
    types: Mapping[str, type],
    allowed: Mapping[str, tuple[Any, ...]],
) -> list[str]:
    """Return why these values are not those of a problem."""
    reasons = wrong_types(values, types, types)
    for name, value in values.items():
        if name not in types or type(value) is not types[name]:
            continue
        if name in allowed and value not in allowed[name]:
            known = [*map(str, allowed[name])]
            meant = nearest(str(value), known)
            reasons.append(f"{name} is {value}{meant}, allowed: {', '.join(known)}")
        elif isinstance(value, int) and value < 0:
            reasons.append(f"{name} is {value}, allowed: 0 and more")
        elif types[name] is int and value == 0 and name != "window":
            reasons.append(f"{name} is 0, allowed: 1 and more")
    return reasons


def wrong_types(
    values: Mapping[str, Any], types: Mapping[str, Any], needed: Iterable[str]
) -> list[str]:
    """Return which names are unknown or missing, and which values have another type."""
    reasons = [f"there is no {name}{nearest(name, types)}" for name in values if name not in types]
    reasons += [f"{name} is missing" for name in needed if name not in values]
    for name, kind in types.items():
        kinds = typing.get_args(kind) or (kind,)
        # A bool is an int to Python.
        if name in values and type(values[name]) not in kinds:
            allowed = " or ".join(_KINDS[kind] for kind in kinds)
            reasons.append(f"{name} is {values[name]!r}, allowed: {allowed}")
    return reasons
