"""Coordinate descent: one parameter at a time, again from elsewhere when nothing improves."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

from tritune.space import Config, Points
from tritune.tuning.search.strategy import Prior, Strategy


class Local(Strategy):
    """Walks along one parameter at a time to its best value, and restarts where that ends.

    What has not been told when a line has been walked does not count for the next step, so that a
    batch of any size can be asked for.
    """

    name = "local"

    def __init__(self, points: Points, rng: random.Random, prior: Sequence[Prior] = ()) -> None:
        super().__init__(points, rng, prior)
        self._centre: Config | None = None
        #: The parameters along which the centre was not yet left.
        self._axes: list[str] = []
        self._line: list[Config] = []

    def _propose(self) -> Config | None:
        if self._centre is None and self.results:
            self._begin(min(self.results, key=self._ms))
        while True:
            found = next(self._fresh(self._line), None)
            if found is not None:
                return found
            if self._centre is None or not self._next_line(self._centre):
                break
        chance = self._any()
        if chance is not None:
            self._begin(chance)
        return chance

    def _begin(self, centre: Config) -> None:
        self._centre = centre
        self._line = []
        self._axes = [name for name, values in self.points.parameters.items() if len(values) > 1]
        self.rng.shuffle(self._axes)

    def _next_line(self, centre: Config) -> bool:
        """Move to the best of the line, then take the next parameter, if there is one."""
        best = min(self._line, key=self._ms, default=centre)
        if self._ms(best) < self._ms(centre):
            self._begin(best)
            centre = best
        if not self._axes:
            return False
        axis = self._axes.pop()
        self._line = [
            other for other in self.points.neighbours(centre) if other.get(axis) != centre.get(axis)
        ]
        return True

    def _ms(self, config: Config) -> float:
        ms = self.results.get(config)
        return math.inf if ms is None else ms
