"""Compare problems by their fields; choose the configs of the nearest ones."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import TypeAlias

from tritune.space import Config, Value

Fields: TypeAlias = Mapping[str, Value]

#: Facts that are no numbers and differ count as much as a size that differs by this power of two.
OTHER_KIND = 3.0
#: The number of different configs that are offered, should the first not be valid for the problem.
OFFERED = 4


def nearest_configs(known: Iterable[tuple[Fields, Config]], fields: Fields) -> list[Config]:
    """Return the configs of problems with the same dtype and flags, the nearest first.

    The order of the known problems decides between equally near ones.
    """
    alike = [(problem, config) for problem, config in known if same_kind(problem, fields)]
    alike.sort(key=lambda pair: distance(pair[0], fields))
    return list(dict.fromkeys(config for _, config in alike))[:OFFERED]


def is_size(value: object) -> bool:
    """Return whether a field is compared by its size: a number, not a dtype or a flag."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def same_kind(one: Fields, other: Fields) -> bool:
    """Return whether two problems differ in sizes only: they have the same dtype and flags."""
    return one.keys() == other.keys() and all(
        value == other[name] or (is_size(value) and is_size(other[name]))
        for name, value in one.items()
    )


def distance(one: Fields, other: Fields) -> float:
    """Return how unlike two problems are: powers of two between sizes, and a few for other facts.

    Rounded, so that it is the same wherever it is computed.
    """
    away = 0.0
    for name in sorted({*one, *other}):
        a, b = one.get(name), other.get(name)
        if a == b:
            continue
        if a is not None and b is not None and is_size(a) and is_size(b):
            away += abs(log_size(a) - log_size(b))
        else:
            away += OTHER_KIND
    return round(away, 9)


def log_size(value: Value) -> float:
    """Return a number in powers of two; none at all (a window of 0) is a little less than 1."""
    number = float(value)
    return math.log2(number) if number > 0 else -1.0
