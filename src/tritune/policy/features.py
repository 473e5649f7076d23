"""Problems as numbers: how far two are apart, and the questions that a tree may ask about one."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from tritune.space import Value

Fields: TypeAlias = Mapping[str, Value]

#: Facts that are no numbers and differ count as much as a size that differs by this power of two.
OTHER_KIND = 3.0


def is_size(value: object) -> bool:
    """Whether a field is a number to be compared by its size; dtypes and flags are not."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def log_size(value: Value) -> float:
    """A number in powers of two; none at all (a window of 0) is a little less than 1."""
    number = float(value)
    return math.log2(number) if number > 0 else -1.0


def same_kind(one: Fields, other: Fields) -> bool:
    """Whether two problems differ in sizes only: they have the same dtype and flags."""
    return one.keys() == other.keys() and all(
        value == other[name] or (is_size(value) and is_size(other[name]))
        for name, value in one.items()
    )


def distance(one: Fields, other: Fields) -> float:
    """How unlike two problems are: the powers of two between sizes, and a few for other facts.

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


@dataclass(frozen=True)
class Question:
    """Something to ask about a problem: how large a field is, or whether it has a value."""

    field: str
    #: None: the question is about the size.
    value: Value | None = None

    def about(self, fields: Fields) -> float:
        answer = fields[self.field]
        return log_size(answer) if self.value is None else float(answer == self.value)


def questions(problems: Sequence[Fields]) -> tuple[Question, ...]:
    """Everything that can be asked to tell these problems apart, in a fixed order."""
    found = []
    for name in sorted(problems[0]):
        values = {problem[name] for problem in problems}
        if len(values) == 1:
            continue
        if all(is_size(value) for value in values):
            found.append(Question(name))
            continue
        told_apart = sorted(values, key=repr)
        # The last value is what is left when it is none of the others.
        found += [Question(name, value) for value in told_apart[:-1]]
    return tuple(found)
