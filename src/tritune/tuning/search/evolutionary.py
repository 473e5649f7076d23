"""Evolution: children of the best configs, with mutations along the space's own neighbours."""

from __future__ import annotations

import heapq

from tritune.space import Config
from tritune.tuning.search.strategy import Strategy

#: The configs whose children are tried, and how many random ones come before the first child.
POPULATION = 16

#: The chance that a child is changed once more after its parents' values were mixed.
MUTATION = 0.4

#: How often a child that is no point of the space, or known, is replaced before chance takes over.
ATTEMPTS = 20


class Evolutionary(Strategy):
    """Mixes the parameters of two good configs, and now and then changes one."""

    name = "evolutionary"

    def _propose(self) -> Config | None:
        if len(self._taken) >= POPULATION:
            parents = self._parents()
            for _ in range(ATTEMPTS if parents else 0):
                child = self._child(parents)
                if child not in self._taken and child in self.points:
                    return child
        return self._any()

    def _parents(self) -> list[tuple[float, Config]]:
        """Return the best known configs, the best first."""
        known = ((ms, config) for config, ms in self.results.items() if ms is not None)
        return heapq.nsmallest(POPULATION, known, key=lambda entry: entry[0])

    def _child(self, parents: list[tuple[float, Config]]) -> Config:
        mother, father = self._choose(parents), self._choose(parents)
        other = father.as_kwargs()
        child = Config(
            tuple(
                (name, other[name] if name in other and self.rng.random() < 0.5 else value)
                for name, value in mother.values
            )
        )
        if child in self._taken or self.rng.random() < MUTATION:
            neighbours = self.points.neighbours(child if child in self.points else mother)
            if neighbours:
                return self.rng.choice(neighbours)
        return child

    def _choose(self, parents: list[tuple[float, Config]]) -> Config:
        """Return the better of two: the best are chosen more often, the others not never."""
        return parents[min(self.rng.randrange(len(parents)) for _ in range(2))][1]
