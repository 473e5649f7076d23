"""What a search strategy searches: points, whether solved from constraints or listed."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from typing import Protocol

from tritune.space.config import Config, Value


class Points(Protocol):
    """The configs that can be tried. There is at least one."""

    @property
    def parameters(self) -> Mapping[str, tuple[Value, ...]]:
        """Each parameter with all the values it can take, in order."""

    def size(self) -> int:
        """How many configs there are."""

    def configs(self) -> Iterator[Config]:
        """Every config once, lazily, in a fixed order."""

    def sample(self, count: int, rng: random.Random) -> list[Config]:
        """Different configs, each with the same chance; all of them where there are no more."""

    def neighbours(self, config: Config) -> list[Config]:
        """The configs that differ in one parameter, those with an adjacent value first."""

    def __contains__(self, config: object) -> bool:
        """Whether it is one of the configs."""
