"""The interface of points: those of a space with constraints, or listed ones."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

from tritune.space.config import Config, Value, has_value


class Points(Protocol):
    """The configs that can be tried. There is at least one."""

    @property
    def parameters(self) -> Mapping[str, tuple[Value, ...]]:
        """Return each parameter with all its values, in order."""

    def size(self) -> int:
        """Return the number of configs."""

    def configs(self) -> Iterator[Config]:
        """Yield every config once, in a fixed order."""

    def sample(self, count: int, rng: random.Random) -> list[Config]:
        """Draw different configs, each with the same chance; all where there are no more."""

    def neighbours(self, config: Config) -> list[Config]:
        """Return the configs that differ in one parameter, those with an adjacent value first."""

    def __contains__(self, config: object) -> bool:
        """Return whether it is one of the configs."""


def changed_once(
    values: Mapping[str, Any], domains: Mapping[str, Sequence[Any]]
) -> list[dict[str, Any]]:
    """Return the values with one of them changed, those with an adjacent value first."""
    found = []
    for axis, (name, domain) in enumerate(domains.items()):
        here = next((p for p, v in enumerate(domain) if has_value((values[name],), v)), None)
        for place, value in enumerate(domain):
            if place != here:
                distance = 1 if here is None else abs(place - here)
                found.append((distance, axis, place, {**values, name: value}))
    return [changed for *_, changed in sorted(found, key=lambda entry: entry[:3])]
