"""Configs: points of a space, with which kernels are compiled."""

from __future__ import annotations

import functools
import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from tritune.errors import TrituneError

Value: TypeAlias = "int | float | bool | str"

_VALUE_TYPES = (int, float, bool, str)


class SpaceError(TrituneError):
    """A space or a config that does not make sense."""


@dataclass(frozen=True, eq=False, repr=False)
class Config:
    """One point of a space: names and values, in an order that does not matter.

    A value's type matters: 1, 1.0 and True are three values, as they are to Triton.
    """

    values: tuple[tuple[str, Value], ...]

    @staticmethod
    def of(**values: Value) -> Config:
        return Config.from_json(values)

    @staticmethod
    def from_json(values: Mapping[str, Any]) -> Config:
        """Return the config of `to_json`'s values."""
        for name, value in values.items():
            check_value(name, value)
        return Config(tuple(values.items()))

    def to_json(self) -> dict[str, Value]:
        """Return names and values that JSON can hold."""
        return dict(self.values)

    def as_kwargs(self) -> dict[str, Value]:
        """Return the keyword arguments of a launch: constexprs and compile options."""
        return self._by_name.copy()

    @functools.cached_property
    def key(self) -> str:
        """Return a short digest: the same in every process, on every machine."""
        text = json.dumps(self._by_name, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def get(self, name: str, default: Value | None = None) -> Value | None:
        return self._by_name.get(name, default)

    def __getitem__(self, name: str) -> Value:
        return self._by_name[name]

    def __contains__(self, name: object) -> bool:
        return name in self._by_name

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Config):
            return NotImplemented
        return self._identity == other._identity

    def __hash__(self) -> int:
        return self._hash

    def __str__(self) -> str:
        return " ".join(f"{name}={value}" for name, value in self.values)

    def __repr__(self) -> str:
        return f"Config({', '.join(f'{name}={value!r}' for name, value in self.values)})"

    def __reduce__(self) -> tuple[Any, ...]:
        # Without the cached hash: hashes of text differ between processes.
        return Config, (self.values,)

    @functools.cached_property
    def _by_name(self) -> dict[str, Value]:
        return dict(self.values)

    @functools.cached_property
    def _identity(self) -> frozenset[tuple[str, type, Value]]:
        return frozenset((name, type(value), value) for name, value in self.values)

    @functools.cached_property
    def _hash(self) -> int:
        return hash(self._identity)


def check_value(name: str, value: Any) -> None:
    """Raise SpaceError unless this can be the value of a parameter."""
    if type(value) not in _VALUE_TYPES:
        raise SpaceError(
            f"{name}={value!r} is a {type(value).__name__}: "
            "a value is a whole number, a float, a boolean or text"
        )
    if isinstance(value, float) and not math.isfinite(value):
        raise SpaceError(f"{name}={value!r} is not a finite number")


def distinct(values: Iterable[Value]) -> tuple[Value, ...]:
    """Return the values without repetitions; values of different types differ."""
    return tuple({(type(value), value): value for value in values}.values())


def has_value(values: Iterable[Value], value: Value) -> bool:
    """Return whether the value is among the values, with the same type."""
    return any(other == value and type(other) is type(value) for other in values)
