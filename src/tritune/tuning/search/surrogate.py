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
from tritune.tuning.search.transfer import levels, transfer

#: Configs that are spread over the space before the model is asked; fewer if there are priors.
SPREAD, SPREAD_WARM = 8, 4

#: A config of the spread is the farthest from all others among so many by chance.
CHOICE = 50

#: Of larger spaces than can be listed, the model looks at so many configs, and at what lies around
#: the best.
POOL = 20_000

#: The model is fitted anew when there is this much more to learn from.
REFIT = 1.15

#: The model learns from so many results at most: half of them the best, half by chance.
RESULTS = 300


class Surrogate(Strategy):
    """Tries the config from which most improvement is expected.

    One Gaussian process learns the logarithm of the time, another which configs fail. What
    improvement the one expects counts as much as the other believes that the config works. Configs
    that were asked for but not told yet are taken to be as the model expects, so that a batch
    spreads. What priors have measured is a trend, of which the model finds out how far it holds.
    """

    name = "surrogate"
    winners = 6

    def __init__(self, points: Points, rng: random.Random, prior: Sequence[Prior] = ()) -> None:
        super().__init__(points, rng, prior)
        self._encode = Encoding(points.parameters)
        self._pool: list[Config] = []
        self._row: dict[Config, int] = {}
        self._fitted = 0
        #: What the model learns from.
        self._basis: list[Config] = []
        self._around: Config | None = None

    def _propose(self) -> Config | None:
        if not self._pool:
            self._prepare()
        self._add([config for config in self._taken if config not in self._row])
        good = [config for config, ms in self.results.items() if ms is not None]
        if len(self._taken) == len(self._pool):
            return self._any()
        taken = [self._row[config] for config in self._taken]
        spread = SPREAD_WARM + self.winners if self._trend.size else SPREAD
        if len(taken) < spread or len(good) < 2:
            return self._pool[self._farthest(taken)]
        promise = self._promise()
        promise[taken] = -np.inf
        return self._pool[int(promise.argmax())]

    def _prepare(self) -> None:
        listable = self.points.size() <= LISTABLE
        pool = self.points.configs() if listable else self.points.sample(POOL, self.rng)
        known = (c for one in self.prior for c in one.results if listable or c in self.points)
        self._pool = list(dict.fromkeys([*pool, *(c for c in known if not listable)]))
        self._row = {config: row for row, config in enumerate(self._pool)}
        self._vectors = self._encode(self._pool)
        learned = transfer(self.prior, self._row, self._vectors, self.rng)
        self._trend = learned.trend
        self._times = GaussianProcess(self._vectors, learned.trend, learned.lengths)
        self._works = GaussianProcess(self._vectors)

    def _add(self, configs: list[Config]) -> None:
        if configs:
            self._row.update((config, len(self._pool) + n) for n, config in enumerate(configs))
            self._pool += configs
            vectors = self._encode(configs)
            self._vectors = np.vstack([self._vectors, vectors])
            self._times.extend(vectors)
            self._works.extend(vectors)

    def _farthest(self, taken: list[int]) -> int:
        rest = sorted(set(range(len(self._pool))) - set(taken))
        some = self.rng.sample(rest, min(len(rest), CHOICE))
        if not taken:
            return some[0]
        apart = ((self._vectors[some][:, None] - self._vectors[taken][None]) ** 2).sum(2).min(1)
        return some[int(apart.argmax())]

    def _promise(self) -> Array:
        refit = len(self.results) >= self._fitted * REFIT
        if refit:
            self._fitted = len(self.results)
        good = [c for c, ms in self.results.items() if ms is not None]
        logs = levels([self.results[c] for c in good])
        values = (logs - logs.mean()) / (logs.std() + 1e-9)
        rows = [self._row[c] for c in good]
        if refit:
            self._times.fit(rows, values)
        best = values.min()
        pending = [self._row[c] for c in self._taken if c not in self.results]
        if pending:
            mean, _ = self._times.predict(rows, values)
            values = np.append(values, mean[pending])
            rows = rows + pending
        mean, deviation = self._times.predict(rows, values)
        gap = (best - mean) / deviation
        promise = deviation * (gap * ndtr(gap) + np.exp(-(gap**2) / 2) / math.sqrt(2 * math.pi))
        if len(good) < len(self.results):
            every = [self._row[c] for c in self.results]
            works = np.array([0.0 if ms is None else 1.0 for ms in self.results.values()])
            centred = works - works.mean()
            if refit:
                self._works.fit(every, centred / works.std())
            chance, _ = self._works.predict(every, centred)
            promise *= np.clip(chance + works.mean(), 0.01, 1)
        return promise
