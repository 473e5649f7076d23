"""The base class of search strategies: asked for configs, told their times."""

from __future__ import annotations

import itertools
import random
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from tritune.space import Config, Points

#: Spaces up to this size are listed; larger ones are only ever sampled.
LISTABLE = 50_000

#: How many configs of each prior are proposed because they did well there, and of all together.
WINNER_ROUNDS = 3
MOST_WINNERS = 4


@dataclass(frozen=True)
class Prior:
    """Times for a near problem or on another device, in milliseconds.

    A time of None is a failure. A similarity of 1 is the nearest there is; towards 0, less is
    expected of it.
    """

    results: Mapping[Config, float | None]
    similarity: float = 1.0


class Strategy(ABC):
    """Proposes configs, learns their times, and proposes better ones.

    `ask` never returns a config that was asked or told before, and returns fewer than wanted only
    when the points are exhausted. `tell` may come later, in any order, or never; it may also bring
    results that were not asked for. The same points, random state and results give the same
    proposals.
    """

    name: ClassVar[str]

    def __init__(self, points: Points, rng: random.Random, prior: Sequence[Prior] = ()) -> None:
        self.points = points
        self.rng = rng
        self.prior = tuple(prior)
        self.results: dict[Config, float | None] = {}
        #: In the order they were asked or told; the values mean nothing.
        self._taken: dict[Config, None] = {}
        self._first = deque(winners(points, self.prior))
        self._shuffled: Iterator[Config] | None = None

    def ask(self, count: int) -> list[Config]:
        """Return the next configs to try, all new; none when every config was tried."""
        found: list[Config] = []
        while len(found) < count:
            config = self._next_winner() or self._propose()
            if config is None:
                break
            self._taken[config] = None
            found.append(config)
        return found

    def tell(self, config: Config, ms: float | None) -> None:
        """Take in how long a config took, or None if it failed."""
        self._taken[config] = None
        self.results[config] = ms

    @abstractmethod
    def _propose(self) -> Config | None:
        """Return one config that was not taken yet, or None when there is none left."""

    def _fresh(self, configs: Iterator[Config] | Sequence[Config]) -> Iterator[Config]:
        return (config for config in configs if config not in self._taken)

    def _any(self) -> Config | None:
        """Return a random config that was not taken yet, or None when there is none left."""
        if self._shuffled is None:
            self._shuffled = self._fresh(self._in_random_order())
        return next(self._shuffled, None)

    def _in_random_order(self) -> Iterator[Config]:
        if self.points.size() > LISTABLE:
            # Samples repeat each other before they cover everything; then the rest comes in order.
            known = -1
            while known < len(self._taken):
                known = len(self._taken)
                yield from self.points.sample(256, self.rng)
            yield from self.points.configs()
        else:
            everything = list(self.points.configs())
            self.rng.shuffle(everything)
            yield from everything

    def _next_winner(self) -> Config | None:
        while self._first:
            config = self._first.popleft()
            if config not in self._taken:
                return config
        return None


def winners(points: Points, prior: Sequence[Prior]) -> list[Config]:
    """Return the best configs of the priors, which take turns, the most similar first.

    In each round, the next of a prior has to differ in one parameter more from all those before:
    where a config leads nowhere, its neighbours do not either, and where it does, the search will
    look around it.
    """
    chosen: list[Config] = []
    ranked = [_ranked(one, points) for one in sorted(prior, key=lambda one: -one.similarity)]
    for differences in range(1, WINNER_ROUNDS + 1):
        for best in ranked:
            far = (c for c in best if all(_differ(c, other) >= differences for other in chosen))
            chosen.extend(itertools.islice(far, 1))
    return chosen[:MOST_WINNERS]


def _ranked(one: Prior, points: Points) -> list[Config]:
    worked = [(ms, config) for config, ms in one.results.items() if ms is not None]
    worked.sort(key=lambda entry: entry[0])
    return [config for _, config in worked if config in points]


def _differ(one: Config, other: Config) -> int:
    values, others = one.as_kwargs(), other.as_kwargs()
    return sum(values.get(name) != others.get(name) for name in values.keys() | others.keys())
