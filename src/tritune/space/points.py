"""The interface of points: those of a space with constraints, or listed ones."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from typing import Protocol

from tritune.space.config import Config, Value


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
