"""Exhaustive search: every config, in the order of the space."""

from __future__ import annotations

import random
from collections.abc import Sequence

from tritune.space import Config, Points
from tritune.tuning.search.strategy import Prior, Strategy


class Exhaustive(Strategy):
    """Tries everything, which only small spaces or great patience allow."""

    name = "exhaustive"

    def __init__(self, points: Points, rng: random.Random, prior: Sequence[Prior] = ()) -> None:
        super().__init__(points, rng, prior)
        self._rest = self._fresh(points.configs())

    def _propose(self) -> Config | None:
        return next(self._rest, None)
