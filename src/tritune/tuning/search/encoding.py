"""Encoding of configs as vectors in which similar configs are close."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from tritune.space import Config, Value

Array = npt.NDArray[np.float64]

#: One column of the vectors: what each value of a parameter becomes, between 0 and 1.
_Column = Mapping[tuple[type, Value] | None, float]


class Encoding:
    """Turns configs into rows of numbers between 0 and 1.

    A number has two features: its size on a logarithmic scale, because doubling a tile matters
    alike everywhere, and how often it can be halved, because hardware works in powers of two: 96
    is in many ways nearer to 32 than to 100. Text has no order: it becomes one column per value.
    """

    def __init__(self, parameters: Mapping[str, Sequence[Value]]) -> None:
        self._columns: list[tuple[str, _Column]] = [
            (name, column) for name, values in parameters.items() for column in _columns(values)
        ]

    @property
    def width(self) -> int:
        return len(self._columns)

    def __call__(self, configs: Sequence[Config]) -> Array:
        rows = [config.as_kwargs() for config in configs]
        out = np.zeros((len(rows), self.width))
        for place, (name, column) in enumerate(self._columns):
            out[:, place] = [
                column.get((type(row[name]), row[name]) if name in row else None, 0.0)
                for row in rows
            ]
        return out


def _columns(values: Sequence[Value]) -> list[_Column]:
    keys = [(type(value), value) for value in values]
    if len(values) < 2:
        return []
    if any(isinstance(value, str) for value in values):
        return [{key: float(key == one) for key in keys} for one in keys]
    numbers = [float(value) for value in values]
    features: list[Callable[[float], float]] = [_size(numbers)]
    if all(number.is_integer() for number in numbers):
        # Among powers of two the halvings say nothing that the size does not.
        powers = all(abs(int(number)).bit_count() <= 1 for number in numbers)
        if not powers and len(set(map(_halvings, numbers))) > 1:
            features.append(_halvings)
    found: list[_Column] = []
    for feature in features:
        low, high = min(map(feature, numbers)), max(map(feature, numbers))
        found.append(
            {
                key: (feature(number) - low) / (high - low)
                for key, number in zip(keys, numbers, strict=True)
            }
        )
    return found


def _size(numbers: Sequence[float]) -> Callable[[float], float]:
    """Return a logarithmic scale; of log(1 + x) if zero is among the numbers, linear if negative
    ones are.
    """
    if min(numbers) > 0:
        return math.log2
    if min(numbers) == 0:
        return math.log1p
    return float


def _halvings(number: float) -> float:
    whole = abs(int(number))
    return float((whole & -whole).bit_length()) if whole else 0.0
