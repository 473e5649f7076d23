"""A model of the space: learns times and failures, and tries what promises the most."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

import numpy as np
from scipy.special import ndtr

from tritune.space import Config, Points
from tritune.tuning.search.encoding import Array, Encoding
from tritune.tuning.search.gaussian import GaussianProcess
from tritune.tuning.search.strategy import LISTABLE, Prior, Strategy

#: Configs that are spread over the space before the model is asked.
FIRST = 8

#: The model is fitted anew when there is this much more to learn from.
REFIT = 1.15


class Surrogate(Strategy):
    """Tries the config from which most improvement is expected.

    One Gaussian process learns the logarithm of the time, another which configs fail. The improvement
    that the one expects counts as much as the other believes that the config works. Configs that
    were asked for but not yet told are taken to be what the model expects, so that a batch spreads.
    """

    name = "surrogate"

    def __init__(self, points: Points, rng: random.Random, prior: Sequence[Prior] = ()) -> None:
        super().__init__(points, rng, prior)
        self._ready = False

    def _prepare(self) -> None:
        self._encode = Encoding(self.points.parameters)
        everything = self.points.size() <= LISTABLE
        self._pool = list(
            self.points.configs() if everything else self.points.sample(LISTABLE // 2, self.rng)
        )
        self._row = {config: row for row, config in enumerate(self._pool)}
        self._vectors = self._encode(self._pool)
        self._times = GaussianProcess(self._vectors)
        self._works = GaussianProcess(self._vectors)
        self._fitted = 0.0
        self._ready = True

    def _propose(self) -> Config | None:
        if not self._ready:
            self._prepare()
        taken = [self._row[config] for config in self._taken]
        if len(taken) == len(self._pool):
            return None
        good = sum(ms is not None for ms in self.results.values())
        if len(taken) < FIRST or good < 2:
            return self._pool[self._farthest(taken)]
        promise = self._promise()
        promise[taken] = -np.inf
        return self._pool[int(promise.argmax())]

    def _farthest(self, taken: list[int]) -> int:
        if not taken:
            return self.rng.randrange(len(self._pool))
        fresh = sorted(set(self.rng.sample(range(len(self._pool)), min(len(self._pool), 50))) - set(taken))
        if not fresh:
            fresh = sorted(set(range(len(self._pool))) - set(taken))
        apart = ((self._vectors[fresh][:, None] - self._vectors[taken][None]) ** 2).sum(2).min(1)
        return fresh[int(apart.argmax())]

    def _promise(self) -> Array:
        told = [(self._row[c], ms) for c, ms in self.results.items()]
        rows = [row for row, ms in told if ms is not None]
        logs = np.log([ms for _, ms in told if ms is not None])
        values = (logs - logs.mean()) / (logs.std() + 1e-9)
        pending = [self._row[c] for c in self._taken if c not in self.results]
        refit = len(told) >= self._fitted * REFIT
        if refit:
            self._times.fit(rows, values)
        best = values.min()
        if pending:
            mean, _ = self._times.predict(rows, values)
            values = np.append(values, mean[pending])
            rows = rows + pending
        mean, deviation = self._times.predict(rows, values)
        gap = (best - mean) / deviation
        promise = deviation * (gap * ndtr(gap) + np.exp(-gap**2 / 2) / math.sqrt(2 * math.pi))
        if len(logs) < len(told):
            every = [row for row, _ in told]
            works = np.array([0.0 if ms is None else 1.0 for _, ms in told])
            centred = works - works.mean()
            if refit:
                self._works.fit(every, centred / works.std())
            chance, _ = self._works.predict(every, centred)
            promise *= np.clip(chance + works.mean(), 0.01, 1)
        if refit:
            self._fitted = len(told)
        return promise
